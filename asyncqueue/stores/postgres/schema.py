"""Bringing a schema to the current version: all steps in one transaction, or none; racing processes take turns."""

from dataclasses import dataclass
from importlib import resources
from typing import Final, NamedTuple

import asyncpg

from asyncqueue.errors import NewerSchema, NotAQueue
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.connection import Connection, in_schema

__all__ = ["QUEUE", "Part", "inspect", "migrate", "script"]


@dataclass(frozen=True, slots=True)
class Part:
    """Tables that belong together and have one version: a queue, or whatever else lives in the same schema.

    `steps` are the numbered files in the folder `schema` of `package`, in order; `table` is one that every version
    has, `name` is what messages call it.
    """

    name: str
    table: str
    package: str
    steps: tuple[str, ...]

    @property
    def version(self) -> int:
        """The version that this program makes and understands."""
        return len(self.steps)


# What a name that is taken looks like: its kind is another one, or it lacks what we would add to it.
_TAKEN: Final = (
    asyncpg.DuplicateObjectError,
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.WrongObjectTypeError,
)
QUEUE: Final = Part(
    "queue",
    "jobs",
    "asyncqueue.stores.postgres",
    ("0001_queue.sql", "0002_scale.sql", "0003_decided.sql", "0004_apart.sql"),
)


_NAMED_MAX: Final = 3
_STEP_S: Final = 3_600.0
_VERSIONS: Final = {"part", "version", "birth"}  # the columns of our own table of that name


class _State(NamedTuple):
    """What there is of a schema; `versions` are the columns of whatever has that name."""

    exists: bool
    versions: list[str] | None
    has_table: bool
    tables: list[str]

    @classmethod
    async def look(cls, connection: Connection, schema: str, part: "Part") -> "_State":
        return cls(*await connection.fetchrow(statements.SCHEMA_STATE, schema, part.table))


def script(part: Part, step: str) -> str:
    """Return one step as SQL."""
    return (resources.files(part.package) / "schema" / step).read_text("utf-8")


async def inspect(connection: Connection, schema: str, where: str, part: Part = QUEUE) -> int:
    """Return the version that is there, 0 for none; only reads.

    Raises `NotAQueue` if names that are needed are taken by something else, and `NewerSchema` for a later version.
    """
    state = await _State.look(connection, schema, part)
    version: int | None = None
    if state.versions is not None:
        if not _VERSIONS.issubset(state.versions):
            raise NotAQueue(
                f"{where}: schema {schema} has a table versions of another program, a name that this {part.name} "
                "needs; choose another one by ?schema=name"
            )
        version = await connection.fetchval(in_schema(statements.SCHEMA_VERSION, schema), part.name)
    if version is None:
        if state.has_table:
            raise NotAQueue(
                f"{where}: schema {schema} has a table {part.table} that is no {part.name}'s; choose another one "
                "by ?schema=name"
            )
        return 0
    if version > part.version:
        raise NewerSchema(
            f"{where}: schema {schema} has version {version}, newer than {part.version}: upgrade asyncqueue to "
            "open it"
        )
    return version


async def migrate(  # noqa: PLR0913 - settings, all by name
    connection: Connection,
    schema: str,
    where: str,
    *,
    create: bool = True,
    adopt: bool = False,
    part: Part = QUEUE,
) -> None:
    """Make or migrate the tables; runs inside the caller's transaction, which undoes everything if it raises.

    Raises as `inspect` does, and `NotAQueue` if there is nothing and `create` is not set, or if there are tables
    of somebody else and nothing of ours, and `adopt` is not set.
    """
    if await inspect(connection, schema, where, part) == part.version:
        return
    await connection.execute(statements.MIGRATE_TURN, schema)
    version = await inspect(connection, schema, where, part)  # others may have been here first
    if version == part.version:
        return
    if version == 0 and not create:
        raise NotAQueue(f"{where}: no {part.name} in schema {schema}")
    state = await _State.look(connection, schema, part)
    if version == 0 and not adopt:
        _check_alone(state, schema, where, part)
    if not state.exists:
        await connection.execute(in_schema(statements.SCHEMA_MAKE, schema))
    await connection.execute(in_schema(statements.SCHEMA_VERSIONS, schema))
    if version:  # what there is may be large, and an index takes its time
        await connection.execute(statements.MIGRATE_AT_LEISURE)
    try:
        for step in part.steps[version:]:
            await connection.execute(in_schema(script(part, step), schema), timeout=_STEP_S)
    except _TAKEN as error:
        if version:
            raise
        line = str(error).splitlines()[0]  # the server's hints come after it
        raise NotAQueue(
            f"{where}: schema {schema} holds something of a name that a {part.name} needs ({line}); choose "
            "another one by ?schema=name"
        ) from error
    await connection.execute(in_schema(statements.SCHEMA_MARK, schema), part.name, part.version)


def _check_alone(state: _State, schema: str, where: str, part: Part) -> None:
    """Raise `NotAQueue` for a schema of somebody else; what has another part of ours is ours."""
    if state.tables and state.versions is None:
        some = ", ".join(state.tables[:_NAMED_MAX]) + (", ..." if len(state.tables) > _NAMED_MAX else "")
        raise NotAQueue(
            f"{where}: schema {schema} has tables of another program ({some}) and no {part.name}; choose another "
            f"one by ?schema=name, or put a {part.name} beside them: 'asyncqueue init --adopt', or adopt=True"
        )
