"""Chores that fail: told once a step, tried again, seen in health(); and stores that are away for a while."""

import asyncio
from itertools import pairwise

import pytest
from dispatch_support import Hands, Log, Outage, Scripted, Verbs, drained, fill, running, until

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.loop import Loop
from asyncqueue.errors import StoreBusy, StoreError, StoreFull
from asyncqueue.events import ChoreFailed, ChoreRecovered, Settled
from asyncqueue.job import Release
from asyncqueue.lifecycle import Status
from asyncqueue.retry import Outcome, Verdict

CHORES = [("claim", "claim_late"), ("report", "finish_late"), ("renew", "renew_many"), ("sweep", "sweep")]


@pytest.mark.parametrize(("chore", "verb"), CHORES)
@pytest.mark.parametrize("times", [1, 4])
async def test_a_chore_that_raises_restarts_and_health_goes_red_and_green__kind_10_one_inner_loop_dead(
    queue, chore, verb, times
):
    log, hands = Log(), Hands()
    verbs = Verbs(queue, verb)
    verbs.fail(verb, RuntimeError("broken\nin two lines"), times)
    dispatcher = Dispatcher(queue, hands, lease_ms=900, events=log.events)
    assert not dispatcher.health().ok
    was_red = []

    def watch(event):
        if isinstance(event, ChoreFailed):
            was_red.append(dispatcher.health())

    log.events.subscribe(watch)
    await fill(queue, 1)
    async with running(dispatcher):
        if chore == "report":
            await until(lambda: hands.running)
            hands.open.set()
        await until(lambda: log.of(ChoreRecovered))
        await until(lambda: dispatcher.health().ok)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 1)
    assert [health.failing for health in was_red] == [(chore,)] * times
    assert not any(health.ok for health in was_red)
    assert [event.failures for event in log.of(ChoreFailed)] == list(range(1, times + 1))
    assert {event.error for event in log.of(ChoreFailed)} == {r"RuntimeError: broken\nin two lines"}
    assert [(event.chore, event.failures) for event in log.of(ChoreRecovered)] == [(chore, times)]


async def test_health_is_red_before_the_start_and_while_the_claim_hangs__kind_10(queue):
    verbs = Verbs(queue, "version")
    hang = asyncio.Event()
    claim = queue.claim_late

    async def hanging(*args, **named):
        await hang.wait()
        return await claim(*args, **named)

    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=10)
    assert not dispatcher.health().ok
    async with running(dispatcher):
        await until(lambda: dispatcher.health().ok)
        queue.claim_late = hanging
        await queue.enqueue("job", 1)
        await until(lambda: not dispatcher.health().ok, 5)
        assert dispatcher.health().failing == ()
        assert dispatcher.health().claim_pass_age_s > 0.03
        hang.set()
        await until(lambda: dispatcher.health().ok)
        await until(lambda: dispatcher.counts.done == 1)
    assert verbs.calls


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreBusy("busy")], ids=["full", "busy"])
async def test_a_store_that_cannot_write_is_one_line_a_step_no_busy_loop_and_no_loss__kind_32_disk_full(
    queue, error
):
    await fill(queue, 30)
    log, hands = Log(), Hands()
    outage = Outage(queue)
    dispatcher = Dispatcher(queue, hands, concurrency=8, events=log.events)
    loop = asyncio.get_running_loop()
    async with running(dispatcher):
        await until(lambda: hands.running == 8)
        outage.error, outage.writes, began = error, 0, loop.time()
        hands.open.set()  # eight are delivered and cannot be reported
        await until(lambda: loop.time() - began > 1)
        failed, writes = log.of(ChoreFailed), outage.writes
        # claim and report back off alike: at most one line a step, steps of 25 ms at least and doubling
        assert 0 < writes <= 14
        assert len(failed) <= 14
        assert {event.chore for event in failed} <= {"claim", "report", "sweep"}
        for chore in ("claim", "report"):
            pauses = [event.pause_ms for event in failed if event.chore == chore]
            assert all(later > 0.9 * sooner for sooner, later in pairwise(pauses))
        assert not dispatcher.health().ok
        outage.error = None
        await until(lambda: dispatcher.counts.done == 30)
        await until(lambda: dispatcher.health().ok)
    assert set(hands.starts.values()) == {1}  # back within the lease: reported, not sent again
    assert len(hands.started) == 30


async def test_what_could_not_be_reported_within_its_lease_is_sent_again__kind_32(queue):
    await fill(queue, 4)
    hands = Hands()
    outage = Outage(queue)
    dispatcher = Dispatcher(queue, hands, concurrency=4, lease_ms=400)
    loop = asyncio.get_running_loop()
    async with running(dispatcher):
        await until(lambda: hands.running == 4)
        outage.error, began = StoreFull("no room"), loop.time()
        hands.open.set()
        await until(lambda: loop.time() - began > 0.6)
        outage.error = None
        await until(lambda: dispatcher.counts.done == 4)
    assert (await queue.stats()).done == 4
    assert dispatcher.counts.claimed == dispatcher.counts.done + dispatcher.counts.stale


async def test_a_drain_outlives_a_store_that_cannot_be_read__kind_10(queue):
    await fill(queue, 3)
    verbs = Verbs(queue, "next_due_ms")
    verbs.fail("next_due_ms", StoreError("disk I/O error"), times=3)
    log = Log()
    dispatcher = Dispatcher(queue, Hands(held=False), events=log.events)
    await drained(dispatcher)
    assert dispatcher.counts.done == 3
    assert {event.chore for event in log.of(ChoreFailed)} <= {"claim", "drain"}


async def test_a_failed_release_is_tried_again_and_the_reports_of_its_pass_are_not_repeated(queue):
    await fill(queue, 2)
    verbs = Verbs(queue, "release_many", "finish_late")
    verbs.fail("release_many", StoreBusy("busy"), times=2)
    log = Log()
    sender = Scripted(Outcome(Verdict.HOLD, error="401"))
    dispatcher = Dispatcher(queue, sender, concurrency=2, events=log.events)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.released == 1)
    assert verbs.calls["release_many"] == 3
    assert verbs.calls["finish_late"] == 1
    assert len([event for event in log.of(Settled) if event.status is Status.DONE]) == 1


async def test_a_pause_after_an_error_is_not_cut_short_by_wakes_and_grows_to_its_cap():
    class Failing:
        name = "failing"
        calls = 0

        async def run_once(self):
            self.calls += 1
            raise OSError("no")

    log, chore = Log(), Failing()
    loop = Loop(chore, log.events, pause_max_s=0.1)
    task = asyncio.create_task(loop.run())
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() - began < 0.5:
        loop.wake()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert 4 <= chore.calls <= 14
    assert max(event.pause_ms for event in log.of(ChoreFailed)) <= 100


async def test_backoff_never_overflows_however_long_the_outage__kind_16():
    class Failing:
        name = "failing"

        async def run_once(self):
            return 0

    log = Log()
    loop = Loop(Failing(), log.events)
    for failures in (0, 1, 100, 10_000, 10**6):
        loop.failures = failures
        assert 0 < loop._failed(OSError("no")) <= 5


async def test_a_job_taken_away_between_claim_and_report_is_stale_and_told(queue):
    await fill(queue, 1)
    log, hands = Log(), Hands()
    dispatcher = Dispatcher(queue, hands, events=log.events, poll_ms=60_000, concurrency=1)
    async with running(dispatcher):
        await until(lambda: hands.running)
        assert await queue._batches.release([Release(hands.started[0])]) == [True]
        hands.open.set()
        await until(lambda: dispatcher.counts.stale == 1)
    assert [(event.verdict, event.status) for event in log.of(Settled)][:1] == [("ok", None)]
