"""The kinds of faults of docs/reliability.md that the outbox could have."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from asyncqueue import Dispatcher, InvalidJob, Queue, outbox
from asyncqueue.clock import SystemClock
from asyncqueue.errors import StoreBusy, StoreFull
from tests.outbox.outbox_callers import Aiosqlite, AlchemyAsyncSession
from tests.waiting import until

BUSY_S = 0.05


@contextlib.contextmanager
def connected(path, **settings):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, **settings)) as connection:
        yield connection


async def test_a_busy_database_is_a_typed_error_and_the_transaction_goes_on__kind_28_busy_timeout(queue, path):
    with connected(path) as other, connected(path, timeout=BUSY_S) as connection:
        other.execute("BEGIN IMMEDIATE")
        connection.execute("BEGIN")
        with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
            outbox.enqueue(connection, "a", 1)
        assert connection.in_transaction
        other.rollback()
        assert outbox.enqueue(connection, "a", 1) is True
        connection.commit()
    assert (await queue.stats()).pending == 1


async def test_a_busy_database_is_the_same_typed_error_through_sqlalchemy__kind_28(queue, path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": BUSY_S})
    with connected(path) as other:
        other.execute("BEGIN IMMEDIATE")
        async with AsyncSession(engine) as session:
            with pytest.raises(StoreBusy, match="nothing was stored"):
                await outbox.enqueue_async(session, "a", 1)
            other.rollback()
            assert await outbox.enqueue_async(session, "a", 1) is True
            await session.commit()
    await engine.dispose()
    assert (await queue.stats()).pending == 1


async def test_a_busy_database_at_begin_immediate_is_a_typed_error_too__kind_28(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})
    sa.event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with connected(path) as other, sa.orm.Session(engine) as session:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            outbox.enqueue(session, "a", 1)
        other.rollback()
    engine.dispose()
    assert (await queue.stats()).total == 0


@pytest.mark.parametrize("kind", [Aiosqlite, AlchemyAsyncSession])
@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_enqueue_is_left_to_the_callers_rollback__kind_29_cancellation_mid_transaction(
    queue, path, kind, steps
):
    caller = await kind().open(path)
    await caller.begin()
    await caller.insert("row")
    task = asyncio.create_task(caller.enqueue("a", 1))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await caller.rollback()
    with connected(path, timeout=BUSY_S) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody holds the write lock any more
        other.rollback()
    await caller.close()
    assert (await queue.stats()).total == 0


async def test_no_statement_is_left_open_when_the_caller_commits__kind_30_returning(caller, queue):
    await caller.begin()
    for number in range(3):
        await caller.enqueue(f"job-{number}", 1)
        await caller.enqueue(f"job-{number}", 1)
    await caller.commit()
    assert (await queue.stats()).pending == 3


async def test_a_full_disk_is_said_and_so_is_what_became_of_the_transaction__kind_32_disk_full(queue, path):
    payload = {"text": "x" * 200_000}
    with connected(path) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 8}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO orders VALUES ('row')")
        with pytest.raises(StoreFull, match="no room left") as caught:
            outbox.enqueue(connection, "a", 1, payload=payload)
        assert ("rolled back the whole transaction" in str(caught.value)) is not connection.in_transaction
        connection.rollback()
        connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
        connection.execute("BEGIN IMMEDIATE")
        assert outbox.enqueue(connection, "a", 1, payload=payload) is True
        connection.commit()
    assert (await queue.stats()).pending == 1


async def test_the_callers_locks_are_not_dropped_by_a_stray_close__kind_34_posix_locks(queue, path):
    code = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("free")
except sqlite3.OperationalError as error:
    print(error)
connection.close()
"""
    with connected(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        outbox.enqueue(connection, "a", 1, via=queue)
        command = [sys.executable, "-c", code, path]
        ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
        connection.rollback()
    assert ran.stdout == "database is locked\n"


async def test_the_clock_steps_back_and_the_times_of_jobs_do_not__kind_38_clock_steps(queue, path, monkeypatch):
    seconds = iter([1_000, 400, 1_001])
    monkeypatch.setattr("asyncqueue.clock.time.time_ns", lambda: next(seconds) * 10**9)
    clock = SystemClock()
    with connected(path) as connection:
        connection.execute("BEGIN")
        for job_id in "abc":
            outbox.enqueue(connection, job_id, 1, clock=clock)
        connection.commit()
    assert [job.created_at for job in await queue.list()] == [1_000_000, 1_000_000, 1_001_000]


async def test_times_are_integer_milliseconds_of_the_epoch__kind_37_timezone(queue, path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    with connected(path) as connection:
        connection.execute("BEGIN")
        outbox.enqueue(connection, "a", 1)
        connection.commit()
    async with Queue.open(path) as here:
        [job] = await here.claim("worker")
        assert 0 <= SystemClock().now_ms() - (await here.get(job.id)).created_at < 60_000


async def test_nul_passes_and_a_lone_surrogate_is_refused__kind_52_payload_edge_cases(queue, path):
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute_fetchall("BEGIN")
        assert await outbox.enqueue_async(connection, "a", 1, payload={"nul": "a\0b", "é": "\N{PILE OF POO}"})
        with pytest.raises(InvalidJob):
            await outbox.enqueue_async(connection, "b", 1, payload="\ud800")
        await connection.commit()
    assert (await queue.get("a")).json() == {"nul": "a\0b", "é": "\N{PILE OF POO}"}
    assert (await queue.stats()).pending == 1


@pytest.mark.parametrize("other", ["A", "a-", "á"])
async def test_ids_that_look_alike_are_different_or_refused__kind_45_ids_that_look_alike(queue, path, other):
    with connected(path) as connection:
        connection.execute("BEGIN")
        outbox.enqueue(connection, "a", 1)
        if other.isascii():
            assert outbox.enqueue(connection, other, 2) is True
        else:
            with pytest.raises(InvalidJob):
                outbox.enqueue(connection, other, 2)
        connection.commit()


def write_transactions(path, name, count):
    """One thread of a service: each transaction is a row and its job; every fifth is rolled back."""
    with connected(path, timeout=30) as connection:
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (?)", (f"{name}-{number}",))
            outbox.enqueue(connection, f"{name}-{number}", 1)
            connection.rollback() if number % 5 == 0 else connection.commit()


@pytest.mark.slow
async def test_four_writers_and_a_dispatcher_lose_nothing__kind_28(path, queue, orders):
    sent = []

    async def deliver(job):
        sent.append(job.id)
        return True

    async def all_done():
        return (await live.stats()).done == 80

    async with Queue.open(path) as live, Dispatcher(live, deliver, concurrency=8) as dispatcher:
        threads = [threading.Thread(target=write_transactions, args=(path, f"t{n}", 25)) for n in range(4)]
        async with asyncio.TaskGroup() as group:
            running = group.create_task(dispatcher.run())
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            await until(all_done, 40)
            dispatcher.stop()
            await running
    assert sorted(sent) == orders()
    assert len(set(sent)) == len(sent) == 80
