"""Dead letters in bulk: filters, preview, pace, audit, and two at once."""

import asyncio

import pytest

from asyncqueue.errors import InvalidJob, NotDead
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Reason, Status


@pytest.fixture
async def dead(queue, clock):
    """Twelve dead jobs of two queues, kinds, reasons, ages and prefixes, and one of each other status."""
    for n in range(12):
        await queue.enqueue(
            f"{'new' if n % 3 else 'old'}-{n}", 1, queue="q" if n % 2 else "r", kind="k" if n < 6 else "m"
        )
        clock.advance(10)
    for leased in await queue.claim("w", limit=12):
        if int(leased.id[4:]) % 4 == 3:
            await queue.cancel(leased.id)
        else:
            await queue.finish(leased, "permanent", error="no")
        clock.advance(10)
    await queue.enqueue_many([NewJob(f"old-live{n}", 1) for n in range(3)])
    _, done = await queue.claim("w", limit=2, queues=["default"])
    await queue.finish(done, "ok")
    return await queue.list(status="dead")


FILTERS = {
    "all": ({}, lambda job, now: True),
    "queue": ({"queue": "q"}, lambda job, now: job.queue == "q"),
    "kind": ({"kind": "m"}, lambda job, now: job.kind == "m"),
    "reason": ({"reason": "cancelled"}, lambda job, now: job.reason == "cancelled"),
    "reason as enum": ({"reason": Reason.PERMANENT}, lambda job, now: job.reason == "permanent"),
    "age": ({"older_than_ms": 50}, lambda job, now: now - job.finished_at >= 50),
    "id prefix": ({"id_prefix": "old-"}, lambda job, now: job.id.startswith("old-")),
    "prefix with a wildcard": ({"id_prefix": "old_"}, lambda job, now: False),
    "several": (
        {"queue": "q", "kind": "k", "id_prefix": "new", "reason": "permanent"},
        lambda job, now: (job.queue, job.kind, job.id[:3], job.reason) == ("q", "k", "new", "permanent"),
    ),
    "nothing": ({"queue": "none"}, lambda job, now: False),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_filter_redrives_exactly_what_its_dry_run_counted(queue, dead, clock, raw, name):
    wanted, meets = FILTERS[name]
    others = [row for row in await queue.list() if row.status is not Status.DEAD]
    expected = [job.id for job in dead if meets(job, clock.now_ms())]
    assert await queue.redrive_many(note="n", dry_run=True, **wanted) == len(expected)
    assert await queue.list(status="dead") == dead
    assert raw.select("SELECT count(*) FROM redrives") == [(0,)]
    assert await queue.redrive_many(note="n", **wanted) == len(expected)
    assert [row[0] for row in raw.select("SELECT id FROM redrives ORDER BY seq")] == expected
    rows = {row.id: row for row in await queue.list()}
    assert [
        job_id for job_id, row in rows.items() if row.status is Status.PENDING and job_id in expected
    ] == expected
    assert [rows[row.id] for row in others] == others
    assert await queue.redrive_many(note="n", dry_run=True, **wanted) == 0


async def test_each_redrive_is_audited_with_actor_note_and_what_the_job_was_before(queue, dead, clock, raw):
    assert await queue.redrive_many(note="fixed", actor="ops", ttl_ms=900, queue="q") == 6
    audit = "SELECT id, token, at_ms, note, actor, reason_before, attempts_before FROM redrives ORDER BY seq"
    assert raw.select(audit) == [
        (job.id, job.token, clock.now_ms(), "fixed", "ops", job.reason, job.attempts)
        for job in dead
        if job.queue == "q"
    ]
    assert (await queue.stats()).redrives == 6
    for job in dead:
        if job.queue == "q":
            row = await queue.get(job.id)
            assert (row.status, row.attempts, row.token, row.reason) == (Status.PENDING, 0, job.token, None)
            assert (row.available_at, row.deadline) == (clock.now_ms(), clock.now_ms() + 900)


async def test_token_goes_on_after_a_redrive_so_the_old_holder_stays_stale(queue):
    await queue.enqueue("a", 1, max_attempts=1)
    (first,) = await queue.claim("w")
    await queue.cancel("a")
    assert await queue.redrive_many(note="n") == 1
    (second,) = await queue.claim("w")
    assert (second.token, second.attempt) == (2, 1)
    assert await queue.finish(first, "ok") is None
    assert await queue.finish(second, "ok") is Status.DONE


@pytest.mark.parametrize(
    ("rate", "pauses"), [(2, [1.0] * 6), (5, [1.0] * 2), (0.5, [2.0] * 12), (100, []), (None, [])]
)
async def test_rate_bounds_how_many_jobs_a_second_are_put_back(queue, dead, naps, rate, pauses):
    with naps() as taken:
        assert await queue.redrive_many(note="n", rate=rate) == 12
    assert [nap for nap in taken if nap >= 0.1] == pauses


async def test_paced_redrive_lets_others_write_in_between(queue, dead, monkeypatch):
    sleep, seen = asyncio.sleep, []

    async def nap(delay, result=None):
        if delay >= 0.1:  # the pace; turns of the loop are 0
            seen.append((await queue.stats()).dead)
            await queue.enqueue(f"between{len(seen)}", 1)
        return await sleep(0, result)

    monkeypatch.setattr(asyncio, "sleep", nap)
    assert await queue.redrive_many(note="n", rate=1) == 12
    assert seen == [*range(11, -1, -1)], "the redrive was one block"


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "5", True])
async def test_rate_that_is_none_is_refused(queue, dead, rate):
    with pytest.raises(InvalidJob, match="rate"):
        await queue.redrive_many(note="n", rate=rate)
    assert (await queue.stats()).redrives == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"note": "two words"},
        {"note": "n", "actor": ""},
        {"note": "n", "ttl_ms": 0},
        {"note": "n", "reason": "bored"},
    ],
)
async def test_argument_out_of_range_is_refused_before_anything_is_put_back(queue, dead, wrong):
    with pytest.raises(InvalidJob):
        await queue.redrive_many(**wrong)
    assert (await queue.stats()).redrives == 0


async def test_two_at_once_put_each_job_back_once(queue, opening, dead, raw):
    async with opening() as other:
        counts = await asyncio.gather(
            *(one.redrive_many(note="n", rate=100_000) for one in (queue, other, queue, other))
        )
    assert sum(counts) == 12
    assert raw.select("SELECT count(*), count(DISTINCT id) FROM redrives") == [(12, 12)]


async def test_more_than_one_set_is_redriven_to_the_end(queue, raw):
    await queue.enqueue_many([NewJob(f"j{n}", 1, ttl_ms=1) for n in range(1_203)])
    raw.execute("UPDATE jobs SET status = 'dead', reason = 'deadline'")
    assert await queue.redrive_many(note="n", dry_run=True) == 1_203
    assert await queue.redrive_many(note="n") == 1_203
    assert (await queue.stats()).pending == 1_203


@pytest.mark.parametrize("status", ["pending", "leased", "done", None])
async def test_job_that_is_not_dead_is_refused_with_its_status_named(queue, status):
    if status is not None:
        await queue.enqueue("a", 1)
    if status in ("leased", "done"):
        (leased,) = await queue.claim("w")
    if status == "done":
        await queue.finish(leased, "ok")
    before = await queue.get("a")
    with pytest.raises(NotDead, match=f"job a is {status}" if status else "job a does not exist"):
        await queue.redrive("a", note="n")
    assert await queue.get("a") == before
    assert (await queue.stats()).redrives == 0


async def test_loser_of_two_redrives_in_one_commit_is_told_that_the_job_is_pending(queue):
    await queue.enqueue("a", 1)
    await queue.cancel("a")
    won, lost = await asyncio.gather(
        queue.redrive("a", note="one"), queue.redrive("a", note="two"), return_exceptions=True
    )
    assert won is True
    assert isinstance(lost, NotDead)
    assert "is pending" in str(lost)
