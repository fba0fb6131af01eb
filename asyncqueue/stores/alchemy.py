"""SQLAlchemy's objects as an outbox, whatever database is behind them.

Imported only for a caller's object that comes from SQLAlchemy, so that nobody else needs it installed.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, event, text
from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    ResourceClosedError,
    SQLAlchemyError,
    UnboundExecutionError,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from asyncqueue.errors import NoTransaction, StoreClosed, StoreError, UnsupportedConnection
from asyncqueue.job import NewJob
from asyncqueue.stores.base import AsyncOutbox, SyncOutbox, Terms
from asyncqueue.stores.shield import shielded
from asyncqueue.stores.sqlite import outbox as sqlite

__all__ = ["AlchemyAsyncOutbox", "AlchemyOutbox", "outbox_for"]

_TO_CALL: Final = "asyncqueue.committed"  # a key of Session.info


def outbox_for(handle: object) -> SyncOutbox | AsyncOutbox | None:
    """Return the outbox of a Connection, a Session or one of their async kinds; None for any other object."""
    if isinstance(handle, scoped_session | async_scoped_session):
        handle = handle.registry()
    if isinstance(handle, Connection | Session):
        return AlchemyOutbox(handle)
    if isinstance(handle, AsyncConnection | AsyncSession):
        return AlchemyAsyncOutbox(handle)
    return None


class AlchemyOutbox:
    """A `Connection` or `Session` of the caller's.

    A session that has not begun yet begins as for any other statement, by its own autobegin; a connection must
    have begun. A session tells when it has committed, a connection does not.
    """

    def __init__(self, handle: Connection | Session) -> None:
        self._handle = handle

    def enqueue(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.SyncOutbox`."""
        try:
            answer = _put(_begun(self._handle), job, terms)
        except SQLAlchemyError as error:
            _refuse(error)
        if terms.committed is not None and isinstance(self._handle, Session):
            _call_after_commit(self._handle, terms.committed)
        return answer


class AlchemyAsyncOutbox:
    """An `AsyncConnection` or `AsyncSession` of the caller's; its sync half does the work."""

    def __init__(self, handle: AsyncConnection | AsyncSession) -> None:
        self._handle = handle

    async def enqueue_async(self, job: NewJob, terms: Terms) -> bool:
        """See `stores.base.AsyncOutbox`."""
        try:
            if self._dialect() != "sqlite":
                return await self._put(job, terms)
            # Cancelled between a statement and its rows, SQLAlchemy closes the connection under the cursor: the
            # caller's transaction, and its lock on the file, would last until that is collected as garbage.
            return await shielded(self._put(job, terms))
        except SQLAlchemyError as error:
            _refuse(error)

    def _dialect(self) -> str:
        handle = self._handle
        return (handle.get_bind() if isinstance(handle, AsyncSession) else handle).dialect.name

    async def _put(self, job: NewJob, terms: Terms) -> bool:
        return await self._handle.run_sync(lambda handle: AlchemyOutbox(handle).enqueue(job, terms))


def _begun(handle: Connection | Session) -> Connection:
    connection = handle.connection() if isinstance(handle, Session) else handle
    if connection.closed:
        raise StoreClosed("the connection is closed")
    if not connection.in_transaction():
        raise NoTransaction("the connection has not begun a transaction: use engine.begin() or connection.begin()")
    return connection


def _put(connection: Connection, job: NewJob, terms: Terms) -> bool:
    if connection.dialect.name == "postgresql":
        return _put_postgres(connection, job, terms)
    if connection.dialect.name != "sqlite":
        raise UnsupportedConnection(f"a connection of {connection.dialect.name}: give one of SQLite or PostgreSQL")
    driver: Any = connection.connection.driver_connection

    def execute(sql: str, parameters: dict[str, Any]) -> list[Any]:
        try:
            result = connection.exec_driver_sql(sql, parameters)
            return list(result.fetchall()) if result.returns_rows else []
        except DBAPIError as error:
            raise (error.orig or error) from error

    return sqlite.put(execute, lambda: bool(driver.in_transaction), job, terms)


def _put_postgres(connection: Connection, job: NewJob, terms: Terms) -> bool:
    from asyncqueue.stores.postgres import story  # noqa: PLC0415 - needs its driver

    driver: Any = connection.connection.driver_connection

    def in_transaction() -> bool:
        if hasattr(driver, "is_in_transaction"):
            return bool(driver.is_in_transaction())
        return bool(driver.info.transaction_status)

    def execute(sql: str, arguments: tuple[Any, ...]) -> list[Any]:
        statement, names = story.with_names(sql, arguments, ":{} ")
        result = connection.execute(text(statement), names)
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

    try:
        return story.put(execute, in_transaction, job, terms)
    except DBAPIError as error:
        raise story.failure(_driver_error(error)) from error


def _driver_error(error: DBAPIError) -> BaseException:
    """Return what the driver said: SQLAlchemy wraps asyncpg's errors once more."""
    original = error.orig or error
    return original.__cause__ if getattr(original, "__cause__", None) is not None else original  # type: ignore[return-value]


def _refuse(error: SQLAlchemyError) -> NoReturn:
    """Raise the typed error for one of SQLAlchemy's own."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    typed: Exception = StoreError(text)
    if isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        typed = sqlite.failure(error.orig)
    elif isinstance(error, UnboundExecutionError):
        typed = UnsupportedConnection(
            f"{text}: give the connection of the queue's database instead of the session"
        )
    elif isinstance(error, ResourceClosedError):
        typed = StoreClosed(text)
    elif isinstance(error, InvalidRequestError):
        typed = NoTransaction(text)
    raise typed from error


def _call_after_commit(session: Session, callback: Callable[[], None]) -> None:
    if _TO_CALL not in session.info:
        event.listen(session, "after_commit", _committed)
    session.info.setdefault(_TO_CALL, set()).add(callback)


def _committed(session: Session) -> None:
    if session.in_nested_transaction():  # only a savepoint was released
        return
    waiting, session.info[_TO_CALL] = session.info[_TO_CALL], set()
    for callback in waiting:
        callback()
