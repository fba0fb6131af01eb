"""Histories of a queue, step by step, and what its counts must be after each."""

from hypothesis import strategies as st

from asyncqueue.errors import AsyncQueueError
from asyncqueue.job import NewJob

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
)


class History:
    """A queue and what its caller holds."""

    def __init__(self, queue, clock):
        self.queue, self.clock = queue, clock
        self.held = []

    async def go(self, taken, raw):
        """Take these steps, whatever each answers, and compare the counts with the rows after each."""
        for step in taken:
            try:
                await self.take(*step)
            except (AsyncQueueError, EffectFailedError):
                continue
            finally:
                await assert_counts(self.queue, raw)

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
    assert raw.select("SELECT queue FROM counts GROUP BY queue, status HAVING sum(jobs) < 0") == []
