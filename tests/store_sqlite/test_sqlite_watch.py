"""The version that an idle dispatcher polls: nearly free while nobody writes, and never wrong for long."""

import os
import sqlite3
import time
from contextlib import closing

import pytest

from asyncqueue.errors import StoreClosed
from asyncqueue.stores.sqlite import store as store_module
from asyncqueue.stores.sqlite import watch
from asyncqueue.stores.sqlite.connection import Database, Profile
from asyncqueue.stores.sqlite.store import SqliteStore

LONG_AGO_S = 1_000_000_000


@pytest.fixture
def asked(monkeypatch):
    """Count how often SQLite is asked."""
    asked = []
    real = Database.data_version

    async def count(self):
        asked.append(None)
        return await real(self)

    monkeypatch.setattr(Database, "data_version", count)
    return asked


@pytest.fixture
def now(monkeypatch):
    """A monotonic clock of the version's own that stands still until it is moved."""
    now = [1_000.0]
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(params=["delete", "wal"])
async def opened(tmp_path, request):
    profile = Profile(journal=request.param, force_wal=True)
    store = await SqliteStore.open(tmp_path / "jobs.db", profile=profile)
    yield store, tmp_path / "jobs.db"
    await store.close()


def write_elsewhere(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute("UPDATE queues SET paused = paused")
        plain.execute("INSERT OR REPLACE INTO queues VALUES ('other', 0)")


def make_old(path):
    """Let the last write be long ago, as far as the files tell."""
    for name in path.parent.glob(f"{path.name}*"):
        os.utime(name, (LONG_AGO_S, LONG_AGO_S))


async def test_while_nobody_writes_sqlite_is_asked_once(opened, asked, now):
    store, path = opened
    make_old(path)
    versions = {await store.version() for _ in range(100)}
    assert (len(versions), len(asked)) == (1, 1)


async def test_a_commit_of_another_connection_is_noticed_at_once(opened, asked, now):
    store, path = opened
    make_old(path)
    before = await store.version()
    write_elsewhere(path)
    assert await store.version() != before
    assert len(asked) == 2


async def test_a_second_write_in_the_same_tick_of_the_files_clock_is_noticed(opened, asked, now):
    store, path = opened
    for _ in range(20):  # each right after the last: often within one tick, with files of the same size
        write_elsewhere(path)
        before = await store.version()
        write_elsewhere(path)
        assert await store.version() != before


async def test_where_files_keep_no_times_sqlite_is_asked_after_a_while(opened, asked, now):
    store, path = opened
    make_old(path)
    before = await store.version()
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        sizes = {name: name.stat().st_size for name in path.parent.glob("jobs.db*")}
        plain.execute("INSERT INTO queues VALUES ('other', 0)")
        version = plain.execute("PRAGMA journal_mode").fetchone()[0]
        make_old(path)
        grown = version == "wal" and sizes != {n: n.stat().st_size for n in path.parent.glob("jobs.db*")}
        assert (await store.version() != before) == grown  # a log that has grown tells it by its size
        now[0] += store_module._VERSION_S
        assert await store.version() != before


async def test_a_failed_question_is_asked_again(opened, now, monkeypatch):
    store, path = opened
    make_old(path)
    before = await store.version()
    write_elsewhere(path)

    async def fail(self):
        raise OSError("not now")

    with monkeypatch.context() as broken:
        broken.setattr(Database, "data_version", fail)
        with pytest.raises(OSError, match="not now"):
            await store.version()
    assert await store.version() != before


def test_a_file_that_is_not_there_has_no_mark_that_could_be_kept(tmp_path):
    assert watch.look_at(tmp_path / "none.db").mark == ((0, 0), (0, 0))
    (tmp_path / "none.db").write_bytes(b"x")
    assert watch.look_at(tmp_path / "none.db").mark is None
    os.utime(tmp_path / "none.db", (time.time() + 3_600,) * 2)  # a file server whose clock is ahead
    assert watch.look_at(tmp_path / "none.db").mark is not None


async def test_a_write_of_a_moment_ago_may_be_followed_by_a_commit_that_leaves_no_trace(opened, asked):
    store, path = opened
    for name in path.parent.glob(f"{path.name}*"):
        os.utime(name, (time.time() - 0.5, time.time() - 0.5))  # written, and perhaps still being flushed
    for times in range(1, 4):
        await store.version()
        assert len(asked) == times


@pytest.mark.parametrize("what", ["removed", "replaced"])
async def test_a_file_that_is_not_ours_any_more_is_told(opened, what):
    store, path = opened
    await store.version()
    other = path.with_name("other.db")
    await (await SqliteStore.open(other)).close()
    path.unlink() if what == "removed" else other.replace(path)
    for _ in range(2):
        with pytest.raises(StoreClosed, match="removed or replaced"):
            await store.version()
