"""Cancel, snooze, late reports, and waiting for a job's end."""

import asyncio

import pytest

from asyncqueue.errors import InvalidJob, UnknownJob
from asyncqueue.job import FailedAttempt, Release
from asyncqueue.lifecycle import Reason, Status


async def test_pending_job_is_cancelled_at_once_and_never_claimed(queue, clock):
    await queue.enqueue("a", 1, delay_ms=500)
    assert await queue.cancel("a") is True
    found = await queue.get("a")
    assert (found.status, found.reason, found.finished_at) == (Status.DEAD, Reason.CANCELLED, clock.now_ms())
    assert (found.attempts, found.token) == (0, 0)
    clock.advance(1_000)
    assert await queue.claim("w") == []
    assert await queue.next_due_ms() is None


async def test_holder_of_a_cancelled_lease_learns_at_its_next_renewal_and_its_reports_are_stale(queue, raw):
    """FAULTS 4: the store tells the holder; nothing it reports after that counts."""
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    assert await queue.renew(leased) is not None
    assert await queue.cancel("a") is True
    before = raw.select("SELECT * FROM jobs")
    assert await queue.renew(leased) is None
    assert await queue.finish(leased, "ok") is None
    assert await queue.finish(leased, "retry", error="x") is None
    assert await queue.release(leased) is False
    assert await queue.snooze(leased, 5) is False
    assert raw.select("SELECT * FROM jobs") == before
    assert (await queue.get("a")).reason is Reason.CANCELLED


@pytest.mark.parametrize("outcome", ["ok", "permanent"])
async def test_job_that_has_ended_is_not_cancelled(queue, outcome):
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    await queue.finish(leased, outcome)
    before = await queue.get("a")
    assert await queue.cancel("a") is False
    assert await queue.get("a") == before


async def test_second_cancel_finds_the_job_dead_also_in_the_same_commit(queue):
    await queue.enqueue("a", 1)
    assert await asyncio.gather(queue.cancel("a"), queue.cancel("a")) == [True, False]
    assert await queue.cancel("a") is False


async def test_cancel_mark_of_an_unknown_id_does_not_outlive_the_call__kind_23_cancel_mark(queue, raw):
    """FAULTS 23: an unknown id is refused, nothing is stored, and a later job of that id runs."""
    before = raw.tables(), raw.select("SELECT * FROM counts")
    with pytest.raises(UnknownJob, match="ghost"):
        await queue.cancel("ghost")
    assert (raw.tables(), raw.select("SELECT * FROM counts")) == before
    for table in ("jobs", "attempts", "queues", "redrives"):
        assert raw.select(f"SELECT count(*) FROM {table}") == [(0,)]
    assert await queue.enqueue("ghost", 1) is True
    (leased,) = await queue.claim("w")
    assert await queue.renew(leased) is not None
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_unknown_id_fails_no_other_cancel_of_its_commit(queue):
    await queue.enqueue("a", 1)
    good, bad = await asyncio.gather(queue.cancel("a"), queue.cancel("ghost"), return_exceptions=True)
    assert good is True
    assert isinstance(bad, UnknownJob)


async def test_cancelled_job_can_be_redriven(queue):
    await queue.enqueue("a", 1)
    await queue.claim("w")
    await queue.cancel("a")
    assert await queue.redrive("a", note="after-all") is True
    (leased,) = await queue.claim("w")
    assert (leased.token, leased.attempt) == (2, 1)


async def test_snooze_burns_no_attempt_and_keeps_the_token(queue, clock):
    await queue.enqueue("a", 1, max_attempts=1)
    for token in (1, 2, 3):
        (leased,) = await queue.claim("w")
        assert (leased.token, leased.attempt) == (token, 1)
        assert await queue.snooze(leased, 60_000) is True
        assert await queue.snooze(leased, 60_000) is False
        assert await queue.next_due_ms() == 60_000
        clock.advance(59_999)
        assert await queue.claim("w") == []
        clock.advance(1)
    found = await queue.get("a")
    assert (found.status, found.attempts, found.token, found.reason) == (Status.PENDING, 0, 3, None)


@pytest.mark.parametrize("delay_ms", [0, -1, True, None, 1.0, "1"])
async def test_snooze_of_no_time_is_refused(queue, delay_ms):
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    with pytest.raises(InvalidJob, match="delay_ms"):
        await queue.snooze(leased, delay_ms)
    assert (await queue.get("a")).status is Status.LEASED


async def test_late_report_counts_until_somebody_takes_over_where_the_queue_was_opened_so(opening, queue, clock):
    async with opening(late="accept") as late:
        for job_id in "abc":
            await late.enqueue(job_id, 1)
        a, b, c = await late.claim("w", limit=3)
        clock.advance(30_000)
        assert await queue.finish(a, "ok") is None
        assert await late.finish(a, "ok") is Status.DONE
        assert await late.finish(b, "retry", error="slow") is Status.PENDING
        (taken,) = [one for one in await late.claim("w2", limit=9) if one.id == "c"]
        assert await late.finish(c, "ok") is None
        assert await late.finish(taken, "ok") is Status.DONE


async def test_late_lease_can_neither_be_renewed_nor_given_back(opening, clock):
    async with opening(late="accept") as late:
        await late.enqueue("a", 1)
        (leased,) = await late.claim("w")
        clock.advance(30_000)
        assert await late.renew(leased) is None
        assert await late.release_many([Release(leased, 0, FailedAttempt("x"))]) == [False]


async def test_wait_returns_the_row_once_the_job_is_done_or_dead(queue):
    await queue.enqueue("a", 1)
    await queue.enqueue("b", 1)
    waiting = [asyncio.create_task(queue.wait(job_id, 20_000)) for job_id in "ab"]
    a, b = await queue.claim("w", limit=2)
    await queue.finish(a, "ok")
    done = await waiting[0]
    assert (done.id, done.status) == ("a", Status.DONE)
    assert not waiting[1].done()
    await queue.finish(b, "permanent", error="no")
    dead = await waiting[1]
    assert (dead.status, dead.reason, dead.last_error) == (Status.DEAD, Reason.PERMANENT, "no")
    assert (await queue.wait("a", 0)).status is Status.DONE


async def test_wait_hears_of_an_end_that_another_connection_made(queue, opening):
    await queue.enqueue("a", 1)
    waiting = asyncio.create_task(queue.wait("a", 20_000))
    async with opening() as other:
        (leased,) = await other.claim("w")
        await other.finish(leased, "ok")
    assert (await waiting).status is Status.DONE


async def test_wait_hears_of_an_end_that_another_process_made(queue, url, spawn):
    await queue.enqueue("a", 1, ttl_ms=10 * 366 * 24 * 3600 * 1000)
    child = spawn(
        """
        import asyncio, sys
        from asyncqueue import Queue
        from asyncqueue.clock import ManualClock
        async def main():
            async with Queue.open(sys.argv[1], clock=ManualClock()) as queue:
                sys.stdin.readline()
                (leased,) = await queue.claim("child")
                print(await queue.finish(leased, "ok"), flush=True)
        asyncio.run(main())
        """,
        url,
    )
    waiting = asyncio.create_task(queue.wait("a", 30_000))
    await asyncio.sleep(0)
    child.stdin.write("go\n")
    child.stdin.flush()
    found = await waiting
    assert (found.status, found.token) == (Status.DONE, 1)
    assert child.communicate()[0] == "done\n"


@pytest.mark.parametrize("timeout_ms", [0, 1])
async def test_wait_gives_up_after_its_timeout_and_leaves_the_job_alone(queue, timeout_ms):
    await queue.enqueue("a", 1)
    before = await queue.get("a")
    with pytest.raises(TimeoutError):
        await queue.wait("a", timeout_ms)
    assert await queue.get("a") == before


async def test_wait_for_an_unknown_job_is_refused_and_so_is_one_that_is_purged_meanwhile(opening, raw):
    async with opening(dedup_ms=0) as queue:
        with pytest.raises(UnknownJob):
            await queue.wait("ghost")
        await queue.enqueue("a", 1)
        waiting = asyncio.create_task(queue.wait("a", 20_000))
        await asyncio.sleep(0)
        await queue.stats()
        raw.execute("DELETE FROM jobs")
        with pytest.raises(UnknownJob):
            await waiting


@pytest.mark.parametrize("timeout_ms", [-1, 1.5, True, "1"])
async def test_wait_refuses_a_timeout_that_is_none(queue, timeout_ms):
    await queue.enqueue("a", 1)
    with pytest.raises(InvalidJob, match="timeout_ms"):
        await queue.wait("a", timeout_ms)


async def test_cancel_many_tells_what_each_job_was_before(queue):
    for job_id in ("leased", "pending"):
        await queue.enqueue(job_id, 1)
    (leased,) = await queue.claim("w")
    await queue.enqueue("done", 1, priority=1)
    (other,) = await queue.claim("w")
    await queue.finish(other, "ok")
    before = await queue.cancel_many(["pending", "leased", "done", "nobody"])
    assert before == [Status.PENDING, Status.LEASED, Status.DONE, None]
    assert await queue.renew(leased) is None
    assert await queue.cancel_many([]) == []
