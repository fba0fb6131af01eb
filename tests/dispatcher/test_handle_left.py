"""Attempts that make no report: counted, told, kept in the history, and never worth a delivery."""

import asyncio
import logging

import anyio
import pytest
from dispatch_support import Hands, Log, Scripted, Verbs, drained, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher, run
from asyncqueue.errors import StoreBusy
from asyncqueue.events import ChoreFailed, Stopped
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import Certainty, Outcome, Verdict

BAD_ACK = Outcome(Verdict.LEAVE, Certainty.UNKNOWN, "BadAck: a login page", 200)


async def unclear(job):
    return None if job.id.startswith("bad") else True


async def test_an_attempt_left_to_its_lease_is_counted_told_and_kept_in_the_history(queue):
    await fill(queue, 1, "bad")
    await fill(queue, 4)
    log = Log()
    dispatcher = Dispatcher(queue, unclear, events=log.events)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 4 and dispatcher.counts.left == 1)
    (row,) = await queue.history("bad-00000")
    assert (row.what, row.token, row.attempt, row.who) == ("left", 1, 1, dispatcher.owner)
    assert (row.certainty, row.detail) == ("unknown", "the handler returned None, not True")
    assert (await queue.get("bad-00000")).status is Status.LEASED
    (stopped,) = log.of(Stopped)
    assert (stopped.done, stopped.left, stopped.stale) == (4, 1, 0)


async def test_what_the_endpoint_answered_is_in_the_note(queue):
    await fill(queue, 1)
    dispatcher = Dispatcher(queue, Scripted(BAD_ACK))
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.left == 1)
    (row,) = await queue.history("job-00000")
    assert (row.what, row.detail, row.http_status) == ("left", "BadAck: a login page", 200)


async def test_the_timeline_tells_that_it_was_left_before_it_was_lost(path):
    clock = ManualClock()
    answers = [None, True]

    async def deliver(job):
        return answers.pop(0)

    async with Queue.open(path, clock=clock, history="all") as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, deliver, lease_ms=60_000, poll_ms=5)
        async with running(dispatcher):
            await until(lambda: queue.history("job-00000"))  # the note has a transaction of its own
            clock.advance(60_000)
            await queue.enqueue("nudge", 1, delay_ms=1_000)
            await until(lambda: dispatcher.counts.done == 1)
        assert [row.what for row in await queue.history("job-00000")] == ["left", "lost", "ok"]


@pytest.mark.parametrize("error", [StoreBusy("busy"), ValueError("odd")], ids=repr)
async def test_a_note_that_fails_costs_the_deliveries_nothing__kind_19_bookkeeping(queue, error, caplog):
    verbs = Verbs(queue, "note_many")
    verbs.fail("note_many", error)
    await fill(queue, 1, "bad")
    await fill(queue, 20)
    log = Log()
    dispatcher = Dispatcher(queue, unclear, concurrency=2, events=log.events)
    with caplog.at_level(logging.WARNING, "asyncqueue"):
        async with running(dispatcher):
            await until(lambda: dispatcher.counts.done == 20 and dispatcher.counts.left == 1)
            await until(lambda: verbs.calls["note_many"] >= 1)
            assert dispatcher.health().ok
    assert not log.of(ChoreFailed)
    assert "history keeps nothing of 1" in caplog.text
    assert await queue.history("bad-00000") == []


async def test_a_note_that_hangs_holds_up_no_report_and_no_stop__kind_19_bookkeeping(queue, monkeypatch):
    monkeypatch.setattr(run, "_NOTE_GRACE_S", 0.05)

    async def hang(notes):
        await anyio.sleep_forever()

    await fill(queue, 1, "bad")
    queue.note_many = hang
    await fill(queue, 20)
    dispatcher = Dispatcher(queue, unclear, concurrency=1, grace_ms=60_000)
    async with running(dispatcher, seconds=5):
        await until(lambda: dispatcher.counts.done == 20)
        assert not dispatcher._flight.held


async def test_a_stop_right_after_the_attempt_still_keeps_its_note(queue):
    await fill(queue, 1, "bad")
    hands = Hands()

    async def deliver(job):
        await hands(job)

    dispatcher = Dispatcher(queue, deliver)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: hands.running == 1)
    dispatcher.stop()
    hands.open.set()
    with anyio.fail_after(5):
        await task
    assert [row.what for row in await queue.history("bad-00000")] == ["left"]


async def test_a_drain_ends_with_the_job_that_was_left_and_redone(queue):
    answers = [None, True]

    async def deliver(job):
        return answers.pop(0)

    await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver, lease_ms=300)
    await drained(dispatcher)
    assert (dispatcher.counts.left, dispatcher.counts.done) == (1, 1)
    assert [row.what for row in await queue.history("job-00000")] == ["left", "lost"]
