"""Rows written by hand: whatever stands in one, the jobs beside it are delivered, and every error is typed."""

import contextlib
import sqlite3
from contextlib import closing
from functools import partial

import pytest

from asyncqueue import NewJob, Queue
from asyncqueue.errors import AsyncQueueError
from asyncqueue.lifecycle import Status

VALUES = ("x'00ff'", "'abc'", "1e400", "1.5", "-1", "9223372036854775807", "''", "cast(x'ff' as text)", "char(0)")
COLUMNS = (
    *("qty", "attempts", "max_attempts", "token", "available_at", "deadline", "owner", "lease_until", "reason"),
    *("queue", "kind", "payload", "priority", "created_at", "finished_at", "last_error", "id"),
)
UNREADABLE = [
    *(
        (column, "x'00ff'")
        for column in ("qty", "max_attempts", "deadline", "queue", "kind", "payload", "priority")
    ),
    *((column, "1e400") for column in ("qty", "max_attempts", "deadline", "priority")),
    ("priority", "'abc'"),
]


async def damage(path, column, *values):
    """Put each value into a job of its own, beside a good one, as somebody with a shell would."""
    bad = [NewJob(f"bad-{number}", 1, '{"a":1}', priority=9) for number in range(len(values))]
    async with Queue.open(path) as queue:
        await queue.enqueue_many([*bad, NewJob("good", 2)])
    with closing(sqlite3.connect(path)) as plain, plain:
        for job, value in zip(bad, values, strict=True):
            plain.execute(f"UPDATE jobs SET {column} = {value} WHERE id = ?", (job.id,))


async def claim_all(queue):
    """Claim until nothing is eligible; a bound keeps a stuck queue from being a stuck test."""
    found = []
    for _ in range(5):
        jobs = await queue.claim("me", limit=10, lease_ms=60_000)
        found += jobs
        if not jobs:
            return found
    raise AssertionError(f"claims do not end: {found}")


@pytest.mark.parametrize("column", COLUMNS)
async def test_rows_written_by_hand_hold_up_no_other_job(tmp_path, column):
    path = tmp_path / "jobs.db"
    await damage(path, column, *VALUES)
    async with Queue.open(path) as queue:
        looks = (queue.list, lambda: queue.stats(detail=True), queue.sweep, queue.next_due_ms)
        for look in (*looks, *(partial(queue.get, f"bad-{n}") for n in range(len(VALUES)))):
            with contextlib.suppress(AsyncQueueError):  # nothing else
                await look()
        leased = {job.id: job for job in await claim_all(queue)}
        assert leased["good"].qty == 2
        for job in leased.values():
            with contextlib.suppress(AsyncQueueError):
                await queue.finish(job, "ok")
        good = await queue.get("good")
        assert good is not None
        assert good.status is Status.DONE


@pytest.mark.parametrize(("column", "value"), UNREADABLE)
async def test_a_row_that_cannot_be_read_dies_at_its_claim_and_says_why(tmp_path, column, value):
    path = tmp_path / "jobs.db"
    await damage(path, column, value)
    async with Queue.open(path) as queue:
        assert [job.id for job in await claim_all(queue)] == ["good"]
        assert (await queue.stats()).dead == 1
    with closing(sqlite3.connect(path)) as plain:
        row = plain.execute(
            "SELECT status, reason, owner, lease_until, finished_at >= created_at, last_error"
            " FROM jobs WHERE id = 'bad-0'"
        )
        *state, error = row.fetchone()
    assert state == ["dead", "permanent", None, None, True]
    assert error.startswith("the row is damaged")


async def test_an_unknown_reason_is_a_typed_error_that_names_the_job(tmp_path):
    path = tmp_path / "jobs.db"
    await damage(path, "reason", "'because'")
    async with Queue.open(path) as queue:
        with pytest.raises(AsyncQueueError, match="job 'bad-0' is damaged: reason 'because'"):
            await queue.get("bad-0")


@pytest.mark.parametrize("outcome", ["ok", "retry"])
async def test_lease_that_somebody_ended_by_hand_is_nobodys_although_its_owner_still_stands_there(
    tmp_path, outcome
):
    path = tmp_path / "jobs.db"
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        (job,) = await queue.claim("me")
        with closing(sqlite3.connect(path)) as plain, plain:
            plain.execute("UPDATE jobs SET status = 'dead', reason = 'cancelled'")
        assert await queue.renew(job) is None
        assert await queue.finish(job, outcome) is None
        assert not await queue.release(job)
        dead = await queue.get("a")
        assert dead is not None
        assert dead.status is Status.DEAD
