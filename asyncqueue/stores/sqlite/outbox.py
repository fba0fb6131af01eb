"""The outbox on SQLite: one job put in by a connection, and inside a transaction, that are the caller's.

Everything here is plain and synchronous; an async connection runs it as one piece in the thread that owns it, so
that no other task of the caller can come in between, and a cancellation finds it done or not begun.
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiosqlite

from asyncqueue.errors import (
    ConfigError,
    Conflict,
    NotAQueue,
    NoTransaction,
    StoreBusy,
    StoreClosed,
    StoreError,
    UnsupportedConnection,
)
from asyncqueue.job import NewJob
from asyncqueue.stores.base import AsyncOutbox, SyncOutbox, Terms
from asyncqueue.stores.sets import compared, full, new_row
from asyncqueue.stores.sqlite import schema, statements
from asyncqueue.stores.sqlite.connection import translated
from asyncqueue.stores.sqlite.offers import array

__all__ = ["AiosqliteOutbox", "Execute", "SqliteOutbox", "failure", "outbox_for", "put"]

Execute = Callable[[str, dict[str, Any]], list[Any]]
"""Runs one statement and returns all its rows, so that none is left open when the caller commits."""

_WHERE: Final = "the database of this connection"
_BEGIN: Final = (
    "the connection has no open transaction that the job could join: execute BEGIN IMMEDIATE first (in the "
    "driver's default mode `with connection:` begins nothing, only the first INSERT, UPDATE or DELETE does)"
)
_AUTOCOMMIT: Final = "the connection is in autocommit mode, it has no transaction that the job could join"
_BUSY: Final = (
    f"{_WHERE}: another writer holds it; nothing was stored. Roll back and run the whole transaction again; one "
    "that starts with BEGIN IMMEDIATE waits for its turn there"
)
_ELSEWHERE: Final = f"{_WHERE} is not that of `via`: give the queue of the same database, or none"
_SCHEMAS: Final = (Terms().schema, "main")  # not given, or what is true anyway
_FIRST: Final = ("main", "temp")  # a temporary table that hides the queue's is seen by its columns
_UNDONE: Final = "; SQLite has rolled back the whole transaction"


def outbox_for(connection: object) -> SyncOutbox | AsyncOutbox | None:
    """Return the outbox of a connection that belongs to this kind of database, None for any other."""
    if isinstance(connection, sqlite3.Connection):
        return SqliteOutbox(connection)
    if isinstance(connection, aiosqlite.Connection):
        return AiosqliteOutbox(connection)
    return None


class SqliteOutbox:
    """A `sqlite3.Connection` of the caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def enqueue(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.SyncOutbox`."""
        if not self._in_transaction():
            raise NoTransaction(_BEGIN)
        return put(self._execute, self._in_transaction, job, terms)

    def _in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError as error:
            raise StoreClosed(f"{_WHERE}: {error}") from error

    def _execute(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        cursor = sqlite3.Cursor(self._connection)  # connection.cursor() would bring the caller's row_factory
        try:
            return cursor.execute(sql, parameters).fetchall()
        finally:
            cursor.close()


class AiosqliteOutbox:
    """An `aiosqlite.Connection` of the caller's."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def enqueue_async(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.AsyncOutbox`."""
        connection = self._connection
        try:
            inner = SqliteOutbox(connection._conn)  # noqa: SLF001 - aiosqlite offers no other way to run one piece
            run = connection._execute  # noqa: SLF001 - of work in the connection's thread
            return bool(await run(inner.enqueue, job, terms))  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise StoreClosed(f"{_WHERE}: {error}") from error  # the driver's word for a closed connection


def put(execute: Execute, in_transaction: Callable[[], bool], job: NewJob, terms: Terms) -> bool:
    """Insert `job` by `execute`; the law of `stores.base.SyncOutbox`.

    `in_transaction` tells whether SQLite itself has a transaction open. It is asked after a first statement that
    stores nothing: drivers that begin late have begun by then, and in autocommit mode nothing has happened.
    """
    if terms.schema not in _SCHEMAS:
        raise ConfigError(
            f"schema names where PostgreSQL has the queue's tables; on SQLite they are in the connection's first "
            f"database, not in {terms.schema!r}: leave it out, and `via` if that is a queue elsewhere"
        )
    ask = _without_text_factory(execute)
    try:
        _take_turn(ask, terms.place)
        if not in_transaction():
            raise NoTransaction(_AUTOCOMMIT)
        return _put(ask, job, terms)
    except sqlite3.Error as error:
        raise failure(error, undone=not in_transaction()) from error


def failure(error: sqlite3.Error, *, undone: bool = False) -> StoreError:
    """Return the typed error for a driver error; `undone` if the caller's transaction is gone with it."""
    typed = translated(error, _WHERE)
    text = _BUSY if isinstance(typed, StoreBusy) else str(typed)
    return type(typed)(text + _UNDONE if undone else text)


def _take_turn(execute: Execute, place: str | None) -> None:
    """Insert no job at all: it takes the write lock before anything is read.

    So what is read next is exact, and the caller's transaction need not be upgraded from a reader to a writer,
    which SQLite refuses at once, without waiting, if another writer is about to commit.
    """
    try:
        execute(statements.ENQUEUE, {"jobs": "[]", "now": 0})
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:  # a table or a column is missing
            _check_schema(execute, place)
        raise


def _check_schema(execute: Execute, place: str | None) -> None:
    (state,) = execute(statements.SCHEMA_STATE, {})
    if not schema.judge(state, _WHERE):
        return
    if place is not None:
        raise UnsupportedConnection(_ELSEWHERE)
    version, tables, *_columns = state
    what = "a queue as the contract functions made it" if tables else "empty"
    if version:
        what = "a queue of an older version"
    raise NotAQueue(f"{_WHERE}: {what}; open it once by Queue.open, which adds what the outbox needs")


def _check_place(execute: Execute, place: str | None) -> None:
    """Raise unless the jobs go into the connection's first database, and that is `place` if there is one."""
    for name, file in execute(statements.PLACE, {}):  # one row, or none without any table of that name
        if name not in _FIRST:
            raise NotAQueue(
                f"{_WHERE}: the queue is in the attached database {name} ({file or 'memory'}): connect to the "
                "file of the queue, and attach the others to it"
            )
        if place is not None and not _is_same(file, place):
            raise UnsupportedConnection(
                f"the connection puts its jobs into {file or 'memory'}, but `via` is the queue in {place}: give "
                "the queue of the same database, or none"
            )


def _is_same(file: str, place: str) -> bool:
    try:
        return bool(file) and Path(file).samefile(place)  # by stat: opening it would drop this process's locks
    except OSError:
        return False


def _put(execute: Execute, job: NewJob, terms: Terms) -> bool:
    _check_place(execute, terms.place)
    _check_schema(execute, terms.place)
    there = json.loads(execute(statements.EXISTING, {"ids": array([job.id])})[0][0])
    if there:
        answer = compared(job, there[0][1:])
        if isinstance(answer, Conflict):
            raise answer
        return answer
    if terms.max_pending is not None and execute(statements.PENDING, {})[0][0] >= terms.max_pending:
        raise full(terms.max_pending)
    execute(statements.ENQUEUE, {"jobs": array([new_row(job)]), "now": terms.here.now_ms()})
    return True


def _without_text_factory(execute: Execute) -> Execute:
    """Return `execute` with texts as str, although the caller's connection may give them as bytes."""

    def ask(sql: str, parameters: dict[str, Any]) -> list[Any]:
        rows = execute(sql, parameters)
        return [[value.decode() if isinstance(value, bytes) else value for value in row] for row in rows]

    return ask
