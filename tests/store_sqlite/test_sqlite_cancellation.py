"""FAULTS 29 and 59: a task cancelled anywhere leaves no lock, no half transaction, no thread, no descriptor."""

import asyncio
import contextlib

import anyio
import anyio.lowlevel
import pytest

from asyncqueue.errors import StoreClosed
from asyncqueue.job import NewJob, Report, Ticket
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Claim
from asyncqueue.stores.shield import shielded

HOPS_MAX = 60
HOW = [(moment, way) for moment in ("before", "after") for way in ("once", "twice", "scope")]
pytestmark = pytest.mark.usefixtures("no_sync")


async def cancelled_at(hop_hook, call, hop, how):
    """Run `call`, cancelling its caller around one hop; tell whether that hop was reached."""
    reached = False
    moment, way = how
    scope = anyio.CancelScope()
    task = None

    def hook(number, when):
        nonlocal reached
        if (number, when) == (hop, moment) or (way == "twice" and reached and number == hop + 1):
            reached = True
            scope.cancel() if way == "scope" else task.cancel()

    async def run():
        if way == "scope":
            with scope:
                await call()
        else:
            await call()

    task = asyncio.ensure_future(run())
    hop_hook(hook)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        hop_hook(None)
    return reached


async def every_hop(attempt):
    """Try `attempt(hop)` for hop 0, 1, 2 ... until there is no such hop."""
    for hop in range(HOPS_MAX):
        if not await attempt(hop):
            assert hop > 0, "nothing was cancelled at all"
            return
    raise AssertionError("it never ran to its end")


@pytest.mark.parametrize("how", HOW, ids="-".join)
async def test_transaction_cancelled_at_any_hop_is_whole_or_absent(path, hop_hook, writes_at_once, how):
    store = await open_store(path)
    number = 0
    seen = set()

    async def attempt(hop):
        nonlocal number
        number += 1
        ids = [f"a{number}", f"b{number}"]

        async def work(transaction):
            await transaction.enqueue([NewJob(one, 1, priority=number) for one in ids])
            leased = await transaction.claim(Claim("w", 2, 60_000))
            await transaction.finish([Report.ok(leased[0])])
            return await transaction.release([])

        reached = await cancelled_at(hop_hook, lambda: store.write(work), hop, how)
        writes_at_once(path)
        found = [job and job.status for job in await store.get(ids)]
        seen.add(tuple(found))
        assert found in ([None, None], [Status.DONE, Status.LEASED])
        return reached

    await every_hop(attempt)
    assert await store.write(lambda transaction: transaction.enqueue([NewJob("last", 1)])) == [True]
    assert len(seen) in (1, 2)
    await store.close()


VERBS = {
    "enqueue": lambda q, _t, number: q.enqueue(f"n{number}", 1),
    "claim": lambda q, _t, _n: q.claim("w", limit=3),
    "finish": lambda q, t, _n: q.finish(t, "retry", error="x"),
    "renew": lambda q, t, _n: q.renew(t, 90_000),
    "release": lambda q, t, _n: q.release(t),
    "redrive": lambda q, t, _n: q.redrive("dead", note="n"),
}


@pytest.mark.parametrize("how", HOW, ids="-".join)
@pytest.mark.parametrize("verb", VERBS)
async def test_verb_cancelled_at_any_hop_leaves_a_usable_queue(path, hop_hook, writes_at_once, verb, how):
    async with Queue.open(path) as queue:
        await queue.enqueue_many([NewJob(f"job{n}", 1) for n in range(3)])

        async def attempt(hop):
            await queue.enqueue(f"held{hop}", 1, priority=5)
            await queue.enqueue("dead", 1, priority=9)
            while leased := [job for job in await queue.claim("w", limit=9) if job.id == "dead"]:
                await queue.finish(leased[0], "permanent")
            for job in await queue.list(status="leased"):
                await queue.release(_ticket(job))
            (ticket,) = await queue.claim("w")
            reached = await cancelled_at(hop_hook, lambda: VERBS[verb](queue, ticket, hop), hop, how)
            assert await queue.enqueue(f"fresh{hop}", 1)
            writes_at_once(path)
            if verb == "claim":
                await queue._batches._batcher.settle()
                if reached:
                    assert [job.id for job in await queue.list(status="leased")] == [ticket.id]
            await queue.finish(ticket, "ok")
            return reached

        await every_hop(attempt)
        stats = await queue.stats()
        assert stats.total == len(await queue.list())


def _ticket(job):
    return Ticket(job.id, job.qty, job.owner, job.token, job.attempts, job.lease_until)


@pytest.mark.parametrize("how", HOW, ids="-".join)
async def test_open_cancelled_at_any_hop_leaves_nothing_open(tmp_path, hop_hook, resources, writes_at_once, how):
    async with Queue.open(tmp_path / "warm.db"):
        pass
    before = resources()

    async def attempt(hop):
        path = tmp_path / f"{hop}.db"
        reached = await cancelled_at(hop_hook, lambda: _open_and_forget(path, opened), hop, how)
        if opened:
            await opened.pop().close()
        assert resources(before) == before
        async with Queue.open(path) as queue:
            assert await queue.enqueue("a", 1)
            writes_at_once(path)
        return reached

    opened = []
    await every_hop(attempt)


async def _open_and_forget(path, opened, **settings):
    opened.append(await Queue.open(path, **settings))


@pytest.mark.parametrize("how", HOW, ids="-".join)
async def test_open_for_reads_alone_cancelled_at_any_hop_leaves_nothing_open(path, hop_hook, resources, how):
    async with Queue.open(path):
        pass
    path.chmod(0o400)
    before = resources()

    async def attempt(hop):
        reached = await cancelled_at(hop_hook, lambda: _open_and_forget(path, opened, only_reads=True), hop, how)
        if opened:
            await opened.pop().close()
        assert resources(before) == before
        return reached

    opened = []
    await every_hop(attempt)


@pytest.mark.parametrize("how", HOW, ids="-".join)
async def test_close_cancelled_at_any_hop_still_closes(path, hop_hook, resources, writes_at_once, how):
    async with Queue.open(path):
        pass
    before = resources()

    async def attempt(hop):
        queue = await Queue.open(path)
        # It joins a batch in the step before the close begins, so that the close finds it under way.
        writer = asyncio.ensure_future(queue.enqueue(f"a{hop}", 1))
        reached = await cancelled_at(hop_hook, queue.close, hop, how)
        outcome = (await asyncio.gather(writer, return_exceptions=True))[0]
        assert outcome is True or isinstance(outcome, StoreClosed)
        assert resources(before) == before
        with pytest.raises(StoreClosed):
            await queue.enqueue("b", 1)
        writes_at_once(path)
        return reached

    await every_hop(attempt)


async def test_leaving_the_block_by_an_anyio_cancellation_closes_the_queue(path, resources):
    async with Queue.open(path):
        pass
    before = resources()
    with anyio.CancelScope() as scope:
        async with Queue.open(path) as queue, anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(queue.enqueue, f"j{n}", 1)
            await anyio.lowlevel.checkpoint()
            scope.cancel()
    assert scope.cancelled_caught
    assert resources(before) == before


async def test_two_thousand_cancelled_opens_leave_threads_and_descriptors_as_before(path, resources):
    """FAULTS 29, in short form."""
    async with Queue.open(path):
        pass
    before = resources()
    cancelled = 0
    for n in range(2_000):
        task = asyncio.ensure_future(_open_and_close(path))
        for _ in range(n % 12):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled += 1
    assert cancelled > 1_000
    assert resources(before) == before


async def _open_and_close(path):
    async with Queue.open(path):
        pass


async def test_shielded_work_ends_before_its_caller_does_and_undo_gets_its_result():
    ended, undone = [], []
    gate = asyncio.Event()

    async def work():
        await gate.wait()
        ended.append(1)
        return "result"

    async def undo(result):
        undone.append(result)

    task = asyncio.ensure_future(shielded(work(), undo))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, undone) == ([1], ["result"])


async def test_shielded_work_that_fails_while_its_caller_is_cancelled_is_not_undone():
    undone = []

    async def work():
        await asyncio.sleep(0)
        raise OSError("no")

    async def undo(result):
        undone.append(result)

    task = asyncio.ensure_future(shielded(work(), undo))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == []


async def test_anyio_cancels_nobody_who_waits_for_shielded_work():
    gate = asyncio.Event()
    told = []

    async def work():
        await gate.wait()
        return "result"

    async def call():
        with scope:
            told.append(await shielded(work()))
            await anyio.lowlevel.checkpoint()
        told.append(scope.cancelled_caught)

    scope = anyio.CancelScope()
    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    scope.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert task.cancelling() == 0, "else it would be woken again and again, in every turn of the loop"
    gate.set()
    await task
    assert told == ["result", True]


async def test_cancelled_caller_of_shielded_work_that_was_cancelled_too_learns_of_its_own_cancellation():
    gate = asyncio.Event()

    async def work():
        await gate.wait()
        raise asyncio.CancelledError("of the work")

    task = asyncio.ensure_future(shielded(work()))
    await asyncio.sleep(0)
    task.cancel("of the caller")
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError, match="of the caller"):
        await task
