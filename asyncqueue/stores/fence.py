"""Tokens above all that were ever given out, for a database that was put back to an earlier state.

What happened since then is forgotten: which tokens were given out, and which ids were there. So the floor from
which all tokens go on is the time in milliseconds, which no counter reaches: a job is not claimed once a
millisecond, all its life.
"""

from collections.abc import Sequence
from typing import Final

from asyncqueue.errors import NotAQueue, StoreError
from asyncqueue.job import TOKEN_MAX

__all__ = ["has_floor", "next_floor"]

_COLUMNS: Final = ("one", "token")


def has_floor(columns: Sequence[str], shown: str) -> bool:
    """Tell whether a store has a table for its floor, by the columns of whatever is named `token_floor` there.

    Raises `NotAQueue` for somebody else's table: a queue may live in a database of a service.
    """
    if columns and tuple(columns) != _COLUMNS:
        raise NotAQueue(
            f"{shown}: has a table `token_floor` of somebody else's, a name that restore needs; rename that "
            "table; nothing was changed"
        )
    return bool(columns)


def next_floor(now_ms: int, before: int, most: int, shown: str) -> int:
    """Return the next floor: above the one `before`, and above `most`, the largest token that is still there."""
    floor = max(now_ms, before + 1, most + 1)
    if floor >= TOKEN_MAX:
        raise StoreError(f"{shown}: the tokens end at {TOKEN_MAX}; is the clock right? Nothing was changed")
    return floor
