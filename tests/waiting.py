"""The one place where the tests wait: bounded, for a condition, never for a time."""

import inspect
from collections.abc import Callable

import anyio

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 20
_LOOK_S = 0.002


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Look until `condition()` (or what awaiting it answers) is true; a test that waits in vain fails.

    For what has no event to wait for: another process, the kernel, the rows of a database, a counter.
    """
    with anyio.fail_after(seconds):
        while not await _answer(condition):
            await anyio.sleep(_LOOK_S)


async def _answer(condition: Callable[[], object]) -> object:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer
