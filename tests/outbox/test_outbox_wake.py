"""A dispatcher of the same process looks soon after the commit, and never on account of a rollback."""

import asyncio
import contextlib
import sqlite3

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from asyncqueue import Dispatcher, Queue, outbox
from tests.waiting import until

RARELY_MS = 60_000  # nothing that the tests wait for can come from the poll


@contextlib.asynccontextmanager
async def dispatching(queue, poll_ms):
    """A dispatcher that has looked once, found nothing and waits; yields what it delivers."""
    delivered: asyncio.Queue = asyncio.Queue()

    async def deliver(job):
        await delivered.put(job.id)
        return True

    async with Dispatcher(queue, deliver, poll_ms=poll_ms) as dispatcher, asyncio.TaskGroup() as group:
        group.create_task(dispatcher.run())
        await until(lambda: dispatcher._claim.idle)
        yield delivered
        dispatcher.stop()


async def first(delivered):
    async with asyncio.timeout(20):
        return await delivered.get()


@pytest.fixture
async def woken(queue):
    """How often the queue was woken so far, once everything that was asked for has happened."""
    wakes = []
    queue.subscribe(lambda: wakes.append(1))

    async def count():
        await asyncio.sleep(0)
        return len(wakes)

    return count


async def test_a_job_of_every_kind_of_connection_is_found_by_the_poll(caller, queue):
    async with dispatching(queue, 25) as delivered:
        await caller.begin()
        await caller.enqueue("a", 1, clock=queue.outbox_terms.clock)
        await caller.commit()
        assert await first(delivered) == "a"


async def test_the_commit_of_an_async_session_wakes_at_once(queue, path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with dispatching(queue, RARELY_MS) as delivered:
        async with AsyncSession(engine) as session, session.begin():
            await outbox.enqueue_async(session, "a", 1, via=queue)
        assert await first(delivered) == "a"
    await engine.dispose()


async def test_the_commit_of_a_session_in_another_thread_wakes_at_once(queue, path):
    def in_a_thread():
        engine = sa.create_engine(f"sqlite:///{path}")
        with Session(engine) as session, session.begin():
            outbox.enqueue(session, "a", 1, via=queue)
        engine.dispose()

    async with dispatching(queue, RARELY_MS) as delivered:
        await asyncio.to_thread(in_a_thread)
        assert await first(delivered) == "a"


async def test_other_connections_wake_by_hand_after_their_commit(queue, path):
    async with dispatching(queue, RARELY_MS) as delivered:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            outbox.enqueue(connection, "a", 1, via=queue)
            connection.commit()
        queue.wake()
        assert await first(delivered) == "a"


async def test_only_the_outermost_commit_wakes_and_only_once(queue, path, woken):
    engine = sa.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        session.begin()
        outbox.enqueue(session, "a", 1, via=queue)
        with session.begin_nested():
            outbox.enqueue(session, "b", 1, via=queue)
        assert await woken() == 0
        session.commit()
        assert await woken() == 1
        session.execute(sa.text("DELETE FROM orders"))
        session.commit()
        assert await woken() == 1
        outbox.enqueue(session, "c", 1, via=queue)
        session.commit()
        assert await woken() == 2
    engine.dispose()


async def test_a_rollback_wakes_nobody(queue, path, woken):
    engine = sa.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        outbox.enqueue(session, "a", 1, via=queue)
        session.rollback()
        assert await woken() == 0
    engine.dispose()


async def test_a_refused_job_does_not_arm_the_wake(queue, path, woken):
    engine = sa.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        with pytest.raises(ValueError, match="qty"):
            outbox.enqueue(session, "a", 0, via=queue)
        session.execute(sa.text("INSERT INTO orders VALUES ('x')"))
        session.commit()
        assert await woken() == 0
    engine.dispose()


def test_waking_a_queue_whose_loop_is_closed_is_harmless(tmp_path):
    async def opened_and_closed():
        async with Queue.open(tmp_path / "a.db") as queue:
            return queue

    assert asyncio.run(opened_and_closed()).wake() is None


async def test_via_brings_the_bound_and_the_clock_of_the_queue(path, queue, clock):
    clock.advance(777)
    async with Queue.open(path, clock=clock, max_pending=1) as bounded:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            assert outbox.enqueue(connection, "a", 1, via=bounded) is True
            with pytest.raises(Exception, match="1 waiting jobs"):
                outbox.enqueue(connection, "b", 1, via=bounded)
            assert outbox.enqueue(connection, "b", 1, via=bounded, max_pending=2) is True
            connection.commit()
        assert (await bounded.get("a")).created_at == clock.now_ms()
