"""Plain functions in threads: bounded, fenced, waited for, and never in the loop's way."""

import asyncio
import threading
import time

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest
from dispatch_support import drained, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher, in_thread
from asyncqueue.dispatcher.handle import _ThreadCall
from asyncqueue.errors import ConfigError, Permanent, Retryable
from asyncqueue.job import Effect
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy

QUICK = RetryPolicy(base_ms=1, cap_ms=1)


class Work:
    """A plain function whose calls return when told to, at the latest when the test ends."""

    def __init__(self):
        self.started = []
        self.ended = []
        self.running = self.most = 0
        self.open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, job):
        with self._lock:
            self.started.append(job)
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.open.wait(20)
        with self._lock:
            self.running -= 1
            self.ended.append(job.id)
        return True


@pytest.fixture
def work():
    one = Work()
    yield one
    one.open.set()


async def test_a_plain_function_runs_beside_the_loop_and_acknowledges(queue):
    threads = set()

    def function(job):
        threads.add(threading.get_ident())
        return True

    await fill(queue, 5)
    dispatcher = Dispatcher(queue, in_thread(function))
    await drained(dispatcher)
    assert dispatcher.counts.done == 5
    assert threading.get_ident() not in threads


async def test_functions_that_block_cost_no_lease__kind_49_blocking_code_stops_heartbeats(queue):
    await fill(queue, 4)
    hands = Work()
    dispatcher = Dispatcher(queue, in_thread(hands), lease_ms=1_200)
    loop = asyncio.get_running_loop()
    async with running(dispatcher):
        await until(lambda: hands.running == 4)
        began_at = loop.time()
        await until(lambda: loop.time() - began_at > 3)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 4)
    assert dispatcher.counts.claimed == 4


async def test_as_many_run_at_once_as_the_concurrency_says_also_beyond_forty(queue):
    barrier = threading.Barrier(64)

    def function(job):
        barrier.wait(20)
        return True

    await fill(queue, 128)
    dispatcher = Dispatcher(queue, in_thread(function), concurrency=64)
    await drained(dispatcher)
    assert dispatcher.counts.done == 128


async def test_no_more_run_at_once_than_the_concurrency_says(queue, work):
    await fill(queue, 9)
    handler = in_thread(work)
    dispatcher = Dispatcher(queue, {"job": handler, "more": handler}, concurrency=3)
    await fill(queue, 9, "more", kind="more")
    async with running(dispatcher):
        await until(lambda: work.running == 3)
        work.open.set()
        await until(lambda: dispatcher.counts.done == 18)
    assert work.most == 3


async def test_a_function_classifies_as_an_async_handler_does(queue):
    def function(job):
        if job.id == "again" and job.attempt == 1:
            raise Retryable("not yet")
        if job.id == "never":
            raise Permanent("no such order")
        if job.id == "effect":
            return Effect(lambda connection: connection.execute("CREATE TABLE mine (id INTEGER)"))
        if job.id == "bad":
            return 1
        if job.id == "stop":
            raise StopIteration
        return True

    for job_id in ("again", "never", "effect", "bad", "stop"):
        await queue.enqueue(job_id, 1)
    dispatcher = Dispatcher(queue, in_thread(function), policy=QUICK)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 2 and dispatcher.counts.left == 2)
    assert (await queue.get("never")).reason is Reason.PERMANENT
    statuses = {job.id: job.status for job in await queue.list()}
    assert [statuses[job_id] for job_id in ("again", "effect")] == [Status.DONE] * 2
    assert [statuses[job_id] for job_id in ("bad", "stop")] == [Status.LEASED] * 2


async def test_a_function_that_exits_costs_one_attempt_not_the_process(queue):
    def function(job):
        if job.id == "exits":
            raise SystemExit(3)
        return True

    await queue.enqueue("exits", 1)
    await queue.enqueue("next", 1)
    dispatcher = Dispatcher(queue, in_thread(function), concurrency=1)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 1 and dispatcher.counts.left == 1)
    assert "the handler called sys.exit(3)" in (await queue.get("exits")).last_error


async def test_the_late_outcome_of_a_thread_is_discarded_and_it_is_told__kind_4_lease_lost_but_work_goes_on(
    path, work
):
    clock = ManualClock()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, in_thread(work), lease_ms=600, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: work.running == 1)
            clock.advance(601)
            (theirs,) = await queue.claim("other", lease_ms=60_000)
            await until(lambda: dispatcher.counts.lost == 1)
            assert work.running == 1  # it cannot be stopped
            assert work.started[0].lost.is_set()  # but it can ask
            before = await queue.get("job-00000")
            work.open.set()
            await until(lambda: work.ended)
            await queue.enqueue("after", 1)
            await until(lambda: dispatcher.counts.done == 1)
            assert await queue.get("job-00000") == before
            assert await queue.finish(theirs, "ok") is Status.DONE
    assert dispatcher.counts.stale == 0


async def test_an_abandoned_thread_keeps_its_place_until_it_returns__kind_4_lease_lost_but_work_goes_on(
    path, work
):
    clock = ManualClock()
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, in_thread(work), concurrency=1, lease_ms=60_000, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: work.running == 1)
            assert await queue.cancel("job-00000")
            assert not await work.started[0].renew()
            await until(lambda: dispatcher.counts.lost == 1)
            await queue.enqueue("next", 1)
            await until(lambda: dispatcher.in_flight == 1)
            assert len(work.started) == 1
            work.open.set()
            await until(lambda: dispatcher.counts.done == 1)
    assert work.most == 1
    assert [job.id for job in work.started] == ["job-00000", "next"]


async def test_a_function_that_waits_for_its_place_never_begins_after_its_lease_was_lost(path, work):
    async with Queue.open(path) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, in_thread(work), concurrency=1, lease_ms=900, poll_ms=60_000)
        async with running(dispatcher):
            await until(lambda: work.running == 1)
            assert await queue.cancel("job-00000")
            await until(lambda: dispatcher.counts.lost == 1)
            await queue.enqueue("next", 1)
            await until(lambda: dispatcher.in_flight == 1)
            assert await queue.cancel("next")
            await until(lambda: dispatcher.counts.lost == 2)
            work.open.set()
            await queue.enqueue("last", 1)
            await until(lambda: dispatcher.counts.done == 1)
    assert [job.id for job in work.started] == ["job-00000", "last"]


async def test_a_stop_waits_for_threads_within_the_grace_period(queue, work):
    await fill(queue, 2)
    dispatcher = Dispatcher(queue, in_thread(work))
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: work.running == 2)
    dispatcher.stop()
    await until(lambda: dispatcher._claim.stopped)
    assert not task.done()
    work.open.set()
    with anyio.fail_after(5):
        await task
    assert dispatcher.counts.done == 2


async def test_a_stop_leaves_threads_behind_after_the_grace_period_and_reports_their_jobs(queue, work):
    await fill(queue, 2)
    dispatcher = Dispatcher(queue, in_thread(work), grace_ms=50)
    task = asyncio.create_task(dispatcher.run())
    await until(lambda: work.running == 2)
    dispatcher.stop()
    with anyio.fail_after(5):
        await task
    assert work.running == 2
    assert all(job.lost.is_set() for job in work.started)
    assert {(job.status, job.attempts) for job in await queue.list()} == {(Status.PENDING, 1)}
    work.open.set()
    await until(lambda: len(work.ended) == 2)
    assert (await queue.stats()).done == 0


async def test_a_thread_may_renew_its_lease_through_the_loop(path):
    clock = ManualClock()
    answers = []

    def function(job):
        answers.append((anyio.from_thread.run(job.renew), job.remaining_ms > 0))
        return True

    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, in_thread(function), lease_ms=60_000)
        await drained(dispatcher)
    assert answers == [(True, True)]


async def test_an_async_function_is_refused_where_a_plain_one_is_meant():
    async def deliver(job):
        return True

    for wrong in (deliver, None, 7):
        with pytest.raises(ConfigError, match="plain function"):
            in_thread(wrong)


async def test_a_plain_function_given_as_a_handler_is_not_an_acknowledgement_and_the_history_says_why(queue):
    def deliver(job):
        return True

    (job_id,) = await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.left == 1)
    assert (await queue.get(job_id)).status is Status.LEASED
    (row,) = await queue.history(job_id)
    assert "in_thread" in row.detail


async def test_a_thread_that_ends_after_its_loop_breaks_nothing(path, work):
    """As a process that is stopped while a function hangs: the loop is closed before the function returns."""

    def run_and_leave():
        async def leave():
            async with Queue.open(path) as queue:
                await fill(queue, 1)
                dispatcher = Dispatcher(queue, in_thread(work), grace_ms=0)
                async with running(dispatcher):
                    await until(lambda: work.running == 1)

        asyncio.run(leave())

    await asyncio.to_thread(run_and_leave)
    assert work.running == 1
    before = time.monotonic()
    work.open.set()
    await until(lambda: work.ended)
    assert time.monotonic() - before < 5


async def test_a_call_that_was_forgone_before_its_thread_took_it_never_runs_and_frees_its_place_once(queue):
    """The lease is lost between the hand-over to a thread and the thread's first step."""
    ran, calls = [], []

    async def deliver(job):
        call = _ThreadCall(ran.append, job)
        calls.append(call)
        await call.threads.acquire_on_behalf_of(call)
        call.forgo()
        call.forgo()
        await anyio.to_thread.run_sync(call)
        return True

    await fill(queue, 2)
    dispatcher = Dispatcher(queue, deliver, concurrency=1)
    await drained(dispatcher)
    assert ran == []
    assert dispatcher.counts.done == 2
    assert calls[0].threads.borrowed_tokens == 0
