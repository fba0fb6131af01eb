"""The helpers for our users' tests: drain, inline mode, assert_enqueued."""

import pytest

from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import AsyncQueueError, Permanent, Retryable
from asyncqueue.job import Effect, NewJob
from asyncqueue.lifecycle import Status
from asyncqueue.retry import RetryPolicy
from asyncqueue.testing import Drained, assert_enqueued, drain, inline


async def fill(target, *ids, **fields):
    await target.enqueue_many([NewJob(job_id, 1, **fields) for job_id in ids])


async def accepts(_job):
    return True


async def status_of(queue, job_id="a"):
    return (await queue.get(job_id)).status


# --- drain -------------------------------------------------------------------------------------------


async def test_drain_runs_everything_due_in_order_and_counts_it(asyncqueue_queue, asyncqueue_clock):
    await fill(asyncqueue_queue, "a", "b")
    await fill(asyncqueue_queue, "later", delay_ms=500)
    await fill(asyncqueue_queue, "first", priority=1)
    seen = []

    async def handler(job):
        seen.append(job.id)
        return True

    assert await drain(asyncqueue_queue, handler) == Drained(done=3)
    assert seen == ["first", "a", "b"]
    assert await drain(asyncqueue_queue, handler) == Drained()
    asyncqueue_clock.advance(500)
    assert (await drain(asyncqueue_queue, handler)).ran == 1
    assert seen[-1] == "later"


async def test_drain_tells_how_each_attempt_ended_and_what_was_raised(asyncqueue_queue):
    errors = {"retried": Retryable("busy"), "dead": Permanent("gone"), "left": ZeroDivisionError("oops")}
    await fill(asyncqueue_queue, "done", *errors, "not-true")

    async def handler(job):
        if job.id in errors:
            raise errors[job.id]
        return True if job.id == "done" else "yes"

    drained = await drain(asyncqueue_queue, handler)
    assert drained == Drained(done=1, retried=1, dead=1, left=2, errors=tuple(errors.values()))
    assert drained.ran == 5
    found = {job.id: (job.status, job.last_error) for job in await asyncqueue_queue.list()}
    assert found == {
        "done": (Status.DONE, None),
        "retried": (Status.PENDING, "busy"),
        "dead": (Status.DEAD, "gone"),
        "left": (Status.LEASED, "ZeroDivisionError: oops"),
        "not-true": (Status.LEASED, "the handler returned 'yes', not True"),
    }
    assert [row.detail for row in await asyncqueue_queue.history("left")] == ["ZeroDivisionError: oops"]


async def test_retry_waits_for_the_whole_backoff_and_is_run_once_the_clock_says_so(
    asyncqueue_queue, asyncqueue_clock
):
    await fill(asyncqueue_queue, "a")
    attempts = []

    def handler(job):
        attempts.append(job.attempt)
        if job.attempt < 3:
            raise Retryable("not yet")
        return True

    policy = RetryPolicy(base_ms=100, cap_ms=1_000)
    for pause_ms in (100, 200):
        assert (await drain(asyncqueue_queue, handler, policy=policy)).retried == 1
        asyncqueue_clock.advance(pause_ms - 1)
        assert (await drain(asyncqueue_queue, handler, policy=policy)).ran == 0
        asyncqueue_clock.advance(1)
    assert (await drain(asyncqueue_queue, handler, policy=policy)).done == 1
    assert attempts == [1, 2, 3]


async def test_drain_by_kind_leaves_jobs_of_other_kinds_alone(asyncqueue_queue):
    await fill(asyncqueue_queue, "m", kind="mail")
    await fill(asyncqueue_queue, "f", kind="fax")
    await fill(asyncqueue_queue, "x", kind="unknown")
    seen = {}
    drained = await drain(
        asyncqueue_queue,
        {
            "mail": lambda job: seen.setdefault("mail", job.id) == job.id,
            "fax": lambda job: seen.setdefault("fax", job.id) == job.id,
        },
    )
    assert drained == Drained(done=2)
    assert seen == {"mail": "m", "fax": "f"}
    assert await status_of(asyncqueue_queue, "x") is Status.PENDING


async def test_drain_runs_what_handlers_enqueue_and_stops_one_that_feeds_itself(asyncqueue_queue):
    await fill(asyncqueue_queue, "n0")

    async def grows(job):
        n = int(job.id[1:])
        if n < 5:
            await asyncqueue_queue.enqueue(f"n{n + 1}", 1)
        return True

    assert await drain(asyncqueue_queue, grows) == Drained(done=6)

    async def never_ends(job):
        await asyncqueue_queue.enqueue(f"e{int(job.id[1:]) + 1}", 1)
        return True

    await fill(asyncqueue_queue, "e0")
    with pytest.raises(AsyncQueueError, match="10 attempts"):
        await drain(asyncqueue_queue, never_ends, limit=10)
    assert await status_of(asyncqueue_queue, "e10") is Status.PENDING


async def test_drain_commits_effects_and_retries_those_that_fail(asyncqueue_queue, asyncqueue_clock):
    await fill(asyncqueue_queue, "a")
    ran = []

    async def work(connection):
        await connection.execute_fetchall("SELECT 1")
        ran.append(1)
        if len(ran) == 1:
            raise RuntimeError("locked account")

    drained = await drain(asyncqueue_queue, lambda job: Effect(work))
    assert (drained.retried, [str(error) for error in drained.errors]) == (1, ["locked account"])
    assert "locked account" in (await asyncqueue_queue.get("a")).last_error
    asyncqueue_clock.advance(1_000)
    assert await drain(asyncqueue_queue, lambda job: Effect(work)) == Drained(done=1)


async def test_drain_can_raise_the_first_error_once_its_job_is_settled(asyncqueue_queue):
    await fill(asyncqueue_queue, "a", "b")

    async def handler(_job):
        raise Permanent("gone")

    with pytest.raises(Permanent, match="gone"):
        await drain(asyncqueue_queue, handler, raises=True)
    assert await status_of(asyncqueue_queue, "a") is Status.DEAD
    assert await status_of(asyncqueue_queue, "b") is Status.PENDING


async def test_drain_ignores_paused_queues_and_takes_only_those_named(asyncqueue_queue):
    for name in ("held", "x", "y"):
        await fill(asyncqueue_queue, name, queue=name)
    await asyncqueue_queue.pause("held")
    assert await drain(asyncqueue_queue, accepts, queues=["x", "held"]) == Drained(done=1)
    assert await drain(asyncqueue_queue, accepts) == Drained(done=1)
    assert await status_of(asyncqueue_queue, "held") is Status.PENDING


async def test_drain_counts_a_lease_that_its_handler_outlived_as_stale(asyncqueue_queue, asyncqueue_clock):
    await fill(asyncqueue_queue, "a")

    async def slow(_job):
        if not (await asyncqueue_queue.get("a")).token > 1:
            asyncqueue_clock.advance(30_000)
        return True

    assert await drain(asyncqueue_queue, slow) == Drained(done=1, stale=1)


async def test_drain_sends_over_http_and_closes_the_sender(
    asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver
):
    await fill(asyncqueue_queue, "a", payload='{"x":1}')
    sender = HttpSender(asyncqueue_receiver.url, clock=asyncqueue_clock)
    assert await drain(asyncqueue_queue, sender) == Drained(done=1)
    assert [(seen.id, seen.payload) for seen in asyncqueue_receiver.requests] == [("a", {"x": 1})]
    await fill(asyncqueue_queue, "b")
    assert await drain(asyncqueue_queue, sender) == Drained(done=1)


# --- inline ------------------------------------------------------------------------------------------


async def test_inline_mode_runs_the_handler_before_enqueue_returns(asyncqueue_queue):
    seen = []

    async def handler(job):
        seen.append(job.id)
        return True

    with inline(asyncqueue_queue, handler) as queue:
        assert await queue.enqueue("a", 1) is True
        assert seen == ["a"]
        assert await queue.enqueue_many([NewJob("b", 1), NewJob("c", 1), NewJob("a", 1)]) == [True, True, False]
        assert seen == ["a", "b", "c"]
        assert await queue.enqueue("later", 1, delay_ms=5)
        assert await status_of(queue, "later") is Status.PENDING
    assert await asyncqueue_queue.enqueue("after", 1)
    assert seen == ["a", "b", "c"]


async def test_inline_mode_raises_the_handlers_error_to_who_enqueued_unless_told_not_to(asyncqueue_queue):
    async def handler(_job):
        raise ZeroDivisionError("oops")

    with inline(asyncqueue_queue, handler), pytest.raises(ZeroDivisionError, match="oops"):
        await asyncqueue_queue.enqueue("a", 1)
    with inline(asyncqueue_queue, handler, raises=False):
        assert await asyncqueue_queue.enqueue("b", 1) is True
    assert await status_of(asyncqueue_queue, "b") is Status.LEASED


async def test_inline_mode_runs_what_a_handler_enqueues_at_once_too(asyncqueue_queue):
    order = []

    async def handler(job):
        order.append(f"{job.id} begins")
        if job.id == "outer":
            await asyncqueue_queue.enqueue("inner", 1)
        order.append(f"{job.id} ends")
        return True

    with inline(asyncqueue_queue, handler):
        await asyncqueue_queue.enqueue("outer", 1)
    assert order == ["outer begins", "inner begins", "inner ends", "outer ends"]


# --- assert_enqueued ---------------------------------------------------------------------------------


async def test_assert_enqueued_returns_the_jobs_that_meet_every_condition(asyncqueue_queue):
    await asyncqueue_queue.enqueue("a", 1, kind="mail", payload={"to": "x"}, queue="q")
    await asyncqueue_queue.enqueue("b", 2, kind="mail")
    await drain(asyncqueue_queue, accepts)
    assert [job.id for job in await assert_enqueued(asyncqueue_queue, kind="mail")] == ["a", "b"]
    assert [job.id for job in await assert_enqueued(asyncqueue_queue, payload={"to": "x"}, queue="q")] == ["a"]
    assert [job.id for job in await assert_enqueued(asyncqueue_queue, payload=None, status="done")] == ["b"]
    assert await assert_enqueued(asyncqueue_queue, id="c", count=0) == []
    assert len(await assert_enqueued(asyncqueue_queue, count=2)) == 2


@pytest.mark.parametrize(
    ("stored", "asked", "is_same"),
    [({"b": 1, "a": 2}, {"a": 2, "b": 1}, True), (1, 1.0, False), (1, True, False), ("", None, False)],
)
async def test_assert_enqueued_compares_payloads_as_json(asyncqueue_queue, stored, asked, is_same):
    await asyncqueue_queue.enqueue("a", 1, payload=stored)
    assert len(await assert_enqueued(asyncqueue_queue, payload=asked, count=int(is_same))) == is_same


async def test_failure_of_assert_enqueued_lists_what_is_there_and_what_differs(asyncqueue_queue):
    await asyncqueue_queue.enqueue("order-1", 1, kind="fax", payload={"to": "x"})
    await asyncqueue_queue.enqueue("order-2", 3, kind="mail", payload="\x1b[31m")
    with pytest.raises(AssertionError) as raised:
        await assert_enqueued(asyncqueue_queue, kind="mail", payload={"to": "x"}, qty=1, count=2)
    assert str(raised.value).splitlines() == [
        "expected 2 enqueued with qty=1, kind='mail', payload={'to': 'x'}; 0 of 2 jobs meet that",
        '  order-1 qty=1 queue=default kind=fax status=pending payload={"to": "x"}  <- differs in kind',
        '  order-2 qty=3 queue=default kind=mail status=pending payload="\\u001b[31m"  <- differs in qty, payload',
    ]


async def test_failure_of_assert_enqueued_says_that_the_queue_is_empty_or_how_much_it_left_out(asyncqueue_queue):
    with pytest.raises(AssertionError, match="the queue is empty"):
        await assert_enqueued(asyncqueue_queue)
    await fill(asyncqueue_queue, *(f"j{n}" for n in range(1_030)))
    with pytest.raises(AssertionError, match="… and 1010 more") as raised:
        await assert_enqueued(asyncqueue_queue, id="j7", count=2)
    lines = str(raised.value).splitlines()
    assert len(lines) == 22
    assert lines[1].startswith("  j7 ")
    assert lines[1].endswith("<- meets it")
