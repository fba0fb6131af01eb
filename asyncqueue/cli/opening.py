"""How a command opens a queue that is there: nothing is created, and the file keeps its journal mode.

A command that only reads asks for no more than that: it works on a file that cannot be written, too.
"""

from contextlib import AbstractAsyncContextManager

from asyncqueue.cli.failure import Failed
from asyncqueue.queue import Queue
from asyncqueue.stores.url import shown

__all__ = ["existing", "no_such_job", "no_such_queue", "readable"]


def existing(db: str) -> AbstractAsyncContextManager[Queue]:
    """Open the queue at `db`, a file or a URL. Raises `NotAQueue` if there is none."""
    return Queue.open(db, journal="keep", create=False)


def readable(db: str) -> AbstractAsyncContextManager[Queue]:
    """Open the queue at `db` for reads alone, even if the file cannot be written. Raises `NotAQueue`."""
    return Queue.open(db, journal="keep", only_reads=True)


def no_such_job(db: str, id: str) -> Failed:
    """Return the error for an id that nobody has."""
    return Failed(f"job {id}: no such job in {shown(db)}: see 'asyncqueue job list'")


def no_such_queue(db: str, name: str) -> Failed:
    """Return the error for a queue that was never used."""
    return Failed(f"queue {name}: no such queue in {shown(db)}: see 'asyncqueue queue list'")
