"""A queue on PostgreSQL as one side of a move; see `stores.move`. Rows go in by COPY."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from asyncqueue.errors import StoreError
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
from asyncqueue.stores.postgres import fence, statements
from asyncqueue.stores.postgres.connection import Connection, Database
from asyncqueue.stores.postgres.store import PostgresStore

__all__ = ["PostgresSide"]

_SMALL: Final = frozenset(
    {"qty", "attempts", "max_attempts", "priority", "attempts_before", "attempt", "http_status"}
)
_TEXTS: Final = frozenset(
    {"id", "status", "owner", "reason", "queue", "kind", "payload", "last_error", "note", "actor", "reason_before"}
    | {"outcome", "certainty", "error", "name"}
)


class PostgresSide:
    """One side; made by `open`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, url: str, *, create: bool) -> "PostgresSide":
        """Open (and with `create` make) the queue's schema, and migrate it. Raises as the store does."""
        return cls((await PostgresStore.open(url, create=create)).database)

    @property
    def shown(self) -> str:
        """See `stores.move.Side`."""
        address = self._database.address
        return f"{address.shown}?schema={address.schema}"

    async def mark(self) -> Mark | None:
        """See `stores.move.Side`."""
        columns = await self._database.read(statements.MOVE_COLUMNS, self._database.address.schema)
        if not has_marks([row[0] for row in columns], self.shown):
            return None
        rows = await self._database.read(statements.MOVE_LOOK)
        return Mark(*rows[0]) if rows else None

    async def seal(self, mark: Mark, *, with_leases: bool) -> None:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> None:
            await self._set(connection, mark)  # first: it waits for those who write, and keeps out the next ones
            count, until_ms = await connection.fetchrow(self._database.sql(statements.MOVE_LEASES), None)
            if not with_leases:
                check_leases(count, until_ms, self.shown)

        await self._database.write(work)

    async def fill(self, mark: Mark) -> None:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> None:
            await self._run(connection, statements.MOVE_MAKE)
            before = await self._found(connection)
            await self._set(connection, mark)
            last = [await self._one(connection, statements.MOVE_LAST[table]) for table in TABLES]
            check_empty(last, before, self.shown)

        await self._database.write(work)

    async def done(self, mark: Mark) -> None:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> None:
            check_mark(await self._found(connection), Mark(mark.move, mark.role, mark.peer, "copying"), self.shown)
            await self._mark(connection, mark)
            if mark.role == "target":
                await self._run(connection, *statements.MOVE_UNSEAL)

        await self._database.write(work)

    async def unseal(self, move: str) -> None:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> None:
            found = await self._found(connection)
            if found is not None and found[0] == move and found[3] == "copying":
                await self._run(connection, *statements.MOVE_UNSEAL, statements.MOVE_FORGET)

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
        rows = await self._database.read(statements.MOVE_PAGE[table], after, limit)
        return [(row[0], int(row[1])) if table == "queues" else tuple(row) for row in rows]

    async def put(self, mark: Mark, table: str, after: Key, rows: Sequence[Row]) -> None:
        """See `stores.move.Side`; raises `StoreError` for a value that PostgreSQL cannot keep."""
        columns = statements.MOVED_COLUMNS[table]
        records = [(row[0], bool(row[1])) for row in rows] if table == "queues" else rows
        for row in rows:
            _check(table, columns, row)

        async def work(connection: Connection) -> None:
            check_mark(await self._found(connection), mark, self.shown)
            await connection.execute(self._database.sql(statements.MOVE_OPEN), True)  # the next mover waits here
            check_place(await self._one(connection, statements.MOVE_LAST[table]), table, after, self.shown)
            schema = self._database.address.schema
            await connection.copy_records_to_table(table, records=records, columns=columns, schema_name=schema)
            await connection.execute(self._database.sql(statements.MOVE_OPEN), False)

        await self._database.write(work)

    async def numbers(self) -> dict[str, int]:
        """See `stores.move.Side`."""
        numbers: dict[str, int] = dict(map(tuple, await self._database.read(statements.MOVE_NUMBERS)))
        return numbers | {FLOOR: await fence.floor_of(self._database.read, self.shown)}

    async def number(self, mark: Mark, numbers: dict[str, int]) -> None:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> None:
            check_mark(await self._found(connection), mark, self.shown)
            if numbers[FLOOR]:
                await fence.keep_floor(partial(self._ask, connection), numbers[FLOOR])
            for name, number in numbers.items():
                if number and name != FLOOR:
                    await connection.execute(self._database.sql(statements.MOVE_NUMBER[name]), number)

        await self._database.write(work)

    async def empty(self, move: str, table: str, limit: int) -> int:
        """See `stores.move.Side`."""

        async def work(connection: Connection) -> int:
            found = await self._found(connection)
            if found is None or found[0] != move or found[3] != "copying":
                return 0
            await connection.execute(self._database.sql(statements.MOVE_OPEN), True)
            rows = await connection.fetch(self._database.sql(statements.MOVE_EMPTY[table]), limit)
            await connection.execute(self._database.sql(statements.MOVE_OPEN), False)
            return len(rows)

        return await self._database.write(work)

    async def close(self) -> None:
        """See `stores.move.Side`."""
        await self._database.close()

    async def _set(self, connection: Connection, mark: Mark) -> None:
        await self._run(connection, statements.MOVE_MAKE)
        await self._mark(connection, mark)
        await self._run(connection, *statements.MOVE_SEAL)

    async def _mark(self, connection: Connection, mark: Mark) -> None:
        statement = self._database.sql(statements.MOVE_MARK)
        await connection.execute(statement, mark.move, mark.role, mark.peer, mark.stage)

    async def _run(self, connection: Connection, *scripts: str) -> None:
        for statement in scripts:
            await connection.execute(self._database.sql(statement))

    async def _found(self, connection: Connection) -> Sequence[Any] | None:
        row = await connection.fetchrow(self._database.sql(statements.MOVE_LOOK))
        return None if row is None else tuple(row)

    async def _ask(self, connection: Connection, statement: str, *arguments: Any) -> list[Any]:
        return list(await connection.fetch(self._database.sql(statement), *arguments))

    async def _one(self, connection: Connection, statement: str) -> Any:
        return await connection.fetchval(self._database.sql(statement))


def _check(table: str, columns: Sequence[str], row: Row) -> None:
    """Raise `StoreError` for a value that has no place in its column: SQLite keeps anything anywhere."""
    for name, value in zip(columns, row, strict=True):
        if value is None:
            continue
        if name in _TEXTS:
            fits = isinstance(value, str) and "\0" not in value
        else:
            bound = 2**31 if name in _SMALL else 2**63
            fits = isinstance(value, int) and -bound <= value < bound
        if not fits:
            raise StoreError(
                f"{table} {row[0]!r}: {name} holds a value that PostgreSQL cannot keep; give the move up by "
                "--abandon, mend the row and move again"
            )
