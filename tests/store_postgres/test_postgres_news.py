"""A commit tells of jobs that wait, not of those that end: commits that notify take turns on the whole server."""

import asyncio

import asyncpg
import pytest

from asyncqueue import Dispatcher
from asyncqueue.errors import StoreClosed
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from tests.store.raw import schema_of, server_of
from tests.waiting import until


@pytest.fixture
async def news(own_url):
    """A queue, and a function that returns how many notifications came since it was asked last."""
    async with Queue.open(own_url) as queue:
        listener = await asyncpg.connect(server_of(own_url))
        heard = []
        await listener.add_listener(schema_of(own_url), lambda *_: heard.append(1))

        async def since():
            await listener.execute("SELECT 1")  # what was sent before its answer has arrived
            count = len(heard)
            heard.clear()
            return count

        yield queue, since
        await listener.close()


async def test_only_jobs_that_wait_are_told_of(news):
    queue, since = news
    for job_id in "abc":
        await queue.enqueue(job_id, 1)
    assert await since() == 3
    one, two, three = await queue.claim("w", limit=3)
    await queue.finish(one, "ok")
    await queue.finish(two, "permanent")
    assert await since() == 0
    await queue.finish(three, "retry")
    assert await since() == 1
    await queue.redrive("b", note="again")
    assert await since() == 1
    await queue.cancel("b")
    assert await queue.purge_set(Status.DONE, 0, 9) == 1
    assert await since() == 0


async def test_end_by_another_process_is_noticed_by_who_waits_for_it(news, own_url):
    queue, _since = news
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    async with Queue.open(own_url) as other, asyncio.timeout(20):
        waiting = asyncio.ensure_future(other.wait("a"))
        await until(lambda: other._store._listener._asked_at > 0)
        await queue.finish(leased, "ok")
        assert (await waiting).status == "done"


async def test_drain_ends_when_another_process_has_ended_its_job(news, own_url):
    """Long before the lease would be over, which is what the drain knows of."""
    queue, _since = news
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w", lease_ms=3_600_000)

    async def nobody(job):
        raise AssertionError(job)

    async with Queue.open(own_url) as other, Dispatcher(other, nobody) as dispatcher, asyncio.timeout(20):
        draining = asyncio.ensure_future(dispatcher.drain())
        await until(lambda: dispatcher._claim.idle)
        await queue.finish(leased, "ok")
        await draining


async def test_alarm_rings_once_when_another_process_has_jobs_that_wait(news, own_url):
    queue, _since = news
    rung = []
    await queue.version()  # it listens from now on
    assert queue.alarm(lambda: rung.append(None))
    async with Queue.open(own_url) as other:
        for job_id in "ab":
            before = await queue.version()
            await other.enqueue(job_id, 1)
            await until(lambda: rung)

            async def is_news(before=before):
                return await queue.version() != before

            await until(is_news)
    assert len(rung) == 1


async def test_alarm_that_can_hear_no_more_rings_and_there_is_none_until_somebody_listens_again(news):
    queue, _since = news
    listener, rung = queue._store._listener, []
    assert not queue.alarm(lambda: rung.append("too early"))
    await queue.version()
    assert queue.alarm(lambda: rung.append("lost"))
    listener._connection.terminate()
    assert not queue.alarm(lambda: rung.append("too late"))
    await queue.version()  # finds it out, and listens anew
    assert rung == ["lost"]
    assert queue.alarm(lambda: None)


async def test_listener_that_is_being_made_while_the_queue_is_closed_is_not_left_behind(own_url):
    queue = await Queue.open(own_url)
    database, made, go_on = queue._store.database, [], asyncio.Event()
    connect = database.connect

    async def slow():
        made.append(await connect())
        await go_on.wait()
        return made[0]

    database.connect = slow
    asking = asyncio.ensure_future(queue.version())
    await until(lambda: made)
    await queue.close()
    go_on.set()
    await asyncio.wait((asking,))
    assert isinstance(asking.exception(), StoreClosed)
    assert made[0].is_closed()
