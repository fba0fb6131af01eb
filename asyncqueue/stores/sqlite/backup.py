"""A copy of a file as of one moment while others write, and a file made from such a copy.

SQLite copies the pages inside one read transaction, so all of them are of one moment. Copying the bytes of a live
file would not give that, and opening it to do so would drop this process's locks on it.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import aiosqlite

from asyncqueue.errors import ConfigError, StoreDamaged, StoreMoved
from asyncqueue.stores.move import has_marks
from asyncqueue.stores.shield import shielded
from asyncqueue.stores.sqlite import fence, schema, statements
from asyncqueue.stores.sqlite.connection import check_path, create_private, translated

__all__ = ["Told", "back_up", "put_back"]

Told = Callable[[int, int], None]
"""`told(done, of)`: pages copied so far, and how many there are. It is called in another thread."""

_PAGES: Final = 2_048
_BESIDE: Final = ("-journal", "-wal", "-shm")


async def back_up(source: Path, target: Path, *, patience_ms: int, told: Told | None = None) -> None:
    """Copy the queue at `source` to the new file `target`; it is there whole, checked and synced, or not at all.

    Whoever commits meanwhile is waited for, at most `patience_ms`. With the delete journal writers wait until the
    copy is made, with WAL they do not. A cancellation is raised after the end.

    Raises `ConfigError` if `target` is there already or cannot be made, `StoreBusy`, `StoreFull`, `StoreDamaged`
    if what was copied is not sound, or another `StoreError`.
    """
    await shielded(_back_up(source, target, patience_ms, told or _unheard))


async def put_back(backup: Path, target: Path, *, patience_ms: int, told: Told | None = None) -> int:
    """Make the new file `target` from a backup, its tokens raised above all that were ever given out.

    Returns the token from which its jobs go on. Raises as `back_up` does, and `NotAQueue` or `NewerSchema` for a
    backup of something else; `ConfigError`, too, if the journal of an earlier `target` is still there.
    """
    return await shielded(
        _put_back(check_path(backup, create=False, read_only=True), target, patience_ms, told or _unheard)
    )


async def _back_up(source: Path, target: Path, patience_ms: int, told: Told) -> None:
    async with _new_copy(source, target, patience_ms, told):
        pass


async def _put_back(backup: Path, target: Path, patience_ms: int, told: Told) -> int:
    async with _new_copy(backup, target, patience_ms, told) as copy:
        await schema.inspect(copy, backup, create=False, adopt=False)
        await copy.execute_fetchall(statements.BEGIN)
        floor = await fence.raise_tokens(copy.execute_fetchall, time.time_ns() // 1_000_000, str(backup))
        await copy.execute_fetchall(statements.COMMIT)
    return floor


@asynccontextmanager
async def _new_copy(
    source: Path, target: Path, patience_ms: int, told: Told
) -> AsyncIterator[aiosqlite.Connection]:
    """Give a copy of `source`, open; it becomes `target` if all went well."""
    with _new_file(target) as part:
        async with _opened(part, target, "rw", patience_ms) as copy:
            # a copy that is cut off is of no use, so its journal is none either
            await copy.execute_fetchall(statements.BACKUP_JOURNAL)
            await copy.execute_fetchall(statements.BACKUP_SYNC)
            await _copied(source, copy, patience_ms, told)
            yield copy


async def _copied(source: Path, copy: aiosqlite.Connection, patience_ms: int, told: Told) -> None:
    """Copy all pages of one moment and look at every one of them."""
    mode = "rw" if os.access(source, os.W_OK) and os.access(source.parent, os.W_OK) else "ro"
    async with _opened(source, source, mode, patience_ms) as original:
        await original.execute_fetchall(statements.BACKUP_BEGIN)
        await original.execute_fetchall(statements.SCHEMA_STATE)  # from here on it is one moment
        full = None
        try:
            await original.backup(copy, pages=_PAGES, progress=lambda _status, left, of: told(of - left, of))
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            full = error
        await original.execute_fetchall(statements.COMMIT)
    if full is not None:
        raise full  # on the disk of the copy
    await copy.execute_fetchall(statements.BACKUP_JOURNAL)  # as the original's is: WAL would be a second file
    ((verdict,),) = await copy.execute_fetchall(statements.BACKUP_CHECK)
    if verdict != "ok":
        raise StoreDamaged(f"{source}: is damaged ({verdict}): nothing was copied")
    await _check_open(copy, source)


async def _check_open(copy: aiosqlite.Connection, source: Path) -> None:
    """Raise `StoreMoved` for a queue that is somewhere else: nobody could use its copy."""
    columns = [row[0] for row in await copy.execute_fetchall(statements.MOVE_COLUMNS)]
    if not has_marks(columns, str(source)):
        return
    for _move, role, peer, stage in await copy.execute_fetchall(statements.MOVE_LOOK):
        if role == "source" or stage == "copying":
            raise StoreMoved(
                f"{source}: {statements.MOVED} (with {peer}): it cannot be copied, or used from a copy"
            )


@asynccontextmanager
async def _opened(path: Path, shown: Path, mode: str, patience_ms: int) -> AsyncIterator[aiosqlite.Connection]:
    """Open a database as it is; errors tell of `shown`."""
    name = f"{path.as_uri()}?mode={mode}"
    try:
        async with aiosqlite.connect(
            name, uri=True, isolation_level=None, timeout=patience_ms / 1000
        ) as connection:
            yield connection
    except sqlite3.Error as error:
        raise translated(error, shown) from error


def _check_name(target: Path) -> None:
    """Raise `ConfigError` for a name that cannot be, or beside which is what SQLite would take for its own."""
    if not target.name or target.name.endswith(_BESIDE):
        raise ConfigError(f"{target}: not a name for a database: SQLite keeps other things under such names")
    if target.exists():
        raise _is_there(target)
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: the folder {target.parent} does not exist")
    for name in _BESIDE:
        if Path(f"{target}{name}").exists():
            raise ConfigError(f"{target}{name}: is left of an earlier file; move it away, with what it is of")


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Give a new file without a name that anybody would use; let it be `target` if all went well."""
    _check_name(target)
    part = target.parent.resolve() / f".{target.name}.{secrets.token_hex(4)}.part"
    create_private(part)
    try:
        yield part
        _check_name(target)
        _name(part, target)
    finally:
        for name in ("", *_BESIDE):
            with suppress(OSError):
                Path(f"{part}{name}").unlink()


def _name(part: Path, target: Path) -> None:
    """Give the finished file its name, unless that was taken meanwhile; durable when this returns."""
    try:
        os.link(part, target)
        part.unlink()
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise _is_there(target) from None
    except OSError as error:
        raise ConfigError(f"{target}: cannot be made ({error.strerror})") from None


def _is_there(target: Path) -> ConfigError:
    return ConfigError(f"{target}: is there already; give a new name, or move it away first")


def _unheard(_done: int, _of: int) -> None:
    """Stand in for who wants to know."""
