"""Sends that wait at the same moment share one request. No wait is added to gather them.

Knows nothing of HTTP: it forms the sets, lets each caller leave its own alone, and hands out the outcomes.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from asyncqueue.job import LeasedJob
from asyncqueue.retry import Certainty, Outcome, Verdict

__all__ = ["UNDER_WAY_MAX", "Answer", "Answered", "Gatherer", "Seat"]

UNDER_WAY_MAX: Final = 4
_BRACKETS: Final = 2
_LEFT_S_MIN: Final = 0.001  # a timeout of 0 would be none

_NOT_SENT: Final = Outcome(Verdict.HOLD, Certainty.NOT_SENT, "the sender was closed")
_CUT_OFF: Final = Outcome(Verdict.RETRY, Certainty.UNKNOWN, "the sender was closed while the job was in flight")
_OUT_OF_TIME: Final = Outcome(Verdict.RETRY, Certainty.UNKNOWN, "no answer before the deadline")
_NEVER_BEGUN: Final = Outcome(Verdict.RETRY, Certainty.NOT_SENT, "deadline passed")


Answer = Outcome | Exception | None
"""What came of a job in a request; None means: send it by itself."""

Answered = Callable[[Answer], None]


@dataclass(eq=False, slots=True)
class Seat:
    """A job in a request, or waiting for one; `answered` is told what came of it, unless it leaves before.

    `item` is the job as it is sent; `ends_at`, in loop seconds, is when nobody waits any more; `timer` ends a wait
    that is shorter than the request's.
    """

    job: LeasedJob
    item: bytes
    ends_at: float
    answered: Answered
    ride: "_Ride | None" = None
    timer: asyncio.TimerHandle | None = None
    is_over: bool = False
    waiter: asyncio.Future[Outcome | None] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits any more; a task may have been cancelled and not yet woken up to leave."""
        return self.is_over or (self.waiter is not None and self.waiter.done())

    def tell(self, answer: "Answer") -> None:
        """Hand the answer to who waits, if anybody still does."""
        if not self.is_over:
            self._end()
            self.answered(answer)

    def leave(self) -> bool:
        """Give up; the request goes on for the others, and the last to leave ends it. False if it never left."""
        ride = self.ride
        if not self.is_over:
            self._end()
            if ride is not None:
                ride.left -= 1
                if ride.left <= 0 and ride.task is not None:
                    ride.task.cancel()
        return ride is not None

    def expire(self) -> None:
        """End the wait at the job's own deadline."""
        if not self.is_over:
            has_left = self.leave()
            self.answered(_OUT_OF_TIME if has_left else _NEVER_BEGUN)

    def _end(self) -> None:
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()


@dataclass(eq=False, slots=True)
class _Ride:
    """One request under way; `left` counts those who still wait for it."""

    seats: list[Seat]
    left: int
    task: "asyncio.Task[None] | None" = None


Post = Callable[[Sequence[Seat], float], Awaitable[Sequence[Outcome | None]]]


class Gatherer:
    """Forms requests of up to `jobs_max` jobs and `bytes_max` bytes and runs each through `post`.

    `post(seats, timeout_s)` returns an outcome for each seat, in order. A full request leaves at once; of
    others at most UNDER_WAY_MAX are under way, and what waits meanwhile goes together,
    after `patience_s` at the latest. Who is left alone is told to go alone.
    """

    def __init__(self, post: Post, *, jobs_max: int, bytes_max: int, patience_s: float) -> None:
        self.bytes_max = bytes_max
        self._post = post
        self._jobs_max = jobs_max
        self._patience_s = patience_s
        self._waiting: deque[Seat] = deque()
        self._rides: set[_Ride] = set()
        self._flush_soon: asyncio.Handle | None = None
        self._flush_late: asyncio.TimerHandle | None = None

    def board(self, job: LeasedJob, item: bytes, ends_at: float, answered: Answered, *, ends_early: bool) -> Seat:
        """Take `job` along, and tell `answered` at `ends_at` (loop seconds) at the latest; never from within.

        `ends_early` marks a job that has less time than a request may take: its wait ends, the request goes on.
        """
        loop = asyncio.get_running_loop()
        seat = Seat(job, item, ends_at, answered)
        if ends_early:
            seat.timer = loop.call_at(ends_at, seat.expire)
        self._waiting.append(seat)
        if self._flush_soon is None and (self._flush_late is None or self._may_leave()):
            self._flush_soon = loop.call_soon(self._flush)
        return seat

    async def send(self, job: LeasedJob, item: bytes, ends_at: float, *, ends_early: bool) -> Outcome | None:
        """Do what `board` does, and return the answer. Cancelled, it leaves at once."""
        answer: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

        def answered(outcome: Answer) -> None:
            if answer.done():
                return  # cancelled, and not yet awake to leave
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        seat = self.board(job, item, ends_at, answered, ends_early=ends_early)
        seat.waiter = answer
        try:
            return await answer
        except asyncio.CancelledError:
            seat.leave()
            raise

    async def close(self) -> None:
        """End every request under way, and every wait."""
        for handle in (self._flush_soon, self._flush_late):
            if handle is not None:
                handle.cancel()
        self._flush_soon = self._flush_late = None
        while self._waiting:
            self._waiting.popleft().tell(_NOT_SENT)
        tasks = [ride.task for ride in self._rides if ride.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _may_leave(self) -> bool:
        return len(self._rides) < UNDER_WAY_MAX or len(self._waiting) >= self._jobs_max

    def _flush(self) -> None:
        """Let leave what may: called once all who are ready in this turn of the loop have come."""
        self._flush_soon = None
        while self._waiting and self._may_leave():
            self._start()
        if self._waiting and self._flush_late is None:
            self._flush_late = asyncio.get_running_loop().call_later(self._patience_s, self._flush_all)

    def _flush_all(self) -> None:
        """Let leave everybody: the requests under way take too long to be waited for."""
        self._flush_late = None
        while self._waiting:
            self._start()

    def _start(self) -> None:
        seats = self._take()
        if len(seats) == 1:
            seats[0].tell(None)
        elif seats:
            ride = _Ride(seats, len(seats))
            for seat in seats:
                seat.ride = ride
            self._rides.add(ride)
            ride.task = asyncio.create_task(self._carry(ride), name="asyncqueue-batch-request")

    def _take(self) -> list[Seat]:
        seats: list[Seat] = []
        bytes_left = self.bytes_max - _BRACKETS
        while self._waiting and len(seats) < self._jobs_max:
            seat = self._waiting[0]
            if not seat.is_gone:
                bytes_left -= len(seat.item) + 1
                if seats and bytes_left < 0:
                    break
                seats.append(seat)
            self._waiting.popleft()
        return seats

    async def _carry(self, ride: _Ride) -> None:
        seats = ride.seats
        try:
            left_s = _ends_at(seats) - asyncio.get_running_loop().time()
            outcomes = await self._post(seats, max(left_s, _LEFT_S_MIN))
            for seat, outcome in zip(seats, outcomes, strict=True):
                seat.tell(outcome)
        except Exception as error:  # noqa: BLE001 - a bug of ours: every caller is told, none hangs
            for seat in seats:
                seat.tell(error)
        finally:
            for seat in seats:
                seat.tell(_CUT_OFF)  # only if this task was cancelled
            self._rides.discard(ride)
            if self._waiting and self._flush_soon is None:
                self._flush_soon = asyncio.get_running_loop().call_soon(self._flush)


def _ends_at(seats: Sequence[Seat]) -> float:
    """Return when a request must have ended: with its first job that has the whole time, else with the last."""
    whole = next((seat.ends_at for seat in seats if seat.timer is None), None)
    return max(seat.ends_at for seat in seats) if whole is None else whole
