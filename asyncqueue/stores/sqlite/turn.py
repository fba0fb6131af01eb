"""Whose turn it is on the write connection of this process.

A transaction that takes one hop to the driver's thread may line up behind another one there: they share the turn.
One that takes several hops must have the connection for itself. Whoever waits is served in order of arrival.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["Turn"]


class Turn:
    """Held by one, or shared by several; for the tasks of one event loop."""

    def __init__(self) -> None:
        self._holders = 0
        self._is_exclusive = False
        self._waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the turn together with others who share it. Waiting for it can be cancelled."""
        await self._enter(exclusive=False)
        try:
            yield
        finally:
            self._leave()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the turn alone. Waiting for it can be cancelled."""
        await self._enter(exclusive=True)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, *, exclusive: bool) -> None:
        if not self._waiting and self._admits(exclusive=exclusive):
            self._hold(exclusive=exclusive)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((place, exclusive))
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._admit()  # those behind may have waited for this one only
            else:
                self._leave()
            raise

    def _admits(self, *, exclusive: bool) -> bool:
        return not self._holders or not (exclusive or self._is_exclusive)

    def _hold(self, *, exclusive: bool) -> None:
        self._holders += 1
        self._is_exclusive = exclusive

    def _leave(self) -> None:
        self._holders -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            place, exclusive = self._waiting[0]
            if not place.done():
                if not self._admits(exclusive=exclusive):
                    return
                self._hold(exclusive=exclusive)
                place.set_result(None)
            self._waiting.popleft()
