"""drain(): ends when no live job is left, and not before."""

import asyncio

import pytest
from dispatch_support import Hands, Log, Scripted, Verbs, drained, fill, passes, until

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import Permanent, Retryable
from asyncqueue.events import Started, Stopped, Stopping
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy


@pytest.mark.parametrize("poll_ms", [1, 25, 60_000])
async def test_an_empty_queue_is_drained_at_once_whatever_the_poll_is(queue, poll_ms):
    log = Log()
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=poll_ms, events=log.events)
    await drained(dispatcher, seconds=2)
    assert [type(event) for event in log.all] == [Started, Stopping, Stopped]
    assert log.of(Stopping)[0].why == "drained"


@pytest.mark.parametrize("poll_ms", [5, 60_000])
async def test_a_drain_ends_when_all_are_done_or_dead_and_waits_for_delayed_retries(queue, poll_ms):
    async def deliver(job):
        if job.id.startswith("bad"):
            raise Permanent("no")
        if job.id.startswith("again") and job.attempt < 3:
            raise Retryable("later")
        return True

    for prefix in ("good", "bad", "again"):
        await fill(queue, 10, prefix)
    await fill(queue, 3, "later", delay_ms=300)
    dispatcher = Dispatcher(queue, deliver, poll_ms=poll_ms, policy=RetryPolicy(base_ms=100, cap_ms=100))
    await drained(dispatcher, seconds=5)
    stats = await queue.stats()
    assert (stats.done, stats.dead, stats.live) == (23, 10, 0)
    counts = dispatcher.counts
    assert (counts.claimed, counts.done, counts.dead, counts.retried) == (53, 23, 10, 20)


async def test_a_drain_waits_for_leases_of_others(queue, path):
    await fill(queue, 2)
    async with Queue.open(path) as other:
        (theirs,) = await other.claim("other", lease_ms=60_000)
        dispatcher = Dispatcher(queue, Hands(held=False))
        task = asyncio.create_task(dispatcher.drain())
        await until(lambda: dispatcher.counts.done == 1)
        await passes(dispatcher, "drain")
        assert not task.done()
        await other.finish(theirs, "ok")
        await until(task.done, 5)
        await task


async def test_a_drain_takes_over_what_others_let_lapse(queue, path):
    await fill(queue, 2)
    async with Queue.open(path) as other:
        await other.claim("other", lease_ms=300)
        dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=60_000)
        await drained(dispatcher, seconds=5)
    assert dispatcher.counts.done == 2


async def test_a_drain_of_some_queues_leaves_the_others_alone(queue):
    await fill(queue, 3, "a", queue="mail")
    await fill(queue, 3, "b", queue="sms")
    await fill(queue, 3, "c", queue="other")
    await fill(queue, 3, "d", queue="later", delay_ms=3_600_000)
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, queues=["mail", "sms"], poll_ms=60_000)
    verbs = Verbs(queue, "stats")
    await drained(dispatcher, seconds=5)
    assert {job.queue for job in hands.started} == {"mail", "sms"}
    assert not verbs.calls  # which would count the whole table at each look
    assert (await queue.stats()).pending == 6


async def test_a_dispatcher_may_drain_and_run_again_and_its_counts_go_on(queue):
    dispatcher = Dispatcher(queue, Scripted())
    for number in range(1, 4):
        await queue.enqueue(f"job-{number}", 1)
        await drained(dispatcher)
        assert dispatcher.counts.done == number
    await queue.enqueue("job-last", 1)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: dispatcher.counts.done == 4)
    with pytest.raises(RuntimeError, match="running already"):
        await dispatcher.run()
    dispatcher.stop()
    await task


async def test_two_dispatchers_in_one_process_do_each_job_once_and_their_counts_add_up(queue, path):
    ids = await fill(queue, 400)
    async with Queue.open(path) as second:
        hands = Hands(held=False)
        one = Dispatcher(queue, hands, concurrency=16)
        two = Dispatcher(second, hands, concurrency=16)
        three = Dispatcher(queue, hands, concurrency=16)  # shares the first one's Queue
        await asyncio.gather(drained(one), drained(two), drained(three))
    assert set(hands.starts) == set(ids)
    assert set(hands.starts.values()) == {1}
    assert sum(each.counts.done for each in (one, two, three)) == 400
    assert sum(each.counts.claimed for each in (one, two, three)) == 400
    assert all(each.counts.done for each in (one, two))
