"""A copy of a file that is written to, and a file made from it."""

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
from contextlib import asynccontextmanager, closing

import aiohttp
import aiosqlite
import pytest
from aiohttp import web

from asyncqueue import Dispatcher, HttpSender, Queue
from asyncqueue.errors import ConfigError, NotAQueue, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreMoved
from asyncqueue.stores import put_back
from asyncqueue.stores.move import move
from asyncqueue.stores.sqlite import backup
from asyncqueue.stores.sqlite.moving import SqliteSide
from receiver.app import create_app
from tests.waiting import until

PAIRS = """
    import asyncio, itertools, sys
    from asyncqueue import NewJob, Queue

    async def main():
        async with Queue.open(sys.argv[1], journal="keep") as queue:
            for n in itertools.count():
                name = f"{sys.argv[2]}-{n}"
                await queue.enqueue_many([NewJob(f"{name}-left", 1), NewJob(f"{name}-right", 1)])
                print(f"{name}-left", flush=True)

    asyncio.run(main())
"""


def ids_of(path):
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {row[0] for row in connection.execute("SELECT id FROM jobs")}


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_copy_made_while_four_write_is_of_one_moment__kind_39_backup_and_restore(
    path, tmp_path, spawn, journal
):
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        writers = [spawn(PAIRS, path, f"w{n}") for n in range(4)]
        for number in range(5):
            acknowledged = {(await asyncio.to_thread(writer.stdout.readline)).strip() for writer in writers}
            copy = tmp_path / f"copy-{number}.db"
            await queue.backup(copy)
            ids = ids_of(copy)
            assert acknowledged <= ids
            assert {job_id.removesuffix("-left") for job_id in ids if job_id.endswith("-left")} == {
                job_id.removesuffix("-right") for job_id in ids if job_id.endswith("-right")
            }
            assert copy.stat().st_mode & 0o777 == 0o600

        async def gone_on():
            return (await queue.stats()).total > len(ids)

        await until(gone_on)
        assert all(writer.poll() is None for writer in writers)  # none was turned away
    assert [file.name for file in tmp_path.iterdir() if "part" in file.name] == []


@asynccontextmanager
async def served(path):
    """Serve an inbox; yield its URL and what it answers when asked for its totals."""
    runner = web.AppRunner(create_app(path))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"

        async def totals():
            async with aiohttp.ClientSession() as session, session.get(f"{url}/totals") as answer:
                return await answer.json()

        yield f"{url}/inbox", totals
    finally:
        await runner.cleanup()


async def drain(queue, url):
    async with Dispatcher(queue, HttpSender(url)) as dispatcher:
        await dispatcher.drain()


async def test_jobs_done_since_are_sent_again_under_higher_tokens__kind_39_backup_and_restore(tmp_path):
    """The inbox keeps the effect single, and a holder of the time that is forgotten stays stale."""
    live, copy = tmp_path / "jobs.db", tmp_path / "copy.db"
    async with served(tmp_path / "inbox.db") as (url, totals):
        async with Queue.open(live) as queue:
            await queue.enqueue("before", 3)
            await queue.backup(copy)
            await queue.enqueue("since", 4)
            await drain(queue, url)
            await queue.enqueue("held", 5)
            (held,) = await queue.claim("w")
            tokens = {name: (await queue.get(name)).token for name in ("before", "since", "held")}
        live.unlink()
        floor = await put_back(str(live), str(copy), patience_ms=1_000)
        async with Queue.open(live, create=False) as queue:
            assert (await queue.get("before")).status == "pending"
            assert await queue.get("since") is None
            await queue.enqueue("since", 4)  # their producers know nothing of the restore
            await queue.enqueue("held", 5)
            assert await queue.finish(held, "ok") is None
            await drain(queue, url)
            for name, token in tokens.items():
                job = await queue.get(name)
                assert job.status == "done"
                assert job.token > max(floor, token)
        counted = await totals()
    assert (counted["messages"], counted["quantity"], counted["duplicates"]) == (3, 12, 2)


async def test_what_is_there_already_is_never_overwritten(path, tmp_path):
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        other = tmp_path / "other.db"
        other.write_text("mine")
        for target in (other, path):
            with pytest.raises(ConfigError, match="there already"):
                await queue.backup(target)
            with pytest.raises(ConfigError, match="there already"):
                await put_back(str(target), str(path), patience_ms=1_000)
        with pytest.raises(ConfigError, match="does not exist"):
            await queue.backup(tmp_path / "no" / "copy.db")
    assert other.read_text() == "mine"
    assert ids_of(path) == {"a"}


@pytest.mark.parametrize("name", ["-journal", "-wal", "-shm"])
async def test_the_journal_of_an_earlier_file_is_not_taken_for_that_of_the_new_one(path, tmp_path, name):
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        (tmp_path / f"new.db{name}").write_bytes(b"old")
        with pytest.raises(ConfigError, match=f"new.db{name}: is left"):
            await queue.backup(tmp_path / "new.db")
        with pytest.raises(ConfigError, match="not a name for a database"):
            await queue.backup(f"{path}{name}")
    with pytest.raises(ConfigError, match=f"new.db{name}: is left"):
        await put_back(str(tmp_path / "new.db"), str(path), patience_ms=1_000)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("target", [None, 3, b"copy.db", "", "sub/", ":memory:", "postgresql://me@host/db"])
async def test_what_cannot_be_the_path_of_a_file_is_refused(path, target):
    async with Queue.open(path) as queue:
        with pytest.raises(ConfigError, match="must be the path of a new file"):
            await queue.backup(target)


@pytest.mark.parametrize("stage", ["copying", "done"])
async def test_a_queue_that_is_elsewhere_is_neither_copied_nor_put_back(path, tmp_path, monkeypatch, stage):
    async def cut_off(*_arguments):
        raise ConfigError("cut off")

    target, bytewise = tmp_path / "target.db", tmp_path / "bytewise.db"
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
    old, new = await SqliteSide.open(str(path), create=False), await SqliteSide.open(str(target), create=True)
    with monkeypatch.context() as patch:
        if stage == "copying":
            patch.setattr(new, "put", cut_off)
        with contextlib.suppress(ConfigError):
            await move(old, new, lambda *_: None)
    await old.close()
    await new.close()
    async with Queue.open(path) as queue:
        with pytest.raises(StoreMoved, match=f"jobs.db: .*{target.name}"):
            await queue.backup(tmp_path / "copy.db")
    shutil.copyfile(path, bytewise)
    with pytest.raises(StoreMoved, match=bytewise.name):
        await put_back(str(tmp_path / "new.db"), str(bytewise), patience_ms=1_000)
    async with Queue.open(target) as queue:
        if stage == "done":
            await queue.backup(tmp_path / "copy.db")
            assert ids_of(tmp_path / "copy.db") == {"a"}
        else:
            with pytest.raises(StoreMoved, match=target.name):
                await queue.backup(tmp_path / "copy.db")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (sqlite3.SQLITE_FULL, (StoreFull, r"copy\.db: no room")),
        (sqlite3.SQLITE_IOERR, (StoreError, r"jobs\.db: disk trouble")),
    ],
    ids=["full", "broken"],
)
async def test_a_copy_that_fails_is_told_of_the_file_that_is_to_blame(path, tmp_path, monkeypatch, code, told):
    async def fails(*_arguments, **_settings):
        failure = sqlite3.OperationalError("disk trouble")
        failure.sqlite_errorcode = code
        raise failure

    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        monkeypatch.setattr(aiosqlite.Connection, "backup", fails)
        with pytest.raises(told[0], match=told[1]):
            await queue.backup(tmp_path / "copy.db")
    assert [file.name for file in tmp_path.iterdir() if "copy" in file.name] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [(FileExistsError(), "there already"), (PermissionError(13, "no"), r"cannot be made \(no\)")],
)
async def test_a_name_that_is_taken_or_refused_at_the_end_leaves_nothing(
    path, tmp_path, monkeypatch, error, words
):
    def link(*_names):
        raise error

    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        monkeypatch.setattr(os, "link", link)
        with pytest.raises(ConfigError, match=words):
            await queue.backup(tmp_path / "copy.db")
    assert [file.name for file in tmp_path.iterdir() if "copy" in file.name] == []


async def test_a_server_is_copied_and_put_back_by_its_own_tools(postgres_url, path, tmp_path):
    async with Queue.open(postgres_url) as queue:
        with pytest.raises(ConfigError, match="the server's own tools"):
            await queue.backup(tmp_path / "copy.db")
    with pytest.raises(ConfigError, match="the server's own tools"):
        await put_back(postgres_url, str(path), patience_ms=1_000)


def nothing(path):
    path.touch()


def text(path):
    path.write_text("no database " * 100)


def another(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")


def damaged(path):
    async def made():
        async with Queue.open(path) as queue:
            await queue.enqueue_many([])
            await queue.enqueue("a", 1)

    asyncio.run(made())
    pages = bytearray(path.read_bytes())
    pages[8192:12288] = os.urandom(4096)
    path.write_bytes(pages)


@pytest.mark.parametrize(
    ("make", "error"),
    [(nothing, NotAQueue), (text, NotAQueue), (another, NotAQueue), (damaged, StoreDamaged)],
    ids=lambda value: value.__name__,
)
def test_a_backup_of_anything_else_or_a_damaged_one_makes_no_file(tmp_path, make, error):
    copy, target = tmp_path / "copy.db", tmp_path / "new.db"
    make(copy)
    before = copy.read_bytes()
    with pytest.raises(error, match=copy.name):
        asyncio.run(put_back(str(target), str(copy), patience_ms=1_000))
    assert copy.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if "new.db" in file.name] == []


async def test_a_writer_that_does_not_end_is_waited_for_no_longer_than_the_patience(path, tmp_path):
    async with Queue.open(path, patience_ms=50) as queue:
        await queue.enqueue("a", 1)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreBusy):
                await queue.backup(tmp_path / "copy.db")
            connection.execute("COMMIT")
        assert [file.name for file in tmp_path.iterdir() if "copy" in file.name] == []
        await queue.backup(tmp_path / "copy.db")
    assert ids_of(tmp_path / "copy.db") == {"a"}


async def test_progress_is_told_in_pages(path, tmp_path, monkeypatch):
    monkeypatch.setattr(backup, "_PAGES", 3)
    told = []
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        await queue.backup(tmp_path / "copy.db", told=lambda done, of: told.append((done, of)))
    pages = (tmp_path / "copy.db").stat().st_size // 4096
    assert told[-1] == (pages, pages)
    assert [done for done, _of in told] == sorted(done for done, _of in told)
    assert len(told) == -(-pages // 3)


KILLED = """
    import asyncio, os, signal, sys
    from asyncqueue import Queue
    from asyncqueue.stores.sqlite import backup
    backup._PAGES = 1
    left = int(sys.argv[3])

    def told(_done, _of):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        async with Queue.open(sys.argv[1]) as queue:
            await queue.backup(sys.argv[2], told=told)

    asyncio.run(main())
"""


@pytest.mark.parametrize("page", [0, 5, 15])
async def test_a_copy_that_is_killed_half_way_has_no_name(path, tmp_path, spawn, page):
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
    child = spawn(KILLED, path, tmp_path / "copy.db", page)
    assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
    assert not (tmp_path / "copy.db").exists()
    assert [name.suffix for name in tmp_path.iterdir() if "copy" in name.name] == [".part"]
    async with Queue.open(path) as queue:
        await queue.backup(tmp_path / "copy.db")
    assert ids_of(tmp_path / "copy.db") == {"a"}


async def test_a_file_of_the_contract_or_an_old_one_can_be_put_back(tmp_path):
    from asyncqueue import worker  # noqa: PLC0415 - only here

    copy, target = tmp_path / "copy.db", tmp_path / "new.db"
    connection = await worker.open_queue(copy)
    await worker.enqueue(connection, {"id": "a", "qty": 1}, 1_000, 60_000)
    await connection.close()
    floor = await put_back(str(target), str(copy), patience_ms=1_000)
    async with Queue.open(target, create=False) as queue:
        assert (await queue.get("a")).token == floor
        await queue.enqueue("b", 1)
        assert (await queue.get("b")).token == floor
