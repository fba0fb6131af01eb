"""What a handler or sender may do, and what becomes of its job and of the others."""

import asyncio
import gc
import logging

import anyio
import pytest
from dispatch_support import OK, Hands, Log, Scripted, Verbs, drained, fill, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import BadAck, Permanent, Retryable
from asyncqueue.events import ChoreFailed, Settled
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.queue import Queue
from asyncqueue.retry import Outcome, RetryPolicy, Verdict

QUICK = RetryPolicy(base_ms=1, cap_ms=1)


class Silent(Exception):
    """An error that cannot even say what it is."""

    def __str__(self):
        raise RuntimeError("no words")


class SilentRetryable(Retryable):
    def __str__(self):
        raise RuntimeError("no words")


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("no words")


async def test_an_exact_true_acknowledges(queue):
    async def deliver(job):
        return True

    (job_id,) = await fill(queue, 1)
    dispatcher = Dispatcher(queue, deliver)
    await drained(dispatcher)
    assert (await queue.get(job_id)).status is Status.DONE
    assert dispatcher.counts.done == 1


@pytest.mark.parametrize(
    "answer",
    [None, 1, "ok", False, [True], b"true", 1.0, Unspeakable(), OK],
    ids=lambda value: type(value).__name__,
)
async def test_nothing_but_true_acknowledges_and_the_lease_is_left_to_run_out(queue, answer):
    async def deliver(job):
        return answer

    (job_id,) = await fill(queue, 1)
    log = Log()
    async with running(Dispatcher(queue, deliver, events=log.events)):
        await until(lambda: log.of(Settled))
        job = await queue.get(job_id)
        assert job.status is Status.LEASED
    (settled,) = log.of(Settled)
    assert settled.verdict == "leave"
    assert settled.status is None
    assert settled.error
    assert (await queue.get(job_id)).status is Status.LEASED  # stopping does not give it back either


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom"),
        BadAck("echo differs"),
        ExceptionGroup("many", [OSError(1, "x")]),
        TimeoutError(),
        Silent(),
        SilentRetryable(),
        asyncio.CancelledError(),
        StopAsyncIteration(),
        RecursionError("deep"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_unknown_error_is_logged_and_left_to_the_lease_and_costs_no_slot__kind_18(queue, error, caplog):
    async def deliver(job):
        if job.id == "bad":
            raise error
        return True

    await queue.enqueue("bad", 1)
    await fill(queue, 5)
    log = Log()
    dispatcher = Dispatcher(queue, deliver, concurrency=1, events=log.events)
    with caplog.at_level(logging.ERROR, "asyncqueue"):
        async with running(dispatcher):
            await until(lambda: dispatcher.counts.done == 5)
            assert dispatcher.in_flight == 0
    assert (await queue.get("bad")).status is Status.LEASED
    assert [event.verdict for event in log.of(Settled)] == ["leave"] + ["ok"] * 5
    assert not log.of(ChoreFailed)
    assert any("job bad, token 1" in record.getMessage() for record in caplog.records)


async def test_a_slot_survives_lapses_and_cancellations_from_within_in_any_order__kind_49(queue):
    async def deliver(job):
        if job.kind == "inner":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        if job.kind == "hang":
            await anyio.sleep_forever()
        return True

    for number in range(3):
        await queue.enqueue(f"inner-{number}", 1, kind="inner")
        await queue.enqueue(f"hang-{number}", 1, kind="hang", ttl_ms=300 + number * 100)
        await queue.enqueue(f"good-{number}", 1)
    dispatcher = Dispatcher(queue, deliver, concurrency=1, lease_ms=5_000, poll_ms=5)
    async with running(dispatcher):
        dispatcher._lanes[0].rest.note = lambda outcome: None  # three wrong acks in a row would rest the endpoint
        await until(lambda: dispatcher.counts.done == 3)
        await until(lambda: dispatcher.in_flight == 0)
    assert {(await queue.get(f"inner-{n}")).status for n in range(3)} == {Status.LEASED}


async def test_retryable_and_permanent_classify(queue):
    async def deliver(job):
        if job.id == "again" and job.attempt < 3:
            raise Retryable("not yet\x00\x1b[31m")
        if job.id == "never":
            raise Permanent("no such order")
        return True

    for job_id in ("again", "never", "fine"):
        await queue.enqueue(job_id, 1)
    dispatcher = Dispatcher(queue, deliver, policy=QUICK)
    await drained(dispatcher)
    again, never = await queue.get("again"), await queue.get("never")
    assert (again.status, again.attempts) == (Status.DONE, 3)
    assert again.last_error == r"not yet\x00\x1b[31m"
    assert (never.status, never.reason, never.last_error) == (Status.DEAD, Reason.PERMANENT, "no such order")
    counts = dispatcher.counts
    assert (counts.claimed, counts.done, counts.retried, counts.dead) == (5, 2, 2, 1)


async def test_retries_end_when_the_attempts_are_used_up(queue):
    async def deliver(job):
        raise Retryable("never")

    await queue.enqueue("job", 1, max_attempts=4)
    dispatcher = Dispatcher(queue, deliver, policy=QUICK)
    await drained(dispatcher)
    job = await queue.get("job")
    assert (job.status, job.reason, job.attempts) == (Status.DEAD, Reason.EXHAUSTED, 4)
    assert (dispatcher.counts.retried, dispatcher.counts.dead) == (3, 1)


async def test_one_failing_delivery_never_cancels_its_siblings__kind_49_fire_and_forget(queue):
    hands = Hands()
    failed = asyncio.Event()

    async def deliver(job):
        if job.id == "bad":
            failed.set()
            raise ZeroDivisionError
        return await hands(job)

    await fill(queue, 10)
    await queue.enqueue("bad", 1, priority=-1)
    dispatcher = Dispatcher(queue, deliver)
    async with running(dispatcher):
        await until(lambda: failed.is_set() and hands.running == 10)
        await until(lambda: dispatcher.in_flight == 10)
        hands.open.set()
        await until(lambda: dispatcher.counts.done == 10)
    assert not hands.cancelled


async def test_no_task_vanishes_under_a_collector_that_never_rests__kind_49(file_queue):
    queue = file_queue  # each turn of the loop costs a collection here, so the store must take few turns
    await fill(queue, 40)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=8, lease_ms=3_000)
    verbs = Verbs(queue, "renew_many")
    async with running(dispatcher):
        await until(lambda: gc.collect() * 0 + verbs.calls["renew_many"] >= 4)
        assert hands.running == 8
        hands.open.set()
        await until(lambda: gc.collect() * 0 + dispatcher.counts.done >= 40)
    assert set(hands.starts.values()) == {1}


class FatalError(BaseException):
    """Neither an Exception nor a cancellation."""


async def test_a_base_exception_from_a_handler_ends_the_dispatcher_loudly(queue):
    hands = Hands()

    async def deliver(job):
        if job.id == "bad":
            raise FatalError
        return await hands(job)

    await fill(queue, 3)
    await queue.enqueue("bad", 1, priority=-1)
    dispatcher = Dispatcher(queue, deliver)
    with pytest.raises(BaseExceptionGroup) as caught, anyio.fail_after(10):
        await dispatcher.run()
    assert caught.group_contains(FatalError)
    assert len(hands.cancelled) == 3
    assert not dispatcher.health().ok


@pytest.mark.parametrize("answer", [None, True, "ok", 200], ids=repr)
async def test_a_sender_that_returns_no_outcome_costs_one_attempt_not_the_dispatcher__kind_10(queue, answer):
    sender = Scripted(answer)
    ids = await fill(queue, 4)
    log = Log()
    dispatcher = Dispatcher(queue, sender, concurrency=1, events=log.events)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 3)
    assert (await queue.get(ids[0])).status is Status.LEASED
    assert "not an Outcome" in log.of(Settled)[0].error


async def test_an_outcome_that_cannot_be_weighed_holds_no_other_report_up__kind_10(queue):
    class Broken(RetryPolicy):
        def delay_ms(self, attempt, jitter, retry_after_ms=None):
            raise ArithmeticError("no delay today")

    ids = await fill(queue, 4)
    sender = Scripted(Outcome(Verdict.RETRY, error="again"))
    log = Log()
    dispatcher = Dispatcher(queue, sender, concurrency=4, policy=Broken(), events=log.events)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 3)
        assert not dispatcher._flight.held
    assert not log.of(ChoreFailed)
    assert (await queue.get(ids[0])).status is Status.LEASED


@pytest.mark.parametrize("wish", [-1, 0, 10**9, 10**400, -(10**400)], ids=["-1", "0", "1e9", "huge", "-huge"])
async def test_no_wish_of_a_peer_breaks_or_outlives_the_dispatcher__kind_17_retry_after_trusted(path, wish):
    sender, log, clock = Scripted(Outcome(Verdict.RETRY, error="busy", retry_after_ms=wish)), Log(), ManualClock()
    policy = RetryPolicy(base_ms=1, cap_ms=5, retry_after_cap_ms=50)
    async with Queue.open(path, clock=clock) as queue:
        await fill(queue, 1)
        dispatcher = Dispatcher(queue, sender, policy=policy, events=log.events)
        async with running(dispatcher):
            await until(lambda: dispatcher.counts.retried == 1)
            assert dispatcher._lanes[0].rest.remaining_s() <= 60
        job = await queue.get("job-00000")
    if job.attempts == 1:
        assert 0 <= job.available_at - clock.now_ms() <= 50 + 1
    else:  # it was due at once
        assert wish <= 0
    assert not log.of(ChoreFailed)


async def test_a_subscriber_that_raises_is_dropped_and_costs_no_delivery(queue, caplog):
    log = Log()

    def broken(event):
        raise OSError("the log is full")

    log.events.subscribe(broken)
    await fill(queue, 3)
    dispatcher = Dispatcher(queue, Hands(held=False), events=log.events)
    await drained(dispatcher)
    assert dispatcher.counts.done == 3
    assert len(log.of(Settled)) == 3
    assert [record.getMessage()[:21] for record in caplog.records] == ["an event subscriber f"]


async def test_who_subscribes_after_the_dispatcher_was_made_still_hears_it(queue):
    log = Log()
    events = type(log.events)()
    dispatcher = Dispatcher(queue, Hands(held=False), events=events)
    events.subscribe(log.all.append)
    await fill(queue, 1)
    await drained(dispatcher)
    assert len(log.of(Settled)) == 1


async def test_a_subscriber_hears_how_long_an_attempt_took_to_a_tenth_of_a_millisecond(queue, monkeypatch):
    loop, log = asyncio.get_running_loop(), Log()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def deliver(job):
        nonlocal now
        now += 1.23456
        return True

    await fill(queue, 1)
    async with Dispatcher(queue, deliver, events=log.events) as dispatcher:
        await drained(dispatcher)
    assert [settled.elapsed_ms for settled in log.of(Settled)] == [1_234.6]
