"""Bringing a file to the current schema: all steps in one write transaction, or none."""

import json
import re
import sqlite3
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import aiosqlite

from asyncqueue.errors import NewerSchema, NotAQueue
from asyncqueue.stores.sqlite import statements

__all__ = ["CONTRACT_SCRIPT", "SCRIPTS", "VERSION", "EmptyFile", "inspect", "judge", "migrate", "script"]

VERSION: Final = 3  # of `PRAGMA user_version`; a contract file has 0
CONTRACT_SCRIPT: Final = "0001_contract.sql"
PRODUCT_SCRIPT: Final = "0002_product.sql"
TURNS_SCRIPT: Final = "0003_turns.sql"
SCRIPTS: Final = ((0, CONTRACT_SCRIPT), (0, PRODUCT_SCRIPT), (2, TURNS_SCRIPT))
"""Each script, and the last version that lacks what it makes."""
_OLDER: Final = frozenset(lacks for lacks, _name in SCRIPTS)

_MADE: Final = re.compile(r"CREATE (?:TABLE|INDEX|TRIGGER)(?: IF NOT EXISTS)? (\w+)")
_JOBS: Final = [
    "seq",
    "id",
    "qty",
    "status",
    "attempts",
    "max_attempts",
    "token",
    "available_at",
    "deadline",
    "owner",
    "lease_until",
    "reason",
]
_REDRIVES: Final = ["seq", "id", "token", "at_ms", "note"]


class EmptyFile(NotAQueue):
    """There is nothing in it, or nothing yet: another process may be about to make a queue of it."""


def script(name: str, package: str = "asyncqueue.stores.sqlite") -> list[str]:
    """Return the statements of one schema file of `package`, to be run one by one inside a transaction."""
    text = (resources.files(package) / "schema" / name).read_text("utf-8")
    parts: list[str] = [""]
    for line in text.splitlines(keepends=True):
        parts[-1] += line
        if sqlite3.complete_statement(parts[-1]):
            parts.append("")
    return [part.strip() for part in parts if part.strip()]


async def inspect(connection: aiosqlite.Connection, path: Path, *, create: bool, adopt: bool) -> bool:
    """Tell whether the file must be migrated; only reads.

    Raises `NotAQueue` for a database of something else (with `adopt`, only if it has no room for a queue's tables
    beside its own; and, unless `create`, for one without any table, as an empty file is) and `NewerSchema` for a
    file of a later version.
    """
    rows = list(await connection.execute_fetchall(statements.SCHEMA_STATE))
    _version, tables, jobs, redrives = rows[0]
    if adopt and tables and not jobs and not redrives:
        await _check_room(connection, path)
        return True
    must_migrate = judge(tuple(rows[0]), path)
    if not create and not rows[0][1]:
        raise EmptyFile(f"{path}: an empty file, not a queue")
    return must_migrate


def judge(state: Sequence[Any], path: Path | str) -> bool:
    """Tell from a row of SCHEMA_STATE whether the database must be migrated. Raises as `inspect` does."""
    version, tables, jobs, redrives = state
    columns = jobs.split(",") if jobs else []
    audit = redrives.split(",") if redrives else []
    is_contract = columns[: len(_JOBS)] == _JOBS and audit[: len(_REDRIVES)] == _REDRIVES
    if tables and not is_contract:
        advice = (
            "" if jobs or redrives else "; to make it one as well: 'asyncqueue init --adopt', or adopt=True, once"
        )
        raise NotAQueue(
            f"{path}: a database, but not a queue: the tables jobs and redrives are missing or differ{advice}"
        )
    if version > VERSION:
        raise NewerSchema(f"{path}: schema {version} is newer than {VERSION}: upgrade asyncqueue to open it")
    if version == VERSION:
        return False
    if version not in _OLDER or (not version and len(columns) > len(_JOBS)):
        raise NotAQueue(f"{path}: a queue with unknown changes (schema {version}); nothing was changed")
    return True


async def _check_room(connection: aiosqlite.Connection, path: Path) -> None:
    """Raise `NotAQueue` unless a database of something else can take our tables and our schema version.

    Its `application_id` is no concern: nothing here reads or writes it.
    """
    ((version,),) = await connection.execute_fetchall(statements.SCHEMA_VERSION)
    if version:
        raise NotAQueue(
            f"{path}: its user_version is {version}, which somebody else keeps; a queue needs that number for its "
            "own schema: give the queue a file of its own"
        )
    names = json.dumps([name for _lacks, file in SCRIPTS for name in _MADE.findall("".join(script(file)))])
    taken = [name for (name,) in await connection.execute_fetchall(statements.SCHEMA_NAMES, {"names": names})]
    if taken:
        raise NotAQueue(f"{path}: has something else named {', '.join(taken)}: give the queue a file of its own")


async def migrate(connection: aiosqlite.Connection, path: Path, *, create: bool, adopt: bool) -> None:
    """Make or migrate the tables; runs inside the caller's write transaction, so racing processes queue up.

    Raises as `inspect` does, since the file may have changed since then; the caller's rollback then leaves it
    as it was.
    """
    if not await inspect(connection, path, create=create, adopt=adopt):
        return
    ((version,),) = await connection.execute_fetchall(statements.SCHEMA_VERSION)
    for lacks, name in SCRIPTS:
        if version <= lacks:
            for statement in script(name):
                await connection.execute_fetchall(statement)
    await connection.execute_fetchall(statements.SCHEMA_MARK)
