"""Stores of a queue: one contract (`base`), one implementation a folder, and the only place that names both."""

import os
from pathlib import Path

from asyncqueue.clock import Clock
from asyncqueue.errors import ConfigError, UnsupportedConnection
from asyncqueue.stores.base import AsyncOutbox, Rules, Store, SyncOutbox
from asyncqueue.stores.move import Side
from asyncqueue.stores.sqlite import backup as sqlite_backup
from asyncqueue.stores.sqlite import outbox as sqlite_outbox
from asyncqueue.stores.sqlite.backup import Told
from asyncqueue.stores.sqlite.connection import Profile
from asyncqueue.stores.sqlite.moving import SqliteSide
from asyncqueue.stores.sqlite.store import SqliteStore
from asyncqueue.stores.url import is_server, shown

__all__ = ["open_side", "open_store", "outbox_for", "put_back"]

_DRIVER_MISSING = "PostgreSQL needs the driver asyncpg: pip install 'asyncqueue[postgres]'"
_SQLITE = "sqlite:///"
_LENT = "asyncqueue.stores.postgres.effects"  # what an effect gets there


async def open_store(  # noqa: PLR0913 - settings, all by name
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    profile: Profile | None = None,
    rules: Rules | None = None,
    create: bool = True,
    adopt: bool = False,
    only_reads: bool = False,
) -> Store:
    """Open the store that `url` names: a path, `sqlite:///path`, or `postgresql://user@host/database`.

    Of `profile` only the patience means anything to PostgreSQL, and `only_reads` no more than `create=False`.
    Raises `ConfigError` for a URL of anything else, and what the store raises.
    """
    where = os.fspath(url)
    if is_server(where):
        create = create and not only_reads
        return await _open_postgres(where, clock=clock, profile=profile, rules=rules, create=create, adopt=adopt)
    return await SqliteStore.open(
        _path_of(where),
        clock=clock,
        profile=profile,
        rules=rules,
        create=create,
        adopt=adopt,
        only_reads=only_reads,
    )


async def open_side(url: str, *, create: bool) -> Side:
    """Open the store that `url` names as one side of a move. Raises as `open_store` does."""
    if not is_server(url):
        return await SqliteSide.open(_path_of(url), create=create)
    try:
        from asyncqueue.stores.postgres.moving import PostgresSide  # noqa: PLC0415 - as below
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(_DRIVER_MISSING) from None
    return await PostgresSide.open(url, create=create)


async def put_back(url: str, backup: str, *, patience_ms: int, told: Told | None = None) -> int:
    """Make the file that `url` names from a backup of a queue; return the floor of its tokens.

    Raises `ConfigError` for a server, whose own tools do that, and as `stores.sqlite.backup.put_back` does.
    """
    if is_server(url):
        raise ConfigError(
            f"{shown(url)}: is put back by the server's own tools; then run asyncqueue restore without --from"
        )
    return await sqlite_backup.put_back(Path(backup), Path(_path_of(url)), patience_ms=patience_ms, told=told)


def _path_of(url: str) -> str:
    path = url.removeprefix(_SQLITE)
    if "://" in path or not path or path.startswith(":memory:") or "\0" in path:
        raise ConfigError(f"not a queue: {shown(path)!r}: give the path of a file, or postgresql://…")
    return path


async def _open_postgres(  # noqa: PLR0913 - settings, all by name
    url: str, *, clock: Clock | None, profile: Profile | None, rules: Rules | None, create: bool, adopt: bool
) -> Store:
    try:
        from asyncqueue.stores.postgres import store  # noqa: PLC0415 - its driver is installed only where it is used
        from asyncqueue.stores.postgres.connection import Profile as Patience  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ConfigError(_DRIVER_MISSING) from None
    patience = Patience() if profile is None else Patience(patience_ms=profile.patience_ms)
    return await store.PostgresStore.open(
        url, clock=clock, profile=patience, rules=rules, create=create, adopt=adopt
    )


def outbox_for(connection: object) -> SyncOutbox | AsyncOutbox:
    """Return the outbox of a caller's own connection.

    Raises `UnsupportedConnection` for an object that is no connection of a known kind.
    """
    found = sqlite_outbox.outbox_for(connection)
    if found is None and any(_comes_from(connection, name) for name in ("asyncpg", "psycopg", _LENT)):
        try:
            from asyncqueue.stores.postgres import outbox as postgres_outbox  # noqa: PLC0415 - as above
        except ModuleNotFoundError:
            raise ConfigError(_DRIVER_MISSING) from None
        found = postgres_outbox.outbox_for(connection)
    if found is None and _comes_from(connection, "sqlalchemy"):
        from asyncqueue.stores import alchemy  # noqa: PLC0415 - SQLAlchemy is installed only where it is used

        found = alchemy.outbox_for(connection)
    if found is None:
        name = type(connection).__qualname__
        kinds = "a sqlite3, aiosqlite, asyncpg or psycopg connection, or a SQLAlchemy connection or session"
        raise UnsupportedConnection(f"the outbox takes {kinds}, not an object of type {name}")
    return found


def _comes_from(connection: object, package: str) -> bool:
    return any(f"{cls.__module__}.".startswith(f"{package}.") for cls in type(connection).__mro__)
