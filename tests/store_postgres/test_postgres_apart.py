"""A large claim has a transaction of its own, beside the reports that are under way; a small one shares theirs."""

import asyncio
import contextvars
from functools import partial

import asyncpg
import pytest

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from tests.waiting import until

LARGE, SMALL = 256, 255
CLAIMS = {
    "claim": lambda queue, limit: queue.claim("w", limit=limit),
    "claim_late": lambda queue, limit: queue.claim_late("w", lambda: limit, likely=limit),
}


@pytest.fixture
async def queue(own_url):
    async with Queue.open(own_url) as queue:
        yield queue


@pytest.fixture
async def locked(queue, own_url):
    """A leased job whose report waits, until `rollback` is called: somebody holds its row."""
    await queue.enqueue("locked", 1)
    (job,) = await queue.claim("w")
    connection = await asyncpg.connect(own_url.partition("?")[0])
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        queue._batches.store.database.sql("SELECT FROM asyncqueue.jobs WHERE id = 'locked' FOR UPDATE")
    )
    yield job, transaction.rollback
    await connection.close()


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_a_large_claim_does_not_wait_for_reports(claim, queue, locked):
    job, unlock = locked
    await queue.enqueue("other", 1)
    reporting = asyncio.ensure_future(queue.finish_many([Report(job, "ok")]))
    async with asyncio.timeout(4):  # the server ends the wait for a row after five seconds
        assert [one.id for one in await claim(queue, LARGE)] == ["other"]
    assert not reporting.done()
    await unlock()
    assert await reporting == [Status.DONE]


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_a_small_claim_shares_the_commit_of_the_reports(claim, queue, locked):
    job, unlock = locked
    await queue.enqueue("other", 1)
    database = queue._batches.store.database
    before = database.commits
    reporting = asyncio.ensure_future(queue.finish_many([Report(job, "ok")]))
    claiming = asyncio.ensure_future(claim(queue, SMALL))
    await unlock()
    assert await reporting == [Status.DONE]
    assert [one.id for one in await claiming] == ["other"]
    assert database.commits == before + 1


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
async def test_a_close_waits_until_a_large_claim_that_nobody_waits_for_is_given_back(claim, own_url, monkeypatch):
    async with Queue.open(own_url) as queue:
        await queue.enqueue("a", 1)
        begun, go = asyncio.Event(), asyncio.Event()
        write = queue._batches.store.write

        async def slow(work, **settings):
            async def late(transaction):
                answers = await work(transaction)
                begun.set()
                await go.wait()
                return answers

            return await write(late if not begun.is_set() else work, **settings)

        monkeypatch.setattr(queue._batches.store, "write", slow)
        claiming = asyncio.ensure_future(claim(queue, LARGE))
        await until(begun.is_set)
        claiming.cancel()
        closing = asyncio.ensure_future(queue.close())
        asyncio.get_running_loop().call_soon(go.set)
        await asyncio.wait([claiming])
        await closing
    async with Queue.open(own_url) as queue:
        found = await queue.get("a")
    assert (found.status, found.attempts, found.token) == (Status.PENDING, 0, 1)


async def test_claims_side_by_side_with_reports_lose_and_double_nothing(queue):
    jobs = 2_000
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(jobs)])
    tokens: list[tuple[str, int]] = []

    async def work(claim):
        reporting: set[asyncio.Future] = set()
        while leased := await claim(queue, LARGE):
            tokens.extend((job.id, job.token) for job in leased)
            reporting.add(asyncio.ensure_future(queue.finish_many([Report(job, "ok") for job in leased])))
        for answers in await asyncio.gather(*reporting):
            assert set(answers) == {Status.DONE}

    await asyncio.gather(*map(work, CLAIMS.values()), *map(work, CLAIMS.values()))
    assert len(tokens) == len(set(tokens)) == jobs
    assert (await queue.stats()).done == jobs


SLOTS = 2 * LARGE


@pytest.fixture
async def steps(queue, monkeypatch):
    """What a dispatcher with many slots does: how many each claim asks for, and each job that it carries out."""
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(3 * LARGE)])
    steps: list[object] = []
    claim_late, fetch = queue.claim_late, asyncpg.Connection.fetch

    def noted(owner, room, **settings):
        def asked():
            steps.append(room())
            return steps[-1]

        return claim_late(owner, asked, **settings)

    async def told(self, sql, *arguments, **settings):
        if "SKIP LOCKED" in sql:
            steps.append("sent")
        return await fetch(self, sql, *arguments, **settings)

    monkeypatch.setattr(queue, "claim_late", noted)
    monkeypatch.setattr(asyncpg.Connection, "fetch", told)
    return steps


async def test_a_dispatcher_asks_for_half_of_its_slots_and_again_before_it_carries_these_out(queue, steps):
    async def carry_out(job):
        steps.append(job.id)
        return True

    async with Dispatcher(queue, carry_out, concurrency=SLOTS) as dispatcher:
        await dispatcher.drain()
    first = steps.index("j0")
    assert [step for step in steps[:first] if isinstance(step, int)] == [LARGE, LARGE]
    assert steps[first - 1] == "sent"
    assert dispatcher.counts.done == 3 * LARGE


async def test_jobs_are_carried_out_although_the_next_claim_does_not_begin(queue, steps, monkeypatch):
    carried, go = [], asyncio.Event()
    write = queue._batches.store.write

    async def carry_out(job):
        carried.append(job.id)
        return True

    async def held(work, **settings):
        if LARGE in steps:  # the second claim, and reports
            await go.wait()
        return await write(work, **settings)

    monkeypatch.setattr(queue._batches.store, "write", held)
    async with Dispatcher(queue, carry_out, concurrency=SLOTS) as dispatcher:
        draining = asyncio.ensure_future(dispatcher.drain())
        await until(lambda: len(carried) == LARGE)
        go.set()
        await draining
    assert dispatcher.counts.done == 3 * LARGE


@pytest.mark.parametrize("end", ["stop", "abort"])
@pytest.mark.parametrize("way", ["handler", "shared requests"])
async def test_an_end_gives_back_what_was_claimed_and_not_handed_out(queue, steps, monkeypatch, end, way):
    write = queue._batches.store.write
    ended = asyncio.Event()
    begun = []

    async def carry_out(job):
        begun.append(job.id)
        return True

    def seats(jobs):
        begun.extend(job.id for job, _answered in jobs)
        return [None] * len(begun)

    async def held(work, **settings):
        if LARGE in steps and not ended.is_set():  # the second claim, while the first jobs are held back
            ended.set()
            getattr(dispatcher, end)()
            await asyncio.sleep(0)
        return await write(work, **settings)

    monkeypatch.setattr(queue._batches.store, "write", held)
    async with Dispatcher(queue, carry_out, concurrency=SLOTS) as dispatcher:
        if way == "shared requests":
            monkeypatch.setattr(dispatcher._lanes[0], "board", seats)
        claims = dispatcher._claim  # of this run
        await dispatcher.run()
    assert ended.is_set()
    await until(lambda: not claims._held_back)
    assert begun == []
    stats = await queue.stats()
    assert (stats.pending, stats.leased) == ((3 * LARGE, 0) if end == "stop" else (2 * LARGE, LARGE))


async def test_handlers_see_the_context_of_the_run_whoever_else_claims(queue, steps, monkeypatch):
    who = contextvars.ContextVar("who", default="nobody")
    begun, all_at_once = [], asyncio.Event()

    async def carry_out(_job):
        begun.append(who.get())
        if len(begun) == SLOTS:
            all_at_once.set()
        await all_at_once.wait()
        return True

    # a claim goes along in the transaction of whoever has begun it
    stranger, claim_late = contextvars.copy_context(), queue.claim_late
    stranger.run(who.set, "a stranger")
    monkeypatch.setattr(
        queue, "claim_late", lambda owner, room, **named: claim_late(owner, partial(stranger.run, room), **named)
    )
    who.set("the run")
    async with Dispatcher(queue, carry_out, concurrency=SLOTS) as dispatcher:
        await dispatcher.drain()
    assert set(begun) == {"the run"}
