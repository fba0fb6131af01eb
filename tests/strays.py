"""A task that outlives the effect which began it, as no effect should leave one."""

import asyncio
from typing import Any

import asyncpg

__all__ = ["Stray"]


class Stray:
    """Tries to begin a transaction on the effect's connection once the effect has ended."""

    def __init__(self) -> None:
        self.told: list[str] = []  # what became of it
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, connection: Any) -> None:
        """Begin; to be called by the effect, and once only if it is called again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(connection))

    async def run_on(self) -> None:
        """Let it go on now that the effect has ended, for as long as it can."""
        assert self._task is not None
        self._ended.set()
        await asyncio.wait((self._task,), timeout=5)

    async def _run(self, connection: Any) -> None:
        await self._ended.wait()
        try:
            async with connection.transaction():
                self.told.append("began")
                await asyncio.Event().wait()
        except asyncpg.InterfaceError as error:
            self.told.append(str(error))
