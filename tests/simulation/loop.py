"""An asyncio event loop without a selector: the world runs it, one callback at a time.

Callbacks of `call_soon` keep their order, as asyncio promises. What it leaves open is decided by the seed: which
connection's bytes are reported first, and when a thread's answer comes in between.
"""

import asyncio
import heapq
import weakref
from collections.abc import Coroutine
from typing import Any

from tests.simulation import network


class SimLoop(asyncio.BaseEventLoop):
    """One per simulated process."""

    def __init__(self, world: Any, process: Any) -> None:
        super().__init__()
        self._world = world
        self._process = process
        self._todo = 0  # callbacks of this iteration that have not run
        self._reported: list[tuple[int, asyncio.Handle]] = []  # by the kernel: (connection, callback)
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.set_exception_handler(self._unhandled)

    def time(self) -> float:
        return self._world.now_ns / 1_000_000_000

    # --- run by the world ----------------------------------------------------------------------------------

    def next_ns(self) -> int | None:
        """When there is something to run: 0 for now, None for never."""
        return 0 if self._ready or self._reported else self.next_timer_ns()

    def next_timer_ns(self) -> int | None:
        """When the next timer is due, rounded up so that `time()` has then reached it."""
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._scheduled:
            return None
        return int(self._scheduled[0]._when * 1_000_000_000) + 2

    def run_one(self) -> None:
        """Run one callback; begin an iteration as asyncio does: what was reported, then what is due."""
        if not self._todo:
            self._take_reported()
            while (when_ns := self.next_timer_ns()) is not None and when_ns <= self._world.now_ns:
                handle = heapq.heappop(self._scheduled)
                handle._scheduled = False
                self._ready.append(handle)
            self._todo = len(self._ready)
        handle = self._ready.popleft()
        self._todo -= 1
        if not handle._cancelled:
            handle._run()

    def _take_reported(self) -> None:
        """Take one report of each connection, as a selector does; the rest is for the next iteration."""
        first: dict[int, asyncio.Handle] = {}
        rest = []
        for channel, handle in self._reported:
            if channel in first:
                rest.append((channel, handle))
            else:
                first[channel] = handle
        self._reported = rest
        handles = [*first.values()]
        if len(handles) > 1:
            self._world.rng.shuffle(handles)
        self._ready.extend(handles)

    def report(self, channel: int, callback: Any, *args: Any) -> None:
        """Let the kernel report something about one connection; the order within a connection is kept."""
        if not self.is_closed():
            self._reported.append((channel, asyncio.Handle(callback, args, self)))

    def create_task(self, coro: Coroutine[Any, Any, Any], **settings: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **settings)
        self._tasks.add(task)
        return task

    def left(self) -> list[Any]:
        """What would go on: `asyncio.all_tasks` looks through those of every loop there ever was."""
        unfinished = [task for task in self._tasks if not task.done()]
        return [*unfinished, *self._ready, *self._scheduled, *(handle for _channel, handle in self._reported)]

    def die(self) -> None:
        self._ready.clear()
        self._scheduled.clear()
        self._reported.clear()
        self._todo = 0
        self._closed = True

    # --- asked for by the code under test --------------------------------------------------------------------

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._world.thread is None:
            self._check_closed()
            self._ready.append(handle)
        elif not self.is_closed():
            self._world.at(self._world.rng.uniform(2e-6, 60e-6), self._from_thread, handle)
        return handle

    def _from_thread(self, handle: asyncio.Handle) -> None:
        if not self.is_closed():
            self._ready.append(handle)

    async def create_connection(self, protocol_factory: Any, *_args: Any, sock: Any, **_settings: Any) -> Any:
        return network.connected(self._process, protocol_factory, sock)

    async def create_server(self, protocol_factory: Any, *_args: Any, sock: Any, **_settings: Any) -> Any:
        return self._world.network.listen(self._process, protocol_factory, sock)

    def run_in_executor(self, _executor: Any, function: Any, *_args: Any) -> Any:
        raise NotImplementedError(f"no executor in a simulation: {function}")

    def _unhandled(self, _loop: Any, context: dict[str, Any]) -> None:
        if not self.is_closed():
            error = context.get("exception")
            self._world.fail(f"an error that nobody saw: {context['message']} {type(error).__name__}: {error}")
