"""Busy databases (FAULTS 28), open cursors and full disks become waiting or one typed error."""

import asyncio
import sqlite3

import aiosqlite
import pytest

from asyncqueue.errors import NotAQueue, StoreBusy, StoreClosed, StoreDamaged, StoreError, StoreFull
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite.connection import translated
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_sync")


def retries(queue):
    return queue._store.busy_retries


async def test_foreign_writer_is_waited_for(path, plain):
    async with Queue.open(path) as queue:
        foreign = plain(path)
        foreign.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(queue.enqueue("a", 1))
        await until(lambda: retries(queue) > 1)
        assert not writing.done()
        assert (await queue.stats()).total == 0  # readers go on
        foreign.execute("COMMIT")
        assert await writing is True


async def test_foreign_writer_that_stays_makes_store_busy_after_the_patience(path, plain):
    async with Queue.open(path, patience_ms=120) as queue:
        foreign = plain(path)
        foreign.execute("BEGIN EXCLUSIVE")
        answers = await asyncio.gather(
            queue.enqueue("a", 1), queue.claim("w"), queue.stats(), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [StoreBusy] * 3
        assert all("\n" not in str(answer) for answer in answers)
        assert retries(queue) > 0
        foreign.execute("ROLLBACK")
        assert await queue.enqueue("a", 1)


async def test_open_meets_a_busy_database_as_any_write_does(path, plain):
    async with Queue.open(path):
        pass
    foreign = plain(path)
    foreign.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy):
        await Queue.open(path, patience_ms=100)
    opening = asyncio.ensure_future(_opened(path))
    for _ in range(50):
        await asyncio.sleep(0)
    foreign.execute("ROLLBACK")
    queue = await opening
    assert await queue.enqueue("a", 1)
    await queue.close()


async def _opened(path):
    return await Queue.open(path)


async def test_commit_that_meets_an_open_cursor_is_tried_again(path, plain):
    """FAULTS 30: the transaction is still open then, and must neither be lost nor left."""
    async with Queue.open(path) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(3)])
        cursor = plain(path).execute("SELECT id FROM jobs")
        cursor.fetchone()
        writing = asyncio.ensure_future(queue.enqueue("a", 1))
        await until(lambda: retries(queue) > 0)
        assert not writing.done()
        cursor.close()
        assert await writing is True
        assert (await queue.stats()).total == 4


async def test_commit_that_meets_an_open_cursor_for_too_long_is_rolled_back(path, plain, writes_at_once):
    async with Queue.open(path, patience_ms=100) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(3)])
        cursor = plain(path).execute("SELECT id FROM jobs")
        cursor.fetchone()
        with pytest.raises(StoreBusy):
            await queue.enqueue("a", 1)
        cursor.close()
        writes_at_once(path)
        assert (await queue.stats()).total == 3
        assert await queue.enqueue("a", 1)


async def test_write_connection_that_cannot_be_rolled_back_is_replaced(path, monkeypatch, writes_at_once):
    async with Queue.open(path) as queue:
        writer = queue._store._database._writer

        async def broken():
            raise sqlite3.OperationalError("cannot roll back")

        class BoomError(Exception):
            pass

        async def fails(transaction):
            await transaction.enqueue([NewJob("half", 1)])
            raise BoomError

        monkeypatch.setattr(writer, "rollback", broken)
        with pytest.raises(BoomError):
            await queue._store.write(fails)
        assert await queue.enqueue("a", 1)
        assert queue._store._database._writer is not writer
        assert await queue.get("half") is None
        writes_at_once(path)


async def test_write_connection_that_cannot_be_replaced_at_once_is_replaced_later(path, monkeypatch):
    """An outage while reconnecting is no reason to stay closed for ever."""
    async with Queue.open(path) as queue:
        database = queue._store._database
        await database._writer.execute_fetchall("BEGIN")  # as a lost rollback leaves it
        original = aiosqlite.connect

        def refuses(*arguments, **keywords):
            raise sqlite3.OperationalError("unable to open database file")

        monkeypatch.setattr(aiosqlite, "connect", refuses)
        with pytest.raises(StoreError) as caught:
            await queue.enqueue("a", 1)
        assert not isinstance(caught.value, StoreClosed)
        monkeypatch.setattr(aiosqlite, "connect", original)
        assert await queue.enqueue("a", 1)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, StoreBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusy),
        (sqlite3.SQLITE_LOCKED, StoreBusy),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_NOTADB, NotAQueue),
        (sqlite3.SQLITE_CORRUPT, StoreDamaged),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreDamaged),
        (sqlite3.SQLITE_READONLY, NotAQueue),
        (sqlite3.SQLITE_CANTOPEN, StoreError),
        (sqlite3.SQLITE_IOERR_WRITE, StoreError),
        (sqlite3.SQLITE_CONSTRAINT, StoreError),
    ],
)
def test_driver_errors_become_typed_ones(path, code, expected):
    path.touch()
    error = sqlite3.OperationalError("words of the driver")
    error.sqlite_errorcode = code
    assert type(translated(error, path)) is expected


def test_file_that_is_not_there_is_no_trouble_of_the_moment(path):
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert type(translated(error, path)) is NotAQueue


FULL_DISK = """
import asyncio, os, resource, sys
from asyncqueue.errors import StoreError
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
async def main(path, journal):
    async with Queue.open(path, journal=journal, force_wal=True, patience_ms=2_000) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(20)])
        (held,) = await queue.claim("w")
        sizes = [os.stat(path + end).st_size for end in ("", "-wal") if os.path.exists(path + end)]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) + 1, hard))
        errors = []
        for n in range(20):
            try:
                await queue.enqueue(f"big{n}", 1, payload="x" * 200_000)
            except StoreError as error:
                errors.append(error)
        assert len(errors) == 20, errors
        assert all(chr(10) not in str(error) for error in errors)
        stats = await queue.stats()
        assert (stats.total, stats.leased) == (20, 1), stats
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await queue.enqueue("big0", 1, payload="x" * 200_000)
        assert await queue.finish(held, "ok") == "done"
        assert (await queue.stats()).total == 21
    print("went on")
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_full_disk_is_a_typed_error_and_all_goes_on_when_space_returns(path, spawn, plain, journal):
    """FAULTS 32, by RLIMIT_FSIZE."""
    child = spawn(FULL_DISK, path, journal)
    assert child.communicate()[0] == "went on\n"
    assert plain(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


NO_DESCRIPTORS = """
import asyncio, os, resource, sys
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import StoreError
from asyncqueue.events import ChoreFailed, ChoreRecovered, Events
from asyncqueue.queue import Queue

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

def take_all():
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken

def give_back(taken):
    for descriptor in taken:
        os.close(descriptor)

async def refused(call):
    try:
        await call
    except StoreError as error:
        assert type(error) is StoreError and chr(10) not in str(error), error
        return
    raise AssertionError("it was not refused")

async def main(path):
    async with Queue.open(path + "-other"):  # whatever is imported late is there now
        pass
    taken = take_all()
    await refused(Queue.open(path))
    give_back(taken)
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        taken = take_all()
        await refused(queue.enqueue("b", 1))
        await refused(Queue.open(path))
        give_back(taken)
        assert await queue.enqueue("b", 1)

        told, failed, taken = [], asyncio.Event(), []

        def tell(event):
            told.append(event)
            if isinstance(event, ChoreFailed):
                failed.set()

        async def deliver(job):
            if not taken:
                taken.extend(take_all())
            return True

        async with Dispatcher(queue, deliver, concurrency=1, events=Events(tell)) as dispatcher:
            draining = asyncio.create_task(dispatcher.drain())
            await failed.wait()
            assert not draining.done() and dispatcher.counts.done == 0
            give_back(taken)
            await draining
        assert any(isinstance(event, ChoreRecovered) for event in told)
        assert (await queue.stats()).done == dispatcher.counts.done == 2
    print("went on")
asyncio.run(main(sys.argv[1]))
"""


def test_process_without_descriptors_is_told_so_and_all_goes_on_when_there_are_some(path, spawn, plain):
    """The journal cannot be opened then, which SQLite says in the words for a file that may not be opened."""
    child = spawn(NO_DESCRIPTORS, path)
    assert child.communicate()[0] == "went on\n"
    assert plain(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
