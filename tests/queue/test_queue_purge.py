"""Retention: what a purge takes, what it leaves, and when it warns."""

import warnings
from types import SimpleNamespace

import pytest

from asyncqueue.errors import InvalidJob
from asyncqueue.job import FailedAttempt, NewJob, Note
from asyncqueue.lifecycle import Status
from asyncqueue.queue import DedupHorizonWarning

HOUR_MS = 3_600_000


@pytest.fixture
async def queue(opening):
    async with opening(dedup_ms=0) as opened:
        yield opened


@pytest.fixture
async def ended(queue, clock):
    """Five done and five dead jobs, one of each an hour apart, then a pending and a leased one."""
    for n in range(5):
        await queue.enqueue_many([NewJob(f"done{n}", 1), NewJob(f"dead{n}", 1)])
        done, dead = await queue.claim("w", limit=2)
        await queue.note_many([Note(done, FailedAttempt("x"))])
        await queue.finish(done, "ok")
        await queue.finish(dead, "permanent", error="x")
        clock.advance(HOUR_MS)
    await queue.enqueue_many([NewJob("leased", 1, ttl_ms=99 * HOUR_MS), NewJob("pending", 1, ttl_ms=99 * HOUR_MS)])
    (leased,) = await queue.claim("w", lease_ms=99 * HOUR_MS)
    await queue.note_many([Note(leased, FailedAttempt("x"))])


async def ids(queue, **wanted):
    return {job.id for job in await queue.list(**wanted)}


LIVE = {"leased", "pending"}


@pytest.mark.parametrize("status", ["done", Status.DEAD])
async def test_purge_takes_the_jobs_of_that_status_that_ended_so_long_ago_with_their_history(
    queue, ended, raw, status
):
    before = await ids(queue)
    gone = {f"{status}{n}" for n in range(3)}
    assert await queue.purge(status=status, older_than_ms=3 * HOUR_MS) == 3
    assert await ids(queue) == before - gone
    history = {row[0] for row in raw.select("SELECT id FROM attempts")}
    assert history == before - gone - {"pending"}
    stats = await queue.stats()
    assert stats.total == len(before) - 3


async def test_age_is_counted_from_the_end_to_the_millisecond(queue, clock):
    await queue.enqueue("a", 1)
    clock.advance(500)
    (leased,) = await queue.claim("w")
    await queue.finish(leased, "ok")
    clock.advance(99)
    assert await queue.purge(older_than_ms=100) == 0
    clock.advance(1)
    assert await queue.purge(older_than_ms=100) == 1


async def test_live_jobs_are_never_purged_however_old(queue, ended, clock):
    clock.advance(50 * HOUR_MS)
    assert await queue.purge(status="done", older_than_ms=0) == 5
    assert await queue.purge(status="dead", older_than_ms=0) == 5
    assert await ids(queue) == LIVE


@pytest.mark.parametrize("status", ["pending", "leased", "lost", None, ""])
async def test_purge_of_a_live_status_is_refused(queue, ended, status):
    before = await ids(queue)
    with pytest.raises(InvalidJob, match="done or dead"):
        await queue.purge(status=status, older_than_ms=0)
    assert await ids(queue) == before


async def test_audit_of_redrives_outlives_its_jobs(queue, ended, raw):
    await queue.redrive_many(note="n", actor="ops")
    for leased in await queue.claim("w", limit=9):
        await queue.finish(leased, "ok")
    assert await queue.purge(older_than_ms=0) == 11
    assert raw.select("SELECT count(*) FROM redrives WHERE actor = 'ops'") == [(5,)]
    assert (await queue.stats()).redrives == 5
    assert [row.what for row in await queue.history("dead0")] == ["redrive"]


@pytest.mark.parametrize(("limit", "purged"), [(0, 0), (1, 1), (3, 3), (5, 5), (99, 5)])
async def test_limit_bounds_the_purge_and_the_oldest_go_first(queue, ended, limit, purged):
    assert await queue.purge(older_than_ms=0, limit=limit) == purged
    assert {f"done{n}" for n in range(5)} - await ids(queue) == {f"done{n}" for n in range(purged)}


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": True}, {"limit": "9"}, {"older_than_ms": -1}])
async def test_purge_of_wrong_numbers_is_refused(queue, ended, wrong):
    with pytest.raises(InvalidJob):
        await queue.purge(**{"older_than_ms": 0, **wrong})
    assert len(await ids(queue)) == 12


async def test_purge_goes_in_small_sets_and_pauses_between_them(queue, raw, commits, naps):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(525)])
    raw.execute("UPDATE jobs SET status = 'done'")
    commits.clear()
    with naps() as taken:
        assert await queue.purge(older_than_ms=0) == 525
    assert len(commits) == 11
    assert len([nap for nap in taken if nap > 0]) == 10


async def test_purge_rests_as_long_as_each_set_took_so_that_a_slow_disk_is_not_hogged(
    queue, raw, monkeypatch, naps
):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(225)])
    raw.execute("UPDATE jobs SET status = 'done'")
    original, seconds = queue._store.write, [1.0]

    async def slow_write(work, **options):
        seconds[0] += 0.05
        return await original(work, **options)

    monkeypatch.setattr(queue._store, "write", slow_write)
    monkeypatch.setattr(queue, "_loop", SimpleNamespace(time=lambda: seconds[0]))
    with naps() as taken:
        assert await queue.purge(older_than_ms=0) == 225
    rests = [nap for nap in taken if nap > 0]
    assert len(rests) == 4
    assert rests == pytest.approx([0.05] * 4)


async def test_purge_below_the_dedup_horizon_does_it_but_warns(opening, ended):
    async with opening(dedup_ms=2 * HOUR_MS) as careful:
        with pytest.warns(DedupHorizonWarning, match="horizon") as caught:
            assert await careful.purge(older_than_ms=2 * HOUR_MS - 1, limit=1) == 1
        assert caught[0].filename == __file__  # the line that asked for it
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert await careful.purge(older_than_ms=2 * HOUR_MS, limit=1) == 1
    async with opening() as default:
        with pytest.warns(DedupHorizonWarning):
            await default.purge(older_than_ms=7 * 24 * HOUR_MS - 1)


async def test_purged_id_is_forgotten_and_is_a_new_job(queue, ended):
    await queue.purge(older_than_ms=0)
    assert await queue.get("done0") is None
    assert await queue.enqueue("done0", 5) is True
    assert await queue.history("done0") == []
