"""Which of a store's errors no waiting can mend, and how long some of them must stand until they are believed.

Everything else passes, or may: a store that is busy, full, away or a replica without a primary is waited for, for
ever if need be. So is whatever is not known: a dispatcher that ends too soon delivers nothing.
"""

from typing import Final

from asyncqueue.errors import (
    AsyncQueueError,
    ConfigError,
    ForkedProcess,
    NewerSchema,
    NotAQueue,
    StoreClosed,
    StoreDamaged,
    StoreDenied,
    StoreMoved,
)

__all__ = ["STANDS_S", "Refusals"]

_FOR_GOOD: Final = (StoreMoved, NewerSchema, ForkedProcess)
# What an operator may be about to mend: rights that are revoked and granted anew, a pooler that reads its users
# again, a new primary whose access rules come a moment later, tables that are restored, a file that is moved back.
_IF_IT_STANDS: Final = (NotAQueue, StoreDenied, StoreDamaged, StoreClosed, ConfigError)

STANDS_S: Final = 10.0


class Refusals:
    """What one chore is refused, pass by pass. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def is_last(self) -> bool:
        """Whether the last pass was refused."""
        return self._since is not None

    def note(self, error: Exception | None, now: float) -> AsyncQueueError | None:
        """Take note of how a pass ended; return its error if no later pass will end otherwise.

        A refusal that may be mended must have stood for STANDS_S, with no other end of a pass between.
        """
        if not isinstance(error, (*_FOR_GOOD, *_IF_IT_STANDS)):
            self._since = None
            return None
        if self._since is None:
            self._since = now
        return error if isinstance(error, _FOR_GOOD) or now >= self._since + STANDS_S else None
