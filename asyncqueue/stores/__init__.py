"""Stores of a queue: one contract (`base`), one implementation a folder, and the only place that names both."""

import os

from asyncqueue.clock import Clock
from asyncqueue.errors import ConfigError, UnsupportedConnection
from asyncqueue.stores.base import AsyncOutbox, Rules, Store, SyncOutbox
from asyncqueue.stores.sqlite import outbox as sqlite_outbox
from asyncqueue.stores.sqlite.connection import Profile
from asyncqueue.stores.sqlite.store import SqliteStore

__all__ = ["open_store", "outbox_for"]

_POSTGRES = ("postgresql:", "postgres:")
_SQLITE = "sqlite:///"


async def open_store(  # noqa: PLR0913 - settings, all by name
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    profile: Profile | None = None,
    rules: Rules | None = None,
    create: bool = True,
    adopt: bool = False,
) -> Store:
    """Open the store that `url` names: a path, or `sqlite:///path`.

    Raises `ConfigError` for a URL of anything else, and what the store raises.
    """
    where = os.fspath(url)
    if where.startswith(_POSTGRES):
        raise ConfigError("PostgreSQL is not supported by this version: give the path of a SQLite file")
    if where.startswith(_SQLITE):
        where = where.removeprefix(_SQLITE)
    if "://" in where or not where or where.startswith(":memory:") or "\0" in where:
        raise ConfigError(f"not a queue: {where!r}: give the path of a file")
    return await SqliteStore.open(where, clock=clock, profile=profile, rules=rules, create=create, adopt=adopt)


def outbox_for(connection: object) -> SyncOutbox | AsyncOutbox:
    """Return the outbox of a caller's own connection.

    Raises `UnsupportedConnection` for an object that is no connection of a known kind.
    """
    found = sqlite_outbox.outbox_for(connection)
    if found is None and _comes_from(connection, "sqlalchemy"):
        from asyncqueue.stores import alchemy  # noqa: PLC0415 - SQLAlchemy is installed only where it is used

        found = alchemy.outbox_for(connection)
    if found is None:
        name = type(connection).__qualname__
        kinds = "a sqlite3 or aiosqlite connection, or a SQLAlchemy connection or session"
        raise UnsupportedConnection(f"the outbox takes {kinds}, not an object of type {name}")
    return found


def _comes_from(connection: object, package: str) -> bool:
    return any(cls.__module__.partition(".")[0] == package for cls in type(connection).__mro__)
