"""The counts of `stats`: equal to a count of the rows after any history, whoever changed them."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.errors import AsyncQueueError, InvalidJob
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from tests.store.conftest import Raw

IDS = [f"j{n}" for n in range(6)]
NAMES = ["default", "q", "r"]

steps = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from(IDS), st.sampled_from(NAMES), st.sampled_from([5, 500])),
    st.tuples(st.just("claim"), st.integers(1, 4)),
    st.tuples(st.just("finish"), st.sampled_from(["ok", "retry", "permanent"])),
    st.tuples(st.sampled_from(["release", "sweep", "redrive_many", "purge", "effect that fails"])),
    st.tuples(st.sampled_from(["cancel", "redrive"]), st.sampled_from(IDS)),
    st.tuples(st.sampled_from(["pause", "resume"]), st.sampled_from(NAMES)),
    st.tuples(st.just("time"), st.sampled_from([1, 5, 100])),
    st.tuples(st.just("their enqueue"), st.sampled_from(IDS)),
    st.tuples(st.sampled_from(["their claim", "their finish"])),
    st.tuples(st.just("their redrive"), st.sampled_from(IDS)),
)


class History:
    """One file, the product's queue and the contract's functions on it, and what both hold."""

    def __init__(self, queue, contract, clock):
        self.queue, self.contract, self.clock = queue, contract, clock
        self.held, self.tickets = [], []

    async def take(self, verb, *arguments):
        await getattr(self, verb.replace(" ", "_"))(*arguments)

    @property
    def now(self):
        return self.clock.now_ms()

    async def enqueue(self, job_id, name, ttl_ms):
        await self.queue.enqueue_many([NewJob(job_id, 1, queue=name, ttl_ms=ttl_ms, max_attempts=2)])

    async def claim(self, limit):
        self.held += await self.queue.claim("w", limit=limit, lease_ms=50)

    async def finish(self, outcome):
        if self.held:
            await self.queue.finish(self.held.pop(0), outcome)

    async def effect_that_fails(self):
        if self.held:
            await self.queue.finish(self.held[0], "ok", effect=_fails)

    async def release(self):
        if self.held:
            await self.queue.release(self.held.pop(0))

    async def sweep(self):
        await self.queue.sweep()

    async def cancel(self, job_id):
        await self.queue.cancel(job_id)

    async def pause(self, name):
        await self.queue.pause(name)

    async def resume(self, name):
        await self.queue.resume(name)

    async def redrive(self, job_id):
        await self.queue.redrive(job_id, note="n", ttl_ms=100)

    async def redrive_many(self):
        await self.queue.redrive_many(note="n", ttl_ms=100, id_prefix="j")

    async def purge(self):
        await self.queue.purge(older_than_ms=1)

    async def time(self, delta_ms):
        self.clock.advance(delta_ms)

    async def their_enqueue(self, job_id):
        await worker.enqueue(self.contract, {"id": job_id, "qty": 1}, self.now, 500, 2)

    async def their_claim(self):
        self.tickets.append(await worker.claim(self.contract, "theirs", self.now, 50))

    async def their_finish(self):
        if self.tickets and (ticket := self.tickets.pop()):
            await worker.finish(self.contract, ticket, "ok", self.now)

    async def their_redrive(self, job_id):
        await worker.redrive(self.contract, job_id, self.now, 100, "theirs")


class EffectFailedError(Exception):
    pass


async def _fails(_connection):
    raise EffectFailedError


async def assert_counts(queue, raw):
    stats = await queue.stats()
    counted = {}
    for name, status, count in raw.select("SELECT queue, status, count(*) FROM jobs GROUP BY queue, status"):
        counted.setdefault(name, dict.fromkeys(("pending", "leased", "done", "dead"), 0))[status] = count
    assert stats.queues == counted
    assert stats.total == sum(sum(each.values()) for each in counted.values())
    assert [(stats.redrives,)] == raw.select("SELECT count(*) FROM redrives")
    assert raw.select("SELECT count(*) FROM counts WHERE jobs < 0") == [(0,)]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps, min_size=5, max_size=40), st.booleans())
def test_counts_equal_a_count_of_the_rows_after_any_history_of_product_and_contract(new_url, taken, was_contract):
    async def live():
        address, clock = new_url(), ManualClock()
        if was_contract:  # a file that the contract made and filled before the product ever saw it
            first = await worker.open_queue(address)
            await worker.enqueue(first, {"id": "j0", "qty": 1}, clock.now_ms(), 500)
            await worker.enqueue(first, {"id": "j1", "qty": 1}, clock.now_ms(), 1)
            await worker.claim(first, "theirs", clock.now_ms() + 1)
            await first.close()
        async with Queue.open(address, clock=clock, dedup_ms=0) as queue:
            contract = await worker.open_queue(address)
            try:
                history = History(queue, contract, clock)
                for step in taken:
                    try:
                        await history.take(*step)
                    except (AsyncQueueError, EffectFailedError):
                        continue
                    finally:
                        await assert_counts(queue, Raw(address))
            finally:
                await contract.close()

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
