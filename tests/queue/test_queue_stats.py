"""The counts of `stats`: equal to a count of the rows after any history, whoever changed them."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncqueue.clock import ManualClock
from asyncqueue.errors import InvalidJob
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from tests.queue.histories import EffectFailedError, History, assert_counts, steps
from tests.store.raw import raw_of


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps, min_size=5, max_size=40))
def test_counts_equal_a_count_of_the_rows_after_any_history(new_url, taken):
    async def live():
        address, clock = new_url(), ManualClock()
        async with Queue.open(address, clock=clock, dedup_ms=0) as queue:
            await History(queue, clock).go(taken, raw_of(address))

    asyncio.run(live())


async def test_transaction_that_is_rolled_back_leaves_the_counts_as_they_were(queue, raw):
    await queue.enqueue("a", 1)

    async def fails(transaction):
        await transaction.enqueue([NewJob("b", 1)])
        await transaction.cancel(["a"])
        raise EffectFailedError

    try:
        await queue._store.write(fails)
    except EffectFailedError:
        await assert_counts(queue, raw)
    assert (await queue.stats()).pending == 1


async def test_foreign_rows_and_deletions_are_counted_too(queue, raw):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(5)])
    raw.execute("DELETE FROM jobs WHERE id = 'j1'")
    raw.execute("UPDATE jobs SET status = 'dead' WHERE id IN ('j2', 'j3')")
    await assert_counts(queue, raw)
    raw.execute("DELETE FROM jobs")
    await assert_counts(queue, raw)
    assert (await queue.stats()).total == 0


async def test_detail_counts_what_is_ready_and_expired_and_plain_stats_do_not_look(queue, clock):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(4)])
    await queue.claim("w", limit=2)
    clock.advance(30_000)
    plain, detailed = await queue.stats(), await queue.stats(detail=True)
    assert (plain.ready, plain.expired) == (None, None)
    assert (detailed.ready, detailed.expired) == (2, 2)
    assert (plain.lag_ms, plain.next_due_ms) == (30_000, 0)


async def test_detail_counts_no_job_that_can_only_die(queue, raw, clock):
    await queue.enqueue_many([NewJob("late", 1, ttl_ms=10), NewJob("spent", 1), NewJob("good", 1, ttl_ms=11)])
    raw.execute("UPDATE jobs SET attempts = max_attempts WHERE id = 'spent'")
    clock.advance(10)
    detailed = await queue.stats(detail=True)
    assert (detailed.pending, detailed.ready, detailed.expired) == (3, 1, 0)


async def test_stats_of_an_empty_queue_are_all_nothing(queue):
    stats = await queue.stats(detail=True)
    assert (stats.total, stats.live, stats.lag_ms, stats.next_due_ms, stats.redrives) == (0, 0, None, None, 0)
    assert (stats.ready, stats.expired, stats.queues, stats.paused) == (0, 0, {}, ())


async def test_detail_tells_each_queue_by_itself(queue, clock):
    await queue.enqueue("a", 1, queue="old")
    clock.advance(700)
    await queue.enqueue("b", 1, queue="new")
    await queue.enqueue("c", 1, queue="later", delay_ms=90)
    await queue.enqueue("d", 1, queue="resting")
    await queue.pause("resting")
    found = (await queue.stats(detail=True)).details
    assert {name: (d.ready, d.expired, d.lag_ms, d.next_due_ms) for name, d in found.items()} == {
        "old": (1, 0, 700, 0),
        "new": (1, 0, 0, 0),
        "later": (0, 0, None, 90),
        "resting": (1, 0, None, None),
    }
    assert (await queue.stats()).details == {}


@pytest.mark.parametrize("name", ["queue", "kind", "id_prefix"])
async def test_filters_take_only_names(queue, name):
    for value in ("", "a b", "\udcff", 1):
        with pytest.raises(InvalidJob, match=name):
            await queue.list(**{name: value})
