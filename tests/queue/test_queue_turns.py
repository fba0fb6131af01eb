"""Several queues: turns between them, exact order inside each, pause and resume, and kinds."""

import asyncio
from collections import Counter

import anyio
import pytest

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import InvalidJob
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status


async def fill(queue, **counts):
    for name, count in counts.items():
        await queue.enqueue_many([NewJob(f"{name}{n}", 1, queue=name) for n in range(count)])


async def claim_ids(queue, limit=1, **wanted):
    return [leased.id for leased in await queue.claim("w", limit=limit, **wanted)]


# --- turns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["nothing", "finish", "finish and enqueue"])
async def test_queues_take_turns_over_claims_of_one_whatever_is_written_between(queue, between):
    await fill(queue, a=30, b=30, c=30)
    taken = []
    for n in range(30):
        (leased,) = await queue.claim("w")
        taken.append(leased.id)
        if between != "nothing":
            await queue.finish(leased, "ok")
        if between == "finish and enqueue":
            await queue.enqueue(f"more{n}", 1, queue="a")
    for start in range(0, 30, 3):
        assert {job_id[0] for job_id in taken[start : start + 3]} == {"a", "b", "c"}, taken
    for name in "abc":
        assert [job_id for job_id in taken if job_id[0] == name] == [f"{name}{n}" for n in range(10)]


async def test_queue_of_ten_thousand_does_not_starve_one_of_three(queue):
    """FAULTS 26: one busy queue holds up no other."""
    await fill(queue, big=10_000, small=3)
    taken = [(await claim_ids(queue))[0] for _ in range(6)]
    assert {"small0", "small1", "small2"} < set(taken)
    await fill(queue, late=3)
    taken = await claim_ids(queue, limit=64)
    assert [job_id for job_id in taken if job_id.startswith("late")] == ["late0", "late1", "late2"]
    assert [job_id for job_id in taken if job_id.startswith("big")] == [f"big{n}" for n in range(3, 64)]


async def test_large_claim_is_shared_evenly_by_queues_that_have_enough(queue):
    await fill(queue, a=500, b=500, c=500, d=10)
    taken = await claim_ids(queue, limit=100)
    assert {name: sum(job_id[0] == name for job_id in taken) for name in "abcd"} == {
        "a": 30,
        "b": 30,
        "c": 30,
        "d": 10,
    }


async def test_priority_beats_turns(queue):
    await fill(queue, a=5)
    await queue.enqueue_many([NewJob(f"urgent{n}", 1, queue="b", priority=1) for n in range(3)])
    assert [(await claim_ids(queue))[0] for _ in range(3)] == ["urgent0", "urgent1", "urgent2"]
    await queue.enqueue_many([NewJob(f"more{n}", 1, queue="b", priority=1) for n in range(2)])
    assert await claim_ids(queue, limit=4) == ["more0", "more1", "a0", "a1"]


async def test_order_inside_a_queue_is_priority_then_seq_however_queues_mix(queue):
    jobs = [NewJob(f"{name}{n}", 1, queue=name, priority=n % 3) for n in range(30) for name in ("x", "y")]
    await queue.enqueue_many(jobs)
    taken = []
    for limit in (1, 7, 1, 20, 3, 64):
        taken += await claim_ids(queue, limit=limit)
    for name in "xy":
        mine = [job_id for job_id in taken if job_id[0] == name]
        assert mine == [
            job.id for job in sorted(jobs, key=lambda job: (-job.priority, int(job.id[1:]))) if job.queue == name
        ]


async def test_claims_that_share_a_commit_do_not_share_their_turn(queue, commits):
    await fill(queue, a=5, b=5)
    first, second = await asyncio.gather(claim_ids(queue), claim_ids(queue))
    assert len(commits) == 3
    assert {first[0], second[0]} == {"a0", "b0"}


async def test_short_lived_processes_do_not_all_begin_with_the_same_queue(queue, opening, clock):
    await fill(queue, a=20, b=20)
    taken = []
    for _ in range(10):
        clock.advance(1)
        async with opening() as one_shot:
            taken += await claim_ids(one_shot)
    assert {job_id[0] for job_id in taken} == {"a", "b"}


async def test_claim_that_names_queues_lets_those_take_turns_and_no_other(queue):
    await fill(queue, a=9, b=9, c=9)
    taken = [(await claim_ids(queue, queues=["c", "a"]))[0] for _ in range(6)]
    assert sorted(taken) == ["a0", "a1", "a2", "c0", "c1", "c2"]


async def test_each_of_three_hundred_queues_has_its_turn_before_any_has_a_second(queue):
    """FAULTS 26: whatever the limit, a claim goes on in the ring where the last one stopped."""
    names = [f"q{n}" for n in range(300)]
    await queue.enqueue_many([NewJob(f"{name}-{n}", 1, queue=name) for n in range(3) for name in names])
    taken = []
    for limit in (1, 64, 7, 128, 100):
        taken += [leased.queue for leased in await queue.claim("w", limit=limit)]
    assert sorted(taken) == sorted(names)
    taken = [leased.queue for leased in await queue.claim("w", limit=900)]
    assert sorted(taken) == sorted(2 * names)


async def test_constant_work_of_a_high_priority_does_not_turn_the_ring_of_a_lower_one(queue):
    await fill(queue, a=20, b=20, c=20)
    taken = []
    for n in range(12):
        await queue.enqueue(f"urgent{n}", 1, queue="c", priority=9)
        first, second = await claim_ids(queue, limit=2)
        assert first == f"urgent{n}"
        taken.append(second[0])
    assert {name: taken.count(name) for name in "abc"} == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 5, 64])
async def test_queue_whose_due_jobs_cannot_be_claimed_costs_the_others_nothing(queue, raw, clock, limit, start):
    """More that must die than one claim may sweep: they are passed over, wherever the ring begins."""
    await fill(queue, b=64)
    await queue.enqueue_many([NewJob(f"{name}{n}", 1, queue=name) for n in range(3_000) for name in "ac"])
    raw.execute("UPDATE jobs SET attempts = max_attempts WHERE queue IN ('a', 'c')")
    clock.advance(start)
    assert await claim_ids(queue, limit=limit) == [f"b{n}" for n in range(limit)]


# --- kinds -------------------------------------------------------------------------------------------


async def test_jobs_of_unknown_kinds_are_left_for_others_unburnt(queue):
    await queue.enqueue_many([NewJob(f"{kind}{n}", 1, kind=kind) for n in range(3) for kind in ("mail", "fax")])
    before = await queue.get("fax0")
    assert await claim_ids(queue, limit=9, kinds=["mail", "post"]) == ["mail0", "mail1", "mail2"]
    assert await claim_ids(queue, limit=9, kinds=["mail"]) == []
    assert await claim_ids(queue, limit=9, kinds=[]) == []
    assert await queue.get("fax0") == before
    assert await claim_ids(queue, limit=9, kinds=["fax"]) == ["fax0", "fax1", "fax2"]


async def test_kind_is_found_behind_many_jobs_of_another(queue):
    await queue.enqueue_many([NewJob(f"x{n}", 1, kind="x") for n in range(5_000)])
    await queue.enqueue("y", 1, kind="y")
    assert await claim_ids(queue, kinds=["y"]) == ["y"]


async def test_kinds_of_one_claim_come_in_the_order_of_priority_and_seq_whatever_their_kind(queue):
    kinds = ("mail", "job", "fax", "other")
    jobs = [NewJob(f"{kind}{n}", 1, kind=kind, priority=n % 3 - 1) for n in range(600) for kind in kinds]
    await queue.enqueue_many(jobs)
    wanted = ("fax", "job", "mail", "none")
    expected = [
        job.id for job in sorted(jobs, key=lambda job: (-job.priority, jobs.index(job))) if job.kind in wanted
    ]
    taken = []
    for limit in (1, 100, 700, 3, 996):
        taken += await claim_ids(queue, limit=limit, kinds=wanted)
    assert taken == expected


async def test_queues_take_turns_also_among_jobs_of_some_kinds(queue):
    jobs = [
        NewJob(f"{name}-{kind}{n}", 1, queue=name, kind=kind) for n in range(9) for name in "abc" for kind in "xyz"
    ]
    await queue.enqueue_many(jobs)
    await queue.pause("b")
    taken = await claim_ids(queue, limit=8, kinds=["x", "y"])
    assert sorted(taken) == sorted(f"{name}-{kind}{n}" for name in "ac" for kind in "xy" for n in range(2))
    odd = [await claim_ids(queue, limit=3, kinds=["x", "y"]) for _ in range(2)]  # whose turn is next is remembered
    assert Counter(job_id[0] for job_ids in odd for job_id in job_ids) == {"a": 3, "c": 3}
    assert await claim_ids(queue, limit=9, kinds=["z"], queues=["b"]) == []
    assert await claim_ids(queue, limit=2, kinds=["z"], queues=["c"]) == ["c-z0", "c-z1"]


async def test_next_due_of_kinds_is_that_of_the_first_of_them_wherever_it_waits(queue, clock):
    first_is_low = [NewJob(f"x{n}", 1, kind="x", delay_ms=900 - n, priority=(n + 1) % 3) for n in range(600)]
    await queue.enqueue_many(first_is_low)
    await queue.enqueue("elsewhere", 1, kind="x", queue="z", delay_ms=200)
    await queue.enqueue("y", 1, kind="y", queue="q", delay_ms=50, priority=-2)
    await queue.enqueue("plain", 1, delay_ms=70)
    assert await queue.next_due_ms(kinds=["x"]) == 200
    assert await queue.next_due_ms(["default"], ["x"]) == 301
    assert await queue.next_due_ms(kinds=["x", "y"]) == 50
    assert await queue.next_due_ms(kinds=["x", "job"]) == await queue.next_due_ms(kinds=["job"]) == 70
    assert await queue.next_due_ms(["default"], ["y"]) is None
    assert await queue.next_due_ms(["q"], ["job"]) is None
    assert await queue.next_due_ms(kinds=["none"]) is None
    await queue.pause("q")
    await queue.pause("default")
    assert await queue.next_due_ms(kinds=["y"]) is None
    assert await queue.next_due_ms(kinds=["job"]) is None
    assert await queue.next_due_ms(kinds=["x"]) == 200


@pytest.mark.parametrize("kinds", ["mail", ["no such name!"], [""], [1]])
async def test_kinds_that_cannot_be_names_are_refused(queue, kinds):
    with pytest.raises(InvalidJob, match="kind"):
        await queue.claim("w", kinds=kinds)


# --- pause and resume --------------------------------------------------------------------------------


async def test_paused_queue_keeps_its_jobs_and_is_claimed_from_by_nobody_until_it_is_resumed(
    queue, opening, clock
):
    await fill(queue, held=3, free=1)
    await queue.pause("held")
    await queue.pause("held")
    assert await claim_ids(queue, limit=9) == ["free0"]
    assert await claim_ids(queue, limit=9, queues=["held"]) == []
    async with opening() as other:  # persistent: another process sees it
        assert await claim_ids(other, limit=9) == []
        assert await other.queues() == {"free": False, "held": True}
        assert (await other.stats()).paused == ("held",)
        assert (await other.stats()).queues["held"]["pending"] == 3
        await other.resume("held")
    assert await claim_ids(queue, limit=9) == ["held0", "held1", "held2"]
    assert (await queue.stats()).paused == ()


async def test_leases_of_a_paused_queue_go_on(queue, clock):
    await fill(queue, held=2)
    first, second = await queue.claim("w", limit=2)
    await queue.pause("held")
    assert await queue.renew(first) == clock.now_ms() + 30_000
    assert await queue.finish(first, "ok") is Status.DONE
    assert await queue.finish(second, "retry", error="x") is Status.PENDING
    assert await queue.claim("w") == []


async def test_paused_queue_takes_new_jobs_and_its_old_ones_still_die_of_their_deadline(queue, clock):
    await queue.pause("held")
    assert await queue.enqueue("a", 1, queue="held", ttl_ms=10)
    clock.advance(10)
    assert await queue.sweep() == 1
    assert (await queue.get("a")).status is Status.DEAD


async def test_next_due_and_lag_do_not_count_paused_queues(queue, clock):
    await queue.enqueue("a", 1, queue="held")
    await queue.enqueue("b", 1, queue="free", delay_ms=500)
    clock.advance(100)
    assert (await queue.stats()).lag_ms == 100
    await queue.pause("held")
    assert await queue.next_due_ms() == 400
    stats = await queue.stats()
    assert (stats.lag_ms, stats.next_due_ms) == (None, 400)
    await queue.cancel("b")
    assert await queue.next_due_ms() is None
    await queue.resume("held")
    assert await queue.next_due_ms() == 0


async def test_only_paused_queues_have_nothing_due_whatever_others_are_paused_or_were(queue):
    for number, name in enumerate(("held", "resumed", "plain")):
        await queue.enqueue(name, 1, queue=name, delay_ms=100 + number)
    for name in ("held", "resumed", "unused"):
        await queue.pause(name)
    await queue.resume("resumed")
    due_ms = {"held": None, "resumed": 101, "plain": 102}
    assert {name: await queue.next_due_ms([name]) for name in due_ms} == due_ms
    assert {name: await queue.next_due_ms([name], ["job"]) for name in due_ms} == due_ms
    assert await queue.next_due_ms() == await queue.next_due_ms(kinds=["job"]) == 101
    assert await queue.next_due_ms(list(due_ms)) == 101
    details = (await queue.stats(detail=True)).details
    assert {name: detail.next_due_ms for name, detail in details.items()} == due_ms


async def test_resume_wakes_who_waits_for_work(queue):
    await fill(queue, held=1)
    await queue.pause("held")
    heard = []
    queue.subscribe(lambda: heard.append(1))
    await queue.resume("held")
    assert heard == [1]


@pytest.mark.parametrize("queues", [None, ("held", "free")], ids=["all queues", "named queues"])
async def test_drain_of_a_dispatcher_ends_although_a_paused_queue_has_jobs(queue, queues):
    await fill(queue, held=3, free=3)
    await queue.pause("held")
    seen = []

    async def deliver(job):
        seen.append(job.id)
        return True

    async with Dispatcher(queue, deliver, poll_ms=1, queues=queues) as dispatcher:
        with anyio.fail_after(20):
            await dispatcher.drain()
    assert sorted(seen) == ["free0", "free1", "free2"]
    assert (await queue.stats()).pending == 3


@pytest.mark.parametrize("name", ["", "two words", None, "x" * 65])
async def test_name_that_no_queue_can_have_is_not_paused(queue, name):
    with pytest.raises(InvalidJob, match="queue"):
        await queue.pause(name)
    assert await queue.queues() == {}


async def test_resume_of_a_queue_that_nobody_knows_leaves_it_unknown(queue):
    await queue.resume("typo")
    assert await queue.queues() == {}
    await queue.pause("held")
    await queue.resume("held")
    await queue.resume("typo")
    assert await queue.queues() == {"held": False}
