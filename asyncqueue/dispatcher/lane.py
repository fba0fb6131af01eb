"""A lane: the kinds of jobs that share one way to be carried out, one rest and one bound."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from asyncqueue.dispatcher.rest import EndpointRest
from asyncqueue.job import LeasedJob
from asyncqueue.retry import Outcome

if TYPE_CHECKING:
    from asyncqueue.dispatcher.flight import Delivery

__all__ = ["Answered", "Board", "Carry", "Lane", "Seated"]

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
