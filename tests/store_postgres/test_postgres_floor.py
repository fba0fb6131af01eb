"""A claim that knows where the live jobs begin takes the same jobs as one that does not know."""

import time

import pytest

from asyncqueue.job import NewJob, Report
from asyncqueue.queue import Queue


@pytest.fixture
async def known(own_url):
    """A queue whose floor is known: of its 600 jobs 300 are done, each claim since then saw the next ones."""
    async with Queue.open(own_url) as queue:
        await queue.enqueue_many([NewJob(f"j{n:03}", 1) for n in range(600)])
        assert await done(queue, 301) == [f"j{n:03}" for n in range(301)]
        assert await done(queue, 1) == ["j301"]
        assert queue._store._floor.bucket >= 2
        yield queue


@pytest.fixture
async def other(known, own_url):
    """Another process, as far as the database knows."""
    async with Queue.open(own_url) as queue:
        yield queue


async def done(queue, count):
    """Claim so many jobs and end them; return their ids."""
    held = await queue.claim("w", limit=count)
    await queue.finish_many([Report.ok(job) for job in held])
    return [job.id for job in held]


async def ids(queue, limit, **wanted):
    return [job.id for job in await queue.claim("w", limit=limit, **wanted)]


async def test_claims_go_on_in_order_to_the_very_last_job(known):
    taken = []
    while part := await ids(known, 7):
        taken += part
    assert taken == [f"j{n:03}" for n in range(302, 600)]


async def test_better_priority_of_another_process_comes_first(known, other):
    await other.enqueue("urgent", 1, priority=1)
    assert await ids(known, 2) == ["urgent", "j302"]


@pytest.mark.parametrize("name", ["a-before", "z-behind"])
async def test_another_queue_has_its_turn_at_once(known, other, name):
    await other.enqueue_many([NewJob(f"k{n}", 1, queue=name) for n in range(2)])
    assert sorted(await ids(known, 4)) == ["j302", "j303", "k0", "k1"]


async def test_queue_that_another_process_has_paused_gives_nothing(known, other):
    await other.pause("default")
    assert await ids(known, 1) == []
    await other.resume("default")
    assert await ids(known, 1) == ["j302"]


async def test_claim_of_other_queues_takes_none_of_this_one(known):
    assert await ids(known, 1, queues=["elsewhere"]) == []
    assert await ids(known, 1, queues=["default"]) == ["j302"]


async def test_lease_given_back_comes_first(known, other):
    held = await known.claim("w", limit=200)
    await other.release(held[0])
    assert await ids(known, 2) == ["j302", "j502"]


async def test_jobs_that_must_die_are_swept_by_the_next_claim(known, other):
    await other.enqueue("late", 1, ttl_ms=1)
    while (await other.get("late")).deadline >= time.time() * 1000:
        pass  # the server is on this machine: its clock is ours
    assert await ids(known, 1) == ["j302"]
    assert (await other.get("late")).reason == "deadline"


async def dead(queue):
    """Let the next job die, and so many others end that the floor rises above it; return its id."""
    (held,) = await queue.claim("w")
    await queue.finish(held, "permanent")
    await done(queue, 200)
    await done(queue, 1)
    assert queue._store._floor.bucket > (await queue.get(held.id)).seq >> 7
    return held.id


async def test_own_redrive_is_seen_at_once(known):
    job_id = await dead(known)
    await known.redrive(job_id, note="again")
    assert await ids(known, 1) == [job_id]


async def test_redrive_of_another_process_is_seen_when_a_claim_gets_less_than_it_asked_for(known, other):
    job_id = await dead(known)
    await other.redrive(job_id, note="again")
    assert job_id in await ids(known, 600)


async def test_redrive_of_another_process_is_seen_when_the_floor_is_too_old(known, other):
    job_id = await dead(known)
    await other.redrive(job_id, note="again")
    assert known._store._floor.holds
    known._store._floor = known._store._floor._replace(until=time.monotonic())
    assert await ids(known, 1) == [job_id]
