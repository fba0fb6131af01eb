"""The dispatcher: one chore a file, one task group, one way to stop."""

from asyncqueue.dispatcher.flight import Counts
from asyncqueue.dispatcher.handle import Context, Handler, in_thread
from asyncqueue.dispatcher.purge import Retention
from asyncqueue.dispatcher.run import Dispatcher, Health
from asyncqueue.dispatcher.settle import Sender

__all__ = ["Context", "Counts", "Dispatcher", "Handler", "Health", "Retention", "Sender", "in_thread"]
