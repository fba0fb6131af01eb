"""FAULTS 56: a contract file is migrated once, or refused in words; never half, by nobody, at no kill."""

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from asyncqueue.clock import ManualClock
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import schema

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = "seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, owner, lease_until, reason"
NOW = 1_000_000
ROWS = [
    (3, "fresh", 1, "pending", 0, 5, 0, NOW, NOW + 60_000, None, None, None),
    (5, "waiting", 2, "pending", 1, 5, 1, NOW + 500, NOW + 60_000, None, None, "retry"),
    (6, "live", 3, "leased", 1, 5, 4, NOW - 5, NOW + 60_000, "holder", NOW + 700, None),
    (8, "lost", 4, "leased", 2, 5, 2, NOW - 5, NOW + 60_000, "gone", NOW - 1, None),
    (9, "done", 1000, "done", 1, 5, 1, NOW - 9, NOW - 1, None, None, None),
    (11, "permanent", 6, "dead", 1, 5, 1, NOW, NOW + 9, None, None, "permanent"),
    (12, "exhausted", 7, "dead", 5, 5, 7, NOW, NOW + 9, None, None, "exhausted"),
    (99, "deadline", 8, "dead", 0, 5, 0, NOW, NOW - 9, None, None, "deadline"),
]
AUDIT = [(2, "live", 3, NOW - 50, "why-not")]


def make_contract_file(path):
    """Make the file that the contract describes, by the standard library alone."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in schema.script(schema.CONTRACT_SCRIPT):
            connection.execute(statement)
        connection.execute("CREATE INDEX contract_live ON jobs(status, seq)")
        connection.executemany(f"INSERT INTO jobs ({COLUMNS}) VALUES ({','.join('?' * 12)})", ROWS)
        connection.executemany("INSERT INTO redrives (seq, id, token, at_ms, note) VALUES (?,?,?,?,?)", AUDIT)


def contract_rows(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        jobs = connection.execute(f"SELECT {COLUMNS} FROM jobs ORDER BY seq").fetchall()
        return jobs, connection.execute("SELECT seq, id, token, at_ms, note FROM redrives").fetchall()


def version_of(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


async def test_contract_file_with_live_leases_is_taken_over_without_loss(path):
    make_contract_file(path)
    clock = ManualClock(NOW)
    async with Queue.open(path, clock=clock) as queue:
        assert contract_rows(path) == (ROWS, AUDIT)
        stats = await queue.stats()
        assert (stats.pending, stats.leased, stats.done, stats.dead, stats.redrives) == (2, 2, 1, 3, 1)
        jobs = await queue.list()
        assert {(job.queue, job.kind, job.payload, job.priority) for job in jobs} == {("default", "job", None, 0)}
        assert [leased.id for leased in await queue.claim("me", limit=9)] == ["fresh", "lost"]
        clock.advance(700)
        assert [(leased.id, leased.token) for leased in await queue.claim("me", limit=9)] == [
            ("waiting", 2),
            ("live", 5),
        ]
        assert await queue.enqueue("next", 1)
        assert (await queue.get("next")).seq == 100
    assert version_of(path) == schema.VERSION


def make_file_of_version_2(path):
    make_contract_file(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in schema.script("0002_product.sql"):
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 2")


async def test_file_of_the_version_before_is_taken_over_and_becomes_like_a_new_one(path, tmp_path):
    make_file_of_version_2(path)
    dumps = []
    for file in (path, tmp_path / "new.db"):
        async with Queue.open(file, clock=ManualClock(NOW)):
            pass
        with contextlib.closing(sqlite3.connect(file)) as connection:
            dumps.append(set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")))
    assert dumps[0] == dumps[1]
    assert contract_rows(path) == (ROWS, AUDIT)
    assert version_of(path) == schema.VERSION


async def test_second_open_changes_nothing_at_all(path):
    make_contract_file(path)
    async with Queue.open(path):
        pass
    before = path.read_bytes()
    async with Queue.open(path):
        pass
    assert path.read_bytes() == before


async def test_migrated_file_and_new_file_have_the_same_schema(path, tmp_path):
    make_contract_file(path)
    other = tmp_path / "new.db"
    for file in (path, other):
        async with Queue.open(file):
            pass
    dumps = []
    for file in (path, other):
        with contextlib.closing(sqlite3.connect(file)) as connection:
            dumps.append(set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema")))
    assert dumps[0] == dumps[1]


RACER = """
import asyncio, sys
from asyncqueue.queue import Queue
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with Queue.open(sys.argv[1]) as queue:
        print((await queue.stats()).total, await queue.enqueue(f"racer-{sys.argv[2]}", 1), flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("start", ["contract", "nothing"])
def test_eight_processes_racing_to_open_one_file_migrate_it_once__kind_56_migrations(path, spawn, start):
    if start == "contract":
        make_contract_file(path)
    racers = [spawn(RACER, path, n) for n in range(8)]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 8
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate()[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 8
    assert [answer[1] for answer in answers] == ["True"] * 8
    jobs, audit = contract_rows(path)
    there = ROWS if start == "contract" else []
    assert jobs[: len(there)] == there
    assert sorted(job[1] for job in jobs[len(there) :]) == [f"racer-{n}" for n in range(8)]
    assert audit == (AUDIT if there else [])
    assert version_of(path) == schema.VERSION


# One child forks a grandchild per hop; each is killed as it is about to make (or has just made) that hop. The
# statements of a transaction that runs in one hop count as hops of their own.
KILLER = """
import asyncio, os, shutil, sys
from pathlib import Path
import aiosqlite
from asyncqueue.stores.sqlite.connection import InlineConnection
folder, program = Path(sys.argv[1]), sys.argv[2]
exec(program)
def killed_at(hop, when, path):
    count = 0
    def killing(original):
        async def execute(self, *arguments, **keywords):
            nonlocal count
            mine, count = count, count + 1
            if (mine, when) == (hop, "before"):
                os._exit(9)
            result = await original(self, *arguments, **keywords)
            if (mine, when) == (hop, "after"):
                os._exit(9)
            return result
        return execute
    aiosqlite.Connection._execute = killing(aiosqlite.Connection._execute)
    InlineConnection.execute_fetchall = killing(InlineConnection.execute_fetchall)
    asyncio.run(story(path))
    os._exit(0)
for when in ("before", "after"):
    for hop in range(200):
        path = folder / f"{when}-{hop}.db"
        shutil.copy(folder / "start.db", path)
        child = os.fork()
        if child == 0:
            killed_at(hop, when, path)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
    assert hop > 3, "nothing was killed"
    print(hop, flush=True)
"""


def kill_at_every_hop(folder, program):
    """Run `story` of `program` on copies of start.db, killed before and after each hop; return the files."""
    child = subprocess.run(
        [sys.executable, "-c", KILLER, folder, program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    hops = [int(line) for line in child.stdout.split()]
    return [
        folder / f"{when}-{hop}.db"
        for when, most in zip(("before", "after"), hops, strict=True)
        for hop in range(most)
    ]


@pytest.mark.parametrize(("make", "least"), [(make_contract_file, 40), (make_file_of_version_2, 12)])
def test_migration_killed_at_every_statement_is_done_by_the_next_open(tmp_path, make, least):
    make(tmp_path / "start.db")
    start = version_of(tmp_path / "start.db")
    program = """
from asyncqueue.queue import Queue
async def story(path):
    async with Queue.open(path):
        pass
"""
    files = kill_at_every_hop(tmp_path, program)
    assert len(files) > least
    versions = set()

    async def reopen():
        for file in files:
            versions.add(version_of(file))
            async with Queue.open(file, clock=ManualClock(NOW)) as queue:
                assert contract_rows(file) == (ROWS, AUDIT)
                assert await queue.enqueue("next", 1)
            assert version_of(file) == schema.VERSION

    asyncio.run(reopen())
    assert versions == {start, schema.VERSION}


REPORTS = """
from asyncqueue.clock import ManualClock
from asyncqueue.job import FailedAttempt, Redrive, Report, Ticket
from asyncqueue.stores import open_store
async def story(path):
    store = await open_store(path, clock=ManualClock(1_000_000))
    async def work(transaction):
        live = Ticket("live", 3, "holder", 4, 1, 0)
        await transaction.redrive([Redrive("permanent", 500, "again")])
        await transaction.finish([Report.permanent(live, FailedAttempt("no"))])
    await store.write(work)
    await store.close()
"""


def test_kill_at_every_statement_of_dead_letter_and_redrive_leaves_one_state__kind_21_non_atomic_move(
    tmp_path,
):
    """FAULTS 21: non-atomic move."""
    make_contract_file(tmp_path / "start.db")
    seen = set()
    for file in kill_at_every_hop(tmp_path, REPORTS):
        with contextlib.closing(sqlite3.connect(file)) as connection:
            state = dict(connection.execute("SELECT id, status FROM jobs WHERE id IN ('permanent', 'live')"))
            audits = connection.execute("SELECT count(*) FROM redrives WHERE id = 'permanent'").fetchone()[0]
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema")]
            history = (
                connection.execute("SELECT count(*) FROM attempts").fetchone()[0] if "attempts" in tables else 0
            )
            assert connection.execute("SELECT count(*) FROM jobs").fetchone()[0] == len(ROWS)
        seen.add((state["permanent"], state["live"], audits, history))
    before, after = (Status.DEAD, Status.LEASED, 0, 0), (Status.PENDING, Status.DEAD, 1, 1)
    assert seen == {before, after}


@pytest.mark.parametrize("name", [name for _lacks, name in schema.SCRIPTS])
def test_schema_scripts_are_split_into_whole_statements(name):
    statements = schema.script(name)
    assert len(statements) > 1
    assert all(sqlite3.complete_statement(statement) for statement in statements)
