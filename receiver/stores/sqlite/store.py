"""The SQLite inbox: one short transaction per set of messages."""

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import aiosqlite

from asyncqueue.errors import NewerSchema, NotAQueue, StoreError
from asyncqueue.stores.sqlite.connection import Database, Journal, Profile
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Effect, Kept, Result, Totals
from receiver.stores.sqlite import statements

__all__ = ["Journal", "SqliteInbox"]

_VERSION: Final = 1
_TABLES: Final = 4
_CONFLICTS_PER_ID_MAX: Final = 16
_EVIDENCE_CHARS_MAX: Final = 4_096


class SqliteInbox:
    """An inbox in one SQLite file; made by `open`."""

    def __init__(self, database: Database, effect: Effect | None) -> None:
        self._database = database
        self._effect = effect

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, effect: Effect | None, journal: Journal, force_wal: bool
    ) -> "SqliteInbox":
        """Open or make the file. Raises `NotAQueue`, `NewerSchema`, `ConfigError`, `StoreBusy`."""
        where = Path(path)

        async def inspect(connection: aiosqlite.Connection) -> None:
            await _is_new(connection, where)

        async def migrate(connection: aiosqlite.Connection) -> None:
            if await _is_new(connection, where):
                for statement in _schema():
                    await connection.execute_fetchall(statement)
                await connection.execute_fetchall(statements.SCHEMA_MARK)

        profile = Profile(journal, force_wal=force_wal)
        return cls(await Database.open(path, profile, migrate, inspect=inspect), effect)

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Result | Exception]:
        """See `receiver.stores.base.InboxStore`."""

        async def work(connection: aiosqlite.Connection) -> list[Result | Exception]:
            return await _Set(connection, self._effect).receive(arrivals)

        return await (self._database.write_inline(work) if self._effect is None else self._database.write(work))

    async def get(self, message_id: str) -> Kept | None:
        """See `receiver.stores.base.InboxStore`."""
        rows = await self._database.read(statements.GET, {"id": message_id})
        return Kept(*rows[0]) if rows else None

    async def totals(self) -> Totals:
        """See `receiver.stores.base.InboxStore`."""
        return Totals(*(await self._database.read(statements.TOTALS))[0])

    async def close(self) -> None:
        """See `receiver.stores.base.InboxStore`."""
        await self._database.close()


class _Set:
    """One set of messages inside its transaction."""

    def __init__(self, connection: aiosqlite.Connection, effect: Effect | None) -> None:
        self._connection = connection
        self._effect = effect
        self._now_ms = time.time_ns() // 1_000_000

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Result | Exception]:
        items = [(a.message.id, a.message.qty, a.message.payload, a.token, a.attempt) for a in arrivals]
        new = {row[0] for row in await self._rows(statements.ACCEPT, items=_array(items))}
        first = {arrival.message.id: arrival.message for arrival in reversed(arrivals)}
        accepted = [first[message_id] for message_id in new]
        failed = await self._run_effects(accepted)
        results = await self._judge(arrivals, new, failed)
        await self._count(arrivals, results, [message for message in accepted if message.id not in failed])
        return [*results]

    async def _run_effects(self, accepted: list[Message]) -> set[str]:
        """Run the effect of each accepted message; return the ids whose effect failed and was undone."""
        if self._effect is None:
            if accepted:
                await self._rows(statements.LEDGER, items=_array((m.id, m.qty) for m in accepted))
            return set()
        failed = set()
        for message in accepted:
            if not await self._run_effect(self._effect, message):
                failed.add(message.id)
        if failed:
            await self._rows(statements.FORGET, ids=_array(failed))
        return failed

    async def _run_effect(self, effect: Effect, message: Message) -> bool:
        await self._rows(statements.EFFECT_BEGIN)
        ok = True
        try:
            await effect(self._connection, message)
        except Exception:  # noqa: BLE001 - undone, answered 500 and never remembered
            ok = False
        if not self._connection.in_transaction:
            raise StoreError("an effect ended the transaction that it runs in: it must not commit or roll back")
        if not ok:
            await self._rows(statements.EFFECT_UNDO)
        await self._rows(statements.EFFECT_END)
        return ok

    async def _judge(self, arrivals: Sequence[Arrival], new: set[str], failed: set[str]) -> list[Result]:
        if len(new) == len(arrivals) and not failed:
            return [Result.ACCEPTED] * len(arrivals)
        again = {a.message.id for a in arrivals if a.message.id not in failed}
        known = {row[0]: (row[1], row[2]) for row in await self._rows(statements.KNOWN, ids=_array(again))}
        unanswered = new - failed
        results = []
        for arrival in arrivals:
            message = arrival.message
            if message.id in failed:
                results.append(Result.EFFECT_FAILED)
            elif known[message.id] != (message.qty, message.payload):
                results.append(Result.CONFLICT)
            elif message.id in unanswered:
                unanswered.discard(message.id)
                results.append(Result.ACCEPTED)
            else:
                results.append(Result.DUPLICATE)
        return results

    async def _count(self, arrivals: Sequence[Arrival], results: list[Result], accepted: list[Message]) -> None:
        by_result = Counter(results)
        if by_result[Result.DUPLICATE]:
            again = Counter(a.message.id for a, r in zip(arrivals, results, strict=True) if r is Result.DUPLICATE)
            await self._rows(statements.SEEN_AGAIN, items=_array(again.items()))
        if by_result[Result.CONFLICT]:
            evidence = [
                (a.message.id, a.message.qty, (a.message.payload or "")[:_EVIDENCE_CHARS_MAX])
                for a, r in zip(arrivals, results, strict=True)
                if r is Result.CONFLICT
            ]
            await self._rows(statements.CONFLICT, items=_array(evidence), per_id_max=_CONFLICTS_PER_ID_MAX)
        await self._rows(
            statements.TOTALS_ADD,
            messages=len(accepted),
            quantity=sum(message.qty for message in accepted),
            duplicates=by_result[Result.DUPLICATE],
            conflicts=by_result[Result.CONFLICT],
        )

    async def _rows(self, statement: str, **parameters: Any) -> list[Any]:
        parameters["now"] = self._now_ms
        return list(await self._connection.execute_fetchall(statement, parameters))


def _array(items: Iterable[Any]) -> str:
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


async def _is_new(connection: aiosqlite.Connection, path: Path) -> bool:
    """Tell whether the tables must be made; raise for a database of something else or of a later version."""
    ((version, tables, ours),) = await connection.execute_fetchall(statements.SCHEMA_STATE)
    if tables and ours != _TABLES:
        raise NotAQueue(f"{path}: a database, but not an inbox: its tables are missing or differ")
    if version > _VERSION:
        raise NewerSchema(f"{path}: schema {version} is newer than {_VERSION}: upgrade asyncqueue to open it")
    return not tables


def _schema() -> list[str]:
    text = (resources.files("receiver.stores.sqlite") / "schema" / "0001_inbox.sql").read_text("utf-8")
    parts = [""]
    for line in text.splitlines(keepends=True):
        parts[-1] += line
        if sqlite3.complete_statement(parts[-1]):
            parts.append("")
    return [part for part in parts if part.strip()]
