"""Where the live jobs of a queue begin, so that claims need not pass over all that has ended before.

An index keeps the entries of ended jobs until the next vacuum: thousands a second, each passed over by every claim
that walks from the beginning. Before a floor there is no live job, and none turns up there unnoticed:

- Pending and leased are both live, so retries, releases and lost leases are never below it.
- A job that is committed long after its `seq` was drawn: the floor stays at or below the last `seq` of which all
  transactions that may have drawn it, or a smaller one, had ended when the claim looked (`Decided`).
- A redrive, another server or one that has forgotten commits: the claim that is given a floor compares the
  `era` in its own snapshot, and takes nothing if that has changed.

It is forgotten after a second all the same, for those who change tables by hand.
"""

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

__all__ = ["Decided", "Floor", "Sight", "Signs"]

_KNOWN_S: Final = 1.0
_BUCKET_BITS: Final = 7  # of CLAIM: a fine bucket is 128 seqs


class Signs(NamedTuple):
    """What a claim saw beside its jobs; in the order of `statements.CLAIM`.

    `first` is the first fine bucket with a live job of the (first) queue that was asked, `last` the last seq that
    was drawn, `oldest` the oldest transaction under way in its snapshot, `xact` its own.
    """

    first: int
    last: int
    oldest: int
    xact: int
    server: str
    redrives: int

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Self:
        """Return what the statement wrote in each of its rows."""
        return cls.read(rows[0]["signs"])

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what the statement wrote in one text."""
        first, last, oldest, xact, server, redrives = text.split(" ")
        return cls(int(first), int(last), int(oldest), int(xact), server, int(redrives))

    @property
    def era(self) -> str:
        """What changes when jobs may have come to life again that had ended."""
        return f"{self.server} {self.redrives}"


class Decided(NamedTuple):
    """Up to which `seq` all transactions that drew one had ended: those jobs are there for all to see, or never.

    Who draws has a number already (the trigger `jobs_numbered`), so who gets one later has a larger one:
    `next_seq` was drawn before `waits_for` got its own.
    """

    server: str = ""
    seq: int = 0
    last: int = 0  # when the last claim looked
    next_seq: int = 0  # decided as soon as
    waits_for: int = 0  # no transaction before this one is under way

    def after(self, signs: Signs) -> "Decided":
        """Return what is decided in the snapshot of a claim whose transaction began after this was known."""
        if signs.server != self.server or signs.last < self.last:  # or somebody has set the sequence back
            return Decided(signs.server, last=signs.last)
        if signs.oldest < self.waits_for:
            return self._replace(last=signs.last)
        return Decided(self.server, self.next_seq, signs.last, next_seq=self.last, waits_for=signs.xact)


class Floor(NamedTuple):
    """The fine bucket before which `queue` has no live job at its only level, -priority; until then, monotonic."""

    level: int
    queue: str
    bucket: int
    era: str
    until: float

    @classmethod
    def seen(cls, level: int, queue: str, signs: Signs, decided: Decided) -> "Floor":
        """Return what a claim that walked from the beginning has seen."""
        return cls(level, queue, _bucket(signs, decided), signs.era, time.monotonic() + _KNOWN_S)

    @property
    def holds(self) -> bool:
        """Whether it is young enough."""
        return time.monotonic() < self.until

    def serves(self, queues: Sequence[str] | None) -> bool:
        """Tell whether it says anything to a claim from these queues, or from all."""
        return self.holds and (queues is None or self.queue in queues)

    def raised(self, signs: Signs, decided: Decided) -> "Floor":
        """Return the same, no younger, as a claim from this floor on has seen."""
        return self._replace(bucket=max(self.bucket, _bucket(signs, decided)))


class Sight(NamedTuple):
    """What a store knows of its queue, from one claim to the next."""

    floor: Floor | None = None
    decided: Decided = Decided()


def _bucket(signs: Signs, decided: Decided) -> int:
    return min(signs.first, decided.seq >> _BUCKET_BITS)
