"""Run a coroutine and cancel its task at the n-th await that really waits."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any

__all__ = ["Awaits", "cancelled_at"]


class Awaits:
    """Counts the awaits of one coroutine at which it waits, and cancels its task at the chosen ones."""

    def __init__(self, *cancelled: int) -> None:
        self._cancelled = cancelled
        self.count = 0
        self.hits = 0

    @classmethod
    def at(cls, number: int, *, twice: bool) -> "Awaits":
        """Cancel at the await `number`, and if `twice` at the next."""
        return cls(number, number + 1) if twice else cls(number)

    @types.coroutine
    def follow(self, awaitable: Awaitable[Any]) -> Generator[Any, Any, Any]:
        """Await it, counting."""
        iterator = awaitable.__await__()
        resume: Callable[[Any], Any] = iterator.send
        value: Any = None
        while True:
            try:
                waited_for = resume(value)
            except StopIteration as end:
                return end.value
            self._reach()
            try:
                resume, value = iterator.send, (yield waited_for)
            except BaseException as error:  # noqa: BLE001 - handed into the coroutine, whatever it is
                resume, value = iterator.throw, error

    def _reach(self) -> None:
        if self.count in self._cancelled:
            self.hits += 1
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        self.count += 1


async def cancelled_at(call: Callable[[], Awaitable[Any]], number: int, *, twice: bool) -> bool:
    """Run `call()` in a task that is cancelled at its await `number` (`twice`: and at the next); tell if it came.

    A cancellation that comes must go out again: one that is swallowed lets its task run on for ever.
    """
    awaits = Awaits.at(number, twice=twice)

    async def run() -> Any:
        return await awaits.follow(call())

    task = asyncio.ensure_future(run())
    await asyncio.wait((task,))
    assert task.cancelled() == (awaits.hits > 0), f"await {number}: cancelled, and yet it ended by {task!r}"
    if not awaits.hits:
        task.result()
    return awaits.hits > 0
