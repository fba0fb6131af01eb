"""Stopping: soft, hard, at any moment; and what it leaves behind."""

import asyncio
import random
import threading

import anyio
import pytest
from dispatch_support import OK, Hands, Log, Outage, Scripted, fill, passes, until

from asyncqueue.dispatcher import Dispatcher, run
from asyncqueue.dispatcher.lane import Ended
from asyncqueue.errors import StoreBusy
from asyncqueue.events import Stopped, Stopping
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

STOPS_S = 5


async def stopped(task: asyncio.Task, seconds: float = STOPS_S) -> None:
    with anyio.fail_after(seconds):
        await task


async def test_sends_that_end_within_the_grace_period_are_reported(queue):
    await fill(queue, 8)
    log, hands = Log(), Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=4, events=log.events)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: hands.running == 4)
    dispatcher.stop("enough")
    dispatcher.stop("again")
    await until(lambda: log.of(Stopping))
    await passes(dispatcher, "report")
    assert not task.done()
    hands.open.set()
    await stopped(task)
    assert dispatcher.counts.done == 4
    assert len(hands.started) == 4
    stats = await queue.stats()
    assert (stats.done, stats.pending, stats.leased) == (4, 4, 0)
    assert [(event.why, event.in_flight) for event in log.of(Stopping)] == [("enough", 4)]
    assert [event.done for event in log.of(Stopped)] == [4]
    assert not dispatcher.health().ok


@pytest.mark.parametrize("grace_ms", [0, 100])
async def test_sends_beyond_the_grace_period_are_cut_and_reported_retry(queue, grace_ms):
    await fill(queue, 6)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=4, grace_ms=grace_ms)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: hands.running == 4)
    dispatcher.stop()
    await stopped(task)
    assert len(hands.cancelled) == 4
    jobs = await queue.list()
    assert {job.status for job in jobs} == {Status.PENDING}
    assert [job.attempts for job in jobs] == [1, 1, 1, 1, 0, 0]
    assert "stopped while the job was in flight" in jobs[0].last_error
    assert dispatcher.counts.retried == 4


async def test_a_claim_that_commits_while_stopping_is_given_back_with_its_attempt(queue):
    await fill(queue, 4)
    committed, go_on = asyncio.Event(), asyncio.Event()
    claim = queue.claim_late

    async def slow_claim(*args, **named):
        jobs = await claim(*args, **named)
        committed.set()
        await go_on.wait()
        return jobs

    queue.claim_late = slow_claim
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, poll_ms=60_000)
    task = asyncio.create_task(dispatcher.run())
    await until(committed.is_set)
    dispatcher.stop()
    await until(lambda: dispatcher._claim.stopped)
    await passes(dispatcher, "report")
    assert not task.done()
    go_on.set()
    await stopped(task)
    assert not hands.started
    assert dispatcher.counts.released == 4
    jobs = await queue.list()
    assert [(job.status, job.attempts, job.token) for job in jobs] == [(Status.PENDING, 0, 1)] * 4


async def test_leases_that_were_not_begun_are_given_back_with_their_attempt(queue):
    await fill(queue, 4)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands)
    take = dispatcher._flight.take

    def take_and_stop(jobs, asked_at):
        deliveries = take(jobs, asked_at)
        dispatcher.stop()
        for delivery in deliveries:  # as if the stop came before the slots could take them
            delivery.end(Ended.STOPPED)
        return deliveries

    dispatcher._flight.take = take_and_stop
    task = asyncio.create_task(dispatcher.run())
    await stopped(task)
    assert not hands.started
    assert {(job.status, job.attempts) for job in await queue.list()} == {(Status.PENDING, 0)}


async def test_a_stop_before_the_run_claims_nothing(queue):
    await fill(queue, 2)
    dispatcher = Dispatcher(queue, Hands())
    dispatcher.stop()
    await stopped(asyncio.create_task(dispatcher.run()))
    assert dispatcher.counts.claimed == 0
    assert (await queue.stats()).pending == 2


async def test_an_idle_dispatcher_stops_at_once_whatever_the_poll_is(queue):
    for _ in range(20):
        dispatcher = Dispatcher(queue, Hands(), poll_ms=60_000, grace_ms=60_000)
        task = asyncio.create_task(dispatcher.run())
        for _ in range(random.randrange(12)):
            await asyncio.sleep(0)
        dispatcher.stop()
        await stopped(task, 2)


async def test_abort_leaves_at_once_and_the_leases_run_out_by_themselves(queue):
    await fill(queue, 3)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, grace_ms=60_000)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: hands.running == 3)
    dispatcher.stop()
    await until(lambda: dispatcher._claim.stopped)
    dispatcher.abort()
    await stopped(task, 1)
    assert len(hands.cancelled) == 3
    assert (await queue.stats()).leased == 3
    dispatcher.abort()


async def test_an_abort_before_the_run_claims_nothing(queue):
    await fill(queue, 1)
    dispatcher = Dispatcher(queue, Hands())
    dispatcher.abort()
    await stopped(asyncio.create_task(dispatcher.run()))
    assert dispatcher.counts.claimed == 0


async def test_the_exit_is_bounded_although_the_store_is_away(queue, monkeypatch):
    monkeypatch.setattr(run, "_REPORT_GRACE_S", 0.3)
    await fill(queue, 3)
    outage = Outage(queue)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, grace_ms=200)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: hands.running == 3)
    outage.error = StoreBusy("busy")
    dispatcher.stop()
    await stopped(task, 2)
    outage.error = None
    assert (await queue.stats()).leased == 3


async def test_the_exit_is_bounded_although_another_writer_holds_the_database(path, raw, monkeypatch):
    monkeypatch.setattr(run, "_REPORT_GRACE_S", 0.3)
    loop = asyncio.get_running_loop()
    async with Queue.open(path, patience_ms=500) as queue:
        await fill(queue, 3)
        hands = Hands()
        dispatcher = Dispatcher(queue, hands, grace_ms=100)
        task = asyncio.create_task(dispatcher.run())
        await until(lambda: hands.running == 3)
        with raw.held():
            began = loop.time()
            dispatcher.stop()
            await stopped(task, 3)
    assert loop.time() - began < 3


async def test_a_handler_that_ignores_its_cancellation_for_a_while_delays_the_exit_by_no_more(queue):
    begun, cancelled, gives_in = [], set(), asyncio.Event()

    async def deliver(job):
        begun.append(job.id)
        while not gives_in.is_set():
            try:
                await gives_in.wait()
            except asyncio.CancelledError:
                cancelled.add(job.id)
        return True

    await fill(queue, 2)
    dispatcher = Dispatcher(queue, deliver, grace_ms=0)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: len(begun) == 2)
    dispatcher.stop()
    await until(lambda: len(cancelled) == 2)
    assert not task.done()
    gives_in.set()
    await stopped(task, 3)
    assert dispatcher.counts.done == 2  # it was acknowledged after all, within its lease


async def test_an_interrupted_handler_that_shields_its_work_is_waited_for(queue):
    begun, ready = [], asyncio.Event()

    async def deliver(job):
        with anyio.CancelScope(shield=True):
            begun.append(job.id)
            await ready.wait()
        return True

    await fill(queue, 2)
    dispatcher = Dispatcher(queue, deliver, grace_ms=0)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: len(begun) == 2)
    dispatcher.stop()
    await until(lambda: all(delivery.ended for delivery in dispatcher._flight.held))
    await passes(dispatcher, "report")
    assert not task.done()
    ready.set()
    await stopped(task)
    assert dispatcher.counts.done + dispatcher.counts.retried == 2
    assert (await queue.stats()).leased == 0


async def _cancelled_after(queue, steps: int, how: str) -> None:
    dispatcher = Dispatcher(queue, Scripted(), concurrency=4, poll_ms=1)

    async def wait_steps():
        for _ in range(steps):
            await asyncio.sleep(0)

    if how == "task":
        task = asyncio.create_task(dispatcher.run())
        await wait_steps()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
    else:
        with anyio.fail_after(STOPS_S):
            async with anyio.create_task_group() as group:
                group.start_soon(dispatcher.run)
                await wait_steps()
                group.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_a_run_cancelled_at_any_await_leaves_no_thread_and_no_transaction__kind_29(path, raw, how):
    before = set(threading.enumerate())
    async with Queue.open(path) as queue:
        await fill(queue, 2_000)
        for steps in range(0, 200, 2):
            await _cancelled_after(queue, steps, how)
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in left:
        thread.join(5)
    assert not any(thread.is_alive() for thread in left)
    raw.write_at_once()
    statuses = dict(raw.select("SELECT status, count(*) FROM jobs GROUP BY status"))
    held, total = statuses.get("leased", 0), sum(statuses.values())
    assert total == 2_000
    assert held <= 100 * 8
    assert {task for task in asyncio.all_tasks() if "asyncqueue" in task.get_name()} == set()


async def test_a_stop_that_lands_exactly_as_an_inner_await_completes_always_stops__kind_47_cancellation_swallowed(
    file_queue,
):
    """2,000 tries: the stop comes with the answer of a send, a claim or a report, whichever is `steps` later."""

    class Stopper:
        def __init__(self, dispatcher_box, steps):
            self.box, self.steps = dispatcher_box, steps

        async def send(self, job):
            loop = asyncio.get_running_loop()
            done = loop.create_future()

            def land():
                if not done.done():
                    done.set_result(None)
                if self.steps == 0:
                    self.box[0].stop()
                self.steps -= 1

            loop.call_soon(land)
            await done
            return OK

    queue, chance = file_queue, random.Random(47)  # what is tested is who wakes whom, not the store
    await fill(queue, 10_000)
    with anyio.fail_after(50):
        for attempt in range(2_000):
            box: list[Dispatcher] = []
            sender = Scripted() if attempt % 2 else Stopper(box, chance.randrange(4))
            dispatcher = Dispatcher(queue, sender, concurrency=2, grace_ms=chance.choice([0, 0, 1_000]))
            box.append(dispatcher)
            task = asyncio.create_task(dispatcher.run())
            if attempt % 2:
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                dispatcher.stop()
            await stopped(task)
    stats = await queue.stats()
    assert stats.leased == 0
    assert stats.total == 10_000
    assert stats.dead == 0


async def test_a_claim_that_waits_for_its_turn_when_the_stop_comes_claims_nothing(queue):
    await fill(queue, 4)
    asked, go_on = asyncio.Event(), asyncio.Event()
    write = queue._store.write

    async def held(work, **options):
        asked.set()
        await go_on.wait()
        return await write(work, **options)

    queue._store.write = held
    dispatcher = Dispatcher(queue, Hands(), poll_ms=60_000)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: asked.is_set() and dispatcher._claim.under_way)
    dispatcher.stop()
    await until(lambda: dispatcher._claim.stopped)
    go_on.set()
    await stopped(task)
    assert (dispatcher.counts.claimed, dispatcher.counts.released) == (0, 0)
    assert {(job.status, job.token) for job in await queue.list()} == {(Status.PENDING, 0)}
