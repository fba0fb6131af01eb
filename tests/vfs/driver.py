"""APSW behind the face of `sqlite3`: the real store, receiver and contract code run over a VFS of ours.

APSW brings a SQLite of its own, so the product's statements run on a newer version there than on the standard
library's; files and images are always read by the standard library.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import apsw

__all__ = ["ApswConnection", "OnStatement", "driven_by"]

OnStatement = Callable[[str], None]

_KINDS: dict[int, type[sqlite3.Error]] = {
    sqlite3.SQLITE_CORRUPT: sqlite3.DatabaseError,
    sqlite3.SQLITE_NOTADB: sqlite3.DatabaseError,
    sqlite3.SQLITE_CONSTRAINT: sqlite3.IntegrityError,
    sqlite3.SQLITE_MISMATCH: sqlite3.IntegrityError,
}


class ApswConnection:
    """As much of `sqlite3.Connection` as aiosqlite and the project use."""

    def __init__(
        self, path: str, vfs: str, timeout_s: float, cache_pages: int | None, on_statement: OnStatement | None
    ) -> None:
        self.row_factory: Any = None
        self._on_statement = on_statement
        with _as_sqlite3():
            self._raw = apsw.Connection(path, vfs=vfs)
            self._raw.set_busy_timeout(int(timeout_s * 1000))
            if cache_pages is not None:
                self._raw.execute(f"PRAGMA cache_size = {cache_pages}")

    @property
    def in_transaction(self) -> bool:
        return self._raw.in_transaction

    @property
    def total_changes(self) -> int:
        return int(self._raw.total_changes())

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        if hasattr(parameters, "run"):  # a whole transaction, as the store's own connection class takes it
            return parameters.run(self)
        with _as_sqlite3():
            if self._on_statement is not None:
                self._on_statement(sql)
            return _Cursor(self._raw.cursor().execute(sql, parameters or None))

    def rollback(self) -> None:
        if self.in_transaction:
            self.execute("ROLLBACK")

    def commit(self) -> None:
        if self.in_transaction:
            self.execute("COMMIT")

    def set_authorizer(self, callback: Any) -> None:
        self._raw.authorizer = callback

    def close(self) -> None:
        with _as_sqlite3():
            self._raw.close()


class _Cursor:
    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor

    def fetchall(self) -> list[Any]:
        with _as_sqlite3():
            return self._cursor.fetchall()


@contextmanager
def _as_sqlite3() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:  # the standard library has another word for a text that is none
        raise sqlite3.OperationalError(str(error)) from error
    except apsw.Error as error:
        code = getattr(error, "result", 1)
        translated = _KINDS.get(code, sqlite3.OperationalError)(str(error))
        translated.sqlite_errorcode = getattr(error, "extendedresult", code)
        raise translated from error


@contextmanager
def driven_by(
    vfs: str, *, cache_pages: int | None = None, on_statement: OnStatement | None = None
) -> Iterator[None]:
    """Let all that opens a database by `sqlite3.connect` open it over `vfs`.

    `cache_pages` bounds its cache; `on_statement` is told of each statement and may raise an `apsw.Error`.
    """

    def connect(database: Any, *, timeout: float = 5.0, uri: bool = False, **_settings: Any) -> ApswConnection:
        path = unquote(urlsplit(database).path) if uri else str(database)
        return ApswConnection(path, vfs, timeout, cache_pages, on_statement)

    with mock.patch("sqlite3.connect", connect):
        yield
