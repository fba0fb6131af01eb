"""Stores of a queue: one contract (`base`), one implementation a folder, and the only place that names both."""

import os

from asyncqueue.clock import Clock
from asyncqueue.errors import ConfigError
from asyncqueue.stores.base import Rules, Store
from asyncqueue.stores.sqlite.connection import Profile
from asyncqueue.stores.sqlite.store import SqliteStore

__all__ = ["open_store"]

_POSTGRES = ("postgresql:", "postgres:")
_SQLITE = "sqlite:///"


async def open_store(
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    profile: Profile | None = None,
    rules: Rules | None = None,
    create: bool = True,
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
    return await SqliteStore.open(where, clock=clock, profile=profile, rules=rules, create=create)
