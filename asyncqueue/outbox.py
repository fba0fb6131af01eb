"""Enqueue inside the caller's own database transaction: business row and job commit together, or neither does.

    with connection:                                    # sqlite3: commits, or rolls back
        connection.execute("INSERT INTO orders ...")
        outbox.enqueue(connection, "order-41", 3)

    async with sessions.begin() as session:             # SQLAlchemy
        session.add(Order(id="order-41", qty=3))
        await outbox.enqueue_async(session, "order-41", 3, via=queue)

The outbox never begins, commits or rolls back. Whatever it raises, the transaction is still the caller's to go on
with or to roll back; only where the database itself gives it up (no room on the disk, say; any error of the server
on PostgreSQL) is it gone, and the error says so.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncqueue.clock import Clock
from asyncqueue.errors import UnsupportedConnection
from asyncqueue.job import (
    DEFAULT_KIND,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
    DEFAULT_TTL_MS,
    NewJob,
    Range,
    check_int,
    encode_payload,
)
from asyncqueue.stores import outbox_for
from asyncqueue.stores.base import AsyncOutbox, SyncOutbox, Terms

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite
    import asyncpg
    import psycopg
    import sqlalchemy
    from sqlalchemy import orm
    from sqlalchemy.ext import asyncio as alchemy

    from asyncqueue.queue import Queue

__all__ = ["AsyncConnection", "SyncConnection", "enqueue", "enqueue_async"]

SyncConnection: TypeAlias = (
    "sqlite3.Connection | psycopg.Connection[Any] | sqlalchemy.Connection | orm.Session | orm.scoped_session[Any]"
)
AsyncConnection: TypeAlias = (
    "aiosqlite.Connection | asyncpg.Connection | psycopg.AsyncConnection[Any] | alchemy.AsyncConnection"
    " | alchemy.AsyncSession | alchemy.async_scoped_session[Any]"
)

_MAX_PENDING = Range(1, 2**63 - 1)


def enqueue(  # noqa: PLR0913 - the job's own fields, all but two by name
    connection: SyncConnection,
    id: str,
    qty: int,
    *,
    payload: Any = None,
    queue: str = DEFAULT_QUEUE,
    kind: str = DEFAULT_KIND,
    priority: int = 0,
    delay_ms: int = 0,
    ttl_ms: int = DEFAULT_TTL_MS,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    via: "Queue | None" = None,
    max_pending: int | None = None,
    clock: Clock | None = None,
    schema: str | None = None,
) -> bool:
    """Put one job in as part of `connection`'s open transaction; the same fields and answers as `Queue.enqueue`.

    True: new, once the caller commits. False: the same job is there already, unchanged. Raises `Conflict`,
    `InvalidJob` and `QueueFull` as `Queue.enqueue` does; `NoTransaction` if no transaction is open, `NotAQueue` if
    the database was never opened by `Queue.open`, `NewerSchema`, `StoreClosed`, `UnsupportedConnection` for
    another kind of object or database or for a `via` whose jobs are elsewhere, and `StoreBusy` or another
    `StoreError` if the database cannot.

    `via` names the open queue on the same database, if this process has one: its `max_pending` and its clock hold
    unless others are given, and its dispatchers are woken by the commit of a SQLAlchemy session. Other connections
    do not tell of their commit: dispatchers see it at their next poll (`poll_ms`, 5 by default), or at once after
    `via.wake()`; on PostgreSQL the commit itself tells those who listen. `schema` is where the queue's tables are
    on PostgreSQL, if neither `via` says it nor it is `asyncqueue`; on SQLite they are in the connection's first
    database, and another name is a `ConfigError`. SQLite connections belong to one thread; so does this call.
    """
    job = NewJob(id, qty, encode_payload(payload), queue, kind, priority, delay_ms, ttl_ms, max_attempts)
    job.check()
    terms = _terms(via, max_pending, clock, schema)
    outbox = outbox_for(connection)
    if not isinstance(outbox, SyncOutbox):
        raise UnsupportedConnection(f"{_name(connection)} is async: use `await outbox.enqueue_async(...)`")
    return outbox.enqueue(job, terms)


async def enqueue_async(  # noqa: PLR0913 - the job's own fields, all but two by name
    connection: AsyncConnection,
    id: str,
    qty: int,
    *,
    payload: Any = None,
    queue: str = DEFAULT_QUEUE,
    kind: str = DEFAULT_KIND,
    priority: int = 0,
    delay_ms: int = 0,
    ttl_ms: int = DEFAULT_TTL_MS,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    via: "Queue | None" = None,
    max_pending: int | None = None,
    clock: Clock | None = None,
    schema: str | None = None,
) -> bool:
    """Put one job in as part of an async `connection`'s open transaction; see `enqueue`.

    A caller that is cancelled here does not know whether its transaction has the job: it should roll back.
    """
    job = NewJob(id, qty, encode_payload(payload), queue, kind, priority, delay_ms, ttl_ms, max_attempts)
    job.check()
    terms = _terms(via, max_pending, clock, schema)
    outbox = outbox_for(connection)
    if not isinstance(outbox, AsyncOutbox):
        raise UnsupportedConnection(f"{_name(connection)} is not async: use `outbox.enqueue(...)`, without await")
    return await outbox.enqueue_async(job, terms)


def _terms(via: "Queue | None", max_pending: int | None, clock: Clock | None, schema: str | None) -> Terms:
    terms = Terms() if via is None else getattr(via, "outbox_terms", None)
    if not isinstance(terms, Terms):
        raise UnsupportedConnection(f"via must be an open Queue, not an object of type {type(via).__name__}")
    if max_pending is not None:
        check_int("max_pending", max_pending, _MAX_PENDING)
    return replace(
        terms,
        clock=clock or terms.clock,
        max_pending=terms.max_pending if max_pending is None else max_pending,
        schema=schema or terms.schema,
    )


def _name(connection: object) -> str:
    return f"{type(connection).__module__.partition('.')[0]}'s {type(connection).__name__}"
