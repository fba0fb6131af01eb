"""The dispatcher: one chore a file, one task group, one way to stop."""

from asyncqueue.dispatcher.flight import Counts
from asyncqueue.dispatcher.run import Dispatcher, Health
from asyncqueue.dispatcher.settle import Handler, Sender

__all__ = ["Counts", "Dispatcher", "Handler", "Health", "Sender"]
