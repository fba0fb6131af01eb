"""Timeouts for many sends at once, by one timer of the event loop.

`asyncio.timeout` makes a timer for each send and cancels it when the answer comes, as it nearly always does: about
a tenth of what a send costs. Sends of one sender all get the same span, so the one that began first is the first
to be over, and one timer for that one does for all.
"""

import asyncio
from collections import OrderedDict
from types import TracebackType
from typing import Self

__all__ = ["Timeouts"]


class Timeouts:
    """Limits of `seconds` (above 0) each, for tasks of the event loop in which this was made."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._running: OrderedDict[_Limit, None] = OrderedDict()  # in the order in which they end
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float | None = None) -> "_Limit":
        """Return what limits a `with` block to `seconds` (None: the span of all), as `asyncio.timeout` would.

        The task is then cancelled in the block, and `TimeoutError` raised at its end; a cancellation by somebody
        else passes through. To be entered once, by a task.
        """
        return _Limit(self, seconds)

    def begin(self, limit: "_Limit") -> None:
        """Let a limit run from now on; asked for by the limit itself."""
        seconds = limit.seconds
        if seconds is not None and seconds != self._seconds:
            limit.timer = self._loop.call_later(seconds, limit.end)
            return
        limit.ends_at = self._loop.time() + self._seconds
        self._running[limit] = None
        if self._timer is None:
            self._timer = self._loop.call_at(limit.ends_at, self._end_what_is_over)

    def leave(self, limit: "_Limit") -> None:
        """Let a limit go that is not over; asked for by the limit itself."""
        if limit.timer is not None:
            limit.timer.cancel()
            return
        self._running.pop(limit, None)
        if not self._running and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_what_is_over(self) -> None:
        """End what is over, and look again when the next one may be."""
        self._timer = None
        now = self._loop.time()
        while self._running:
            first = next(iter(self._running))
            if first.ends_at > now:
                self._timer = self._loop.call_at(first.ends_at, self._end_what_is_over)
                return
            del self._running[first]
            first.end()


class _Limit:
    __slots__ = ("_cancelling", "_is_over", "_task", "_timeouts", "ends_at", "seconds", "timer")

    def __init__(self, timeouts: Timeouts, seconds: float | None) -> None:
        self._timeouts = timeouts
        self._is_over = False
        self.seconds = seconds
        self.ends_at = 0.0  # loop seconds
        self.timer: asyncio.TimerHandle | None = None  # of its own, if its span is another one

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout must be used inside a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._timeouts.begin(self)
        return self

    def end(self) -> None:
        self._is_over = True
        self._task.cancel()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_over:
            self._timeouts.leave(self)
        elif self._task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError:
            raise TimeoutError from exc
