"""What the tests of the move share: whole dumps, a queue with everything that a queue can hold."""

import contextlib

from asyncqueue.clock import ManualClock
from asyncqueue.job import FailedAttempt, NewJob, Report, encode_payload
from asyncqueue.queue import Queue
from asyncqueue.stores import open_side
from asyncqueue.stores.move import move
from tests.store.raw import raw_of

COLUMNS = {
    "jobs": "seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, owner, lease_until, "
    "reason, queue, kind, payload, priority, created_at, finished_at, last_error",
    "redrives": "seq, id, token, at_ms, note, actor, reason_before, attempts_before",
    "attempts": "seq, id, token, attempt, owner, at_ms, outcome, certainty, error, http_status",
    "queues": "name, CAST(paused AS integer)",
}


def dump(url):
    """Every row of a queue, as the database itself tells it."""
    raw = raw_of(url)
    return {table: raw.select(f"SELECT {columns} FROM {table} ORDER BY 1") for table, columns in COLUMNS.items()}


@contextlib.asynccontextmanager
async def sides(source, target):
    old = await open_side(source, create=False)
    try:
        new = await open_side(target, create=True)
        try:
            yield old, new
        finally:
            await new.close()
    finally:
        await old.close()


async def moved(source, target, **options):
    """Move, and return what was moved."""
    async with sides(source, target) as (old, new):
        return await move(old, new, lambda _what, _done, _of: None, **options)


async def fill(url, jobs=200):
    """Put every kind of job and history into a queue; its leases are long over."""
    clock = ManualClock(1_700_000_000_000)
    async with Queue.open(url, clock=clock, history="all", dedup_ms=1) as queue:
        items = [
            NewJob(
                f"m{n}",
                n + 1,
                encode_payload({"n": n, "odd": "\u202eé\U0001f600'\""}) if n % 3 else None,
                queue=f"q{n % 4}",
                kind=f"k{n % 2}",
                priority=n % 5,
                delay_ms=n % 7,
                max_attempts=3,
            )
            for n in range(jobs)
        ]
        assert set(await queue.enqueue_many(items)) == {True}
        clock.advance(10)
        for outcome in ("ok", "retry", "permanent"):
            for ticket in await queue.claim("w", limit=jobs // 5, lease_ms=60_000):
                failure = None if outcome == "ok" else FailedAttempt(f"{outcome}: é", "refused", 503)
                await queue.finish_many([Report(ticket, outcome, failure=failure)])
        dead = [job.id for job in await queue.list(status="dead", limit=10)]
        for job_id in dead[:5]:
            await queue.redrive(job_id, note="again", actor="me")
        await queue.cancel(f"m{jobs - 1}")
        await queue.pause("q1")
        await queue.claim("gone", limit=5, lease_ms=1_000)
        await queue.enqueue("last", 1)
        assert await queue.cancel("last")
        clock.advance(5_000)
        await queue.purge(status="dead", older_than_ms=1, limit=1)
