"""Effects, as their stores see them: how one failed, and who is inside one.

Whatever waits for the transaction that an effect runs in would wait for ever. The mark is a context variable: it
follows the effect into the tasks and the threads that it starts, and is void once the effect has ended, for those
that outlive it.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from asyncqueue.errors import BadEffect
from asyncqueue.job import EffectWork

__all__ = ["failure_of", "is_inside", "marked"]


@dataclass(eq=False, slots=True)
class _Mark:
    owner: object
    place: object
    is_open: bool = True


_MARKS: Final[ContextVar[tuple[_Mark, ...]]] = ContextVar("asyncqueue_effects", default=())


def marked(effect: EffectWork, owner: object, place: object) -> EffectWork:
    """Return `effect` so that `is_inside` is true of `owner`, and of its `place`, while it runs.

    What the caller is inside of right now is remembered as well: the effect may run in a task of somebody else.
    """
    outer = _open_marks()

    async def run(connection: Any) -> object:
        mark = _Mark(owner, place)
        before = _MARKS.get()
        _MARKS.set((*outer, mark))
        try:
            return await effect(connection)
        finally:
            mark.is_open = False
            _MARKS.set(before)

    return run


async def failure_of(effect: EffectWork, connection: Any) -> Exception | None:
    """Run `effect` on what it may use of its transaction; return what it failed with, None if it did not."""
    try:
        await effect(connection)
    except Exception as error:  # noqa: BLE001 - handed to whoever reported
        return error
    except asyncio.CancelledError:  # of something that it waited for: that must not cancel those beside it
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return BadEffect("the effect was cancelled from within, and undone")
    return None


def is_inside(owner: object, place: Callable[[], object] | None = None) -> bool:
    """Tell whether an effect that was marked with `owner`, or with this place if one is given, is what calls."""
    marks = _open_marks()
    if not marks:
        return False
    where = place() if place else None
    return any(mark.owner is owner or (where is not None and mark.place == where) for mark in marks)


def _open_marks() -> tuple[_Mark, ...]:
    return tuple(mark for mark in _MARKS.get() if mark.is_open)
