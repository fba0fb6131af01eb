"""Effects of handlers, end to end: with the finish or not at all."""

import asyncio

import pytest
from dispatch_support import Hands, Log, Verbs, drained, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import StoreBusy
from asyncqueue.events import ChoreFailed
from asyncqueue.job import Effect
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy

QUICK = RetryPolicy(base_ms=1, cap_ms=1)


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.fixture
def ledger(queue, raw):
    raw.execute("CREATE TABLE ledger (id TEXT, attempt INTEGER)")
    return lambda: raw.select("SELECT id, attempt FROM ledger ORDER BY id")


def books(job, error=None):
    async def work(connection):
        await connection.execute(f"INSERT INTO ledger VALUES ('{job.id}', {job.attempt})")
        if error is not None:
            raise error

    return Effect(work)


async def test_an_effect_acknowledges_and_commits_with_the_finish(queue, ledger):
    async def deliver(job):
        return books(job)

    (job_id,) = await fill(queue, 1)
    await drained(Dispatcher(queue, deliver))
    assert (await queue.get(job_id)).status is Status.DONE
    assert ledger() == [(job_id, 1)]


async def test_every_tenth_of_200_effects_fails_in_one_commit_and_exactly_these_are_tried_again(queue, ledger):
    hands = Hands()

    async def deliver(job):
        await hands(job)
        is_tenth = int(job.id[-5:]) % 10 == 9
        return books(job, RuntimeError("no such account") if is_tenth and job.attempt == 1 else None)

    ids = await fill(queue, 200)
    failing = set(ids[9::10])
    sets = []
    finish_many = queue.finish_many

    async def counted(reports):
        sets.append(len(reports))
        return await finish_many(reports)

    queue.finish_many = counted
    dispatcher = Dispatcher(queue, deliver, concurrency=200, policy=QUICK)
    async with running(dispatcher):
        await until(lambda: hands.running == 200)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 200)
    assert sets[0] == 200
    assert ledger() == [(job_id, 2 if job_id in failing else 1) for job_id in ids]
    assert (dispatcher.counts.retried, dispatcher.counts.claimed) == (20, 220)
    job = await queue.get(ids[9])
    assert (job.status, job.last_error) == (Status.DONE, "effect failed: RuntimeError: no such account")
    assert [row.what for row in await queue.history(ids[9])] == ["retry"]
    assert await queue.history(ids[8]) == []


async def test_a_stale_ticket_does_not_run_its_effect(path):
    clock = ManualClock()
    hands, ran = Hands(), []

    async def deliver(job):
        await hands(job)

        async def work(connection):
            ran.append(job.attempt)

        return Effect(work)

    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, deliver, lease_ms=60_000, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(60_001)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            hands.open.set()
            await until(lambda: dispatcher.counts.stale == 1)
        assert ran == []
        assert await queue.finish(theirs, "ok") is Status.DONE


async def test_a_late_effect_runs_once_where_late_reports_count(path):
    clock = ManualClock()
    hands, ran = Hands(), []

    async def deliver(job):
        await hands(job)

        async def work(connection):
            ran.append(job.attempt)

        return Effect(work)

    async with Queue.open(path, clock=clock, late="accept") as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, deliver, lease_ms=60_000, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(60_001)
            hands.open.set()
            await until(lambda: dispatcher.counts.done == 1)
    assert ran == [1]


@pytest.mark.parametrize("work", [None, 7, "INSERT"], ids=repr)
async def test_an_effect_without_work_is_no_acknowledgement(queue, work):
    async def deliver(job):
        return Effect(work)

    (job_id,) = await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.left == 1)
    assert (await queue.get(job_id)).status is Status.LEASED
    (row,) = await queue.history(job_id)
    assert "Effect" in row.detail


@pytest.mark.parametrize("work", [lambda connection: None, lambda: None], ids=range(2))
async def test_an_effect_that_is_no_async_function_of_a_connection_is_retried(queue, work):
    async def deliver(job):
        return Effect(work) if job.attempt == 1 else True

    (job_id,) = await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver, policy=QUICK)
    await drained(dispatcher)
    job = await queue.get(job_id)
    assert (job.status, job.attempts) == (Status.DONE, 2)
    assert job.last_error.startswith("effect failed: TypeError")


async def test_an_effect_error_without_words_holds_no_other_report_up__kind_10_inner_loop_dead(queue, ledger):
    async def deliver(job):
        return books(job, SilentError() if job.id == "bad" and job.attempt == 1 else None)

    await fill(queue, 5)
    await queue.enqueue("bad", 1)
    log = Log()
    dispatcher = Dispatcher(queue, deliver, policy=QUICK, events=log.events)
    await drained(dispatcher)
    assert ledger() == [("bad", 2), *((f"job-{n:05}", 1) for n in range(5))]
    assert (await queue.get("bad")).last_error == "effect failed: SilentError"
    assert not log.of(ChoreFailed)


async def test_an_effect_waits_for_the_store_with_its_report(queue, ledger):
    async def deliver(job):
        return books(job)

    verbs = Verbs(queue, "finish_many")
    verbs.fail("finish_many", OSError("away"), times=3)
    ids = await fill(queue, 3)
    dispatcher = Dispatcher(queue, deliver)
    await drained(dispatcher)
    assert ledger() == [(job_id, 1) for job_id in ids]
    assert verbs.calls["finish_many"] >= 4
    await asyncio.sleep(0)


@pytest.mark.parametrize("fails", [False, True])
async def test_an_effect_whose_send_ends_while_others_are_reported_is_not_lost(queue, ledger, fails):
    second = asyncio.Event()
    reporting, go_on = asyncio.Event(), asyncio.Event()
    finish_many = queue.finish_many
    failures = [StoreBusy("busy")] if fails else []

    async def deliver(job):
        if job.id == "job-00001":
            await second.wait()
        return books(job)

    async def slow(reports):
        reporting.set()
        await go_on.wait()
        if failures:
            raise failures.pop()
        return await finish_many(reports)

    queue.finish_many = slow
    ids = await fill(queue, 2)
    dispatcher = Dispatcher(queue, deliver, policy=QUICK)
    async with running(dispatcher):
        await until(reporting.is_set)
        second.set()
        await until(lambda: not dispatcher.in_flight)
        go_on.set()
        await until(lambda: dispatcher.counts.done == 2)
    assert ledger() == [(job_id, 1) for job_id in ids]
    assert dispatcher.counts.claimed == 2


async def test_reports_that_end_while_others_fail_keep_their_order_and_none_is_lost_or_doubled(queue):
    gates = {f"job-{n:05}": asyncio.Event() for n in range(4)}
    await fill(queue, 4)
    named, failing = [], True
    finish_late = queue.finish_late

    async def watched(reports):
        def noted():
            found = reports()
            named.append([report.ticket.id for report in found])
            if failing:
                raise OSError("away")
            return found

        return await finish_late(noted)

    async def deliver(job):
        await gates[job.id].wait()
        return True

    queue.finish_late = watched
    dispatcher = Dispatcher(queue, deliver)
    async with running(dispatcher):
        await until(lambda: dispatcher.in_flight == 4)
        for count, gate in enumerate(gates.values(), 1):
            gate.set()
            await until(lambda count=count: named and len(named[-1]) == count)
        failing = False
        await until(lambda: dispatcher.counts.done == 4)
    assert all(ids == list(gates)[: len(ids)] for ids in named)
    assert dispatcher.counts.stale == 0


async def test_an_effect_that_calls_its_own_queue_becomes_an_honest_retry(queue, ledger):
    async def deliver(job):
        async def work(connection):
            await books(job).work(connection)
            if job.attempt == 1:
                await queue.enqueue("next", 1)

        return Effect(work)

    (job_id,) = await fill(queue, 1)
    await drained(Dispatcher(queue, deliver, policy=QUICK))
    job = await queue.get(job_id)
    assert (job.status, ledger()) == (Status.DONE, [(job_id, 2)])
    assert job.last_error.startswith("effect failed: BadEffect: an effect must not call its own queue")
    assert await queue.get("next") is None
