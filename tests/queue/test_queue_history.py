"""The timeline of a job: every attempt that was not a plain success, the redrives, and nothing that it costs."""

import dataclasses

import pytest

from asyncqueue.clock import ManualClock
from asyncqueue.job import FailedAttempt, NewJob, Note, Release
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.queue import Queue


async def lease(queue, job_id="a", **fields):
    await queue.enqueue(job_id, 1, **fields)
    return (await queue.claim("w"))[0]


def told(rows):
    return [(row.what, row.token, row.attempt, row.detail) for row in rows]


async def test_note_leaves_a_row_and_the_job_as_it_was_but_for_its_last_error(queue, clock):
    leased = await lease(queue)
    before = await queue.get("a")
    clock.advance(7)
    await queue.note_many([Note(leased, FailedAttempt("a login page", "unknown", 200))])
    assert await queue.get("a") == dataclasses.replace(before, last_error="a login page")
    (row,) = await queue.history("a")
    assert dataclasses.astuple(row) == (clock.now_ms(), "left", 1, 1, "w", "unknown", "a login page", 200)


async def test_note_tells_last_error_while_its_lease_is_current_and_not_after(queue, clock):
    await queue.enqueue("a", 1)
    (first,) = await queue.claim("w", lease_ms=1_000)
    await queue.note_many([Note(first, FailedAttempt("BadAck: a login page"))])
    assert (await queue.get("a")).last_error == "BadAck: a login page"
    clock.advance(1_000)
    (second,) = await queue.claim("w", lease_ms=1_000)
    await queue.note_many([Note(second, FailedAttempt("newer")), Note(first, FailedAttempt("late"))])
    assert (await queue.get("a")).last_error == "newer"


async def test_note_of_an_unknown_job_leaves_no_trace(queue, raw):
    leased = await lease(queue)
    await queue.finish(leased, "ok")
    unknown = dataclasses.replace(leased, id="nobody")
    await queue.note_many([Note(unknown, FailedAttempt("x")), Note(leased, FailedAttempt("y"))])
    assert raw.select("SELECT id, error FROM attempts") == [("a", "y")]


async def test_timeline_tells_every_end_and_every_redrive_in_order(queue, clock):
    leased = await lease(queue, max_attempts=3)
    await queue.finish(leased, "retry", error="503")
    (leased,) = await queue.claim("w")
    await queue.note_many([Note(leased, FailedAttempt("wrong ack"))])
    clock.advance(30_000)
    (leased,) = await queue.claim("w2")
    await queue.finish(leased, "permanent", error="422")
    await queue.redrive("a", note="fixed", actor="ops")
    (leased,) = await queue.claim("w")
    await queue.release_many([Release(leased, 0, FailedAttempt("endpoint held", "not-sent", 404))])
    (leased,) = await queue.claim("w")
    await queue.cancel("a")
    await queue.redrive("a", note="again")
    rows = await queue.history("a")
    assert told(rows) == [
        ("retry", 1, 1, "503"),
        ("left", 2, 2, "wrong ack"),
        ("lost", 2, 2, "lease ran out without a report"),
        ("permanent", 3, 3, "422"),
        ("redrive", 3, None, "fixed"),
        ("release", 4, 1, "endpoint held"),
        ("cancelled", 5, 1, "cancelled while it was leased"),
        ("redrive", 5, None, "again"),
    ]
    assert [row.who for row in rows] == ["w", "w", "w", "w2", "ops", "w", "w", None]
    assert await queue.history("a", limit=2) == rows[:2]


@pytest.mark.parametrize("reason", [Reason.CANCELLED, Reason.DEADLINE])
async def test_attempt_that_never_began_has_no_row_and_the_job_tells_how_it_ended(queue, clock, reason):
    await queue.enqueue("a", 1, ttl_ms=1_000)
    clock.advance(1_000)
    if reason is Reason.CANCELLED:
        await queue.cancel("a")
    else:
        await queue.sweep()
    job = await queue.get("a")
    assert (job.status, job.reason, job.finished_at, job.attempts) == (Status.DEAD, reason, clock.now_ms(), 0)
    assert await queue.history("a") == []


async def test_timeline_keeps_its_order_although_the_clocks_of_two_processes_disagree(queue, opening, url):
    leased = await lease(queue)
    await queue.finish(leased, "permanent", error="first")
    async with Queue.open(url, clock=ManualClock(1)) as behind:
        await behind.redrive("a", note="second")
        (again,) = await behind.claim("w")
        await behind.finish(again, "permanent", error="third")
    assert [row.detail for row in await queue.history("a")] == ["first", "second", "third"]


async def test_plain_success_is_kept_only_on_request(queue, opening, raw):
    await queue.finish(await lease(queue, "a"), "ok")
    async with opening(history="all") as keeping:
        await keeping.finish(await lease(keeping, "b"), "ok")
        assert told(await keeping.history("b")) == [("ok", 1, 1, "")]
    assert await queue.history("a") == []
    assert await queue.history("nobody") == []


async def test_history_that_cannot_be_written_causes_no_resend_whatever_ends_the_attempt(opening, clock, raw):
    """FAULTS 19: the log fails after the work was done; the job stays done."""
    async with opening(history="all") as queue:
        await queue.enqueue_many([NewJob(job_id, 1) for job_id in "abcde"])
        a, b, c, _d, e = await queue.claim("w", limit=5)
        raw.break_history()
        assert await queue.finish(a, "ok") is Status.DONE
        assert await queue.finish(b, "permanent", error="x") is Status.DEAD
        await queue.note_many([Note(c, FailedAttempt("x"))])
        assert await queue.cancel("d") is True
        assert await queue.release_many([Release(e, 0, FailedAttempt("x"))]) == [True]
        clock.advance(30_000)
        assert [(leased.id, leased.token) for leased in await queue.claim("w", limit=9)] == [("c", 2), ("e", 2)]
        assert raw.select("SELECT count(*) FROM attempts") == [(0,)]


async def test_effect_commits_although_the_history_of_its_success_cannot_be_written(opening, raw):
    """FAULTS 19, in the savepoint of an effect."""
    async with opening(history="all") as queue:
        leased = await lease(queue)
        raw.execute("CREATE TABLE ledger (n INTEGER)")
        raw.break_history()

        async def work(connection):
            await connection.execute("INSERT INTO ledger VALUES (1)")

        assert await queue.finish(leased, "ok", effect=work) is Status.DONE
        assert raw.select("SELECT n FROM ledger") == [(1,)]


@pytest.mark.parametrize("verb", ["note", "finish", "release"])
async def test_errors_in_the_timeline_are_one_short_printable_line(queue, verb):
    leased = await lease(queue)
    failure = FailedAttempt("a\r\n\x1b[31m\x00" + "x" * 9_999)
    if verb == "note":
        await queue.note_many([Note(leased, failure)])
    elif verb == "finish":
        await queue.finish(leased, "retry", error=failure.error)
    else:
        await queue.release_many([Release(leased, 0, failure)])
    (row,) = await queue.history("a")
    assert row.detail.isprintable()
    assert row.detail.startswith(r"a\r\n\x1b[31m\x00x")
    assert len(row.detail) == 500
