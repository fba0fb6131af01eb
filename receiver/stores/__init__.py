"""Stores of an inbox, and the only place that names them."""

import os
from typing import Final

from asyncqueue.errors import ConfigError
from asyncqueue.stores.url import is_server, shown
from receiver.stores.base import Effect, InboxStore
from receiver.stores.sqlite.store import Journal, Profile, SqliteInbox

__all__ = ["open_inbox"]

_SQLITE: Final = "sqlite:///"
_DRIVER_MISSING: Final = "PostgreSQL needs the driver asyncpg: pip install 'asyncqueue[postgres]'"


async def open_inbox(
    url: str | os.PathLike[str], *, effect: Effect | None, journal: Journal, force_wal: bool, patience_ms: int
) -> InboxStore:
    """Open the inbox at `url`: a path (the file is made if missing), `sqlite:///path`, or `postgresql://…`.

    `journal` and `force_wal` mean nothing to PostgreSQL. Raises `ConfigError` for a URL of anything else, and what
    the store raises.
    """
    where = os.fspath(url)
    if is_server(where):
        return await _open_postgres(where, effect, patience_ms)
    where = where.removeprefix(_SQLITE)
    if "://" in where or not where or where.startswith(":memory:") or "\0" in where:
        raise ConfigError(f"not an inbox: {shown(where)!r}: give the path of a file, or postgresql://…")
    profile = Profile(journal, patience_ms=patience_ms, force_wal=force_wal)
    return await SqliteInbox.open(where, profile, effect)


async def _open_postgres(url: str, effect: Effect | None, patience_ms: int) -> InboxStore:
    try:
        from receiver.stores.postgres import store  # noqa: PLC0415 - its driver is installed only where it is used
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(_DRIVER_MISSING) from None
    return await store.PostgresInbox.open(url, store.Profile(patience_ms=patience_ms), effect)
