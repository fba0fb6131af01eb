"""Kinds of faults that a server brings: clocks of several hosts, NUL, late commits, migrations, freezing."""

import asyncio
import time

import anyio
import asyncpg
import psycopg
import pytest

from asyncqueue import Dispatcher, outbox
from asyncqueue.errors import NewerSchema, NotAQueue
from asyncqueue.job import FailedAttempt, NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores.base import Claim
from asyncqueue.stores.postgres import schema
from tests.store.raw import PostgresRaw, schema_of, server_of
from tests.waiting import until

# --- clocks (38) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
async def test_clock_steps_the_servers_clock_alone_decides_what_is_due_and_leased__kind_38(
    own_url, monkeypatch, step_s
):
    async with Queue.open(own_url) as queue:
        await queue.enqueue("a", 1)
        (leased,) = await queue.claim("w", lease_ms=60_000)
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + step_s * 10**9)
        await queue.enqueue("b", 1, delay_ms=60_000)
        await queue.enqueue("c", 1)
        assert [job.id for job in await queue.claim("w2", limit=9)] == ["c"]
        assert await queue.renew(leased, 60_000) is not None
        assert await queue.finish(leased, "ok") is Status.DONE
        ((server_ms,),) = PostgresRaw(own_url).select("SELECT floor(extract(epoch FROM now()) * 1000)::bigint")
        assert abs((await queue.get("c")).created_at - server_ms) < 60_000


async def test_clock_steps_an_outbox_takes_the_servers_time_of_the_call__kind_38(own_url):
    async with Queue.open(own_url) as queue:
        connection = await asyncpg.connect(server_of(own_url))
        async with connection.transaction():
            began = await connection.fetchval("SELECT floor(extract(epoch FROM now()) * 1000)::bigint")
            await connection.execute("SELECT pg_sleep(0.05)")
            assert await outbox.enqueue_async(connection, "a", 1, via=queue)
        await connection.close()
        assert (await queue.get("a")).created_at >= began + 50


# --- NUL and other bytes (52) ------------------------------------------------------------------------


async def test_payload_edge_cases_nul_in_payload_and_error_ends_no_job_in_limbo__kind_52(own_url):
    payload = {"nul\0": ["\0", "\u2028", "\U0001f600", 1e300, None]}
    async with Queue.open(own_url) as queue:
        await queue.enqueue("a", 1, payload=payload)
        (leased,) = await queue.claim("w")
        assert leased.json() == payload
        report = Report.retry(leased, 0, FailedAttempt("503 \0\ud800\x1b"))
        assert await queue.finish_many([report]) == [Status.PENDING]
        assert (await queue.get("a")).last_error == r"503 \x00\ud800\x1b"
        (again,) = await queue.claim("w")
        assert await queue.finish(again, "ok") is Status.DONE


# --- the order of commits ----------------------------------------------------------------------------


async def test_outbox_order_a_job_whose_transaction_commits_late_is_claimed_all_the_same(own_url):
    """Its seq is below those that were claimed and finished long before it could be seen."""
    async with Queue.open(own_url) as queue:
        connection = await asyncpg.connect(server_of(own_url))
        transaction = connection.transaction()
        await transaction.start()
        await outbox.enqueue_async(connection, "early", 1, via=queue)
        await queue.enqueue_many([NewJob(f"late-{n}", 1) for n in range(300)])
        while held := await queue.claim("w", limit=100):
            await queue.finish_many([Report.ok(job) for job in held])
        await queue.enqueue("last", 1)
        await transaction.commit()
        await connection.close()
        assert [job.id for job in await queue.claim("w", limit=9)] == ["early", "last"]


async def test_outbox_order_a_duplicate_waits_for_the_commit_that_decides_it(own_url):
    async with Queue.open(own_url) as queue:
        connection = await asyncpg.connect(server_of(own_url))
        transaction = connection.transaction()
        await transaction.start()
        assert await outbox.enqueue_async(connection, "a", 1, via=queue) is True
        waiting = asyncio.create_task(queue.enqueue("a", 1))
        raw = PostgresRaw(own_url)
        await until(lambda: raw.select("SELECT count(*) FROM pg_locks WHERE NOT granted") != [(0,)])
        assert not waiting.done()
        await transaction.rollback()
        assert await waiting is True
        await connection.close()


# --- migrations (56) ---------------------------------------------------------------------------------


async def test_migrations_many_at_once_make_one_schema__kind_56(own_url):
    stores = await asyncio.gather(*(Queue.open(own_url) for _ in range(6)))
    assert await stores[0].enqueue("a", 1) is True
    assert await stores[5].enqueue("a", 1) is False
    for store in stores:
        await store.close()
    assert PostgresRaw(own_url).select("SELECT part, version FROM versions") == [("queue", schema.QUEUE.version)]


class DiesAt:
    """A connection whose n-th statement is the last one."""

    def __init__(self, connection, number):
        self._connection = connection
        self.left = number

    def __getattr__(self, name):
        member = getattr(self._connection, name)

        async def counted(*arguments, **options):
            if self.left == 0:
                raise ConnectionError("killed")
            self.left -= 1
            return await member(*arguments, **options)

        return counted


async def test_migrations_killed_at_any_statement_leave_nothing_half__kind_56(own_url):
    connection = await asyncpg.connect(server_of(own_url))
    name, raw = schema_of(own_url), PostgresRaw(own_url)
    number = 0
    while True:
        transaction = connection.transaction()
        await transaction.start()
        dying = DiesAt(connection, number)
        try:
            await schema.migrate(dying, name, "here")
        except ConnectionError:
            await transaction.rollback()
            assert raw.select(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{name}'") == [(0,)]
            number += 1
            continue
        await transaction.commit()
        break
    await connection.close()
    assert number >= 6
    async with Queue.open(own_url, create=False) as queue:
        assert await queue.enqueue("a", 1) is True


async def test_migrations_a_newer_schema_is_refused_by_queue_and_outbox_and_left_alone__kind_56(own_url):
    async with Queue.open(own_url) as queue:
        await queue.enqueue("a", 1)
        (leased,) = await queue.claim("w")
        raw = PostgresRaw(own_url)
        raw.execute("UPDATE versions SET version = 99")
        with pytest.raises(NewerSchema, match="99"):
            await Queue.open(own_url)
        connection = await asyncpg.connect(server_of(own_url))
        with pytest.raises(NewerSchema):
            async with connection.transaction():
                await outbox.enqueue_async(connection, "b", 1, via=queue)
        await connection.close()
        assert raw.select("SELECT version FROM versions") == [(99,)]
        assert await queue.finish(leased, "ok") is Status.DONE, "a lease of those who have it open is kept"


async def test_migrations_nothing_is_made_where_nothing_may_be_made__kind_56(own_url):
    with pytest.raises(NotAQueue, match="no queue"):
        await Queue.open(own_url, create=False)
    name = schema_of(own_url)
    assert PostgresRaw(own_url).select(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{name}'") == [(0,)]


# --- half-open (57) ----------------------------------------------------------------------------------


async def test_half_open_connection_sends_that_cannot_be_renewed_stop_before_their_leases_end__kind_57(
    own_url, proxy, opened
):
    lease_ms, started, cut = 1_500, [], []
    store = await opened(proxy.url(own_url), patience_ms=400, reply_ms=300)
    queue = Queue(store)

    async def hang(job):
        started.append(job)
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cut.append(time.monotonic())
            raise

    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(3)])
    async with Dispatcher(queue, hang, concurrency=3, lease_ms=lease_ms, grace_ms=300) as dispatcher:
        running = asyncio.create_task(dispatcher.run())
        await until(lambda: len(started) == 3)
        frozen_at = time.monotonic()
        proxy.freeze()
        await until(lambda: len(cut) == 3)
        assert max(cut) - frozen_at <= lease_ms / 1000, "no send may outlive its lease"
        with anyio.fail_after(15):
            dispatcher.stop()
            await running
    with psycopg.connect(server_of(own_url), autocommit=True) as connection:
        found = connection.execute(f"SELECT DISTINCT status, attempts FROM {schema_of(own_url)}.jobs").fetchall()
    assert found == [("leased", 1)]


# --- several claimers --------------------------------------------------------------------------------


async def test_claims_at_once_pass_over_what_others_have_locked_and_never_take_the_same(own_url, opened):
    stores = [await opened() for _ in range(4)]
    await stores[0].write(lambda transaction: transaction.enqueue([NewJob(f"j{n:03}", 1) for n in range(400)]))
    inside = [asyncio.Event() for _ in stores]
    taken = {}

    async def claim(number):
        async def work(transaction):
            taken[number] = await transaction.claim(Claim(f"w{number}", 50, 60_000))
            inside[number].set()
            for event in inside:  # all four hold their claims open at once
                await event.wait()

        await stores[number].write(work)

    with anyio.fail_after(20):
        await asyncio.gather(*map(claim, range(4)))
    ids = sorted(job.id for jobs in taken.values() for job in jobs)
    assert ids == [f"j{n:03}" for n in range(200)]


async def test_claim_over_several_queues_takes_what_is_left_when_others_were_faster(own_url, opened):
    first, second = await opened(), await opened()
    jobs = [NewJob(f"{name}{n}", 1, queue=name) for n in range(20) for name in ("x", "y")]
    await first.write(lambda transaction: transaction.enqueue(jobs))

    async def work(transaction):
        mine = await transaction.claim(Claim("w1", 10, 60_000))
        theirs = await second.write(lambda other: other.claim(Claim("w2", 30, 60_000)))
        return mine, theirs

    mine, theirs = await first.write(work)
    assert (len(mine), len(theirs)) == (10, 30)
    assert not {job.id for job in mine} & {job.id for job in theirs}
