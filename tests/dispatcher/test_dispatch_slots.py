"""Claims and slots: never more than is free, never earlier than due, never later than needed."""

import asyncio
import random

import pytest
from dispatch_support import Hands, Verbs, drained, fill, passes, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import Retryable, StoreBusy
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy

VERBS = (
    "version",
    "next_due_ms",
    "claim",
    "claim_late",
    "sweep",
    "renew_many",
    "finish_many",
    "finish_late",
    "stats",
)
QUICK = RetryPolicy(base_ms=1, cap_ms=1)


def no_alarm(_ring):
    """A store that cannot tell: the dispatcher has nothing but its poll."""
    return False


class Rings:
    """Counts the alarms that a queue's store has rung."""

    def __init__(self, queue):
        self.heard = 0
        alarm = queue.alarm

        def counted(ring):
            def heard():
                self.heard += 1
                ring()

            return alarm(heard)

        queue.alarm = counted


async def test_claims_never_exceed_free_slots_and_sends_never_exceed_concurrency(queue):
    await fill(queue, 60)
    hands, chance = Hands(held=False), random.Random(7)
    asked = []
    claim = queue.claim_late

    async def watched(owner, room, **named):
        def watched_room():  # runs in the store's thread, while sends end
            in_flight = dispatcher.in_flight
            asked.append((room(), in_flight))
            return asked[-1][0]

        return await claim(owner, watched_room, **named)

    async def deliver(job):
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        return await hands(job)

    queue.claim_late = watched
    dispatcher = Dispatcher(queue, deliver, concurrency=7)
    await drained(dispatcher)
    assert asked
    assert all(limit + sending <= 7 for limit, sending in asked)
    assert 0 < hands.most <= 7
    assert dispatcher.counts.done == 60


async def test_nothing_is_claimed_while_all_slots_are_taken(queue):
    await fill(queue, 10)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=3)
    async with running(dispatcher):
        await until(lambda: hands.running == 3)
        queue._wake()
        verbs = Verbs(queue, "version", "claim_late")
        await queue.enqueue("one-more", 1)
        await passes(dispatcher, "claim")
        assert not verbs.calls
        assert (await queue.stats()).leased == 3
        assert dispatcher.health().ok
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 11)


async def test_no_transaction_is_open_during_a_send(queue, raw):
    await fill(queue, 30)
    written = []

    async def deliver(job):
        raw.write_at_once()
        written.append(job.id)
        return True

    await drained(Dispatcher(queue, deliver, concurrency=1))
    assert len(written) == 30


async def test_jobs_due_later_are_never_leased_early__kind_7_lease_covers_waiting_time(queue):
    await fill(queue, 20, "later", delay_ms=3_600_000)
    await fill(queue, 5, "now")
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 5)
        await passes(dispatcher, "claim")
    later = await queue.list(status=Status.PENDING)
    assert len(later) == 20
    assert all(job.attempts == job.token == 0 for job in later)
    assert dispatcher.counts.claimed == 5


async def test_first_tries_and_retries_go_in_seq_order_so_neither_starves_the_other__kind_26(path):
    clock = ManualClock()
    order, failed = [], set()

    async def deliver(job):
        order.append(job.id)
        if job.id in ("job-00000", "job-00002") and job.id not in failed:
            failed.add(job.id)
            raise Retryable("once")
        await until(lambda: dispatcher.counts.retried == len(failed))
        clock.advance(2)  # whatever failed is due again
        return True

    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 6)
        dispatcher = Dispatcher(queue, deliver, concurrency=1, policy=QUICK)
        await drained(dispatcher)
    assert sorted(set(order)) == sorted(f"job-0000{n}" for n in range(6))
    assert len(order) == 8
    # the retry of the first job is back before the last first try: it is the lowest seq among the eligible
    assert order.index("job-00000", 1) < order.index("job-00005")
    assert order.index("job-00001") < order.index("job-00005")


async def test_the_highest_priority_goes_first_then_the_lowest_seq(queue):
    for number, priority in enumerate([0, 5, -3, 5, 0]):
        await queue.enqueue(f"job-{number}", 1, priority=priority)
    hands = Hands(held=False)
    await drained(Dispatcher(queue, hands, concurrency=1))
    assert [job.id for job in hands.started] == ["job-1", "job-3", "job-0", "job-4", "job-2"]


async def test_an_enqueue_in_this_process_wakes_at_once_whatever_the_poll_is(queue):
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: dispatcher._claim.idle or dispatcher.health().ok)
        await queue.enqueue("first", 1)
        await until(lambda: dispatcher.counts.done == 1, 5)
        await queue.enqueue("second", 1)
        await until(lambda: dispatcher.counts.done == 2, 5)


async def test_an_enqueue_whose_claim_failed_once_is_not_forgotten__kind_10(queue):
    verbs = Verbs(queue, "claim_late", "next_due_ms")
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: verbs.calls["next_due_ms"])
        verbs.fail("claim_late", StoreBusy("busy"), times=1)
        await queue.enqueue("first", 1)
        await until(lambda: dispatcher.counts.done == 1, 5)
        verbs.fail("next_due_ms", StoreBusy("busy"), times=1)
        await queue.enqueue("second", 1)
        await queue.enqueue("third", 1, delay_ms=200)
        await until(lambda: dispatcher.counts.done == 3, 5)


async def test_a_job_due_later_wakes_at_its_time_whatever_the_poll_is__kind_51(queue):
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, poll_ms=60_000)
    clock = asyncio.get_running_loop().time
    async with running(dispatcher):
        began = clock()
        await queue.enqueue("later", 1, delay_ms=300)
        await until(lambda: hands.started, 5)
        assert 0.29 <= clock() - began < 0.8


async def test_a_retry_wakes_at_its_time_whatever_the_poll_is(queue):
    tries = []

    async def deliver(job):
        tries.append(job.attempt)
        if job.attempt < 4:
            raise Retryable("not yet")
        return True

    await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver, poll_ms=60_000, policy=RetryPolicy(base_ms=20, cap_ms=20))
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 1, 5)
    assert tries == [1, 2, 3, 4]


async def test_a_commit_of_another_connection_is_noticed_within_the_poll_bound__kind_51(queue, path):
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, poll_ms=25)
    clock = asyncio.get_running_loop().time
    async with running(dispatcher), Queue.open(path) as other:
        await until(lambda: dispatcher._claim.idle)
        await other.enqueue("foreign", 1)
        began = clock()
        await until(lambda: hands.started, 5)
        assert clock() - began < 0.5


async def test_without_an_alarm_a_commit_of_another_connection_is_noticed_all_the_same(queue, path):
    queue.alarm = no_alarm
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=5)
    async with running(dispatcher), Queue.open(path) as other:
        for number in range(5):
            await until(lambda: dispatcher._claim.idle)
            await other.enqueue(f"foreign-{number}", 1)
            await until(lambda done=number + 1: dispatcher.counts.done == done)


async def test_with_an_alarm_an_idle_dispatcher_hardly_looks_and_claims_at_once__kind_51_idle_poll(queue, path):
    verbs = Verbs(queue, *VERBS)
    rings = Rings(queue)
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=1)
    async with running(dispatcher), Queue.open(path) as other:
        for number in range(3):
            await until(lambda: dispatcher._claim.idle and dispatcher._claim._is_alarmed)
            await until(lambda: dispatcher._claim._pause_s() > 0.2)  # the looks after the last alarm are over
            looks, heard = verbs.calls["version"], rings.heard
            began = asyncio.get_running_loop().time()
            await until(lambda most=looks + 3: verbs.calls["version"] >= most)
            assert asyncio.get_running_loop().time() - began > 0.4
            await other.enqueue(f"foreign-{number}", 1)
            await until(lambda done=number + 1: dispatcher.counts.done == done)
            assert rings.heard > heard


async def test_alarms_do_not_make_a_dispatcher_look_more_often_than_the_poll_allows(queue, path):
    verbs = Verbs(queue, "version", "claim_late")
    rings = Rings(queue)
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=60_000)
    async with running(dispatcher), Queue.open(path) as other:
        await until(lambda: dispatcher._claim.idle)
        await passes(dispatcher, "claim")  # a server's listening connection is there only after the first look
        await until(lambda: dispatcher._claim._is_alarmed)
        looks = verbs.calls.copy()
        await other.enqueue("foreign", 1)
        await until(lambda: rings.heard)
        for number in range(10):
            await other.enqueue(f"foreign-{number}", 1)
        assert verbs.calls == looks
        assert dispatcher.counts.claimed == 0
        await queue.enqueue("own", 1)
        await until(lambda: dispatcher.counts.done == 12)


async def test_an_alarm_that_comes_before_its_commit_is_followed_by_looks_that_grow_rare(queue):
    rung = []
    queue.alarm = lambda ring: bool(rung.append(ring)) or True
    verbs = Verbs(queue, "version")
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=5)
    async with running(dispatcher):
        await until(lambda: dispatcher._claim.idle and rung)
        await until(lambda: dispatcher._claim._pause_s() > 0.2)
        before = verbs.calls["version"]
        rung[-1]()
        await until(lambda: 0.005 <= dispatcher._claim._pause_s() < 0.01)  # for nothing: again as soon as it may
        await until(lambda: dispatcher._claim._pause_s() > 0.2)
        assert 3 <= verbs.calls["version"] - before <= 20


async def test_a_long_poll_stays_the_least_time_between_looks_after_an_alarm(queue):
    rung = []
    queue.alarm = lambda ring: bool(rung.append(ring)) or True
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: dispatcher._claim.idle and rung)
        rung[-1]()
        await passes(dispatcher, "claim")
        assert dispatcher._claim._is_alarmed
        assert dispatcher._claim._pause_s() == 60


async def test_an_idle_dispatcher_asks_less_than_twice_a_poll_and_writes_nothing_but_the_sweep__kind_51_idle_poll(
    queue,
):
    queue.alarm = no_alarm
    verbs = Verbs(queue, *VERBS)
    dispatcher = Dispatcher(queue, Hands(), poll_ms=20)
    async with running(dispatcher):
        await until(lambda: verbs.calls["version"] >= 3)
        before = verbs.calls.copy()
        await until(lambda: verbs.calls["version"] >= before["version"] + 20)
        calls = verbs.calls - before
    assert set(calls) <= {"version", "sweep"}
    assert calls["sweep"] <= 1
    assert calls.total() < 2 * 21


@pytest.mark.parametrize("delay_ms", [0, 3_600_000])
async def test_jobs_of_queues_that_are_not_ours_cost_an_idle_dispatcher_nothing__kind_51(queue, delay_ms):
    await fill(queue, 5, queue="theirs", delay_ms=delay_ms)
    queue.alarm = no_alarm
    verbs = Verbs(queue, "version", "claim_late", "next_due_ms")
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=5, queues=("ours",))
    async with running(dispatcher):
        await until(lambda: verbs.calls["version"] >= 3)
        before = verbs.calls.copy()
        await until(lambda: verbs.calls["version"] >= before["version"] + 40)
        assert set(verbs.calls - before) == {"version"}
        await queue.enqueue("mine", 1, queue="ours", delay_ms=50)
        await until(lambda: dispatcher.counts.done == 1, 5)
    assert (await queue.stats()).pending == 5


async def test_due_jobs_that_cannot_be_claimed_are_looked_for_with_growing_pauses__kind_51(queue, raw):
    await fill(queue, 5)
    raw.execute("INSERT INTO queues (name, paused) VALUES ('default', true)")  # past the queue, which would know
    queue.alarm = no_alarm
    verbs = Verbs(queue, "version", "claim_late")
    dispatcher = Dispatcher(queue, Hands(held=False), poll_ms=5)
    async with running(dispatcher):
        await until(lambda: verbs.calls["version"] >= 100)
        assert verbs.calls["claim_late"] < 20
        assert dispatcher.health().ok


async def test_slots_held_back_by_unanswered_reports_are_refilled_when_the_store_works_again__kind_9(queue):
    """Claims work while finishes fail: the dispatcher claims no more than a second set, and then goes on."""
    await fill(queue, 40)
    verbs = Verbs(queue, "finish_late")
    verbs.fail("finish_late", StoreBusy("busy"))
    hands = Hands(held=False)
    dispatcher = Dispatcher(queue, hands, concurrency=4, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: len(hands.ended) >= 8)
        await until(lambda: verbs.calls["finish_late"] >= 4)
        assert len(hands.started) <= 9  # a full set of reports and one send beyond each slot at most
        assert not dispatcher.health().ok
        verbs.heal()
        await until(lambda: dispatcher.counts.done == 40)
    assert max(hands.starts.values()) == 1


async def test_slots_are_made_as_they_are_needed_and_no_more_than_there_are(queue):
    tasks: list[int] = []

    async def carry_out(_job):
        tasks.append(sum("serve_slot" in task.get_name() for task in asyncio.all_tasks()))
        return True

    await fill(queue, 3)
    await drained(Dispatcher(queue, carry_out, concurrency=5_000))
    assert max(tasks) <= 3
    await fill(queue, 9, "k")
    tasks.clear()
    await drained(Dispatcher(queue, carry_out, concurrency=4))
    assert max(tasks) == 4
