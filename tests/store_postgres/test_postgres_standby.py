"""A real standby, by streaming replication: read by mistake, and promoted when the primary is gone."""

import asyncio

import psycopg
import pytest

from asyncqueue.errors import StoreUnreachable
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from tests import postgres_server
from tests.postgres_server import Server
from tests.waiting import until


@pytest.fixture
def primary():
    postgres_server.needed()
    server = Server.made().start()
    yield server
    server.remove()


@pytest.fixture
async def standby(primary):
    """A standby that each commit of the primary waits for: what was acknowledged is in both."""
    server = primary.standby().start()
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
        wanted = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        await until(lambda: connection.execute(wanted).fetchone()[0] == 1)
    yield server
    server.remove()


async def test_standby_by_mistake_is_refused_in_words(primary, standby):
    async with Queue.open(f"{primary.url}?schema=q") as queue:
        await queue.enqueue("a", 1)
    with pytest.raises(StoreUnreachable, match="read-only replica"):
        async with asyncio.timeout(10), Queue.open(f"{standby.url}?schema=q", patience_ms=500):
            pass


async def test_promoted_standby_goes_on_with_every_job_lease_and_token(primary, standby):
    """FAULTS: a failover. What was acknowledged is there, who holds a lease ends it, the order is exact."""
    both = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres?schema=q"
    async with Queue.open(both, patience_ms=30_000) as queue:
        await queue.enqueue_many([NewJob(f"j{n:03}", 1) for n in range(600)])
        done = []
        for _ in range(5):
            held = await queue.claim("w", limit=60)
            await queue.finish_many([Report.ok(job) for job in held])
            done += [job.id for job in held]
        held = await queue.claim("w", limit=2)
        assert queue._store._sight.floor is not None
        primary.stop("immediate")
        call = asyncio.create_task(queue.finish(held[0], "ok"))
        await until(lambda: queue._store.busy_retries > 0)
        await asyncio.to_thread(standby.promote)
        async with asyncio.timeout(30):
            assert await call is Status.DONE
        assert await queue.finish(held[0], "ok") is None  # the ticket is used up
        await queue.finish(held[1], "retry")
        again = await queue.claim("w", limit=400)
        assert [job.id for job in again] == [f"j{n:03}" for n in range(301, 600)]
        assert again[0].token > held[1].token
        stats = await queue.stats()
        assert (stats.done, stats.leased, stats.total) == (len(done) + 1, 299, 600)
