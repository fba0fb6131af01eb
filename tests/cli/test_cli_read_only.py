"""What only reads works on a file that cannot be written, and leaves no trace of itself; nothing else does."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import schema

# Root may write what its permissions forbid: the command runs without that right.
_UNPRIVILEGED = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) and os.geteuid() == 0:
        sys.exit("the right to write everything could not be given up")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
READERS = [
    ("stats", "DB", "--json"),
    ("job", "list", "DB"),
    ("job", "show", "DB", "dead"),
    ("job", "wait", "DB", "done"),
    ("dlq", "list", "DB"),
    ("dlq", "show", "DB", "dead"),
    ("dlq", "redrive", "DB", "dead", "--note", "n", "--dry-run"),
    ("dlq", "redrive", "DB", "--all", "--note", "n", "--dry-run"),
    ("queue", "list", "DB"),
    ("queue", "stats", "DB"),
    ("queue", "drain", "DB", "over"),
]


def forbid_the_file(db):
    db.chmod(0o400)


def forbid_the_folder(db):
    db.parent.chmod(0o500)


def forbid_both(db):
    forbid_the_file(db)
    forbid_the_folder(db)


def give_it_to_somebody_else(db):
    os.chown(db, 65534, 65534)
    db.chmod(0o644)


WAYS = [forbid_the_file, forbid_the_folder, forbid_both]
WAYS += [give_it_to_somebody_else] * (os.geteuid() == 0)  # nobody else may do that


@pytest.fixture
def python(environment):
    """Run Python as somebody whom permissions bind."""

    def run(*arguments):
        command = [sys.executable, "-c", _UNPRIVILEGED, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)

    return run


@pytest.fixture
def run(python):
    return lambda *arguments: python("-m", "asyncqueue", *arguments)


@pytest.fixture
def db(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    yield folder / "jobs.db"
    folder.chmod(0o700)


async def _fill(db):
    async with Queue.open(db) as queue:
        await queue.enqueue("dead", 1)
        (job,) = await queue.claim("w")
        await queue.finish(job, "permanent", error="no")
        await queue.enqueue("done", 1, queue="over")
        (job,) = await queue.claim("w")
        await queue.finish(job, "ok")
        await queue.enqueue("live", 1)
    db.with_name("jobs.db-gate").unlink()


def picture(db):
    return {path.name: path.read_bytes() for path in db.parent.iterdir()}


@pytest.mark.parametrize("forbid", WAYS)
def test_every_reading_command_works_and_makes_no_file(run, said, db, forbid):
    asyncio.run(_fill(db))
    before = picture(db)
    forbid(db)
    for arguments in READERS:
        ended = run(*[db if word == "DB" else word for word in arguments])
        assert (ended.returncode, ended.stderr) == (0, ""), arguments
        assert ended.stdout
    stats = json.loads(run("stats", db, "--json").stdout)
    assert (stats["pending"], stats["done"], stats["dead"]) == (1, 1, 1)
    said(run("enqueue", db, "more", 1), 2, "writable" if forbid is forbid_the_folder else "read-only")
    assert picture(db) == before


@pytest.mark.parametrize("forbid", WAYS)
@pytest.mark.parametrize("files", [(schema.CONTRACT_SCRIPT,), (schema.CONTRACT_SCRIPT, schema.PRODUCT_SCRIPT)])
def test_a_file_that_must_be_migrated_first_says_so(run, said, db, forbid, files):
    with contextlib.closing(sqlite3.connect(db)) as connection:
        for statement in (statement for file in files for statement in schema.script(file)):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {0 if len(files) == 1 else 2}")
        connection.commit()
    before = picture(db)
    forbid(db)
    said(run("stats", db), 2, "jobs.db", "cannot be written", "migrated")
    assert picture(db) == before


@pytest.mark.parametrize("forbid", [forbid_the_folder, forbid_both])
def test_a_file_whose_mode_needs_side_files_is_refused_in_one_line(run, said, db, forbid):
    asyncio.run(_fill(db))
    with contextlib.closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    before = picture(db)
    forbid(db)
    said(run("stats", db), 2, "jobs.db", "cannot be written", "put it in order")
    assert picture(db) == before


_READS = """
import asyncio, sys
from asyncqueue import Queue
from asyncqueue.errors import NotAQueue
async def main():
    try:
        await Queue.open(sys.argv[1], only_reads=True)
    except NotAQueue as error:
        print(error)
asyncio.run(main())
"""


def test_a_file_that_cannot_be_read_is_refused(run, python, said, db):
    asyncio.run(_fill(db))
    db.chmod(0)
    said(run("stats", db), 2, "jobs.db", "not readable")
    assert python("-c", _READS, db).stdout == f"{db}: cannot be read: check its permissions\n"


def test_a_queue_in_a_folder_that_cannot_be_read_is_not_made(run, said, db):
    """The folder must be synced, or a power cut could take the new file away."""
    db.parent.chmod(0o300)
    said(run("enqueue", db, "a", 1), 2, "jobs.db", "cannot be created")
    db.parent.chmod(0o700)
    assert picture(db) == {}
