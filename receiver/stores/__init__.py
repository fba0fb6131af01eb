"""Stores of an inbox, and the only place that names them."""

import os

from asyncqueue.errors import ConfigError
from receiver.stores.base import Effect, InboxStore
from receiver.stores.sqlite.store import Journal, Profile, SqliteInbox

__all__ = ["open_inbox"]


async def open_inbox(
    url: str | os.PathLike[str], *, effect: Effect | None, journal: Journal, force_wal: bool, patience_ms: int
) -> InboxStore:
    """Open the inbox at `url`, the path of a SQLite file (made if missing).

    Raises `ConfigError` for a URL of anything else, and what the store raises.
    """
    where = os.fspath(url)
    if "://" in where or not where or where.startswith(":memory:") or "\0" in where:
        raise ConfigError(f"not an inbox: {where!r}: give the path of a file")
    profile = Profile(journal, patience_ms=patience_ms, force_wal=force_wal)
    return await SqliteInbox.open(where, profile, effect)
