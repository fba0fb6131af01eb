"""What an effect may ask of queues while it runs: its own is refused, at once, where it would wait."""

import asyncio
import contextvars

import pytest

from asyncqueue import Queue, outbox
from asyncqueue.errors import BadEffect
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status
from asyncqueue.stores.inside import failure_of, is_inside, marked

WITHIN_S = 3  # a call that waits for itself never ends


@pytest.fixture
async def leased(queue):
    await queue.enqueue_many([NewJob("a", 1), NewJob("b", 1), NewJob("c", 1)])
    return (await queue.claim("w"))[0]


@pytest.fixture
async def other(new_url, clock):
    async with Queue.open(new_url(), clock=clock) as opened:
        yield opened


async def finish(queue, leased, work):
    """Run `work` as an effect; a test that would hang fails."""
    async with asyncio.timeout(WITHIN_S):
        return await queue.finish(leased, "ok", effect=work)


CALLS = {
    "enqueue": lambda queue, _leased: queue.enqueue("new", 1),
    "enqueue_many": lambda queue, _leased: queue.enqueue_many([NewJob("new", 1)]),
    "claim": lambda queue, _leased: queue.claim("w"),
    "claim_late": lambda queue, _leased: queue.claim_late("w", lambda: 1),
    "finish": lambda queue, leased: queue.finish(leased, "ok"),
    "finish with an effect": lambda queue, leased: queue.finish(leased, "ok", effect=asyncio.sleep),
    "finish_late": lambda queue, _leased: queue.finish_late(list),
    "renew": lambda queue, leased: queue.renew(leased),
    "release": lambda queue, leased: queue.release(leased),
    "snooze": lambda queue, leased: queue.snooze(leased, 1),
    "cancel": lambda queue, _leased: queue.cancel("b"),
    "wait": lambda queue, _leased: queue.wait("b"),
    "pause": lambda queue, _leased: queue.pause("default"),
    "resume": lambda queue, _leased: queue.resume("default"),
    "redrive": lambda queue, _leased: queue.redrive("b", note="again"),
    "sweep": lambda queue, _leased: queue.sweep(),
    "purge": lambda queue, _leased: queue.purge(older_than_ms=queue.dedup_ms),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_effect_that_calls_its_own_queue_is_refused_and_undone(queue, leased, ledger, pays, call):
    before = await queue.list()

    async def work(connection):
        await pays(leased)(connection)
        await CALLS[call](queue, leased)

    with pytest.raises(BadEffect, match=r"outbox\.enqueue_async"):
        await finish(queue, leased, work)
    assert ledger() == []
    assert await queue.list() == before
    assert not (await queue.queues())["default"]
    assert await queue.finish(leased, "ok", effect=pays(leased)) is Status.DONE


async def test_an_effect_that_closes_its_own_queue_is_refused_and_the_queue_goes_on(queue, leased, ledger):
    async def work(_connection):
        await queue.close()

    with pytest.raises(BadEffect, match="close"):
        await finish(queue, leased, work)
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_an_effect_may_read_and_sees_what_was_committed_before_it(queue, leased):
    seen = []

    async def work(_connection):
        seen.append((await queue.get("a")).status)
        seen.append((await queue.stats()).leased)
        seen.append(await queue.history("a"))
        seen.append(len(await queue.list()))

    assert await finish(queue, leased, work) is Status.DONE
    assert seen == [Status.LEASED, 1, [], 3]


@pytest.mark.parametrize("via", [False, True])
async def test_the_outbox_enqueues_in_the_transaction_of_the_effect(queue, leased, via):
    terms = {"via": queue} if via else {"schema": queue.outbox_terms.schema}

    async def fails(connection):
        assert await outbox.enqueue_async(connection, "undone", 1, **terms) is True
        raise RuntimeError("no such account")

    async def work(connection):
        assert await outbox.enqueue_async(connection, "next", 7, **terms) is True
        assert await outbox.enqueue_async(connection, "next", 7, **terms) is False
        assert await queue.get("next") is None

    with pytest.raises(RuntimeError, match="account"):
        await finish(queue, leased, fails)
    assert await finish(queue, leased, work) is Status.DONE
    assert ((await queue.get("next")).qty, await queue.get("undone")) == (7, None)


async def test_an_effect_may_call_a_queue_on_another_database(queue, leased, other):
    async def work(_connection):
        await other.enqueue("there", 1)

    assert await finish(queue, leased, work) is Status.DONE
    assert (await other.get("there")).status is Status.PENDING


async def test_another_object_on_the_same_database_is_refused_alike_but_may_be_closed(queue, leased, opening):
    async def work(_connection):
        async with opening() as second:
            await second.enqueue("new", 1)

    with pytest.raises(BadEffect, match="its own queue"):
        await finish(queue, leased, work)
    assert await queue.get("new") is None


@pytest.fixture
async def others(other):
    """Three leases of the other queue: two for effects that hold both its transactions, and one more."""
    await other.enqueue_many([NewJob(job_id, 1) for job_id in "xyz"])
    return await other.claim("w", limit=3)


class Holding:
    """Effects that hold both transactions of the other queue at once, until they are let go."""

    def __init__(self, queue):
        self._queue = queue
        self._begun = asyncio.Event()
        self.end = asyncio.Event()

    async def _holds(self, _connection):
        self._begun.set()
        await self.end.wait()

    async def begin(self, first, second):
        """Begin both from here; the tasks that run them, and then others, are begun here with them."""
        one = await self.waiting(first, self._holds)
        await self._begun.wait()
        return one, await self.waiting(second, self._holds)

    async def waiting(self, ticket, work):
        """Call, and go on as soon as the call waits."""
        task = asyncio.ensure_future(self._queue.finish(ticket, "ok", effect=work))
        for _ in range(20):
            await asyncio.sleep(0)
        return task


async def test_the_own_queue_is_refused_also_by_way_of_an_effect_of_another_queue(queue, leased, other, others):
    """That effect runs in a task of the other queue which somebody else's call has begun."""
    x, y, z = others
    holding = Holding(other)

    async def inner(_connection):
        await queue.enqueue("new", 1)

    async def work(_connection):
        calling = await holding.waiting(z, inner)
        holding.end.set()
        await calling

    async with asyncio.timeout(WITHIN_S):
        strangers = await holding.begin(x, y)
        with pytest.raises(BadEffect, match="its own queue"):
            await queue.finish(leased, "ok", effect=work)
        assert await asyncio.gather(*strangers) == [Status.DONE] * 2
    assert await other.finish(z, "ok") is Status.DONE


async def test_effects_of_strangers_are_not_taken_for_those_that_began_their_tasks(queue, leased, other, others):
    """A task of the other queue that an effect has begun serves other callers, too; they are inside nothing."""
    x, y, z = others
    holding = Holding(other)
    is_held, is_called, called = asyncio.Event(), asyncio.Event(), []

    async def enqueues(_connection):
        called.append(asyncio.ensure_future(queue.enqueue("new", 1)))
        await asyncio.sleep(0)
        is_called.set()

    async def work(_connection):
        mine = await holding.begin(x, y)
        is_held.set()
        await asyncio.gather(*mine, is_called.wait())

    async with asyncio.timeout(WITHIN_S):
        finishing = asyncio.create_task(queue.finish(leased, "ok", effect=work))
        await is_held.wait()
        stranger = await holding.waiting(z, enqueues)
        holding.end.set()
        assert await asyncio.gather(stranger, finishing) == [Status.DONE] * 2
        assert await called[0] is True


async def test_a_task_that_outlives_its_effect_may_call_the_queue(queue, leased):
    tasks, ended = [], asyncio.Event()

    async def later():
        with pytest.raises(BadEffect):
            await queue.enqueue("early", 1)
        await ended.wait()
        return await queue.enqueue("later", 1)

    async def work(_connection):
        tasks.append(asyncio.create_task(later()))
        await asyncio.sleep(0)

    assert await finish(queue, leased, work) is Status.DONE
    ended.set()
    assert await tasks[0] is True
    assert await queue.get("early") is None


async def test_task_that_ran_an_effect_of_somebody_inside_another_one_is_inside_nothing_behind_it():
    outside, answers = contextvars.copy_context(), []

    async def serves(effect):
        await effect(None)
        answers.append(is_inside("mine"))

    async def work(_connection):
        inner = marked(asyncio.sleep, "other", "there")
        await asyncio.create_task(serves(lambda _connection: inner(0)), context=outside)
        answers.append(is_inside("mine"))

    await marked(work, "mine", "here")(None)
    assert answers == [False, True]


async def test_task_that_is_cancelled_while_its_effect_runs_is_cancelled():
    begun = asyncio.Event()

    async def work(_connection):
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(failure_of(work, None))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_effect_is_inside_its_owner_and_its_place_and_two_without_a_place_have_none_in_common():
    answers = []

    async def work(_connection):
        for owner, place in (("mine", None), ("other", None), ("other", lambda: "here"), ("other", lambda: None)):
            answers.append(is_inside(owner, place))

    await marked(work, "mine", "here")(None)
    await marked(work, "mine", None)(None)
    assert answers == [True, False, True, False, True, False, False, False]


async def test_a_thread_of_an_effect_is_inside_it_too(queue, leased):
    loop = asyncio.get_running_loop()

    def from_thread():
        return asyncio.run_coroutine_threadsafe(queue.enqueue("new", 1), loop).result(WITHIN_S)

    async def work(_connection):
        await asyncio.to_thread(from_thread)

    with pytest.raises(BadEffect, match="its own queue"):
        await finish(queue, leased, work)


async def test_others_may_call_the_queue_while_an_effect_runs(queue, leased):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(_connection):
        begun.set()
        await go_on.wait()

    async with asyncio.timeout(WITHIN_S):
        finishing = asyncio.create_task(queue.finish(leased, "ok", effect=work))
        await begun.wait()
        calls = [asyncio.create_task(queue.enqueue("new", 1)), asyncio.create_task(queue.cancel("b"))]
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*calls) == [True, True]
        assert await finishing is Status.DONE
