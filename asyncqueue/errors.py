"""Every error that asyncqueue raises on purpose.

One base, `AsyncQueueError`; the message is one line that says what is wrong and what to do. Errors about
an argument are also `ValueError`, as the contract layer promises.
"""

__all__ = [
    "AsyncQueueError",
    "BadAck",
    "BadEffect",
    "ConfigError",
    "Conflict",
    "ForkedProcess",
    "IllegalTransition",
    "InvalidJob",
    "NewerSchema",
    "NoTransaction",
    "NotAQueue",
    "NotDead",
    "Permanent",
    "QueueFull",
    "Retryable",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreMoved",
    "StoreUnreachable",
    "UnknownJob",
    "UnsupportedConnection",
]


class AsyncQueueError(Exception):
    """Base of all errors raised on purpose by this project."""


class Conflict(AsyncQueueError):
    """The id is taken by a job that differs; `fields` names what differs."""

    def __init__(self, message: str, *, job_id: str = "", fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.fields = fields


class Retryable(AsyncQueueError):
    """Raised by a send or a handler: this attempt failed, a later one may succeed."""


class Permanent(AsyncQueueError):
    """Raised by a send or a handler: no later attempt can succeed; the job is dead at once."""


class BadAck(AsyncQueueError):
    """The other side answered, but not with the acknowledgement of this job; its lease is left to run out."""


class BadEffect(AsyncQueueError):
    """An effect tried to end its transaction, or called its own queue, which would wait for the effect.

    Unless it swallows the second, it and its finish were undone, and the job is still leased.
    """


class InvalidJob(AsyncQueueError, ValueError):
    """A value is outside the documented type or range; nothing was changed."""


class NotDead(AsyncQueueError, ValueError):
    """A redrive named a job that does not exist or is not dead; nothing was changed.

    `status` is what the job is, None if there is none or if it is not known.
    """

    def __init__(self, message: str, *, status: str | None = None) -> None:
        super().__init__(message)
        self.status = status

    @classmethod
    def of(cls, job_id: str, status: str | None) -> "NotDead":
        """Return the error for a job in this status, None for a job that does not exist."""
        what = "does not exist" if status is None else f"is {status}"
        return cls(f"job {job_id} {what}: only a dead job can be redriven", status=status)


class UnknownJob(AsyncQueueError, LookupError):
    """There is no job with this id; nothing was changed or stored."""


class QueueFull(AsyncQueueError):
    """As many jobs wait as `max_pending` allows; nothing was stored. Slow down and try again."""


class IllegalTransition(AsyncQueueError, ValueError):
    """The lifecycle has no such (status, event) pair."""


class ConfigError(AsyncQueueError, ValueError):
    """A setting is missing, unknown, out of range or contradicts another one."""


class StoreError(AsyncQueueError):
    """The store could not do what was asked; nothing of the failed transaction is visible."""


class NotAQueue(StoreError):
    """The path or the database at it is not a queue that this version can open."""


class NewerSchema(NotAQueue):
    """The file was migrated by a newer version; this one refuses to touch it."""


class StoreMoved(NotAQueue):
    """The queue was moved, or is being moved, to another store; nothing can be changed here any more."""


class NoTransaction(StoreError):
    """The connection given to the outbox has no open transaction that the job could join; nothing was stored."""


class UnsupportedConnection(AsyncQueueError, TypeError):
    """The outbox cannot use an object of this kind, or a connection of this kind of database."""


class StoreBusy(StoreError):
    """Other writers held the database for longer than the configured patience."""


class StoreFull(StoreError):
    """The disk (or the quota) has no room; the transaction was rolled back."""


class StoreUnreachable(StoreError):
    """The database server did not answer within the configured patience, or is none that can be written."""


class StoreDamaged(StoreError):
    """SQLite cannot read the file any more: it is truncated, or parts of it were overwritten."""


class StoreDenied(StoreError):
    """The database server refused the user, the password, the database or a permission; a retry will not help."""


class StoreClosed(StoreError):
    """The store is not open (any more)."""


class ForkedProcess(StoreError):
    """The store was opened before a fork and used in the child; open a new one there instead."""
