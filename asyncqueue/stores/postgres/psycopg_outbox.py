"""psycopg's connections as an outbox. Imported only for a caller's object that comes from psycopg."""

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from asyncqueue.errors import AsyncQueueError, UnsupportedConnection
from asyncqueue.job import NewJob
from asyncqueue.stores.base import AsyncOutbox, SyncOutbox, Terms
from asyncqueue.stores.postgres.story import failure, put, put_async, with_names

__all__ = ["AsyncPsycopgOutbox", "PsycopgOutbox", "outbox_for"]


def outbox_for(connection: object) -> SyncOutbox | AsyncOutbox | None:
    """Return the outbox of a connection of psycopg, None for any other object."""
    if isinstance(connection, psycopg.Connection):
        return PsycopgOutbox(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopgOutbox(connection)
    return None


class PsycopgOutbox:
    """A `psycopg.Connection` of the caller's."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def enqueue(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.SyncOutbox`."""
        _check_pipeline(self._connection)
        try:
            return put(self._execute, lambda: is_begun(self._connection), job, terms)
        except AsyncQueueError:
            raise
        except psycopg.Error as error:
            raise failure(error) from error

    def _execute(self, sql: str, arguments: tuple[Any, ...]) -> list[Any]:
        text, names = with_names(sql, arguments, "%({})s")
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:  # not the caller's kind of cursor
            cursor.execute(text, names)
            return cursor.fetchall() if cursor.description else []


class AsyncPsycopgOutbox:
    """A `psycopg.AsyncConnection` of the caller's."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self._connection = connection

    async def enqueue_async(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.AsyncOutbox`."""
        _check_pipeline(self._connection)
        try:
            return await put_async(self._execute, lambda: is_begun(self._connection), job, terms)
        except AsyncQueueError:
            raise
        except psycopg.Error as error:
            raise failure(error) from error

    async def _execute(self, sql: str, arguments: tuple[Any, ...]) -> list[Any]:
        text, names = with_names(sql, arguments, "%({})s")
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text, names)
            return await cursor.fetchall() if cursor.description else []


def _check_pipeline(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Raise `UnsupportedConnection` in psycopg's pipeline mode: nothing is answered before the pipeline ends."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise UnsupportedConnection(
            "the connection is in psycopg's pipeline mode: enqueue before or after the pipeline"
        )


def is_begun(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    """Tell whether a transaction is open."""
    return connection.info.transaction_status != TransactionStatus.IDLE
