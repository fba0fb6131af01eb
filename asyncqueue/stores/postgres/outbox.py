"""The outbox on PostgreSQL: one job put in by a connection, and inside a transaction, that are the caller's."""

from typing import Any

import asyncpg

from asyncqueue.errors import AsyncQueueError
from asyncqueue.job import NewJob
from asyncqueue.stores.base import AsyncOutbox, SyncOutbox, Terms
from asyncqueue.stores.postgres.effects import EffectConnection
from asyncqueue.stores.postgres.story import failure, put_async

__all__ = ["AsyncpgOutbox", "outbox_for"]


def outbox_for(connection: object) -> SyncOutbox | AsyncOutbox | None:
    """Return the outbox of a connection of asyncpg (also as an effect gets it) or psycopg, None for any other."""
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy | EffectConnection):
        return AsyncpgOutbox(connection)
    try:
        from asyncqueue.stores.postgres import psycopg_outbox  # noqa: PLC0415 - installed only where it is used
    except ModuleNotFoundError:
        return None
    return psycopg_outbox.outbox_for(connection)


class AsyncpgOutbox:
    """An `asyncpg` connection of the caller's, its own or a pool's."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def enqueue_async(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.AsyncOutbox`."""
        try:
            return await put_async(self._execute, self._connection.is_in_transaction, job, terms)
        except AsyncQueueError:
            raise
        except Exception as error:
            raise failure(error) from error

    async def _execute(self, sql: str, arguments: tuple[Any, ...]) -> list[Any]:
        return [tuple(row) for row in await self._connection.fetch(sql, *arguments)]
