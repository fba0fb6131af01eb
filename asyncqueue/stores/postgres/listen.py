"""Hearing of other processes' commits: one connection that listens, and a cheap question where none can.

The question is the server's list of transactions under way, which changes with every commit; it is asked by
whoever asks for the version, fifty times a second at most. It is also the only way to hear of jobs that have
ended: transactions that notify commit one after the other on the whole server, so those that only end jobs, which
is what dispatchers do all day, do not.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import asyncpg

from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.connection import Connection, Database

__all__ = ["Listener"]

_CONNECT_S: Final = 2.0
_PROBE_S: Final = 2.0
_PROBE_EVERY_S: Final = 10.0  # a listening connection is silent: only a question shows that it is half open
_AGAIN_MIN_S: Final = 0.5
_AGAIN_MAX_S: Final = 10.0
_ASK_EVERY_S: Final = 0.02  # however many wait for the ends of jobs in this process


class Listener:
    """Gives a number that changes when somebody has committed something that others may wait for."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._is_closed = False
        self._turn = anyio.Lock()
        self._heard = 0
        self._rings: set[Callable[[], None]] = set()
        self._proved_at = 0.0
        self._again_at = 0.0
        self._again_s = _AGAIN_MIN_S
        self._asking = anyio.Lock()
        self._asked_at = float("-inf")
        self._answer = 0

    @property
    def is_listening(self) -> bool:
        """Whether notifications arrive now, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    def alarm(self, ring: Callable[[], None]) -> bool:
        """Have `ring` called once when the next notification comes; False while no connection listens."""
        if self.is_listening:
            self._rings.add(ring)
        return self.is_listening

    async def version(self) -> int:
        """Return the number: from memory while a connection listens, else by a question to the server."""
        if not self._is_cared_for():
            async with self._turn:
                await self._care()
        if self.is_listening:
            return self._heard + self._database.commits
        return await self.asked()

    async def asked(self) -> int:
        """Return a number that changes with every commit, by a question that all who ask share for a moment."""
        async with self._asking:
            if time.monotonic() >= self._asked_at + _ASK_EVERY_S:
                ((snapshot,),) = await self._database.read(statements.SNAPSHOT)
                self._answer = hash((snapshot, self._heard))
                self._asked_at = time.monotonic()
            return self._answer

    async def close(self) -> None:
        """Stop listening; a connection that is being made just now is dropped by who makes it."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await connection.close(timeout=_PROBE_S)

    def _is_cared_for(self) -> bool:
        return self.is_listening and time.monotonic() < self._proved_at + _PROBE_EVERY_S

    async def _care(self) -> None:
        if self._database.address.is_pooled or self._is_closed:
            return
        now = time.monotonic()
        if self._connection is not None:
            if self._is_cared_for():
                return
            if self.is_listening and await self._answers(self._connection):
                self._proved_at = now
                return
            self._lose(self._connection)
        if now >= self._again_at:
            await self._connect(now)

    async def _answers(self, connection: Connection) -> bool:
        try:
            await connection.fetchval(statements.PING, timeout=_PROBE_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return False
        return True

    def _lose(self, connection: Connection) -> None:
        self._connection = None
        self._note()  # something may have been missed
        with suppress(asyncpg.InterfaceError):
            connection.terminate()

    async def _connect(self, now: float) -> None:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                connection = await self._database.connect()
                await connection.add_listener(self._database.address.schema, self._hear)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
            self._again_s = min(self._again_s * 2, _AGAIN_MAX_S)
            self._again_at = now + self._again_s
            if connection is not None:
                connection.terminate()
            return
        except BaseException:
            if connection is not None:
                connection.terminate()
            raise
        if self._is_closed:
            connection.terminate()
            return
        self._connection = connection
        self._proved_at, self._again_s = now, _AGAIN_MIN_S
        self._heard += 1

    def _hear(self, _connection: Any, _pid: int, _channel: str, _payload: object) -> None:
        self._note()

    def _note(self) -> None:
        self._heard += 1
        rings, self._rings = self._rings, set()
        for ring in rings:
            ring()
