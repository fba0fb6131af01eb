"""Where the live jobs of a queue begin, so that claims need not pass over all that has ended before.

An index keeps the entries of ended jobs until the next vacuum: thousands a second, each passed over by every claim
that walks from the beginning. When a floor is seen, no live job is before it; pending and leased are both live, so
retries and lost leases never are. Only a redrive, and a commit much later than its enqueue, make a job live there:
the floor is forgotten after a second, and whenever a claim gets less than it asked for. Until then such a job may
be passed over by later ones, and is never lost.
"""

import time
from typing import Any, Final, NamedTuple

__all__ = ["Floor"]

_KNOWN_S: Final = 1.0


class Floor(NamedTuple):
    """The fine bucket before which `queue` has no live job at its only level, -priority; until then, monotonic."""

    level: int
    queue: str
    bucket: int
    until: float

    @classmethod
    def seen(cls, rows: list[Any], level: int, queue: str) -> "Floor | None":
        """Return what a claim's rows tell."""
        return cls(level, queue, rows[0]["floor"], time.monotonic() + _KNOWN_S) if rows else None

    @property
    def holds(self) -> bool:
        """Whether it is young enough."""
        return time.monotonic() < self.until

    def raised(self, rows: list[Any]) -> "Floor":
        """Return the same, no younger, as a later claim's rows tell."""
        return self._replace(bucket=rows[0]["floor"])
