"""One PostgreSQL database as a durable product needs it: bounded waits, typed errors, whole transactions.

`Database` owns a small pool. Whatever passes by itself (a restart, a failover, a deadlock, a pool in use) is tried
again with jitter for as long as `patience_ms`, and then told by a typed error; whatever does not pass is told at
once. Errors of the driver are translated here, once.
"""

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.exceptions import ClientConfigurationError, TargetServerAttributeNotMatched

from asyncqueue.errors import (
    AsyncQueueError,
    ConfigError,
    ForkedProcess,
    InvalidJob,
    NotAQueue,
    StoreBusy,
    StoreClosed,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnreachable,
)
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.address import DEFAULT_SCHEMA, Address
from asyncqueue.stores.shield import shielded

__all__ = [
    "Connection",
    "Database",
    "Profile",
    "Trouble",
    "Work",
    "Xact",
    "by_state",
    "in_schema",
    "is_gone",
    "judged",
]

T = TypeVar("T")
Connection = Any
"""A connection of asyncpg, whether or not it comes from a pool."""
Work = Callable[[Connection], Awaitable[T]]
"""Statements in an open transaction: `await connection.fetch(sql, *arguments)`. Run again after a rollback."""
Xact = tuple[str, str]
"""A transaction that changed something: its number, and when its server was started."""

_PLACE: Final = re.compile(rf"(SCHEMA |\b){DEFAULT_SCHEMA}(?=\.|$)")
_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_CONNECT_S: Final = 5.0
_CLOSE_S: Final = 2.0
_SPARE_S: Final = 60.0  # a connection unused for longer may be gone without a word, by a failover or a router

# What the server may say of itself or of the moment, by the class (2) or the code (5) of its SQLSTATE.
_CONTENTION: Final = frozenset({"40001", "40P01", "40003", "55P03", "57014", "25P03", "55006"})
_AWAY: Final = frozenset({"08", "57P01", "57P02", "57P03", "57P05", "53300", "25006", "58030"})
_DENIED: Final = frozenset({"28", "42501", "3D000", "0LP01"})
_FULL: Final = frozenset({"53100"})
_MISSING: Final = frozenset({"3F000", "42P01", "42703", "42883"})
# A value that is too long, out of range, or no text of the server's encoding; the driver says 22000 of one that it
# cannot send. The rest of class 22 (a division by zero, say) is about statements: ours, not a caller's value.
_NO_PLACE: Final = frozenset({"22000", "22001", "22003", "22021", "22026", "22032", "22P02", "22P03", "22P05"})
# What a pooler in transaction mode makes of a session's settings and of statements prepared by name.
_POOLED: Final = frozenset({"26000", "42P05"})
_POOLER_SAYS: Final = "unsupported startup parameter"
# It has one SQLSTATE, of the class of lost connections, for whatever it has to say.
_POOLERS: Final = "08P01"
_POOLER_DENIES: Final = re.compile("authentication failed|no such (user|database)|does not exist")
_STALE_PLANS: Final = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)
_SOON: Final = frozenset({"57P03", "53300"})  # worth a wait while opening: it is there, but cannot yet


@dataclass(frozen=True, slots=True)
class Profile:
    """How patient, and how many connections.

    `patience_ms` bounds all waiting of one call: for a connection, for a server that is restarted, for other
    writers. `reply_ms` is how long the server may take to answer one statement before the connection is taken for
    dead (half open): it is cut, and the call goes on over another one while patience lasts. A process uses up to
    `connections`, of which one is kept ready between calls, and one more to listen.
    """

    patience_ms: int = 10_000
    reply_ms: int = 10_000
    connections: int = 4

    @property
    def answer_ms(self) -> int:
        """How long one answer may really take: no longer than the patience."""
        return min(self.reply_ms, self.patience_ms)

    def check(self) -> None:
        """Raise `ConfigError` for a value below 1."""
        for name in ("patience_ms", "reply_ms", "connections"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")


@dataclass(frozen=True, slots=True)
class Trouble:
    """What became of a driver's error: the typed one, and whether it may pass by itself.

    `is_lost` says that the connection cannot be used any more, `is_soon` that the server is there but cannot yet.
    """

    error: AsyncQueueError
    passes: bool = False
    is_lost: bool = False
    is_soon: bool = False


@lru_cache(maxsize=512)  # all our statements, in a few schemas
def in_schema(text: str, schema: str) -> str:
    """Return a statement, or a script, for the tables in `schema`, which is a checked identifier."""
    return text if schema == DEFAULT_SCHEMA else _PLACE.sub(lambda found: found[1] + schema, text)


def judged(error: BaseException, where: str) -> Trouble | None:
    """Return what to make of an error of the driver or the network, None for any other."""
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, _STALE_PLANS):
        return by_state(error.sqlstate or "", error, where)
    for kinds, trouble in _BY_KIND:
        if isinstance(error, kinds):
            return trouble(error, where)
    return None


def by_state(state: str, error: BaseException, where: str) -> Trouble:
    """Return what to make of an error with this SQLSTATE, whatever driver it comes from."""
    text = f"{where}: {_line(error)}"
    if hint := _misuse_of(state, text):
        return Trouble(ConfigError(f"{text}; {hint}"), is_lost=True)
    if state in _CONTENTION:
        return Trouble(StoreBusy(f"{text}; other writers were in the way, try again"), passes=True)
    is_told_by_pooler = state == _POOLERS and _POOLER_DENIES.search(text)
    if state in _DENIED or state[:2] in _DENIED or is_told_by_pooler:
        return Trouble(StoreDenied(f"{text}; check user, password, database and permissions"), is_lost=True)
    if state in _AWAY or state[:2] in _AWAY:
        return Trouble(StoreUnreachable(text), passes=True, is_lost=True, is_soon=state in _SOON)
    if state in _FULL:
        return Trouble(StoreFull(f"{where}: no room left on the server's disk; nothing was changed"))
    return Trouble(_lasting(state, text))


def _misuse_of(state: str, text: str) -> str | None:
    """Return what to do if the URL asks for something that cannot be had there."""
    if state in _POOLED or _POOLER_SAYS in text:
        return "behind a pooler add pgbouncer=true to the URL"
    if "unrecognized configuration parameter" in text:
        return "an option of the URL that neither driver nor server knows"
    return None


def _lasting(state: str, text: str) -> AsyncQueueError:
    """Return the error for a state that is about what was asked, not about the server or the moment."""
    if state in _NO_PLACE:
        return InvalidJob(f"{text}; a value has no place in its column")
    if state in _MISSING:
        return NotAQueue(f"{text}; the schema is missing or was changed, open it anew")
    return StoreMoved(text) if state == statements.MOVED else StoreError(text)


def _read_only(_error: BaseException, where: str) -> Trouble:
    text = f"{where}: a read-only replica (or no server that can be written); give the address of the primary"
    return Trouble(StoreUnreachable(text), passes=True, is_lost=True)


def _misused(error: BaseException, where: str) -> Trouble:
    return Trouble(ConfigError(f"{where}: {_line(error)}"))


def _changed(_error: BaseException, where: str) -> Trouble:
    return Trouble(StoreBusy(f"{where}: the schema has just changed; try again"), passes=True)


def _silent(_error: BaseException, where: str) -> Trouble:
    return Trouble(StoreUnreachable(f"{where}: no answer in time"), passes=True, is_lost=True)


def _away(error: BaseException, where: str) -> Trouble:
    return Trouble(StoreUnreachable(f"{where}: cannot be reached ({_line(error)})"), passes=True, is_lost=True)


# In this order: the first kinds are special cases of later ones.
_BY_KIND: Final = (
    (TargetServerAttributeNotMatched, _read_only),
    (ClientConfigurationError, _misused),
    (_STALE_PLANS, _changed),
    (TimeoutError, _silent),
    ((asyncpg.InterfaceError, asyncpg.InternalClientError, OSError), _away),
)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__


class _Repeat(Exception):
    """A trouble that no error of the driver stands for."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble


class Database:
    """An open database; made by `open`, ended by `close`, usable only in the process that opened it."""

    def __init__(self, address: Address, profile: Profile) -> None:
        self.address = address
        self.profile = profile
        self.retries = 0
        self.commits = 0  # of transactions that changed something
        self._pid = os.getpid()
        self._is_closed = False
        self._pool: asyncpg.Pool[Any] | None = None
        self._spare: Connection | None = None  # of the pool, which makes a task or two each time it is asked
        self._spare_since = 0.0
        self._waiting = 0  # for one of the pool

    @classmethod
    async def open(cls, address: Address, profile: Profile, migrate: Work[None]) -> "Database":
        """Connect, then run `migrate` in one transaction.

        Raises `StoreUnreachable` (at once if nobody listens there), `StoreDenied`, `NotAQueue`, `ConfigError`,
        `StoreBusy`; leaves nothing open then, nor if the caller is cancelled.
        """
        profile.check()
        database = cls(address, profile)
        try:
            await database._first_contact()
            await database.write(migrate)
        except BaseException:
            await database.close()
            raise
        return database

    async def connect(self) -> Connection:
        """Return a connection beside the pool, as a listener needs it. Raises the driver's errors."""
        return await asyncpg.connect(**self._how())

    def sql(self, text: str) -> str:
        """Return a statement as it is run here, in this queue's schema."""
        return in_schema(text, self.address.schema)

    def patience_ends(self) -> float:
        """Return when the patience of a call that begins now is over, for a call that asks more than once."""
        return time.monotonic() + self.profile.patience_ms / 1000

    async def write(
        self,
        work: Work[T],
        xact: Callable[[], Xact | None] = lambda: None,
        *,
        is_ours: bool = False,
        until: float | None = None,
    ) -> T:
        """Run `work` in one transaction of its own and return its result.

        Everything `work` did is committed, or nothing is. Waiting for a connection can be cancelled; once the
        transaction has begun it ends first, and a cancellation is raised after it. If the connection breaks during
        COMMIT the server is asked what became of it. `work` is run again if the transaction had to be given up for
        a reason that passes. `xact` is asked after `work` whether a statement told the transaction's number, which
        saves a question. `is_ours` promises that `work` shows the connection to nobody else, as to an effect.
        Raises `StoreBusy` or `StoreUnreachable` after `patience_ms` (or at `until`), or another `StoreError`.
        """
        until = self.patience_ends() if until is None else until
        return await self._patiently(lambda: self._attempt(work, xact, until, is_ours=is_ours), until)

    async def alone(self, work: Work[T], until: float | None = None) -> T:
        """Run `work`, which asks for one statement, without a transaction around it: one exchange with the server.

        If the connection breaks before the answer, whether it was done is not known, and it is run again: so it is
        for what does no harm if it is done twice, even late, and what shows the connection to nobody else. A
        cancellation passes at once. Raises as `write`.
        """
        until = self.patience_ends() if until is None else until
        return await self._patiently(lambda: self._once(work, until), until)

    async def within(
        self, connection: Connection, work: Work[T], xact: Callable[[], Xact | None], until: float
    ) -> T:
        """Run `work` in one transaction on a connection that is lent to the caller; see `write`.

        It is not run again: raises what came in between, the driver's errors too.
        """
        return await shielded(self._transaction(connection, work, xact, until))

    async def read(self, sql: str, *arguments: Any) -> list[Any]:
        """Return all rows of one SELECT, a consistent moment of its own. Raises as `write` does."""

        async def work(connection: Connection) -> list[Any]:
            return list(await connection.fetch(self.sql(sql), *arguments))

        return await self.alone(work)

    async def close(self) -> None:
        """Close all connections; transactions that run are waited for. May be called again."""
        self._check_process()
        await shielded(self._close())

    async def _close(self) -> None:
        self._is_closed = True
        pool, self._pool = self._pool, None
        spare, self._spare = self._spare, None
        if pool is None:
            return
        if spare is not None:
            await _give_back(pool, spare)
        try:
            async with asyncio.timeout(self.profile.patience_ms / 1000):
                await pool.close()
        except TimeoutError:  # somebody still works, or the other side is frozen
            pool.terminate()

    def _how(self) -> dict[str, Any]:
        pooled = self.address.is_pooled
        return {
            "dsn": self.address.dsn,
            "timeout": min(_CONNECT_S, self.profile.patience_ms / 1000),
            "command_timeout": self.profile.answer_ms / 1000,
            "target_session_attrs": "read-write",
            "statement_cache_size": 0 if pooled else 256,
            "max_cached_statement_lifetime": 0,
            # a pooler hands the server's session to others after each transaction: nothing may be set for longer
            "server_settings": {} if pooled else statements.settings(self.profile.answer_ms),
        }

    async def _first_contact(self) -> None:
        self._pool = asyncpg.create_pool(
            min_size=0, max_size=self.profile.connections, reset=_nothing, **self._how()
        )
        until = self.patience_ends()
        await self._pool  # connects to nobody yet
        try:
            await self._patiently(lambda: self._look(until), until, is_opening=True)
        except ValueError as error:  # the driver's word for a URL that it cannot read
            raise (
                error
                if isinstance(error, ConfigError)
                else ConfigError(f"{self.address.shown}: not a URL that the driver understands")
            ) from None

    async def _look(self, until: float) -> None:
        async with self._borrowed(until) as connection:
            await connection.fetchval(statements.PING)

    async def _attempt(self, work: Work[T], xact: Callable[[], Xact | None], until: float, *, is_ours: bool) -> T:
        async with self._borrowed(until, is_ours=is_ours) as connection:
            return await self.within(connection, work, xact, until)

    async def _once(self, work: Work[T], until: float) -> T:
        async with self._borrowed(until) as connection:
            try:
                return await work(connection)
            except asyncio.CancelledError:
                _cut(connection)  # it would still wait for the answer
                raise

    @asynccontextmanager
    async def _borrowed(self, until: float, *, is_ours: bool = True) -> AsyncIterator[Connection]:
        """Lend a connection of the pool; one that broke meanwhile, or whose state is not known, is thrown away.

        One that is not only ours goes back to the pool: that takes it from whoever has kept it.
        """
        self.check_usable()
        pool = self._pool
        assert pool is not None  # noqa: S101 - check_usable saw to it
        connection = self._take_spare() or await self._acquired(pool, until)
        try:
            yield connection
        except BaseException as error:
            trouble = judged(error, self.address.shown)
            if trouble is not None and trouble.is_lost:
                _cut(connection)
            raise
        finally:
            if not is_gone(connection) and connection.is_in_transaction():
                _cut(connection)
            if not (is_ours and self._keeps(connection)):
                await _give_back(pool, connection)

    def _take_spare(self) -> Connection | None:
        """Return the spare connection, if there is one and it can be trusted."""
        spare = self._spare
        if spare is None or is_gone(spare):
            return None
        if time.monotonic() - self._spare_since > _SPARE_S:
            _cut(spare)
            return None
        self._spare = None
        return spare

    def _keeps(self, connection: Connection) -> bool:
        """Keep a connection that is not used any more, if there is none yet and nobody waits for it."""
        if self._spare is not None or self._waiting or self._is_closed or is_gone(connection):
            return False
        self._spare, self._spare_since = connection, time.monotonic()
        return True

    async def _acquired(self, pool: "asyncpg.Pool[Any]", until: float) -> Connection:
        """Return a connection of the pool, which gets a spare that cannot be trusted back first."""
        self._waiting += 1
        try:
            broken, self._spare = self._spare, None
            if broken is not None:
                await _give_back(pool, broken)
            return await pool.acquire(timeout=max(0.001, until - time.monotonic()))
        except TimeoutError as error:
            if pool.get_idle_size() == 0 and pool.get_size() >= pool.get_max_size():
                many = self.profile.connections
                text = f"{self.address.shown}: all {many} connections of this process are in use"
                raise _Repeat(Trouble(StoreBusy(text), passes=True)) from error
            raise
        finally:
            self._waiting -= 1

    async def _transaction(
        self, connection: Connection, work: Work[T], xact: Callable[[], Xact | None], until: float
    ) -> T:
        transaction = connection.transaction()
        try:
            await transaction.start()
            if self.address.is_pooled:
                await connection.execute(statements.local_settings(self.profile.answer_ms))
            result = await work(connection)
            xid, server_start = xact() or await connection.fetchrow(statements.XID)
        except BaseException:
            await self._roll_back(connection, transaction)
            raise
        if xid is None:  # nothing was changed, so nothing can be lost
            await self._roll_back(connection, transaction)
            return result
        try:
            await transaction.commit()
        except BaseException as error:
            trouble = judged(error, self.address.shown)
            _cut(connection)
            if trouble is None or not trouble.is_lost or not await self._has_committed(xid, server_start, until):
                raise
        self.commits += 1
        return result

    async def _roll_back(self, connection: Connection, transaction: Any) -> None:
        if is_gone(connection):
            return
        try:
            await transaction.rollback()
        except BaseException:  # noqa: BLE001 - the first error is the one to tell; the server rolls back by itself
            _cut(connection)

    async def _has_committed(self, xid: str, server_start: str, until: float) -> bool:
        """Ask the server, over another connection, what became of a transaction whose COMMIT got no answer.

        A server that was started since then may have given the number to another transaction, if the old one was
        lost in a crash: it is not asked. The work is then repeated, which finds what was done, if it was: a job is
        answered as a duplicate, a ticket as stale.
        """
        text = f"{self.address.shown}: the connection broke at COMMIT; whether it was done is not known"
        while True:
            try:
                async with self._borrowed(until) as connection:
                    if await connection.fetchval(statements.SERVER_START) != server_start:
                        return False
                    status = await connection.fetchval(statements.XACT_STATUS, xid)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, _Repeat) as error:
                trouble = judged(error, self.address.shown)
                if time.monotonic() >= until or (trouble is not None and not trouble.passes):
                    raise StoreUnreachable(text) from error
                status = "in progress"
            if status in ("committed", "aborted"):
                return bool(status == "committed")
            if status is None or time.monotonic() >= until:
                raise StoreUnreachable(text)
            await asyncio.sleep(random.uniform(0, _PAUSE_S))  # noqa: S311 - jitter, not a secret

    async def _patiently(self, once: Callable[[], Awaitable[T]], until: float, *, is_opening: bool = False) -> T:
        pause_s = _PAUSE_S
        while True:
            self.check_usable()
            try:
                return await once()
            except _Repeat as repeat:
                trouble: Trouble | None = repeat.trouble
                cause: BaseException = repeat
            except Exception as error:
                trouble = judged(error, self.address.shown)
                if trouble is None:
                    raise
                cause = error
            assert trouble is not None  # noqa: S101 - for the type checker: both ways above set it
            waits = trouble.passes and (trouble.is_soon or not trouble.is_lost or not is_opening)
            if not waits or time.monotonic() + pause_s >= until:
                raise trouble.error from cause
            self.retries += 1
            await asyncio.sleep(random.uniform(0, pause_s))  # noqa: S311 - jitter, not a secret
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(f"{self.address.shown}: opened before a fork; open it again in the child process")

    def check_usable(self) -> None:
        """Raise `ForkedProcess` or `StoreClosed` if nothing can be asked here any more."""
        self._check_process()
        if self._is_closed or self._pool is None:
            raise StoreClosed(f"{self.address.shown}: is closed")


def is_gone(connection: Connection) -> bool:
    """Tell whether a connection is closed; a pool's handle that was closed cannot even be asked."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


def _cut(connection: Connection) -> None:
    """Drop a connection at once, whatever it was doing; the server rolls back what was open."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _give_back(pool: "asyncpg.Pool[Any]", connection: Connection) -> None:
    """Return a connection to its pool, which closes what is broken."""
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        await pool.release(connection, timeout=_CLOSE_S)


async def _nothing(_connection: Connection) -> None:
    """Leave the session as it is: nothing was set in it."""
