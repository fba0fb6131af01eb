"""Tokens above all that were ever given out, for a database that was put back to an earlier state.

What happened since then is forgotten: which tokens were given out, and which ids were there. So the floor from
which all tokens go on is the time in milliseconds, which no counter reaches: a job is not claimed once a
millisecond, all its life.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from asyncqueue.errors import StoreError
from asyncqueue.job import TOKEN_MAX
from asyncqueue.stores.extra import has_table

__all__ = ["Ask", "next_floor", "read_floor"]

Ask = Callable[..., Awaitable[Iterable[Any]]]
"""Runs one statement, with its arguments as the store's driver takes them, and returns its rows."""

_COLUMNS: Final = ("one", "token")


async def read_floor(ask: Ask, columns: str, look: str, shown: str) -> int:
    """Return the floor by a store's statements, 0 for a database that was never put back; see `has_table`."""
    if not has_table("token_floor", [row[0] for row in await ask(columns)], _COLUMNS, "restore", shown):
        return 0
    ((floor,),) = await ask(look)
    return int(floor)


def next_floor(now_ms: int, before: int, most: int, shown: str) -> int:
    """Return the next floor: above the one `before`, and above `most`, the largest token that is still there."""
    floor = max(now_ms, before + 1, most + 1)
    if floor >= TOKEN_MAX:
        raise StoreError(f"{shown}: the tokens end at {TOKEN_MAX}; is the clock right? Nothing was changed")
    return floor
