"""Retention: what a dispatcher forgets by itself, how gently, and what it says about it."""

import warnings

import pytest
from dispatch_support import Hands, Log, Verbs, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher, Retention, purge
from asyncqueue.dispatcher.purge import PurgeChore
from asyncqueue.errors import ConfigError, StoreBusy
from asyncqueue.events import ChoreFailed
from asyncqueue.job import Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import DedupHorizonWarning, Queue

HOUR_MS = 3_600_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def queue(path, clock):
    async with Queue.open(path, clock=clock, dedup_ms=HOUR_MS) as queue:
        yield queue


async def ended(queue, done, dead=0):
    """Put `done` and `dead` jobs in that have ended just now."""
    await fill(queue, done, "done")
    await fill(queue, dead, "dead", queue="doomed")
    while jobs := await queue.claim("w", limit=1_000, queues=["default"]):
        for start in range(0, len(jobs), 500):
            await queue.finish_many([Report.ok(job) for job in jobs[start : start + 500]])
    for job in await queue.claim("w", limit=1_000):
        await queue.finish(job, "permanent", error="no")


async def only(queue, *, done):
    """Wait until the purge has left no more than `done` done jobs."""

    async def is_done():
        return (await queue.stats()).done <= done

    await until(is_done)


async def test_ended_jobs_are_forgotten_at_their_age_and_the_others_stay(queue, clock):
    await ended(queue, 3, 2)
    clock.advance(2 * HOUR_MS)
    await queue.enqueue("live", 1, delay_ms=HOUR_MS)
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, retention=Retention(done_ms=2 * HOUR_MS))
    async with running(dispatcher):
        await queue.enqueue("young", 1)
        await until(lambda: dispatcher.counts.done == 1)
        await only(queue, done=1)
    assert {job.id for job in await queue.list()} == {"live", "young", "dead-00000", "dead-00001"}


async def test_dead_jobs_have_an_age_of_their_own(queue, clock):
    await ended(queue, 2, 2)
    clock.advance(2 * HOUR_MS)

    async def none_is_dead():
        return not (await queue.stats()).dead

    async with running(Dispatcher(queue, Hands(), retention=Retention(dead_ms=HOUR_MS))):
        await until(none_is_dead)
    stats = await queue.stats()
    assert (stats.done, stats.dead) == (2, 0)
    assert await queue.history("dead-00000") == []


async def test_nothing_is_forgotten_unless_asked_for(queue, clock):
    await ended(queue, 2, 2)
    clock.advance(1_000 * HOUR_MS)
    verbs = Verbs(queue, "purge_set", "purge")
    dispatcher = Dispatcher(queue, Hands(held=False))
    async with running(dispatcher):
        await queue.enqueue("more", 1)
        await until(lambda: dispatcher.counts.done == 1)
        assert "purge" not in dispatcher._loops
    assert not verbs.calls
    assert (await queue.stats()).total == 5


async def test_a_retention_below_the_dedup_horizon_warns_once_and_not_at_every_pass(queue, clock):
    with pytest.warns(DedupHorizonWarning, match=r"done .*5000 < 3600000 ms") as caught:
        dispatcher = Dispatcher(queue, Hands(), retention=Retention(done_ms=5_000, dead_ms=HOUR_MS))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    await ended(queue, 450)
    clock.advance(6_000)
    log = Log()
    dispatcher._events = log.events
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with running(dispatcher):
            await only(queue, done=0)
    assert not log.of(ChoreFailed)


async def test_a_retention_above_the_horizon_does_not_warn(queue):
    assert Dispatcher(queue, Hands(), retention=Retention(done_ms=HOUR_MS)).counts.done == 0


async def test_purging_goes_in_small_sets_with_pauses_of_several_times_their_length__kind_40(queue, clock):
    await ended(queue, 250)
    clock.advance(2 * HOUR_MS)
    sizes = []
    purge_set = queue.purge_set

    async def counted(status, age_ms, size):
        sizes.append(await purge_set(status, age_ms, size))
        return sizes[-1]

    queue.purge_set = counted
    chore = PurgeChore(queue, Retention(done_ms=HOUR_MS))
    pauses = [await chore.run_once() for _ in range(7)]
    assert sizes == [50] * 5 + [0] * 2
    assert all(purge._PAUSE_MIN_S <= pause < 10 for pause in pauses[:5])
    assert pauses[5:] == [purge._EVERY_S] * 2


async def test_claims_go_on_between_the_sets_of_a_large_purge__kind_40_pruning_blocks(queue, clock):
    await ended(queue, 2_000)
    clock.advance(2 * HOUR_MS)
    await fill(queue, 50, ttl_ms=HOUR_MS)
    left = []

    async def deliver(job):
        left.append((await queue.stats()).done)
        return True

    dispatcher = Dispatcher(queue, deliver, concurrency=1, retention=Retention(done_ms=HOUR_MS))
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 50)
        assert left[0] > 1_000  # the first claim did not wait for the purge
        await only(queue, done=50)
    assert {job.status for job in await queue.list()} == {Status.DONE}


async def test_a_purge_that_fails_stops_no_delivery_and_goes_on_later(queue, clock):
    await ended(queue, 3)
    clock.advance(2 * HOUR_MS)
    verbs = Verbs(queue, "purge_set")
    verbs.fail("purge_set", StoreBusy("busy"), times=2)
    log = Log()
    dispatcher = Dispatcher(queue, Hands(held=False), retention=Retention(done_ms=HOUR_MS), events=log.events)
    await fill(queue, 5, ttl_ms=HOUR_MS)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 5)
        await only(queue, done=5)
    assert {event.chore for event in log.of(ChoreFailed)} == {"purge"}
    assert verbs.calls["purge_set"] >= 3


@pytest.mark.parametrize(
    "settings",
    [{}, {"done_ms": None}, {"done_ms": -1}, {"done_ms": 1.0}, {"dead_ms": True}, {"dead_ms": 10**18}],
    ids=str,
)
def test_a_retention_that_cannot_be_meant_is_refused(settings):
    with pytest.raises(ConfigError, match="retention"):
        Retention(**settings)
