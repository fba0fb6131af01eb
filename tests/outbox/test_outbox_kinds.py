"""What every kind of connection has in common."""

from dataclasses import replace

import pytest

from asyncqueue import Conflict, InvalidJob, QueueFull


async def test_row_and_job_commit_together(caller, queue, orders):
    await caller.begin()
    await caller.insert("a")
    assert await caller.enqueue("a", 3) is True
    await caller.commit()
    assert orders() == ["a"]
    assert (await queue.get("a")).qty == 3


async def test_the_job_may_come_before_the_row(caller, queue, orders):
    await caller.begin()
    assert await caller.enqueue("a", 3) is True
    await caller.insert("a")
    await caller.commit()
    assert orders() == ["a"]
    assert (await queue.stats()).pending == 1


@pytest.mark.parametrize("row_first", [True, False])
async def test_row_and_job_roll_back_together(caller, queue, orders, row_first):
    await caller.begin()
    if row_first:
        await caller.insert("a")
    await caller.enqueue("a", 3)
    if not row_first:
        await caller.insert("a")
    await caller.rollback()
    assert orders() == []
    assert await queue.get("a") is None
    assert (await queue.stats()).total == 0


async def test_nobody_sees_the_job_before_the_commit(caller, queue):
    await caller.begin()
    await caller.enqueue("a", 3, via=queue)
    assert await queue.get("a") is None
    await caller.commit()
    assert [job.id for job in await queue.claim("worker")] == ["a"]


async def test_the_outbox_does_not_commit_by_itself(caller, queue):
    await caller.begin()
    await caller.enqueue("a", 3)
    await caller.enqueue("b", 3)
    await caller.rollback()
    await caller.begin()
    await caller.enqueue("c", 3)
    await caller.commit()
    assert [job.id for job in await queue.list()] == ["c"]


async def test_the_same_job_again_is_false_within_the_transaction_and_after_it(caller, queue):
    await caller.begin()
    assert [await caller.enqueue("a", 3, payload=[1]) for _ in range(2)] == [True, False]
    await caller.commit()
    await caller.begin()
    assert await caller.enqueue("a", 3, payload=[1], priority=5, ttl_ms=77) is False
    await caller.commit()
    assert (await queue.get("a")).priority == 0


async def test_a_conflict_names_what_differs_and_leaves_the_transaction_usable(caller, queue, orders):
    await queue.enqueue("a", 3)
    await caller.begin()
    await caller.insert("first")
    with pytest.raises(Conflict) as caught:
        await caller.enqueue("a", 4, kind="mail", payload={"x": 1})
    assert caught.value.fields == ("qty", "kind", "payload")
    await caller.insert("second")
    assert await caller.enqueue("b", 1) is True
    await caller.commit()
    assert orders() == ["first", "second"]
    assert [(job.id, job.qty) for job in await queue.list()] == [("a", 3), ("b", 1)]


async def test_an_invalid_job_leaves_the_transaction_usable(caller, queue, orders):
    await caller.begin()
    await caller.insert("first")
    for bad in ({"id": "no spaces"}, {"qty": 0}, {"payload": float("nan")}, {"delay_ms": 5, "ttl_ms": 5}):
        with pytest.raises(InvalidJob):
            await caller.enqueue(**{"id": "a", "qty": 1, **bad})
    assert await caller.enqueue("a", 1) is True
    await caller.commit()
    assert orders() == ["first"]
    assert (await queue.stats()).pending == 1


async def test_a_full_queue_refuses_new_jobs_only_and_leaves_the_transaction_usable(caller, queue, orders):
    await queue.enqueue("a", 1)
    await caller.begin()
    await caller.insert("first")
    assert await caller.enqueue("b", 1, max_pending=2) is True
    with pytest.raises(QueueFull, match="2 waiting jobs"):
        await caller.enqueue("c", 1, max_pending=2)
    assert await caller.enqueue("a", 1, max_pending=2) is False
    with pytest.raises(Conflict):
        await caller.enqueue("a", 2, max_pending=2)
    await caller.commit()
    assert orders() == ["first"]
    assert [job.id for job in await queue.list()] == ["a", "b"]


async def test_every_field_arrives_as_it_does_by_the_queue(caller, queue, clock):
    clock.advance(123)
    fields = {
        "payload": {"z": "\0 \N{SNOWMAN}", "a": [1, 1.5, True, None]},
        "queue": "mail",
        "kind": "receipt",
        "priority": -7,
        "delay_ms": 1_000,
        "ttl_ms": 90_000,
        "max_attempts": 3,
    }
    await queue.enqueue("a", 9, **fields)
    await caller.begin()
    await caller.enqueue("b", 9, via=queue, **fields)
    await caller.commit()
    by_queue, by_outbox = await queue.get("a"), await queue.get("b")
    assert replace(by_outbox, id="a", seq=by_queue.seq) == by_queue
    assert (await queue.stats()).queues["mail"]["pending"] == 2
