"""A queue in a SQLite file as one side of a move; see `stores.move`."""

import time
from collections.abc import Sequence
from typing import Any

import aiosqlite

from asyncqueue.stores.move import (
    FLOOR,
    TABLES,
    Key,
    Mark,
    Row,
    check_empty,
    check_leases,
    check_mark,
    check_place,
    has_marks,
)
from asyncqueue.stores.sqlite import fence, statements
from asyncqueue.stores.sqlite.connection import Database, Profile
from asyncqueue.stores.sqlite.store import SqliteStore

__all__ = ["SqliteSide"]


class SqliteSide:
    """One side; made by `open`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, path: str, *, create: bool) -> "SqliteSide":
        """Open (and with `create` make) the file, and bring it to the current schema. Raises as the store does."""
        return cls((await SqliteStore.open(path, profile=Profile("keep"), create=create)).database)

    @property
    def shown(self) -> str:
        """See `stores.move.Side`."""
        return str(self._database.path)

    async def mark(self) -> Mark | None:
        """See `stores.move.Side`."""
        columns = await self._database.read(statements.MOVE_COLUMNS)
        if not has_marks([row[0] for row in columns], self.shown):
            return None
        rows = await self._database.read(statements.MOVE_LOOK)
        return Mark(*rows[0]) if rows else None

    async def seal(self, mark: Mark, *, with_leases: bool) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            now = {"now": time.time_ns() // 1_000_000}
            ((count, until_ms),) = await connection.execute_fetchall(statements.MOVE_LEASES, now)
            if not with_leases:
                check_leases(count, until_ms, self.shown)
            await _set(connection, mark)

        await self._database.write(work)

    async def fill(self, mark: Mark) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            await connection.execute_fetchall(statements.MOVE_MAKE)
            last = [await _one(connection, statements.MOVE_LAST[table]) for table in TABLES]
            check_empty(last, await _found(connection), self.shown)
            await _set(connection, mark)

        await self._database.write(work)

    async def done(self, mark: Mark) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            check_mark(await _found(connection), Mark(mark.move, mark.role, mark.peer, "copying"), self.shown)
            await connection.execute_fetchall(statements.MOVE_MARK, _named(mark))
            if mark.role == "target":
                await _run(connection, statements.MOVE_UNSEAL)

        await self._database.write(work)

    async def unseal(self, move: str) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            found = await _found(connection)
            if found is not None and found[0] == move and found[3] == "copying":
                await _run(connection, (*statements.MOVE_UNSEAL, statements.MOVE_FORGET))

        await self._database.write(work)

    async def count(self, table: str) -> int:
        """See `stores.move.Side`."""
        return int((await self._database.read(statements.MOVE_COUNT[table]))[0][0])

    async def last(self, table: str) -> Key | None:
        """See `stores.move.Side`."""
        key: Key | None = (await self._database.read(statements.MOVE_LAST[table]))[0][0]
        return key

    async def page(self, table: str, after: Key, limit: int) -> Sequence[Row]:
        """See `stores.move.Side`."""
        return await self._database.read(statements.MOVE_PAGE[table], {"after": after, "limit": limit})

    async def put(self, mark: Mark, table: str, after: Key, rows: Sequence[Row]) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            check_mark(await _found(connection), mark, self.shown)
            check_place(await _one(connection, statements.MOVE_LAST[table]), table, after, self.shown)
            await connection.execute_fetchall(statements.MOVE_OPEN, {"is_open": 1})
            await (await connection.executemany(statements.MOVE_PUT[table], rows)).close()
            await connection.execute_fetchall(statements.MOVE_OPEN, {"is_open": 0})

        await self._database.write(work)

    async def numbers(self) -> dict[str, int]:
        """See `stores.move.Side`."""
        found = dict(await self._database.read(statements.MOVE_NUMBERS))
        numbers = {table: found.get(table, 0) for table in TABLES if table != "queues"}
        return numbers | {FLOOR: await fence.floor_of(self._database.read, self.shown)}

    async def number(self, mark: Mark, numbers: dict[str, int]) -> None:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> None:
            check_mark(await _found(connection), mark, self.shown)
            if numbers[FLOOR]:
                await fence.keep_floor(connection.execute_fetchall, numbers[FLOOR])
            for name, number in numbers.items():
                if name == FLOOR:
                    continue
                await connection.execute_fetchall(statements.MOVE_NUMBER_FORGET, {"name": name})
                if number:
                    await connection.execute_fetchall(statements.MOVE_NUMBER, {"name": name, "number": number})

        await self._database.write(work)

    async def empty(self, move: str, table: str, limit: int) -> int:
        """See `stores.move.Side`."""

        async def work(connection: aiosqlite.Connection) -> int:
            found = await _found(connection)
            if found is None or found[0] != move or found[3] != "copying":
                return 0
            await connection.execute_fetchall(statements.MOVE_OPEN, {"is_open": 1})
            rows = await connection.execute_fetchall(statements.MOVE_EMPTY[table], {"limit": limit})
            await connection.execute_fetchall(statements.MOVE_OPEN, {"is_open": 0})
            return len(list(rows))

        return await self._database.write(work)

    async def close(self) -> None:
        """See `stores.move.Side`."""
        await self._database.close()


async def _set(connection: aiosqlite.Connection, mark: Mark) -> None:
    await _run(connection, (statements.MOVE_MAKE, *statements.MOVE_UNSEAL))
    await connection.execute_fetchall(statements.MOVE_MARK, _named(mark))
    await _run(connection, statements.MOVE_SEAL)


async def _run(connection: aiosqlite.Connection, scripts: Sequence[str]) -> None:
    for statement in scripts:
        await connection.execute_fetchall(statement)


async def _found(connection: aiosqlite.Connection) -> Sequence[Any] | None:
    rows = list(await connection.execute_fetchall(statements.MOVE_LOOK))
    return tuple(rows[0]) if rows else None


async def _one(connection: aiosqlite.Connection, statement: str) -> Any:
    return next(iter(await connection.execute_fetchall(statement)))[0]


def _named(mark: Mark) -> dict[str, str]:
    return {"move": mark.move, "role": mark.role, "peer": mark.peer, "stage": mark.stage}
