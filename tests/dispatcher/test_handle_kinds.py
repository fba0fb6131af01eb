"""Handlers by kind: what is claimed, what is left for others, and that no kind holds up another one."""

import asyncio

import anyio
import pytest
from dispatch_support import OK, Hands, Log, Scripted, Verbs, drained, fill, passes, running, until

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import Dispatcher, rest
from asyncqueue.errors import ConfigError, Retryable
from asyncqueue.events import Held, Settled
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import Certainty, Outcome, RetryPolicy, Verdict

DAY_MS = 24 * 3600 * 1000
HOLD = Outcome(Verdict.HOLD, Certainty.REFUSED, "401")


async def test_jobs_go_to_the_handler_of_their_kind_and_the_other_kinds_are_left_as_they_are(queue):
    mail, scan = Hands(held=False), Hands(held=False)
    for kind in ("mail", "scan", "other", "job"):
        await fill(queue, 3, kind, kind=kind)
    dispatcher = Dispatcher(queue, {"mail": mail, "scan": scan})
    await drained(dispatcher)
    assert set(mail.starts) == {"mail-00000", "mail-00001", "mail-00002"}
    assert set(scan.starts) == {"scan-00000", "scan-00001", "scan-00002"}
    left = [job for job in await queue.list() if job.kind in ("other", "job")]
    assert [(job.status, job.attempts, job.token) for job in left] == [(Status.PENDING, 0, 0)] * 6


async def test_two_dispatchers_with_different_kinds_share_one_queue(queue):
    mail, scan = Hands(held=False), Hands(held=False)
    await fill(queue, 40, "mail", kind="mail")
    await fill(queue, 40, "scan", kind="scan")
    async with anyio.create_task_group() as group:
        group.start_soon(drained, Dispatcher(queue, {"mail": mail}, concurrency=3))
        group.start_soon(drained, Dispatcher(queue, {"scan": scan}, concurrency=3))
    assert (await queue.stats()).done == 80
    assert len(mail.starts) == len(scan.starts) == 40


@pytest.mark.parametrize("foreign", ["due", "delayed", "leased"])
async def test_a_drain_does_not_wait_for_kinds_that_are_not_ours(queue, foreign):
    await queue.enqueue("theirs", 1, kind="theirs", delay_ms=DAY_MS if foreign == "delayed" else 0)
    if foreign == "leased":
        assert await queue.claim("them", kinds=["theirs"], lease_ms=DAY_MS)
    await queue.enqueue("ours", 1, kind="ours", delay_ms=50)
    dispatcher = Dispatcher(queue, {"ours": Hands(held=False)})
    await drained(dispatcher)
    assert dispatcher.counts.done == 1
    assert (await queue.get("theirs")).status is (Status.LEASED if foreign == "leased" else Status.PENDING)


async def test_a_drain_waits_for_our_jobs_in_the_hands_of_others(queue):
    await queue.enqueue("ours", 1, kind="ours")
    (theirs,) = await queue.claim("them")
    task = asyncio.create_task(drained(Dispatcher(queue, {"ours": Hands()})))
    verbs = Verbs(queue, "next_due_ms")
    await until(lambda: verbs.calls["next_due_ms"] >= 2)
    assert not task.done()
    await queue.finish(theirs, "ok")
    await queue.enqueue("nudge", 1)
    await task
    assert (await queue.stats()).done == 1


async def test_a_backlog_of_other_kinds_makes_no_busy_loop_and_hides_no_due_time__kind_51(queue):
    await fill(queue, 50, "theirs", kind="theirs")
    hands = Hands(held=False)
    await queue.enqueue("ours", 1, kind="ours", delay_ms=400)
    verbs = Verbs(queue, "claim_late")
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher(queue, {"ours": hands}, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: verbs.calls["claim_late"] == 1)
        looked_at = loop.time()
        await until(lambda: hands.started)
        assert loop.time() - looked_at < 5
    # the first look, the due time, perhaps a millisecond early, the look after
    assert verbs.calls["claim_late"] <= 4


async def test_next_due_of_kinds_is_exact(path):
    clock = ManualClock()
    async with Queue.open(path, clock=clock) as queue:
        await queue.enqueue("theirs", 1, kind="theirs")
        assert await queue.next_due_ms() == 0
        assert await queue.next_due_ms(None, ["mail"]) is None
        await queue.enqueue("late", 1, kind="mail", delay_ms=400, queue="slow")
        await queue.enqueue("later", 1, kind="scan", delay_ms=500)
        assert await queue.next_due_ms(None, ["scan", "mail", "none"]) == 400
        assert await queue.next_due_ms(["default"], ["scan", "mail"]) == 500
        await queue.pause("slow")
        assert await queue.next_due_ms(None, ["scan", "mail"]) == 500
        clock.advance(500)
        (leased,) = await queue.claim("w", kinds=["scan"], lease_ms=7_000)
        assert await queue.next_due_ms(None, ["scan"]) == 7_000
        await queue.finish(leased, "ok")
        assert await queue.next_due_ms(None, ["scan"]) is None
        await queue.resume("slow")
        assert await queue.next_due_ms(kinds=["mail"]) == 0


async def test_kinds_that_are_well_are_claimed_together_in_the_order_of_priority(queue):
    seen = []

    async def note(job):
        seen.append(job.id)
        return True

    for number, kind in enumerate(["a", "b", "c"] * 3):
        await queue.enqueue(f"{kind}-{number}", 1, kind=kind, priority=-number)
    verbs = Verbs(queue, "claim_late")
    await drained(Dispatcher(queue, dict.fromkeys("abc", note), concurrency=1))
    assert seen == [f"{kind}-{number}" for number, kind in enumerate(["a", "b", "c"] * 3)]
    assert verbs.calls["claim_late"] <= 12


async def test_a_kind_that_hangs_keeps_to_its_bound_and_the_others_finish__kind_26_slow_consumer(queue):
    slow, good = Hands(), Hands(held=False)
    await fill(queue, 100, "slow", kind="slow", priority=1)
    await fill(queue, 100, "good", kind="good")
    dispatcher = Dispatcher(queue, {"slow": slow, "good": good}, concurrency=4, limits={"slow": 3}, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: len(good.ended) == 100)
        assert slow.running == slow.most == 3
        assert len(slow.started) == 3  # none waits in memory either
        slow.open.set()
        await until(lambda: dispatcher.counts.done == 200)
    assert slow.most == 3
    assert good.most <= 4


@pytest.mark.parametrize("kinds", [2, 5])
@pytest.mark.parametrize("concurrency", [10, 64])
async def test_kinds_that_hang_do_not_starve_one_that_works_without_any_setting__kind_26_slow_consumer(
    queue, kinds, concurrency
):
    handlers = {f"slow{n}": Hands() for n in range(kinds - 1)}
    for kind in handlers:
        await fill(queue, 100, kind, kind=kind, priority=1)
    handlers["good"] = good = Hands(held=False)
    await fill(queue, 100, "good", kind="good")
    dispatcher = Dispatcher(queue, handlers, concurrency=concurrency, poll_ms=60_000)
    async with running(dispatcher):
        await until(lambda: len(good.ended) == 100)
        kept = max(1, concurrency // 4 // kinds)
        assert dispatcher.in_flight == concurrency - kept
        for hands in handlers.values():
            hands.open.set()
        await until(lambda: dispatcher.counts.done == 100 * kinds)


async def test_a_kind_that_fails_for_ever_starves_no_other_without_any_setting__kind_26_slow_consumer(queue):
    async def failing(job):
        raise Retryable("no")

    good = Hands(held=False)
    await fill(queue, 100, "bad", kind="bad", max_attempts=10_000)
    await fill(queue, 20, "good", kind="good")
    quick = RetryPolicy(base_ms=1, cap_ms=1)
    dispatcher = Dispatcher(queue, {"bad": failing, "good": good}, concurrency=4, policy=quick)
    async with running(dispatcher):
        await until(lambda: len(good.ended) == 20 or dispatcher.counts.retried > 5_000)
    assert len(good.ended) == 20


@pytest.mark.parametrize(("where", "poll_ms"), [("here", 60_000), ("there", 1)])
async def test_job_of_a_quiet_kind_is_started_at_once_while_another_kind_hangs_in_all_its_slots(
    queue, path, where, poll_ms
):
    slow, quiet = Hands(), Hands(held=False)
    await fill(queue, 20, "slow", kind="slow")
    dispatcher = Dispatcher(queue, {"slow": slow, "quiet": quiet}, concurrency=8, poll_ms=poll_ms)
    async with running(dispatcher), Queue.open(path) as other:
        await until(lambda: slow.running == 7)
        await passes(dispatcher, "claim")  # it has seen that there is nothing of the quiet kind
        await (queue if where == "here" else other).enqueue(where, 1, kind="quiet")
        await until(lambda: quiet.ended == [where])
        assert slow.running == 7
        slow.open.set()


async def test_quiet_kind_is_not_asked_for_again_with_each_claim_of_a_busy_one(queue):
    asked = []
    claim = queue.claim_late

    async def counting(*args, kinds, **named):
        asked.append(kinds)
        return await claim(*args, kinds=kinds, **named)

    queue.claim_late = counting
    await fill(queue, 300, "busy", kind="busy")
    handlers = {"busy": Hands(held=False), "quiet": Hands(held=False)}
    await drained(Dispatcher(queue, handlers, concurrency=8, poll_ms=60_000))
    assert len([kinds for kinds in asked if "busy" in kinds]) > 10
    assert asked.count(("quiet",)) <= 2, asked


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_kind_alone_at_work_uses_all_slots_where_there_are_too_few_to_keep_any(queue, concurrency):
    busy = Hands()
    await fill(queue, 10, "busy", kind="busy")
    dispatcher = Dispatcher(queue, {"busy": busy, "quiet": Hands()}, concurrency=concurrency)
    async with running(dispatcher):
        await until(lambda: busy.running == concurrency)
        busy.open.set()
        await until(lambda: dispatcher.counts.done == 10)


async def test_a_bounded_kind_that_retries_for_ever_does_not_starve_first_tries__kind_26_slow_consumer(queue):
    async def failing(job):
        raise Retryable("no")

    good = Hands(held=False)
    await fill(queue, 100, "bad", kind="bad", max_attempts=10_000)
    await fill(queue, 100, "good", kind="good")
    dispatcher = Dispatcher(
        queue,
        {"bad": failing, "good": good},
        concurrency=2,
        limits={"bad": 1},
        policy=RetryPolicy(base_ms=1, cap_ms=1),
    )
    async with running(dispatcher):
        await until(lambda: len(good.ended) == 100 or dispatcher.counts.retried > 20_000)
    assert len(good.ended) == 100


async def test_a_kind_whose_handler_never_acknowledges_rests_alone__kind_26_slow_consumer(queue, monkeypatch):
    monkeypatch.setattr(rest, "_FIRST_PAUSE_S", 3_600)

    async def broken(job):
        return None

    good, log = Hands(held=False), Log()
    await fill(queue, 100, "bad", kind="bad", priority=1)
    dispatcher = Dispatcher(queue, {"bad": broken, "good": good}, concurrency=1, events=log.events)
    async with running(dispatcher):
        await until(lambda: log.of(Held))
        await fill(queue, 20, "good", kind="good")
        await until(lambda: len(good.ended) == 20)
        assert dispatcher.health().ok
    assert sum(event.verdict == "leave" for event in log.of(Settled)) == 3
    assert len(log.of(Held)) == 1


async def test_a_kind_is_probed_after_its_rest_although_others_never_rest(queue, monkeypatch):
    monkeypatch.setattr(rest, "_FIRST_PAUSE_S", 0.2)
    sender, good = Scripted(HOLD), Hands(held=False)
    quick = RetryPolicy(base_ms=1, cap_ms=1)
    dispatcher = Dispatcher(queue, {"http": sender, "good": good}, policy=quick, poll_ms=60_000)
    await fill(queue, 1, "http", kind="http")
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.released == 1)
        await fill(queue, 3, "http-more", kind="http")
        await fill(queue, 3, "good", kind="good")
        await until(lambda: dispatcher.counts.done == 7)
    (first, second, *_) = [at for _id, at in sender.sent]
    assert second - first >= 0.2


async def test_a_sender_in_a_mapping_is_entered_once_and_left(queue):
    class Door:
        timeout_ms = 100

        def __init__(self):
            self.steps = []

        async def __aenter__(self):
            self.steps.append("in")
            return self

        async def __aexit__(self, *_):
            self.steps.append("out")

        async def send(self, job):
            self.steps.append(job.kind)
            return OK

    door = Door()
    await queue.enqueue_many([NewJob("1", 1, kind="a"), NewJob("2", 1, kind="b")])
    async with Dispatcher(queue, {"a": door, "b": door}, concurrency=1) as dispatcher:
        await drained(dispatcher)
    assert door.steps == ["in", "a", "b", "out"]


class Slow:
    timeout_ms = 30_000

    async def send(self, job):
        return OK


@pytest.mark.parametrize(
    ("deliver", "settings"),
    [
        ({}, {}),
        ({"no spaces": Hands}, {}),
        ({7: Hands}, {}),
        ({"mail": None}, {}),
        ({"mail": Slow()}, {"lease_ms": 30_000}),
        ({"mail": Hands}, {"limits": {"scan": 1}}),
        ({"mail": Hands}, {"limits": {"mail": 0}}),
        ({"mail": Hands}, {"limits": {"mail": 65}}),
        ({"mail": Hands}, {"limits": {"mail": True}}),
        (Hands, {"limits": {"mail": 1}}),
        ("mail", {}),
    ],
    ids=range(11),
)
async def test_a_mapping_that_cannot_be_meant_is_refused_before_anything_is_claimed(queue, deliver, settings):
    with pytest.raises(ValueError, match=r"kind|limits|deliver|lease_ms") as caught:
        Dispatcher(queue, deliver, **settings)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError) or "must be" in str(caught.value)
