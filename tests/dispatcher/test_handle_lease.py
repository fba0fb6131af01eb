"""What a handler sees of its job and its lease, and what it learns when the lease is lost."""

import asyncio
import dataclasses

import anyio
import pytest
from dispatch_support import Hands, Verbs, drained, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Context, Dispatcher
from asyncqueue.errors import StoreBusy
from asyncqueue.job import LeasedJob
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue


async def test_a_handler_sees_a_leased_job_with_its_payload_and_deadline(queue):
    seen = []

    async def deliver(job):
        seen.append((job, job.remaining_ms, job.lost.is_set()))
        return True

    await queue.enqueue("job", 3, payload={"sku": 7}, kind="mail", priority=2, ttl_ms=60_000)
    deadline = (await queue.get("job")).deadline
    await drained(Dispatcher(queue, {"mail": deliver}))
    ((job, remaining_ms, is_lost),) = seen
    assert isinstance(job, LeasedJob)
    assert isinstance(job, Context)
    assert (job.id, job.qty, job.kind, job.queue, job.priority) == ("job", 3, "mail", "default", 2)
    assert (job.attempt, job.token, job.deadline, job.json()) == (1, 1, deadline, {"sku": 7})
    assert 40_000 < remaining_ms <= 60_000
    assert not is_lost
    assert dataclasses.asdict(job)["payload"] == '{"sku":7}'
    assert "lease=" not in repr(job)


async def test_the_remaining_time_runs_on_the_loop_and_not_on_the_wall_clock(path):
    clock = ManualClock()
    hands, log = Hands(), []

    async def deliver(job):
        log.append(job)
        return await hands(job)

    async with Queue.open(path, clock=clock) as queue:
        await queue.enqueue("job", 1, ttl_ms=10_000_000)
        async with running(Dispatcher(queue, deliver, lease_ms=60_000)):
            await until(lambda: log)
            before = log[0].remaining_ms
            clock.advance(5_000_000)
            assert before - 5_000 < log[0].remaining_ms <= before
            assert await log[0].renew() is False  # the store's clock is the law of the lease
            await until(lambda: hands.cancelled)
            hands.open.set()  # it may have been claimed again by now


async def test_a_lost_lease_is_told_and_ends_the_work__kind_4_lease_lost_but_work_goes_on(path):
    clock = ManualClock()
    seen, told = [], []

    async def deliver(job):
        seen.append(job)
        try:
            await anyio.sleep_forever()
        finally:
            told.append(job.lost.is_set())

    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, deliver, lease_ms=600, concurrency=1, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: seen)
            assert not seen[0].lost.is_set()
            clock.advance(601)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            with anyio.fail_after(5):
                await seen[0].lost.wait()
            await until(lambda: dispatcher.counts.lost == 1)
            assert await queue.finish(theirs, "ok") is Status.DONE
    assert told == [True]
    assert len(seen) == 1


async def test_a_cancelled_job_is_told_at_the_next_renewal_of_its_handler(queue):
    answers, cancelled = [], []
    cancel = asyncio.Event()

    async def deliver(job):
        answers.append(await job.renew())
        await cancel.wait()
        answers.append(await job.renew())
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(job.lost.is_set())

    await fill(queue, 1, "job", max_attempts=1)
    dispatcher = Dispatcher(queue, deliver, lease_ms=60_000)
    async with running(dispatcher):
        await until(lambda: answers)
        assert await queue.cancel("job-00000")
        cancel.set()
        await until(lambda: dispatcher.counts.lost == 1)
    assert answers == [True, False]
    assert cancelled == [True]
    assert (await queue.get("job-00000")).status is Status.DEAD


async def test_a_renewal_by_the_handler_pushes_the_lease_out(path):
    clock = ManualClock()
    hands, seen = Hands(), []

    async def deliver(job):
        seen.append(job)
        return await hands(job)

    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, deliver, lease_ms=60_000)
        async with running(dispatcher):
            await until(lambda: seen)
            for _ in range(4):
                clock.advance(50_000)  # more than three leases in all
                assert await seen[0].renew() is True
                assert (await queue.get("job-00000")).lease_until == clock.now_ms() + 60_000
            assert not seen[0].lost.is_set()
            hands.open.set()
            await until(lambda: dispatcher.counts.done == 1)
        assert await seen[0].renew() is False  # it has ended: there is nothing to hold any more
    assert set(hands.starts.values()) == {1}


async def test_a_renewal_that_the_store_cannot_take_is_raised_and_costs_nothing(queue):
    caught = []
    verbs = Verbs(queue, "renew_many")

    async def deliver(job):
        verbs.fail("renew_many", StoreBusy("busy"))
        try:
            await job.renew()
        except StoreBusy as error:
            caught.append(error)
        verbs.heal()
        return await job.renew()

    await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver)
    await drained(dispatcher)
    assert len(caught) == 1
    assert dispatcher.counts.done == 1


async def test_the_end_of_the_grace_period_gives_the_lease_up_and_says_so(queue):
    seen = []

    async def deliver(job):
        seen.append(job)
        await anyio.sleep_forever()

    await fill(queue, 1)
    async with running(Dispatcher(queue, deliver, grace_ms=0)):
        await until(lambda: seen)
    assert seen[0].lost.is_set()
    assert (await queue.get("job-00000")).status is Status.PENDING


@pytest.mark.parametrize("late", ["strict", "accept"])
async def test_a_late_acknowledgement_that_nobody_overtook_counts_if_the_queue_accepts_it(path, late):
    clock = ManualClock()
    hands = Hands()
    async with Queue.open(path, clock=clock, late=late) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, hands, lease_ms=60_000, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(60_001)
            hands.open.set()
            await until(lambda: dispatcher.counts.done + dispatcher.counts.stale == 1)
            first = dispatcher.counts.done, dispatcher.counts.stale
            await queue.enqueue("nudge", 1)
            await until(lambda: dispatcher.counts.done == 2)
        assert first == ((1, 0) if late == "accept" else (0, 1))
        assert hands.starts["job-00000"] == (1 if late == "accept" else 2)
        assert {job.status for job in await queue.list()} == {Status.DONE}


async def test_a_late_acknowledgement_is_stale_once_somebody_took_over__kind_2_two_final_outcomes(path):
    clock = ManualClock()
    hands = Hands()
    async with Queue.open(path, clock=clock, late="accept") as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, hands, lease_ms=60_000, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(60_001)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            hands.open.set()
            await until(lambda: dispatcher.counts.stale == 1)
        assert await queue.finish(theirs, "ok") is Status.DONE
        assert dispatcher.counts.done == 0
