"""One SQLite file as a durable product needs it: who may write when, and what happens if they cannot.

`Database` owns a write connection with one lock per transaction, a read connection and the gate. Callers
never see "locked": a busy database is retried with jitter for as long as `patience_ms`, then `StoreBusy`.
Errors of the driver are translated here, once.
"""

import asyncio
import contextlib
import errno
import os
import random
import sqlite3
import stat
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast

import aiosqlite

from asyncqueue.errors import (
    ConfigError,
    ForkedProcess,
    InvalidJob,
    NotAQueue,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMoved,
)
from asyncqueue.stores.shield import shielded
from asyncqueue.stores.sqlite import statements
from asyncqueue.stores.sqlite.gate import Gate
from asyncqueue.stores.sqlite.turn import Turn
from asyncqueue.stores.sqlite.watch import number_of

__all__ = [
    "Database",
    "Journal",
    "Profile",
    "Unwritable",
    "check_path",
    "create_private",
    "has_wal_reset_bug",
    "translated",
]

T = TypeVar("T")
Journal = Literal["delete", "wal", "keep"]
Work = Callable[[Any], Awaitable[T]]
"""Statements in an open write transaction: `await connection.execute_fetchall(sql, parameters)`."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_READ_ONLY: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
_KNOWN: Final[dict[int, tuple[type[StoreError], str]]] = {
    **dict.fromkeys(_BUSY, (StoreBusy, "other writers hold the database; try again later")),
    sqlite3.SQLITE_FULL: (StoreFull, "no room left on the disk; nothing was changed"),
    sqlite3.SQLITE_NOTADB: (NotAQueue, "not a queue database ({})"),
    sqlite3.SQLITE_CORRUPT: (StoreDamaged, "is damaged ({}); check the disk, and restore it from a copy"),
}
_OF_THE_MOMENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EIO})
_HOP_TIMEOUT_S: Final = 0.05  # how long one hop may block the driver's thread on a busy database
_PAUSE_S: Final = 0.02
_PRIVATE: Final = 0o600
_WAL_FIXED: Final = (3, 51, 3)
_WAL_BACKPORTS: Final = (((3, 50, 7), (3, 51, 0)), ((3, 44, 6), (3, 45, 0)))


def has_wal_reset_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info[:3]) -> bool:
    """Tell whether this SQLite can corrupt a WAL database that several connections write (sqlite.org/wal.html)."""
    return version < _WAL_FIXED and not any(low <= version < high for low, high in _WAL_BACKPORTS)


@dataclass(frozen=True, slots=True)
class Profile:
    """How durable, how patient.

    `journal="delete"` runs with synchronous=EXTRA: FULL can lose the last acknowledged commit at a power
    cut, since it never syncs the directory after the journal's unlink. `journal="wal"` runs with FULL and is
    refused on builds with the WAL-reset bug unless `force_wal`. `journal="keep"` leaves a file in the mode that
    it has (a new one gets delete), with EXTRA, which is enough for either. `patience_ms` bounds all waiting for
    the write turn. `gate=False` leaves the turn to SQLite's locks alone (see benchmarks/bench_contention.py).
    """

    journal: Journal = "delete"
    patience_ms: int = 10_000
    force_wal: bool = False
    gate: bool = True

    def check(self) -> None:
        """Raise `ConfigError` for an unknown journal, no patience, or WAL on a build with the bug."""
        if self.journal not in ("delete", "wal", "keep"):
            raise ConfigError(f"journal must be 'delete', 'wal' or 'keep', not {self.journal!r}")
        if self.patience_ms < 1:
            raise ConfigError("patience_ms must be at least 1")
        if self.journal == "wal" and has_wal_reset_bug() and not self.force_wal:
            version = sqlite3.sqlite_version
            raise ConfigError(
                f"SQLite {version} has the WAL-reset bug: use the delete journal, or force it (force_wal)"
            )


class Unwritable(NotAQueue):
    """The permissions, or the file system, do not let this process write the file."""


def check_path(path: str | os.PathLike[str], *, create: bool, read_only: bool = False) -> Path:
    """Return `path` if a database may be opened there, by `stat` alone.

    An existing database is never opened and closed to look at it: that would drop this process's locks on
    it. Raises `NotAQueue` for a directory, device or hard link, a missing folder, a missing file unless `create`,
    and a file that cannot be written (`Unwritable`; with `read_only`: that cannot be read).
    """
    where = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links that may dangle
    try:
        found = where.stat()
    except FileNotFoundError:
        if where.is_symlink():
            raise NotAQueue(f"{path}: a link to a file that does not exist") from None
        if not create:
            raise NotAQueue(f"{path}: no such file") from None
        if not where.parent.is_dir():
            raise NotAQueue(f"{path}: the folder {where.parent} does not exist") from None
        return where
    except OSError as error:
        raise NotAQueue(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise NotAQueue(f"{path}: not a regular file")
    if found.st_nlink > 1:
        raise NotAQueue(f"{path}: has {found.st_nlink} hard links; its locks and journal would be split")
    if not read_only:
        _check_writable(path, where, found)
    elif not os.access(where, os.R_OK):
        raise NotAQueue(f"{path}: cannot be read: check its permissions")
    return where.resolve()  # SQLite names its journal after the real file: so does the gate


def _check_writable(path: str | os.PathLike[str], where: Path, found: os.stat_result) -> None:
    if not found.st_mode & 0o222 or not os.access(where, os.W_OK):
        raise Unwritable(f"{path}: is read-only")
    if not os.access(where.parent, os.W_OK):
        raise Unwritable(f"{path}: the folder {where.parent} is not writable; SQLite keeps its journal there")


def translated(error: sqlite3.Error, path: Path | str) -> StoreError:
    """Return the typed error for a driver error; the message is one line."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _KNOWN:
        kind, words = _KNOWN[code]
        return kind(f"{path}: {words.format(error)}")
    if code in _READ_ONLY:
        return _unwritable(error, code, path)
    if isinstance(error, sqlite3.IntegrityError) and str(error) == statements.MOVED:
        return StoreMoved(f"{path}: {error}")
    return StoreError(f"{path}: {error}")


def _unwritable(error: sqlite3.Error, code: int, path: Path | str) -> StoreError:
    """Return the error for files that cannot be opened or written: of the moment, if the permissions let us."""
    may = isinstance(path, str) or (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK))
    if code == sqlite3.SQLITE_CANTOPEN and may:
        return StoreError(
            f"{path}: its files cannot be opened now ({error}): is the process out of file descriptors? Try again"
        )
    return NotAQueue(f"{path}: cannot be written ({error})")


class InlineConnection:
    """What `Database.write_inline` gives to its work: the driver's interface, answered at once in its thread."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    @property
    def in_transaction(self) -> bool:
        """Whether the transaction is still open."""
        return self._raw.in_transaction

    async def execute_fetchall(self, sql: str, parameters: Any = ()) -> list[Any]:
        """Run one statement and return all its rows; never waits."""
        return self._raw.execute(sql, parameters).fetchall()


class _OneHop(Generic[T]):
    """A transaction that runs as if it were one statement. It is the cursor of that statement, too.

    It takes its turn among the processes by itself and leaves it by itself, so that the turn ends with the commit
    and not when the event loop learns of it. `entered` tells that the gate was passed for it already.
    """

    result: T

    def __init__(
        self,
        work: Work[T],
        gate: Gate | None,
        patient_until: float,
        *,
        entered: bool,
        on_busy: Callable[[], None],
    ) -> None:
        self._work = work
        self._gate = gate
        self._patient_until = patient_until
        self._is_entered = entered
        self._on_busy = on_busy

    def run(self, raw: sqlite3.Connection) -> "_OneHop[T]":
        try:
            if raw.in_transaction:
                raise _NotNow("an earlier transaction could not be rolled back")
            if not (self._is_entered or self._gate is None or self._gate.try_enter()):
                raise _NotNow("another process has the turn")
            self._is_entered = True
            self._transact(raw)
        finally:
            self.leave()
        return self

    def leave(self) -> None:
        """Hand the turn over, once."""
        if self._is_entered and self._gate is not None:
            self._gate.leave()
        self._is_entered = False

    def _transact(self, raw: sqlite3.Connection) -> None:
        raw.execute(statements.BEGIN)
        try:
            self.result = _completed(self._work(InlineConnection(raw)))
            self._commit(raw)
        except BaseException:
            raw.rollback()
            raise

    def _commit(self, raw: sqlite3.Connection) -> None:
        # A reader with an open cursor makes COMMIT fail "locked" and leaves the transaction open: again.
        while True:
            try:
                raw.execute(statements.COMMIT)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY or time.monotonic() >= self._patient_until:
                    raise
                self._on_busy()
                time.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 - jitter, not a secret
            else:
                return

    def fetchall(self) -> list[Any]:
        return []


class _NotNow(Exception):
    """A transaction in one hop could not begin as things are; nothing was done."""


class _Connection(sqlite3.Connection):
    """Takes a whole transaction where the driver passes parameters: the public way to run it in its thread.

    Text that is not UTF-8 can only have been written by somebody else; it is read with replacement characters, so
    that one such value does not make every statement fail that passes over it.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.text_factory = _lenient_text

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return parameters.run(self) if isinstance(parameters, _OneHop) else super().execute(sql, parameters)


_lenient_text: Final = partial(str, encoding="utf-8", errors="replace")


def _completed(work: Awaitable[T]) -> T:
    """Return the result of a coroutine that never waits."""
    coroutine = work.__await__()
    try:
        next(coroutine)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("the work of an inline transaction waited for something else than its statements")


class Database:
    """An open SQLite file; made by `open`, ended by `close`, usable only in the process that opened it."""

    def __init__(self, path: Path, profile: Profile) -> None:
        self.path = path
        self.profile = profile
        self.busy_retries = 0
        self._is_read_only = False
        self._pid = os.getpid()
        self._turn = Turn()
        self._gate: Gate | None = None  # made once the file is known to be ours: it leaves a side file
        self._is_closed = False
        self._number = 0  # of the file that was opened
        self._writer: aiosqlite.Connection | None = None  # None while open: lost, the next write connects again
        self._reader: aiosqlite.Connection | None = None

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        profile: Profile,
        migrate: Work[None],
        *,
        inspect: Work[bool] | None = None,
        create: bool = True,
    ) -> "Database":
        """Open (and with `create` make) the file, then run `migrate` in one write transaction.

        `inspect` runs before anything is changed (not even the journal mode) and raises for a file that is not
        ours; if it returns False there is nothing to migrate, and nothing is written. New files are private
        (0600). Raises `NotAQueue`, `ConfigError`, `StoreBusy`; leaves nothing open then, nor if the caller is
        cancelled.
        """
        profile.check()
        where = check_path(path, create=create)
        return await shielded(cls._open(where, profile, migrate, inspect), undo=cls._close)

    @classmethod
    async def _open(
        cls, where: Path, profile: Profile, migrate: Work[None], inspect: Work[bool] | None
    ) -> "Database":
        create_private(where)
        database = cls(where, profile)
        must_migrate = True

        async def look(connection: aiosqlite.Connection) -> None:
            nonlocal must_migrate
            must_migrate = inspect is None or await inspect(connection)

        try:
            database._writer = await database._connect(look)
            database._number = number_of(where)
            database._gate = Gate(where) if profile.gate else None
            if must_migrate:
                await database.write(migrate)
            database._reader = await database._connect()
        except BaseException:
            await database._close()
            raise
        return database

    @classmethod
    async def open_read_only(
        cls, path: str | os.PathLike[str], profile: Profile, inspect: Work[bool]
    ) -> "Database":
        """Open a file that cannot be written for reads alone: no side file, no journal mode, no migration.

        Raises as `open` does; a file that must be migrated, or put in order after a crash, is not a queue to us.
        """
        where = check_path(path, create=False, read_only=True)
        return await shielded(cls._open_read_only(where, profile, inspect), undo=cls._close)

    @classmethod
    async def _open_read_only(cls, where: Path, profile: Profile, inspect: Work[bool]) -> "Database":
        database = cls(where, profile)
        database._is_read_only = True

        async def look(connection: aiosqlite.Connection) -> None:
            if await inspect(connection):
                raise NotAQueue(f"{where}: cannot be written, and must be migrated before it can be read")

        try:
            database._reader = await database._connect(look)
            database._number = number_of(where)
        except BaseException:
            await database._close()
            raise
        return database

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one write transaction of its own and return its result.

        Everything `work` did is committed, or nothing is. Waiting for the turn can be cancelled; once BEGIN
        has run the transaction ends first, and a cancellation is raised after it (its outcome is then unknown
        to the caller). Raises `StoreBusy` after `patience_ms`, `StoreFull`, `StoreError`.
        """
        self._check_writable()
        patient_until = self._patient_until()
        async with self._turn.exclusive():
            await self._enter_gate(patient_until)
            try:
                return await shielded(self._transaction(work, patient_until))
            finally:
                if self._gate is not None:
                    self._gate.leave()

    async def write_inline(self, work: Work[T]) -> T:
        """Do as `write` does, with the whole transaction in one hop to the driver's thread.

        A hop costs more than the statements of a small set, so this is the fast way; and the next such transaction
        may wait in that thread already, not for the event loop. But `work` may wait for nothing except its own
        statements (it raises `RuntimeError` and is rolled back if it does), and it must be fit to be called again
        after a rollback.
        """
        self._check_writable()
        patient_until = self._patient_until()
        try:
            async with self._turn.shared():
                return await self._inline(work, patient_until, entered=False)
        except _NotNow:
            return await self._inline_alone(work, patient_until)

    async def read(self, sql: str, parameters: Iterable[Any] | dict[str, Any] = ()) -> list[Any]:
        """Return all rows of one SELECT, a consistent moment of its own. Raises as `write` does."""
        self._check_process()
        patient_until = self._patient_until()
        reader = self._reader
        if self._is_closed or reader is None:
            raise StoreClosed(f"{self.path}: is closed")
        try:
            return list(await self._patiently(lambda: reader.execute_fetchall(sql, parameters), patient_until))
        except StoreError:
            with contextlib.suppress(sqlite3.Error, ValueError):
                await reader.execute_fetchall(statements.FORGET_PAGES)
            raise

    async def data_version(self) -> int:
        """Return a number that changes when another connection has committed; takes no lock."""
        rows = await self.read(statements.DATA_VERSION)
        return int(rows[0][0])

    async def close(self) -> None:
        """Close both connections and the gate; a transaction that runs is waited for. May be called again."""
        self._check_process()
        await shielded(self._close())

    async def _close(self) -> None:
        self._is_closed = True
        async with self._turn.exclusive():
            writer, self._writer = self._writer, None
            reader, self._reader = self._reader, None
        try:
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()
            if self._gate is not None:
                self._gate.close()

    async def _connect(self, inspect: Work[None] | None = None) -> aiosqlite.Connection:
        name = f"{self.path.as_uri()}?mode=ro" if self._is_read_only else self.path
        try:
            connection = await aiosqlite.connect(
                name, uri=self._is_read_only, isolation_level=None, timeout=_HOP_TIMEOUT_S, factory=_Connection
            )
        except sqlite3.Error as error:
            raise self._told(error) from error
        try:
            until = self._patient_until()
            if inspect is not None:
                await self._patiently(lambda: inspect(connection), until)
            for pragma in () if self._is_read_only else statements.PRAGMAS[self.profile.journal]:
                await self._patiently(lambda pragma=pragma: connection.execute_fetchall(pragma), until)  # type: ignore[misc]
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _transaction(self, work: Work[T], patient_until: float) -> T:
        writer = await self._healthy_writer()
        try:
            await self._patiently(lambda: writer.execute_fetchall(statements.BEGIN), patient_until)
            result = await work(writer)
            # A reader with an open cursor makes COMMIT fail "locked" and leaves the transaction open: again.
            await self._patiently(lambda: writer.execute_fetchall(statements.COMMIT), patient_until)
        except BaseException as error:
            await self._roll_back(writer)
            if isinstance(error, sqlite3.Error):
                raise translated(error, self.path) from error
            raise
        return result

    async def _inline_alone(self, work: Work[T], patient_until: float) -> T:
        async with self._turn.exclusive():
            while True:
                await self._enter_gate(patient_until)
                try:
                    return await self._inline(work, patient_until, entered=True)
                except _NotNow:  # a busy database made it leave the gate, and another process went through
                    continue

    async def _inline(self, work: Work[T], patient_until: float, *, entered: bool) -> T:
        """Run one transaction in one hop; with `entered` the turn of this process and the gate are held for it."""
        # No shield around the hop: the driver's thread ends the transaction whether or not somebody still waits.
        hop = _OneHop(work, self._gate, patient_until, entered=entered, on_busy=self._note_busy)
        writer = None
        try:
            writer = (await self._healthy_writer()) if entered else self._open_writer()
            await self._patiently(lambda: writer.execute_fetchall(statements.BEGIN, hop), patient_until)
        except _NotNow:
            raise
        except BaseException:
            if writer is not None:  # comes after the hop in the driver's queue: waits for its end
                await shielded(self._roll_back(writer))
            raise
        finally:
            hop.leave()
        return hop.result

    def _open_writer(self) -> aiosqlite.Connection:
        """Return the write connection if it is open; what else may be wrong with it is seen in its thread."""
        self.check_usable()
        if self._writer is None or _is_closed(self._writer):
            raise _NotNow("the connection was lost")
        return self._writer

    def _patient_until(self) -> float:
        return time.monotonic() + self.profile.patience_ms / 1000

    async def _healthy_writer(self) -> aiosqlite.Connection:
        """Return the write connection; a new one if the old one could not even be rolled back, or was closed."""
        self.check_usable()
        if self._writer is not None and _is_lost(self._writer):
            lost, self._writer = self._writer, None
            await lost.close()
        if self._writer is None:
            self._writer = await self._connect()
        return self._writer

    async def _roll_back(self, writer: aiosqlite.Connection) -> None:
        # No-op without a transaction. If it fails, the next write finds the transaction open and reconnects.
        try:
            await writer.rollback()
            await writer.execute_fetchall(statements.FORGET_PAGES)
        except (sqlite3.Error, ValueError):
            return

    async def _patiently(self, hop: Callable[[], Awaitable[T]], patient_until: float) -> T:
        while True:
            try:
                return await hop()
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code not in _BUSY or time.monotonic() >= patient_until:
                    # Whoever keeps the error would keep a half-read cursor with it, and its lock on the file.
                    traceback.clear_frames(error.__traceback__)
                    raise self._told(error) from error
            except InvalidJob:
                raise
            except UnicodeError as error:
                raise InvalidJob(f"{self.path}: a value has no place in its column: {error}") from error
            except ValueError as error:  # the driver's word for a closed connection
                raise StoreClosed(f"{self.path}: is closed") from error
            self._note_busy()
            await asyncio.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 - jitter, not a secret

    def _told(self, error: sqlite3.Error) -> StoreError:
        """Return the typed error; a file that is only read may need what only a writer can do."""
        if self._is_read_only and getattr(error, "sqlite_errorcode", 0) & 0xFF in _READ_ONLY:
            return NotAQueue(f"{self.path}: cannot be written, and a writer must put it in order first ({error})")
        return translated(error, self.path)

    def _note_busy(self) -> None:
        self.busy_retries += 1

    async def _enter_gate(self, patient_until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, patient_until - time.monotonic())):
                if self._gate is not None:
                    await self._gate.enter()
        except TimeoutError:
            raise StoreBusy(f"{self.path}: other processes held the write turn for too long") from None

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self.path}: opened before a fork; open it again in the child process")

    def check_usable(self) -> None:
        """Raise `ForkedProcess` in a child process, `StoreClosed` after `close`."""
        self._check_process()
        if self._is_closed:
            raise StoreClosed(f"{self.path}: is closed")

    def check_in_place(self, number: int | None = None) -> None:
        """Raise `StoreClosed` if the file was removed or replaced; `number` is that of what is there, if known."""
        if (number_of(self.path) if number is None else number) != self._number:
            raise StoreClosed(
                f"{self.path}: was removed or replaced since it was opened: nobody else sees what is written to "
                "it here; stop, and open it again"
            )

    def _check_writable(self) -> None:
        self.check_usable()
        self.check_in_place()
        if self._is_read_only:
            raise StoreError(f"{self.path}: was opened to be read only")


def _is_lost(writer: aiosqlite.Connection) -> bool:
    """Tell whether nobody can use it any more; asked only while no transaction of ours runs on it."""
    return _is_closed(writer) or writer.in_transaction


def _is_closed(writer: aiosqlite.Connection) -> bool:
    try:
        writer.in_transaction  # noqa: B018 - it is the question that fails
    except ValueError:  # the driver's word for closed: an effect did that
        return True
    return False


def create_private(path: Path) -> None:
    """Make an empty 0600 file and sync its folder, unless something is there already.

    Raises `NotAQueue` where none can be made, `StoreError` where that may pass.
    """
    if path.exists():
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)  # first: without it no file is left behind
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _PRIVATE))
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        return
    except OSError as error:
        kind = StoreError if error.errno in _OF_THE_MOMENT else NotAQueue
        raise kind(f"{path}: cannot be created ({error.strerror})") from None
