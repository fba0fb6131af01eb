"""A transaction in one hop: it takes and leaves the gate in the driver's thread, and falls back when it cannot."""

import asyncio
import os
import time

import pytest

from asyncqueue.errors import StoreBusy
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite.gate import Gate
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
async def queue(path):
    async with Queue.open(path) as opened:
        yield opened


@pytest.fixture
def other(path, queue):
    """The gate of another process."""
    gate = Gate(queue._store._database.path)
    yield gate
    gate.close()


def gate_of(queue):
    return queue._store._database._gate


async def ids(queue):
    return [job.id for job in await queue.list()]


async def test_gate_is_free_as_soon_as_the_commit_is_done_whatever_the_loop_does(queue, path, other, plain):
    reader = plain(path)
    reader.execute("PRAGMA busy_timeout=5000")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(transaction):
        loop.call_soon_threadsafe(begun.set)
        await transaction.enqueue([NewJob("a", 1)])

    writing = asyncio.ensure_future(queue._store.write(work, inline=True))
    await begun.wait()
    end = time.monotonic() + 20
    while not reader.execute("SELECT count(*) FROM jobs").fetchone()[0]:  # the loop stands still meanwhile
        assert time.monotonic() < end
    while not (is_free := other.try_enter()) and time.monotonic() < end:
        os.sched_yield()
    assert is_free
    assert not writing.done()
    other.leave()
    await writing


async def test_gate_is_left_by_a_failed_transaction_only_when_it_is_undone(queue, path, other, plain):
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(transaction):
        loop.call_soon_threadsafe(begun.set)
        await transaction.enqueue([NewJob("half", 1)])
        raise LookupError

    writing = asyncio.ensure_future(queue._store.write(work, inline=True))
    await begun.wait()
    end = time.monotonic() + 20
    while not (is_free := other.try_enter()) and time.monotonic() < end:  # the loop stands still meanwhile
        os.sched_yield()
    assert is_free
    plain(path).execute("BEGIN EXCLUSIVE")
    with pytest.raises(LookupError):
        await writing


async def test_gate_held_by_another_process_is_waited_for(queue, other):
    assert other.try_enter()
    writing = [asyncio.ensure_future(queue.enqueue(name, 1)) for name in "ab"]
    await until(lambda: gate_of(queue)._thread_waits)
    assert not any(task.done() for task in writing)
    other.leave()
    assert await asyncio.gather(*writing) == [True, True]
    assert other.try_enter()


async def test_gate_lost_between_two_tries_of_a_busy_transaction_is_waited_for_again(queue, path, other, plain):
    """A busy BEGIN leaves the gate; another process may go through before the next try."""
    assert other.try_enter()
    writing = asyncio.ensure_future(queue.enqueue("a", 1))
    await until(lambda: gate_of(queue)._thread_waits)
    foreign = plain(path)
    foreign.execute("BEGIN EXCLUSIVE")
    other.leave()
    await until(lambda: queue._store.busy_retries > 0)
    await until(other.try_enter)
    await until(lambda: gate_of(queue)._thread_waits)
    foreign.execute("ROLLBACK")
    assert not writing.done()
    other.leave()
    assert await writing is True
    assert other.try_enter()


async def test_write_connection_that_was_closed_is_replaced(queue, other):
    lost = queue._store._database._writer
    await lost.close()
    assert await queue.enqueue("a", 1) is True
    assert queue._store._database._writer is not lost
    assert await queue.enqueue("b", 1) is True
    assert await ids(queue) == ["a", "b"]
    assert other.try_enter()


async def test_write_connection_with_a_transaction_left_open_is_replaced(queue, other):
    lost = queue._store._database._writer
    await lost.execute("BEGIN IMMEDIATE")
    await lost.execute("DELETE FROM jobs")
    answers = await asyncio.gather(*(queue.enqueue(name, 1) for name in "ab"))
    assert answers == [True, True]
    assert queue._store._database._writer is not lost
    assert other.try_enter()


async def test_error_of_the_work_rolls_back_and_leaves_the_gate(queue, other):
    async def work(transaction):
        await transaction.enqueue([NewJob("half", 1)])
        raise LookupError

    with pytest.raises(LookupError):
        await queue._store.write(work, inline=True)
    assert other.try_enter()
    other.leave()
    assert await ids(queue) == []
    assert await queue.enqueue("a", 1) is True


async def test_busy_gate_fails_exactly_those_who_waited_from_the_beginning(path):
    async with Queue.open(path, patience_ms=300) as queue:
        other = Gate(queue._store._database.path)
        assert other.try_enter()
        first = [asyncio.ensure_future(queue.enqueue(f"first-{n}", 1)) for n in range(3)]
        await until(lambda: gate_of(queue)._thread_waits)
        late = asyncio.ensure_future(queue.enqueue("late", 1))
        answers = await asyncio.gather(*first, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreBusy] * 3
        assert not late.done()
        other.leave()
        assert await late is True
        assert await ids(queue) == ["late"]
        other.close()


async def test_commit_that_meets_a_reader_is_repeated_without_its_work(queue, path, plain):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(3)])
    cursor = plain(path).execute("SELECT id FROM jobs")
    cursor.fetchone()
    runs = []

    async def work(transaction):
        runs.append(await transaction.enqueue([NewJob("a", 1)]))

    writing = asyncio.ensure_future(queue._store.write(work, inline=True))
    await until(lambda: queue._store.busy_retries > 1)
    cursor.close()
    await writing
    assert runs == [[True]]
