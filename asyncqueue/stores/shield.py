"""Let a piece of work run to its end although its caller is cancelled.

Cancelling an `await` on a database driver does not stop the driver: the statement still runs, and a
transaction may be left open. So a transaction runs in a task of its own, which its caller outwaits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["shielded"]

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """Run `work` to its end and return its result or raise its error.

    If the caller is cancelled meanwhile (once or often, by anyio or by `Task.cancel`), the work still
    ends first and the cancellation is raised after it; the work's own result or error is then dropped, a
    result after it was given to `undo` (which closes what nobody will ever close otherwise).
    Nothing runs on after this function has returned or raised.

    A loop that shuts down cancels the work's own task too. Work that has begun sees that and must clean up;
    work that has not (a rollback, a close) is begun all the same.
    """
    began = False

    async def run() -> T:
        nonlocal began
        began = True
        return await work

    task = asyncio.ensure_future(run())
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # else anyio would deliver its cancellation again and again
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancellation = error
            if task.done() and not began:
                task = asyncio.ensure_future(run())
    if cancellation is not None:
        # Asking for the exception marks it as seen, so that asyncio does not report it as never retrieved.
        if not task.cancelled() and task.exception() is None and undo is not None:
            await shielded(_undone(undo, task.result()))
        raise cancellation
    return task.result()


async def _undone(undo: Callable[[T], Awaitable[None]], result: T) -> None:
    await undo(result)
