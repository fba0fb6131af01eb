"""A claim that knows where the live jobs begin takes the same jobs as one that does not know."""

import asyncio
import time

import asyncpg
import pytest

from asyncqueue import outbox
from asyncqueue.job import NewJob, Report
from asyncqueue.queue import Queue
from asyncqueue.stores.base import Claim
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.connection import in_schema
from asyncqueue.stores.postgres.floor import Signs
from asyncqueue.stores.sets import new_row
from tests.asking import asked
from tests.store.raw import schema_of, server_of


@pytest.fixture
async def known(own_url):
    """A queue whose floor is known: of its 600 jobs 300 are done, each claim since then saw the next ones."""
    async with Queue.open(own_url) as queue:
        await queue.enqueue_many([NewJob(f"j{n:03}", 1) for n in range(600)])
        assert await done(queue, 298) == [f"j{n:03}" for n in range(298)]
        for number in range(298, 302):
            assert await done(queue, 1) == [f"j{number}"]
        assert queue._store._sight.floor.bucket >= 2
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
    await other.enqueue_many([NewJob(f"urgent{n}", 1, priority=1) for n in range(2)])
    assert await ids(known, 3) == ["urgent0", "urgent1", "j302"]


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"priority": 1},
        {"queue": "a-before"},
        {"queue": "z-behind"},
        {"priority": 1, "queue": "a-before"},
        {"priority": 1, "queue": "z-behind"},
    ],
)
async def test_jobs_beside_that_have_ended_do_not_make_a_claim_begin_anew(known, other, beside):
    await other.enqueue_many([NewJob(f"k{n}", 1, **beside) for n in range(2)])
    for job_id in ("k0", "k1"):
        assert await other.cancel(job_id)
    await begins_at_its_floor(known)


async def test_lower_priority_beside_does_not_make_a_claim_begin_anew(known, other):
    await other.enqueue_many([NewJob(f"k{n}", 1, priority=-1) for n in range(2)])
    await begins_at_its_floor(known)


async def test_queue_that_was_resumed_does_not_make_a_claim_begin_anew(known, other):
    await other.pause("default")
    await other.pause("elsewhere")
    await other.resume("default")
    await begins_at_its_floor(known)


async def begins_at_its_floor(queue):
    """Claim on: a claim that begins anew forgets how old the floor is that it was given."""
    floor = queue._store._sight.floor._replace(until=time.monotonic() + 60)
    queue._store._sight = queue._store._sight._replace(floor=floor)
    assert await ids(queue, 1) == ["j302"]
    assert await ids(queue, 2) == ["j303", "j304"]
    assert queue._store._sight.floor.until == floor.until


@pytest.mark.parametrize("beside", [{"queue": "a-before"}, {"priority": 1}, {"queue": "a-before", "priority": 1}])
async def test_first_bucket_is_that_of_the_queue_and_level_that_were_asked_whatever_came_between(
    known, other, beside
):
    await other.enqueue_many([NewJob(f"k{n}", 1, **beside) for n in range(2)])
    claim = Claim("w", 1, 1_000)
    (row,) = await known._store.write(lambda transaction: transaction._take(0, {"default": 1}, claim))
    assert Signs.read(row["signs"]).first == row["seq"] >> 7 == 2


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
    assert queue._store._sight.floor.bucket > (await queue.get(held.id)).seq >> 7
    return held.id


async def test_own_redrive_is_seen_at_once(known):
    job_id = await dead(known)
    await known.redrive(job_id, note="again")
    assert await ids(known, 1) == [job_id]


async def test_redrive_of_another_process_is_seen_at_once(known, other):
    job_id = await dead(known)
    await other.redrive(job_id, note="again")
    assert known._store._sight.floor.holds
    assert await ids(known, 2) == [job_id, "j504"]


async def test_job_committed_long_after_its_seq_was_drawn_is_seen_at_once(known, other, own_url):
    raw = await asyncpg.connect(server_of(own_url))
    transaction = raw.transaction()
    await transaction.start()
    await outbox.enqueue_async(raw, "late", 1, via=other)
    await known.enqueue_many([NewJob(f"k{n:03}", 1) for n in range(600)])
    assert len(await done(known, 298 + 400)) == 298 + 400
    for number in range(400, 410):
        assert await done(known, 1) == [f"k{number}"]
    assert known._store._sight.floor.holds
    assert known._store._sight.floor.bucket > 2  # not standing still altogether
    await transaction.commit()
    await raw.close()
    assert await ids(known, 2) == ["late", "k410"]


@pytest.mark.usefixtures("known")
async def test_whoever_draws_a_seq_has_a_transaction_number(own_url):
    """Twice: one number in 32 that a sequence gives out makes a transaction have one anyway."""
    raw = await asyncpg.connect(server_of(own_url))
    enqueue = in_schema(statements.ENQUEUE, schema_of(own_url))
    numbers = []
    for _ in range(2):
        async with raw.transaction():
            assert not await raw.fetch(enqueue, None, *([value] for value in new_row(NewJob("j000", 1))))
            numbers.append(await raw.fetchval("SELECT pg_current_xact_id_if_assigned()::text"))
    await raw.close()
    assert all(numbers)


async def test_floor_rises_while_others_put_jobs_in_all_the_time(known, other):
    """Some transaction is always under way; each ends."""
    for number in range(8):
        await other.enqueue_many([NewJob(f"k{number}-{n:03}", 1) for n in range(50)])
        await done(known, 80)
    first = (await known.claim("w"))[0]
    assert known._store._sight.floor.bucket >= ((await known.get(first.id)).seq >> 7) - 1


async def test_server_that_was_started_anew_makes_the_floor_unknown(known, own_server):
    before = known._store._sight
    own_server.restart()
    assert await ids(known, 1) == ["j302"]
    assert known._store._sight.floor.era != before.floor.era
    assert known._store._sight.decided.seq == 0


async def test_job_that_was_changed_by_hand_is_seen_when_the_floor_is_too_old(known, own_url):
    job_id = await dead(known)
    raw = await asyncpg.connect(server_of(own_url))
    await raw.execute(
        f"UPDATE {schema_of(own_url)}.jobs SET status = 'pending', attempts = 0 WHERE id = $1", job_id
    )
    await raw.close()
    floor = known._store._sight.floor
    assert floor.holds
    known._store._sight = known._store._sight._replace(floor=floor._replace(until=time.monotonic()))
    assert await ids(known, 1) == [job_id]


async def test_reports_and_the_claim_that_follows_them_are_one_statement(known, monkeypatch):
    held = await known.claim("w", limit=4)
    texts = asked(monkeypatch, "fetch")
    before = known._store._sight.floor
    _done, leased = await asyncio.gather(known.finish_many([Report.ok(job) for job in held]), ids(known, 4))
    assert leased == [f"j{n}" for n in range(306, 310)]
    assert len(texts) == 1
    assert known._store._sight.floor.bucket >= before.bucket
    assert known._store._sight.floor.until == before.until
    _none, leased = await asyncio.gather(known.finish_many([Report.ok(job) for job in held]), ids(known, 1_000))
    assert leased == [f"j{n}" for n in range(310, 600)]
    assert known._store._sight.floor is None  # there was less than it had room for
