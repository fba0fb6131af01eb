"""What the contract's tests share: the schema as the contract prints it, bad values, plain looks at a file."""

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from asyncqueue.job import brief

SCHEMA = """
CREATE TABLE jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE, qty INTEGER NOT NULL,
  status TEXT NOT NULL CHECK(status IN ('pending','leased','done','dead')),
  attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, token INTEGER NOT NULL,
  available_at INTEGER NOT NULL, deadline INTEGER NOT NULL,
  owner TEXT, lease_until INTEGER, reason TEXT);
CREATE TABLE redrives (seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL, token INTEGER NOT NULL, at_ms INTEGER NOT NULL, note TEXT NOT NULL);
"""
NOW_MAX = 10**15 - 60_000
COLUMNS = (
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
)


class StrSub(str):
    __slots__ = ()


class IntSub(int):
    pass


class DictSub(dict):
    pass


def named(values):
    """Return values as parameters whose names are short: pytest cannot print a huge integer."""
    return [pytest.param(value, id=f"{index}-{brief(value)}") for index, value in enumerate(values)]


BAD_IDS = [
    "",
    "a" * 65,
    "a b",
    "a\n",
    "\na",
    "a.b",
    "a/b",
    "a\0b",
    "é",
    "\u0661",  # a digit, but not an ASCII one
    "\ud800",
    StrSub("a"),
    b"a",
    1,
    None,
    True,
    ["a"],
]
GOOD_IDS = ["a", "Z", "0", "_", "-", "a" * 64, "Aa0_-"]


def bad_ints(low, high):
    """Return what an exact int from `low` to `high` is not: both outer sides, other types, huge values."""
    return [
        *(low - 1, high + 1, -(10**400), 10**400, 10**6000, 2**63, 2**64),
        *(True, False, IntSub(low), IntSub(high), float(low), float("nan"), float("inf")),
        *(str(low), str(low).encode(), None, [low], {}),
    ]


def look(path, sql, *parameters):
    """Return all rows of one SELECT by a connection of its own."""
    with closing(sqlite3.connect(path, timeout=5)) as plain:
        return plain.execute(sql, parameters).fetchall()


def run(path, sql, *parameters):
    """Run one statement by a connection of its own and commit it."""
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as plain:
        plain.execute(sql, parameters)


def jobs(path):
    """Return the jobs as dicts, in order of seq, without seq."""
    rows = look(path, f"SELECT {', '.join(COLUMNS)} FROM jobs ORDER BY seq")
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def job(path, job_id="a"):
    (found,) = [row for row in jobs(path) if row["id"] == job_id]
    return found


def audit(path):
    return look(path, "SELECT id, token, at_ms, note FROM redrives ORDER BY seq")


def snapshot(path):
    return (tuple(tuple(row.values()) for row in jobs(path)), tuple(audit(path)))


def put(path, job_id="a", **columns):
    """Insert a job row as given over a plain pending one; return it."""
    row = {
        **dict.fromkeys(COLUMNS),
        "id": job_id,
        "qty": 3,
        "status": "pending",
        "attempts": 0,
        "max_attempts": 3,
        "token": 0,
        "available_at": 0,
        "deadline": 10_000,
        **columns,
    }
    marks = ", ".join("?" * len(row))
    run(path, f"INSERT INTO jobs ({', '.join(row)}) VALUES ({marks})", *row.values())
    return row


def put_leased(path, job_id="a", **columns):
    """Insert a leased job and return its ticket."""
    leased = {"status": "leased", "attempts": 1, "token": 1, "owner": "one", "lease_until": 1_000}
    row = put(path, job_id, **{**leased, **columns})
    return {
        "id": row["id"],
        "qty": row["qty"],
        "owner": row["owner"],
        "token": row["token"],
        "attempt": row["attempts"],
        "lease_until": row["lease_until"],
    }


def assert_writable_at_once(path):
    """Fail if any connection holds a lock on the file."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as plain:
        plain.execute("BEGIN EXCLUSIVE")
        plain.execute("ROLLBACK")


def in_a_child(code, *arguments):
    """Run Python code in a process of its own and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def database_threads():
    return [thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name]


def open_files(path):
    """Return how many descriptors of this process lead to `path` or its journal."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += str(link.readlink()).startswith(str(path))
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return count


def assert_nothing_left(path, before):
    """Fail if a database thread beyond `before` or a descriptor of `path` survives for more than 5 s."""
    for thread in set(database_threads()) - set(before):
        thread.join(timeout=5)
        assert not thread.is_alive()
    until = time.monotonic() + 5
    while open_files(path):
        assert time.monotonic() < until, f"{open_files(path)} descriptors left open"
