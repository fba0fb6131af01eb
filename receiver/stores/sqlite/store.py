"""The SQLite inbox: one short transaction per set of messages."""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite

from asyncqueue.errors import NewerSchema, NotAQueue, StoreError
from asyncqueue.stores.inside import failure_of
from asyncqueue.stores.sqlite.connection import Database, Journal, Profile
from asyncqueue.stores.sqlite.schema import script
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Effect, Kept, Result, Totals
from receiver.stores.sets import CONFLICTS_PER_ID_MAX, evidence_of, first_of, repeats_of, results_of
from receiver.stores.sqlite import statements

__all__ = ["Journal", "Profile", "SqliteInbox"]

log = logging.getLogger("receiver")

_VERSION: Final = 1
_TABLES: Final = 4


class SqliteInbox:
    """An inbox in one SQLite file; made by `open`."""

    def __init__(self, database: Database, effect: Effect | None) -> None:
        self._database = database
        self._effect = effect

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], profile: Profile, effect: Effect | None = None
    ) -> "SqliteInbox":
        """Open or make the file. Raises `NotAQueue`, `NewerSchema`, `ConfigError`, `StoreBusy`."""
        where = Path(path)

        async def inspect(connection: aiosqlite.Connection) -> bool:
            return await _is_new(connection, where)

        async def migrate(connection: aiosqlite.Connection) -> None:
            if await _is_new(connection, where):
                for statement in script("0001_inbox.sql", "receiver.stores.sqlite"):
                    await connection.execute_fetchall(statement)
                await connection.execute_fetchall(statements.SCHEMA_MARK)

        return cls(await Database.open(path, profile, migrate, inspect=inspect), effect)

    async def receive(self, take: Callable[[], Sequence[Arrival]]) -> list[Result | Exception]:
        """See `receiver.stores.base.InboxStore`."""

        async def work(connection: aiosqlite.Connection) -> list[Result | Exception]:
            return await _Set(connection, self._effect, take()).receive()

        return await (self._database.write_inline(work) if self._effect is None else self._database.write(work))

    async def get(self, message_id: str) -> Kept | None:
        """See `receiver.stores.base.InboxStore`."""
        rows = await self._database.read(statements.GET, {"id": message_id})
        return Kept(*rows[0]) if rows else None

    async def totals(self) -> Totals:
        """See `receiver.stores.base.InboxStore`."""
        return Totals(*(await self._database.read(statements.TOTALS))[0])

    async def check_ready(self) -> None:
        """See `receiver.stores.base.InboxStore`."""
        self._database.check_in_place()
        await self.totals()

    async def close(self) -> None:
        """See `receiver.stores.base.InboxStore`."""
        await self._database.close()


class _Set:
    """One set of messages inside its transaction."""

    def __init__(
        self, connection: aiosqlite.Connection, effect: Effect | None, arrivals: Sequence[Arrival]
    ) -> None:
        self._connection = connection
        self._effect = effect
        self._arrivals = arrivals
        self._now_ms = time.time_ns() // 1_000_000
        self._items = _array(
            [(a.message.id, a.message.qty, a.message.payload, a.token, a.attempt) for a in arrivals]
        )

    async def receive(self) -> list[Result | Exception]:
        if not self._arrivals:
            return []
        ((known,),) = await self._rows(statements.KNOWN, items=self._items)
        await self._rows(statements.ACCEPT, items=self._items)
        new = {arrival.message.id for arrival in self._arrivals}.difference(json.loads(known))
        accepted = first_of(self._arrivals, new)
        if self._effect is None:
            await self._enter_in_ledger(accepted)
            failed: set[str] = set()
        else:
            failed = await self._run_effects(self._effect, accepted)
            accepted = [message for message in accepted if message.id not in failed]
        if len(accepted) == len(self._arrivals):
            results = [Result.ACCEPTED] * len(accepted)
        else:
            results = await self._judge({message.id for message in accepted}, failed)
            await self._keep_repeats(results)
        await self._rows(
            statements.TOTALS_ADD,
            messages=len(accepted),
            quantity=sum(message.qty for message in accepted),
            duplicates=results.count(Result.DUPLICATE),
            conflicts=results.count(Result.CONFLICT),
        )
        return [*results]

    async def _enter_in_ledger(self, accepted: list[Message]) -> None:
        if len(accepted) == len(self._arrivals):
            await self._rows(statements.LEDGER, items=self._items)
        elif accepted:
            await self._rows(statements.LEDGER, items=_array((m.id, m.qty) for m in accepted))

    async def _run_effects(self, effect: Effect, accepted: list[Message]) -> set[str]:
        """Run the effect of each accepted message; return the ids whose effect failed and was undone."""
        failed = set()
        await self._connection.set_authorizer(_forbid_ending)
        try:
            for message in accepted:
                if not await self._run_effect(effect, message):
                    failed.add(message.id)
        finally:
            self._connection.row_factory = None
            await self._connection.set_authorizer(None)
        if failed:
            await self._rows(statements.FORGET, ids=_array(failed))
        return failed

    async def _run_effect(self, effect: Effect, message: Message) -> bool:
        await self._rows(statements.EFFECT_BEGIN)
        failure = await failure_of(lambda connection: effect(connection, message), self._connection)
        if failure is not None:
            log.warning("the effect of %s failed and was undone", message.id, exc_info=failure)
        if not self._connection.in_transaction:
            raise StoreError(f"the effect of {message.id} rolled its transaction back; nothing of the set is kept")
        self._connection.row_factory = None
        if failure is not None:
            await self._rows(statements.EFFECT_UNDO)
        await self._rows(statements.EFFECT_END)
        return failure is None

    async def _judge(self, accepted: set[str], failed: set[str]) -> list[Result]:
        """Return a result for each arrival, in order."""
        is_same = dict(await self._rows(statements.JUDGE, items=self._items))
        return results_of(self._arrivals, lambda index: bool(is_same[index]), accepted, failed)

    async def _keep_repeats(self, results: list[Result]) -> None:
        """Count duplicates per id; keep conflicts as evidence."""
        if repeats := repeats_of(self._arrivals, results):
            await self._rows(statements.SEEN_AGAIN, items=_array(repeats))
        if evidence := evidence_of(self._arrivals, results):
            await self._rows(statements.CONFLICT, items=_array(evidence), per_id_max=CONFLICTS_PER_ID_MAX)

    async def _rows(self, statement: str, **parameters: Any) -> list[Any]:
        parameters["now"] = self._now_ms
        return list(await self._connection.execute_fetchall(statement, parameters))


def _forbid_ending(action: int, _first: str, _second: str, _database: str, _trigger: str) -> int:
    """Let an effect do everything but begin or end a transaction."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _array(items: Iterable[Any]) -> str:
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


async def _is_new(connection: aiosqlite.Connection, path: Path) -> bool:
    """Tell whether the tables must be made; raise for a database of something else or of a later version."""
    ((version, tables, ours),) = await connection.execute_fetchall(statements.SCHEMA_STATE)
    if tables and (ours != _TABLES or version < _VERSION):
        raise NotAQueue(f"{path}: a database, but not an inbox: its tables are missing or differ")
    if version > _VERSION:
        raise NewerSchema(f"{path}: schema {version} is newer than {_VERSION}: upgrade asyncqueue to open it")
    return not tables
