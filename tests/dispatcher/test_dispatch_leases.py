"""Leases: renewed in time, given up in time, fenced when late."""

import asyncio
import random
from itertools import pairwise

import anyio
from dispatch_support import Hands, Log, Outage, Verbs, drained, fill, passes, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.flight import Counts, Flight
from asyncqueue.dispatcher.lane import Lane
from asyncqueue.dispatcher.renew import RenewChore
from asyncqueue.errors import Retryable, StoreBusy
from asyncqueue.events import LeaseLost
from asyncqueue.job import Release
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy


async def test_a_delivery_of_five_leases_is_sent_once__kind_3_heartbeat_not_below_the_lease(queue):
    await fill(queue, 3)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, lease_ms=300)
    loop = asyncio.get_running_loop()
    async with running(dispatcher):
        await until(lambda: hands.running == 3)
        leased_at = loop.time()
        await until(lambda: loop.time() - leased_at > 5 * 0.3)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 3)
    assert set(hands.starts.values()) == {1}
    assert dispatcher.counts.claimed == 3
    assert not hands.cancelled


async def test_one_renewal_failing_at_random_does_not_cost_a_lease__kind_3(queue):
    await fill(queue, 3)
    hands = Hands()
    verbs = Verbs(queue, "renew_many")
    chance = random.Random(430)
    failing: list[bool] = [False]

    def now_and_then():
        failing.append(not failing[-1] and chance.random() < 0.7)  # never two in a row
        return StoreBusy("busy") if failing[-1] else None

    verbs.errors["renew_many"] = now_and_then
    dispatcher = Dispatcher(queue, hands, lease_ms=450)
    async with running(dispatcher):
        await until(lambda: verbs.calls["renew_many"] >= 16)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 3)
    assert sum(failing) >= 3
    assert set(hands.starts.values()) == {1}


async def test_a_refused_renewal_cancels_the_send_within_one_interval__kind_4_lease_lost_but_work_goes_on(path):
    clock = ManualClock()
    log, hands = Log(), Hands()
    loop = asyncio.get_running_loop()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, hands, lease_ms=600, events=log.events, concurrency=2, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(601)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            taken_at = loop.time()
            await until(lambda: hands.cancelled)
            assert loop.time() - taken_at < 0.2 + 0.1
            await until(lambda: log.of(LeaseLost))
            assert "taken over" in log.of(LeaseLost)[0].why
            assert dispatcher.counts.lost == 1
            await passes(dispatcher, "claim")
            assert len(hands.started) == 1  # no later request from the old holder
            assert await queue.finish(theirs, "ok") is Status.DONE


async def test_a_stale_report_is_counted_and_changes_no_row__kind_2_two_final_outcomes(path):
    clock = ManualClock()
    hands = Hands()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, hands, lease_ms=60_000, concurrency=1)  # no slot to take it again
        async with running(dispatcher):
            await until(lambda: hands.running == 1)
            clock.advance(60_001)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            before = await queue.get(theirs.id)
            hands.open.set()
            await until(lambda: dispatcher.counts.stale == 1)
            assert await queue.get(theirs.id) == before
            assert before.owner == "other"
        assert await queue.finish(theirs, "ok") is Status.DONE
        assert dispatcher.counts.done == 0
        stats = await queue.stats()
        assert (stats.done, stats.total) == (1, 1)


async def test_sends_end_before_their_lease_when_no_renewal_gets_through__kind_9_zombie(queue):
    """The holder's own monotonic clock decides; red meanwhile, it recovers and refills all slots."""
    await fill(queue, 6)
    log, hands = Log(), Hands()
    cut_at: list[float] = []
    loop = asyncio.get_running_loop()

    async def deliver(job):
        try:
            return await hands(job)
        except asyncio.CancelledError:
            cut_at.append(loop.time())
            raise

    outage = Outage(queue, reads=True)
    dispatcher = Dispatcher(queue, deliver, concurrency=3, lease_ms=600, events=log.events)
    async with running(dispatcher):
        await until(lambda: hands.running == 3)
        outage.error = StoreBusy("down")
        ends_at = {delivery.lease_ends for delivery in dispatcher._flight.held}
        await until(lambda: len(hands.cancelled) == 3)
        assert max(cut_at) < max(ends_at) + 0.3  # a renewal under way when the outage began may have moved them
        await until(lambda: not dispatcher.health().ok)
        assert "renew" in dispatcher.health().failing or "claim" in dispatcher.health().failing
        assert dispatcher.in_flight == 0
        outage.error = None
        await until(lambda: hands.running == 3)
        await until(lambda: dispatcher.health().ok)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 6)
    assert dispatcher.counts.lost == 3
    assert {lost.why for lost in log.of(LeaseLost)} == {"ran out without a renewal"}


async def test_a_send_never_starts_under_a_lease_that_is_over(queue):
    """A claim that waited for the store for longer than its lease: its jobs are not sent."""
    await fill(queue, 2)
    hands = Hands(held=False)
    claim, loop = queue.claim_late, asyncio.get_running_loop()
    slow = [True]

    async def slow_claim(*args, **named):
        jobs = await claim(*args, **named)
        if slow.pop() if slow else False:
            over_at = loop.time() + 0.2
            await until(lambda: loop.time() > over_at)  # their lease is over by our own clock
        return jobs

    queue.claim_late = slow_claim
    dispatcher = Dispatcher(queue, hands, lease_ms=200)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.lost == 2)
        await until(lambda: dispatcher.counts.done == 2)
    assert [job.attempt for job in hands.started] == [2, 2]


async def test_a_refused_renewal_of_a_job_whose_report_waits_is_not_repeated_at_once(queue):
    await fill(queue, 1)
    verbs = Verbs(queue, "finish_late")
    verbs.fail("finish_late", StoreBusy("busy"))
    asked_at: list[float] = []
    renew_many = queue.renew_many

    async def watched(renewals):
        asked_at.extend(asyncio.get_running_loop().time() for renewal in renewals if renewal.ticket.token == 1)
        return await renew_many(renewals)

    queue.renew_many = watched
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, lease_ms=600)
    async with running(dispatcher):
        await until(lambda: verbs.calls["finish_late"] >= 1)
        (delivery,) = dispatcher._flight.held
        await queue._batches.release([Release(delivery.job)])  # somebody takes it away
        await until(lambda: len(asked_at) >= 5)
        assert min(later - sooner for sooner, later in pairwise(asked_at)) > 0.19  # a third of the lease
        verbs.heal()
        await until(lambda: dispatcher.counts.stale == 1)


async def test_the_lease_is_cut_by_the_deadline_and_the_send_with_it(queue):
    await queue.enqueue("short", 1, ttl_ms=400)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, lease_ms=300)
    loop = asyncio.get_running_loop()
    async with running(dispatcher):
        await until(lambda: hands.running)
        began = loop.time()
        await until(lambda: hands.cancelled)
        assert loop.time() - began <= 0.45
        await until(lambda: dispatcher.counts.lost == 1)
    with anyio.fail_after(5):
        while (job := await queue.get("short")).status is not Status.DEAD:
            await queue.sweep()
    assert job.reason == "deadline"
    assert len(hands.started) == 1


async def test_a_clock_that_stands_still_costs_no_holder_its_lease__kind_38_clock_steps(path):
    """What a step back of the wall clock looks like: the store's time stands still, real time goes on."""
    hands = Hands()
    async with Queue.open(path, clock=ManualClock()) as queue:
        await fill(queue, 2)
        dispatcher = Dispatcher(queue, hands, lease_ms=300)
        loop = asyncio.get_running_loop()
        async with running(dispatcher):
            await until(lambda: hands.running == 2)
            began = loop.time()
            await until(lambda: loop.time() - began > 1)
            assert not hands.cancelled
            hands.open.set()
            await until(lambda: dispatcher.counts.done == 2)


async def test_a_step_forward_may_end_leases_early_and_the_total_moves_once__kind_38(path):
    clock = ManualClock()
    hands = Hands()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 4)
        dispatcher = Dispatcher(queue, hands, lease_ms=450)
        async with running(dispatcher):
            await until(lambda: hands.running == 4)
            clock.advance(3_600_000)
            await until(lambda: len(hands.cancelled) == 4)
            hands.open.set()
            await queue.enqueue("nudge", 1)
            await until(lambda: dispatcher.counts.done == 5)
        stats = await queue.stats()
        assert (stats.done, stats.total) == (5, 5)
        assert dispatcher.counts.claimed == dispatcher.counts.done + dispatcher.counts.lost


async def test_leases_of_a_dead_process_eat_no_slots_of_a_live_one__kind_12_orphans_eat_the_limit(queue):
    ids = await fill(queue, 16)
    await queue.claim("dead-process", limit=8, lease_ms=60_000)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=8)
    async with running(dispatcher):
        await until(lambda: hands.running == 8)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 8)
    assert {job.id for job in hands.started} == set(ids[8:])


async def test_the_same_name_is_a_new_owner_at_every_start__kind_8_worker_identity_reused(queue):
    owners = {Dispatcher(queue, Hands(), owner_prefix="node-1").owner for _ in range(100)}
    assert len(owners) == 100
    assert all(owner.startswith("node-1-") for owner in owners)


async def test_old_leases_end_on_time_under_a_restarted_name__kind_8(path):
    """The restarted process renews nothing of what its predecessor held."""
    clock = ManualClock()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 2)
        first = Dispatcher(queue, Hands(), owner_prefix="node-1", lease_ms=60_000)
        task = asyncio.create_task(first.run())
        await until(lambda: first.counts.claimed == 2)
        first.abort()
        await task
        assert (await queue.stats()).leased == 2
        hands = Hands(held=False)
        second = Dispatcher(queue, hands, owner_prefix="node-1", lease_ms=60_000)
        async with running(second):
            await queue.enqueue("fresh", 1)
            await until(lambda: second.counts.done == 1)
            clock.advance(60_000)
            await queue.enqueue("nudge", 1)
            await until(lambda: second.counts.done == 4)
        assert {job.id for job in hands.started} == {"fresh", "nudge", "job-00000", "job-00001"}


async def test_renewals_are_asked_for_at_a_third_of_the_lease_all_in_one_set(queue):
    sets = []

    async def renew_many(renewals):
        sets.append(len(renewals))
        return [10**14 for _ in renewals]

    await fill(queue, 5)
    jobs = await queue.claim("me", limit=5, lease_ms=30_000)
    queue.renew_many = renew_many
    flight = Flight(5, Counts(), [Lane(None, Hands(), 5)])
    chore = RenewChore(queue, flight, 30_000)
    assert await chore.run_once() == 10
    now = asyncio.get_running_loop().time()
    flight.take(jobs[:3], now - 10)
    flight.take(jobs[3:], now - 9)
    assert 0 < await chore.run_once() <= 1.01
    assert sets == [3]


async def test_jobs_taken_back_by_lapse_are_retried_and_nothing_is_lost_or_doubled_in_the_books__kind_2(queue):
    """Many short leases under a store that fails at random: enqueued = done, one outcome each."""
    await fill(queue, 120)
    chance = random.Random(2)
    outage = Outage(queue)
    write = queue._store.write

    async def shaky(work, **how):
        outage.error = StoreBusy("busy") if chance.random() < 0.3 else None
        return await write(work, **how)

    queue._store.write = shaky
    finished: list[str] = []

    async def deliver(job):
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        if chance.random() < 0.1:
            raise Retryable("once in a while")
        finished.append(job.id)
        return True

    dispatcher = Dispatcher(queue, deliver, concurrency=16, lease_ms=400, policy=RetryPolicy(base_ms=1, cap_ms=5))
    await drained(dispatcher, seconds=25)
    outage.error = None
    queue._store.write = write
    stats = await queue.stats()
    counts = dispatcher.counts
    assert (stats.done, stats.total) == (120, 120)
    assert set(finished) == {f"job-{n:05}" for n in range(120)}
    assert counts.done <= 120
    assert counts.claimed == counts.done + counts.retried + counts.stale + counts.lost
