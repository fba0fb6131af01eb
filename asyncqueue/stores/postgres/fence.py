"""The floor of a schema's tokens; see `stores.fence`. The time is the server's."""

from asyncqueue.stores.fence import Ask, next_floor, read_floor
from asyncqueue.stores.postgres import statements

__all__ = ["floor_of", "keep_floor", "raise_tokens"]


async def raise_tokens(ask: Ask, now_ms: int | None, shown: str) -> int:
    """Raise every token, and those of ids to come, to a new floor; return it. Inside a write transaction.

    Whoever writes jobs is waited for, and waits. Raises `NotAQueue` if somebody else has a table of that name,
    `StoreError` for a time beyond all tokens.
    """
    await ask(statements.FENCE_TURN)
    before = await floor_of(ask, shown)
    ((now, most),) = await ask(statements.FENCE_MOST, now_ms)
    floor = next_floor(now, before, most, shown)
    await keep_floor(ask, floor)
    await ask(statements.FENCE_RAISE, floor)
    return floor


async def floor_of(ask: Ask, shown: str) -> int:
    """Return the floor, 0 for a database that was never put back."""
    return await read_floor(ask, statements.FENCE_COLUMNS, statements.FENCE_LOOK, shown)


async def keep_floor(ask: Ask, floor: int) -> None:
    """Let ids to come begin at this floor."""
    for statement in statements.FENCE_MAKE:
        await ask(statement.format(floor=int(floor)))
    await ask(statements.FENCE_SET, floor)
