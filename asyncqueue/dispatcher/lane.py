"""A lane: kinds of jobs that share one way to be carried out, one rest and one bound; and what goes along it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from asyncqueue.dispatcher.rest import EndpointRest
from asyncqueue.job import LeasedJob
from asyncqueue.retry import Outcome

__all__ = ["Answered", "Board", "Carry", "Delivery", "Ended", "Lane", "Seated"]

Carry = Callable[["Delivery"], Awaitable[Outcome]]


class Seated(Protocol):
    """A job that shares a request with others."""

    def leave(self) -> bool:
        """Give up; False if its request has not begun."""
        ...


Answered = Callable[[Outcome | Exception | None], None]
Board = Callable[[Iterable[tuple[LeasedJob, Answered]]], Sequence[Seated | None]]
"""Takes jobs into requests of many and tells how each ended; None, at once or later: it must go by itself."""


@dataclass(eq=False, slots=True)
class Lane:
    """A lane rests by itself, so a kind that fails does not hold the others up; `kinds=None` is every kind.

    `most` bounds how many of it are under way at once; the other lanes leave it `kept` slots, so that it is
    never shut out; `resource` is what must be entered before its first job; `board` takes jobs that can share a
    request.
    """

    kinds: tuple[str, ...] | None
    carry: Carry
    most: int
    timeout_ms: int | None = None
    resource: Any = None
    board: Board | None = None
    rest: EndpointRest = field(default_factory=EndpointRest)
    sending: int = 0
    kept: int = 0

    @property
    def unused(self) -> int:
        """How many of its kept slots it does not use now."""
        return max(0, self.kept - self.sending)

    def room(self, free: int) -> int:
        """Return how many of `free` slots may be filled with jobs of this lane now."""
        if self.rest.remaining_s() > 0:
            return 0
        return max(0, self.rest.limit(min(free, self.most - self.sending), self.sending))


class Cancellable(Protocol):
    """What carries a delivery, as far as it can be cut short."""

    def cancel(self) -> None:
        """Cut it short."""


class Ended(StrEnum):
    """Why a delivery was cut short."""

    TAKEN = "taken"  # a renewal was answered: not yours
    LAPSED = "lapsed"  # the lease ran out by this process's own monotonic clock
    STOPPED = "stopped"  # the dispatcher's grace period is over


@dataclass(eq=False, slots=True)
class Delivery:
    """One lease held by this process, from its claim until its report is answered.

    `renewed_at` and `lease_ends` are seconds on the event loop's clock: the holder's own view of its lease does
    not depend on the wall clock.
    """

    job: LeasedJob
    lane: Lane
    lease_until: int
    renewed_at: float
    lease_ends: float
    scope: Cancellable | None = None
    ended: Ended | None = None
    outcome: Outcome | None = None
    began_at: float = 0.0
    is_boarded: bool = False  # its request of many came to nothing: it goes by itself
    lost: asyncio.Event | None = None  # for a handler that wants to know

    def end(self, why: Ended) -> None:
        """Cut the send short; its outcome is decided by `why`."""
        if self.ended is None and self.outcome is None:
            self.ended = why
            if self.lost is not None:
                self.lost.set()
            if self.scope is not None:
                self.scope.cancel()

    def renewed(self, lease_until: int, asked_at: float, lease_s: float) -> None:
        """Take note of a renewal that was asked for at `asked_at` (loop seconds) for `lease_s` seconds."""
        if lease_until < self.job.deadline:
            self.lease_ends = asked_at + lease_s
        else:  # cut short by the job's deadline
            gained_s = (lease_until - self.lease_until) / 1000
            self.lease_ends = min(asked_at + lease_s, self.lease_ends + gained_s)
        self.lease_until = lease_until
        self.renewed_at = asked_at
