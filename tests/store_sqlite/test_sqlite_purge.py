"""A purge beside the contract's functions, which share the file."""

import pytest

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue

HOUR_MS = 3_600_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
async def queue(path, clock, no_sync):
    async with Queue.open(path, clock=clock, dedup_ms=0) as opened:
        yield opened


@pytest.fixture
async def contract(queue, path):
    """The contract's own connection on the migrated file."""
    connection = await worker.open_queue(path)
    yield connection
    await connection.close()


async def contract_finish(contract, now_ms, job_id, outcome="ok"):
    await worker.enqueue(contract, {"id": job_id, "qty": 1}, now_ms, 60_000)
    ticket = await worker.claim(contract, "theirs", now_ms)
    assert ticket["id"] == job_id
    await worker.finish(contract, ticket, outcome, now_ms + 1)


async def test_job_that_the_contract_finished_is_purged_by_the_time_that_it_left(
    queue, contract, clock, plain, path
):
    await contract_finish(contract, clock.now_ms(), "theirs")
    assert plain(path).execute("SELECT finished_at FROM jobs").fetchall() == [(None,)]
    clock.advance(100)
    assert await queue.purge(older_than_ms=100) == 0
    clock.advance(1)
    assert await queue.purge(older_than_ms=100) == 1


async def test_job_that_the_contract_redrove_is_as_old_as_its_second_end(queue, contract, clock):
    await queue.enqueue("a", 1, ttl_ms=500)
    (leased,) = await queue.claim("w")
    await queue.finish(leased, "permanent")
    clock.advance(10 * HOUR_MS)
    await worker.redrive(contract, "a", clock.now_ms(), 60_000, "theirs")
    assert (await queue.get("a")).finished_at is None
    ticket = await worker.claim(contract, "theirs", clock.now_ms())
    await worker.finish(contract, ticket, "ok", clock.now_ms())
    clock.advance(HOUR_MS)
    assert await queue.purge(older_than_ms=HOUR_MS + 1) == 0
    assert await queue.purge(older_than_ms=HOUR_MS) == 1


async def test_purge_leaves_a_file_that_the_contract_still_reads(queue, contract, clock):
    await queue.enqueue_many([NewJob("done", 1), NewJob("pending", 1)])
    (leased,) = await queue.claim("w")
    await queue.finish(leased, "ok")
    assert await queue.purge(older_than_ms=0) == 1
    assert list(await contract.execute_fetchall("SELECT id FROM jobs WHERE status = 'done'")) == []
    assert (await worker.claim(contract, "theirs", clock.now_ms()))["id"] == "pending"
