"""The floor of a file's tokens; see `stores.fence`."""

from asyncqueue.stores.fence import Ask, next_floor, read_floor
from asyncqueue.stores.sqlite import statements

__all__ = ["floor_of", "keep_floor", "raise_tokens"]


async def raise_tokens(ask: Ask, now_ms: int, shown: str) -> int:
    """Raise every token, and those of ids to come, to a new floor; return it. Inside a write transaction.

    Raises `NotAQueue` if somebody else has a table of that name, `StoreError` for a time beyond all tokens.
    """
    before = await floor_of(ask, shown)
    ((most,),) = await ask(statements.FENCE_MOST)
    floor = next_floor(now_ms, before, most, shown)
    await keep_floor(ask, floor)
    await ask(statements.FENCE_RAISE, {"floor": floor})
    return floor


async def floor_of(ask: Ask, shown: str) -> int:
    """Return the floor, 0 for a database that was never put back."""
    return await read_floor(ask, statements.FENCE_COLUMNS, statements.FENCE_LOOK, shown)


async def keep_floor(ask: Ask, floor: int) -> None:
    """Let ids to come begin at this floor, or at a higher one that is there."""
    for statement in statements.FENCE_MAKE:
        await ask(statement)
    await ask(statements.FENCE_SET, {"floor": floor})
