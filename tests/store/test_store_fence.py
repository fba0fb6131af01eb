"""Tokens after the database was put back to an earlier state, on each store."""

import pytest

from asyncqueue import Queue
from asyncqueue.clock import SystemClock
from asyncqueue.errors import NotAQueue, StoreError
from asyncqueue.job import TOKEN_MAX
from tests.store.raw import raw_of


async def token_of(queue, job_id="a"):
    return (await queue.get(job_id)).token


async def test_tokens_rise_above_all_that_were_given_out__kind_39_backup_and_restore(queue, clock):
    for job_id in ("pending", "leased", "dead", "done"):
        await queue.enqueue(job_id, 1, queue=job_id)
    (leased,) = await queue.claim("w", queues=("leased",))
    (done,) = await queue.claim("w", queues=("done",))
    await queue.finish(done, "ok")
    await queue.cancel("dead")
    floor = await queue.raise_tokens()
    assert floor >= clock.now_ms()
    assert [await token_of(queue, job_id) for job_id in ("pending", "leased", "dead")] == [floor] * 3
    assert await queue.finish(leased, "ok") is None  # of the time that is forgotten
    await queue.enqueue("new", 1)
    assert await token_of(queue, "new") == floor
    await queue.redrive("dead", note="again")
    clock.advance(60_000)
    claimed = await queue.claim("w2", limit=10)
    assert {job.id: job.token for job in claimed} == dict.fromkeys(("pending", "leased", "dead", "new"), floor + 1)
    assert [await queue.finish(job, "ok") for job in claimed] == ["done"] * 4


async def test_each_restore_rises_above_the_one_before_although_the_clock_stands_still(queue, clock):
    await queue.enqueue("a", 1)
    first = await queue.raise_tokens()
    (leased,) = await queue.claim("w")
    assert leased.token == first + 1
    second = await queue.raise_tokens()
    assert second > leased.token
    assert await token_of(queue) == second
    assert await queue.raise_tokens() > second
    clock.advance(10**9)
    assert await queue.raise_tokens() == clock.now_ms()


async def test_ids_to_come_begin_at_the_floor_whoever_puts_them_in(url):
    async with Queue.open(url) as queue:
        floor = await queue.raise_tokens()
        assert floor >= SystemClock().now_ms() - 60_000
        raw_of(url).insert_jobs(
            [
                {
                    "id": "by-hand",
                    "qty": 1,
                    "status": "pending",
                    "attempts": 0,
                    "max_attempts": 1,
                    "token": 0,
                    "available_at": 0,
                    "deadline": 2**60,
                }
            ]
        )
        assert await token_of(queue, "by-hand") == floor
    async with Queue.open(url) as queue:  # it is kept in the database
        await queue.enqueue("later", 1)
        assert await token_of(queue, "later") == floor


async def test_a_table_of_that_name_that_is_somebody_elses_is_left_alone(queue, url):
    await queue.enqueue("a", 1)
    raw_of(url).execute("CREATE TABLE token_floor (one integer, other text)")
    with pytest.raises(NotAQueue, match="token_floor"):
        await queue.raise_tokens()
    assert await token_of(queue) == 0


async def test_a_clock_beyond_all_tokens_is_asked_about(queue, clock):
    await queue.enqueue("a", 1)
    clock.advance(TOKEN_MAX)
    with pytest.raises(StoreError, match="clock"):
        await queue.raise_tokens()
    assert await token_of(queue) == 0
