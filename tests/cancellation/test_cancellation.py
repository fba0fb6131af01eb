"""FAULTS 29, 47 and 59: whoever is cancelled, wherever, leaves all of a change or nothing, and nothing open."""

import asyncio
import contextlib
import inspect
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import aiosqlite
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from asyncqueue import Dispatcher, HttpSender, outbox, worker
from asyncqueue.clock import ManualClock
from asyncqueue.job import FailedAttempt, NewJob, Note, Redrive, Release, Renew, Report, Ticket
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores import open_store
from asyncqueue.stores.batching import Batcher
from asyncqueue.testing.receiver import ScriptedReceiver
from asyncqueue.wire import Message
from receiver.inbox import Inbox
from receiver.stores.base import Arrival
from tests.cancellation.course import Course, at_rest, every_await, resources, writes_at_once
from tests.cancellation.stepping import Awaits, cancelled_at
from tests.power.images import read
from tests.roles import CONTRACT, NOW_MS, QUEUE, RECEIVER, Role

TAKEN = 10  # steps of the queue's course that come first: a dead, a delayed, a pending and three leased jobs
pytestmark = [pytest.mark.timeout(120), pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])]


def ticket(number):
    return Ticket(f"job{number}", 1, "w", 1, 1, NOW_MS + 50 + 30_000)


def failed(number):
    return Note(ticket(number), FailedAttempt("left"))


VERBS = {
    "enqueue": lambda queue: queue.enqueue("new", 1),
    "enqueue_many": lambda queue: queue.enqueue_many([NewJob(f"new{n}", 1) for n in range(3)]),
    "claim": lambda queue: queue.claim("c", limit=3),
    "claim_late": lambda queue: queue.claim_late("c", lambda: 3),
    "finish": lambda queue: queue.finish(ticket(4), "ok"),
    "finish_many": lambda queue: queue.finish_many([Report.ok(ticket(4)), Report.retry(ticket(5), 5)]),
    "finish_late": lambda queue: queue.finish_late(lambda: [Report.ok(ticket(4)), Report.retry(ticket(5), 5)]),
    "renew": lambda queue: queue.renew(ticket(4), 90_000),
    "renew_many": lambda queue: queue.renew_many([Renew(ticket(4), 90_000), Renew(ticket(5), 90_000)]),
    "release": lambda queue: queue.release(ticket(4)),
    "release_many": lambda queue: queue.release_many([Release(ticket(4)), Release(ticket(5))]),
    "snooze": lambda queue: queue.snooze(ticket(4), 5),
    "note_many": lambda queue: queue.note_many([failed(4)]),
    "cancel": lambda queue: queue.cancel("job4"),
    "cancel_many": lambda queue: queue.cancel_many(["job4", "job7"]),
    "wait": lambda queue: queue.wait("job0"),
    "pause": lambda queue: queue.pause("default"),
    "resume": lambda queue: queue.resume("other"),
    "queues": lambda queue: queue.queues(),
    "redrive": lambda queue: queue.redrive("job3", note="again"),
    "redrive_many": lambda queue: queue.redrive_many(note="again"),
    "purge": lambda queue: queue.purge(older_than_ms=0),
    "purge_set": lambda queue: queue.purge_set(Status.DONE, 0, 10),
    "get": lambda queue: queue.get("job4"),
    "list": lambda queue: queue.list(),
    "history": lambda queue: queue.history("job3"),
    "stats": lambda queue: queue.stats(detail=True),
    "next_due_ms": lambda queue: queue.next_due_ms(kinds=["job"]),
    "version": lambda queue: queue.version(),
    "sweep": lambda queue: queue.sweep(),
    "raise_tokens": lambda queue: queue.raise_tokens(),
    "backup": lambda queue: queue.backup(Path(queue.outbox_terms.place).with_name("copy.db")),
    "close": lambda queue: queue.close(),
}
STORE_VERBS = {
    "write": lambda store: store.write(several),
    "write inline": lambda store: store.write(several, inline=True),
    "get": lambda store: store.get(["job4"]),
    "version": lambda store: store.version(),
    "close": lambda store: store.close(),
}
SENDS = {
    "send": lambda sender, job: sender.send(job),
    "send_alone": lambda sender, job: sender.send_alone(job),
}
CONTRACT_VERBS = {
    "enqueue": lambda con: worker.enqueue(con, {"id": "new", "qty": 1}, NOW_MS, 60_000),
    "claim": lambda con: worker.claim(con, "c", NOW_MS + 1),
    "finish": lambda con: worker.finish(con, contract_ticket(), "ok", NOW_MS + 1),
    "redrive": lambda con: worker.redrive(con, "job2", NOW_MS + 2, 60_000, "again"),
    "run_once": lambda con: worker.run_once(con, "c", lambda: NOW_MS + 2_000, accepts, 0.5),
}
INBOX_VERBS = {
    "receive": lambda inbox: inbox.receive(Message("new", 1, None), 1, 1),
    "receive_many": lambda inbox: inbox.receive_many(
        [Arrival(Message(f"new{n}", 1, None), 1, 1) for n in range(3)]
    ),
    "get": lambda inbox: inbox.get("one"),
    "totals": lambda inbox: inbox.totals(),
    "check_ready": lambda inbox: inbox.check_ready(),
    "close": lambda inbox: inbox.close(),
}


async def several(transaction):
    await transaction.enqueue([NewJob("new", 1)])
    await transaction.finish([Report.ok(ticket(4))])
    return await transaction.redrive([Redrive("job3", 60_000, "again")])


def contract_ticket():
    job = {"id": "job0", "qty": 1}
    return {**job, "owner": "w", "token": 1, "attempt": 1, "lease_until": NOW_MS + 1_000}


async def accepts(_event):
    await asyncio.sleep(0)
    return True


def public_coroutines(owner):
    names = getattr(owner, "__all__", None) or [name for name in vars(owner) if not name.startswith("_")]
    return {name for name in names if inspect.iscoroutinefunction(getattr(owner, name))}


def test_no_public_coroutine_is_left_out(twice):
    assert public_coroutines(Queue) == VERBS.keys()
    assert public_coroutines(worker) == {*CONTRACT_VERBS, "open_queue", "run_file"}
    assert public_coroutines(Inbox) == INBOX_VERBS.keys()
    assert public_coroutines(Dispatcher) == {"run", "drain"}
    assert public_coroutines(HttpSender) == SENDS.keys()
    assert public_coroutines(outbox) == {"enqueue_async"}


async def cancel_everywhere(course, call, probe, *, twice, allowed, at_once=False):
    async def trial(number):
        course.afresh()
        before = resources()
        async with course.open() as opened:
            reached = await cancelled_at(lambda: call(opened), number, twice=twice)
            if at_once:  # whoever was cancelled has waited for the end of its transaction
                writes_at_once(course.path)
            async with asyncio.timeout(10):
                await probe(opened)
        await at_rest(before)
        writes_at_once(course.path)
        assert allowed(read(course.path)), f"await {number}: neither before nor after"
        return reached

    await every_await(trial)


@pytest.mark.parametrize("verb", VERBS)
async def test_queue(verb, twice, tmp_path):
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()
    ends = await course.ends(VERBS[verb])

    async def probe(queue):
        if verb != "close":
            assert await queue.renew(Ticket("nobody", 1, "w", 1, 1, 1)) is None

    def allowed(content):
        if verb.startswith("claim"):  # what was leased for nobody is given back, by a new token
            return [without_token(job) for job in content["jobs"]] in [
                [without_token(job) for job in end["jobs"]] for end in ends
            ]
        return content in ends

    await cancel_everywhere(course, VERBS[verb], probe, twice=twice, allowed=allowed)


def without_token(job):
    return [value for place, value in enumerate(job) if place not in (6, 7, 11)]


@asynccontextmanager
async def an_open_store(path, _step):
    store = await open_store(path, clock=ManualClock(NOW_MS + 100))
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("verb", STORE_VERBS)
async def test_store(verb, twice, tmp_path):
    """Below the batches a caller's own task takes the turn, passes the gate and waits for the driver."""
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()
    course.role = Role(an_open_store, (), ())
    ends = await course.ends(STORE_VERBS[verb])

    async def probe(store):
        if verb != "close":
            assert len(await store.get(["job4", "nobody"])) == 2
            assert await store.write(lambda transaction: transaction.release([Release(ticket(99))])) == [False]

    # A read that nobody waits for any more ends by itself a moment later.
    at_once = verb not in ("get", "version")
    await cancel_everywhere(
        course, STORE_VERBS[verb], probe, twice=twice, allowed=ends.__contains__, at_once=at_once
    )


async def test_a_caller_cancelled_while_the_driver_works_outwaits_its_transaction(twice, tmp_path):
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()
    go_on = threading.Event()

    async def work(transaction):
        await transaction.enqueue([NewJob("new", 1)])
        assert go_on.wait(20)  # in the driver's thread, where the whole of it runs

    async with an_open_store(course.path, 0) as store:
        task = asyncio.ensure_future(store.write(work, inline=True))
        await asyncio.sleep(0)
        for _ in range(2 if twice else 1):
            task.cancel()
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await asyncio.wait((task,))
        assert go_on.is_set()
        writes_at_once(course.path)
        assert (await store.get(["new"]))[0] is not None  # the driver does not stop for a cancellation


@pytest.mark.parametrize("verb", CONTRACT_VERBS)
async def test_contract(verb, twice, tmp_path):
    course = Course(CONTRACT, len(CONTRACT.steps) - 1 if verb == "redrive" else 6, tmp_path)
    await course.prepare()
    ends = await course.ends(CONTRACT_VERBS[verb])

    async def probe(con):
        assert not con.in_transaction
        assert await worker.enqueue(con, {"id": "job0", "qty": 1}, NOW_MS, 60_000) is False

    def allowed(content):
        return content in ends or (verb == "run_once" and "c" in {job[9] for job in content["jobs"]})

    await cancel_everywhere(course, CONTRACT_VERBS[verb], probe, twice=twice, allowed=allowed, at_once=True)


@pytest.mark.parametrize("verb", INBOX_VERBS)
async def test_inbox(verb, twice, tmp_path):
    course = Course(RECEIVER, 5, tmp_path)
    await course.prepare()
    ends = await course.ends(INBOX_VERBS[verb])

    async def probe(inbox):
        if verb != "close":
            assert (await inbox.totals()).messages >= 2

    await cancel_everywhere(course, INBOX_VERBS[verb], probe, twice=twice, allowed=ends.__contains__)


@pytest.mark.parametrize("role", [QUEUE, RECEIVER, CONTRACT], ids=["queue", "receiver", "contract"])
async def test_opening(role, twice, tmp_path):
    async with role.open(tmp_path / "warm.db", 0):
        pass

    async def trial(number):
        path = tmp_path / f"{number}.db"
        before = resources()

        async def open_and_close():
            async with role.open(path, 0):
                pass

        reached = await cancelled_at(open_and_close, number, twice=twice)
        await at_rest(before)
        async with role.open(path, 0) as opened:
            await role.steps[1][1](opened)
        return reached

    await every_await(trial)


async def test_run_file(twice, tmp_path):
    course = Course(CONTRACT, 4, tmp_path)
    await course.prepare()

    async def trial(number):
        course.afresh()
        before = resources()

        def call():
            return worker.run_file(course.path, "c", lambda: NOW_MS, accepts, 0.5)

        reached = await cancelled_at(call, number, twice=twice)
        await at_rest(before)
        writes_at_once(course.path)
        return reached

    await every_await(trial)


async def test_outbox(twice, tmp_path):
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()

    async def trial(number):
        course.afresh()
        before = read(course.path)
        async with aiosqlite.connect(course.path, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            reached = await cancelled_at(lambda: outbox.enqueue_async(connection, "new", 1), number, twice=twice)
            assert connection.in_transaction
            await connection.rollback()
        writes_at_once(course.path)
        assert read(course.path) == before
        return reached

    await every_await(trial)


@pytest.mark.parametrize("begins", [AsyncConnection, AsyncSession])
async def test_outbox_of_sqlalchemy(begins, twice, tmp_path):
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()

    async def trial(number):
        course.afresh()
        before, threads = read(course.path), resources()
        engine = create_async_engine(f"sqlite+aiosqlite:///{course.path}")
        try:
            async with begins(engine) as handle:
                if begins is AsyncConnection:
                    await handle.begin()
                reached = await cancelled_at(lambda: outbox.enqueue_async(handle, "new", 1), number, twice=twice)
                await handle.rollback()
            writes_at_once(course.path)
            assert read(course.path) == before
            async with begins(engine) as handle:
                if begins is AsyncConnection:
                    await handle.begin()
                assert await outbox.enqueue_async(handle, "new", 1) is True
                await handle.commit()
        finally:
            await engine.dispose()
        assert len(read(course.path)["jobs"]) == len(before["jobs"]) + 1
        await at_rest(threads)
        return reached

    await every_await(trial)


async def test_the_task_of_the_batches_under_load(twice, tmp_path, monkeypatch):
    """Whoever waits is answered or cancelled, nobody hangs; what was acknowledged is there, and others go on."""
    course = Course(QUEUE, TAKEN, tmp_path)
    await course.prepare()
    plain = Batcher._work

    async def produce(queue, number):
        acknowledged = []
        for place in range(4):
            with contextlib.suppress(asyncio.CancelledError):
                if await queue.enqueue(f"load{number}-{place}", 1):
                    acknowledged.append(f"load{number}-{place}")
        return acknowledged

    async def trial(number):
        course.afresh()
        before = resources()
        awaits = Awaits.at(number, twice=twice)

        async def followed(batcher, batch):
            await awaits.follow(plain(batcher, batch))

        monkeypatch.setattr(Batcher, "_work", followed)
        async with course.open() as queue:
            async with asyncio.timeout(20):
                told = await asyncio.gather(*(produce(queue, number) for number in range(8)))
                monkeypatch.setattr(Batcher, "_work", plain)
                assert await queue.enqueue("afterwards", 1) is True
            acknowledged = {job for some in told for job in some}
            assert len(acknowledged) == 32 or awaits.hits
            assert acknowledged <= {job.id for job in await queue.list(id_prefix="load", limit=100)}
        writes_at_once(course.path)
        await at_rest(before)
        return awaits.hits > 0

    await every_await(trial)


@pytest.mark.parametrize("verb", ["run", "drain"])
async def test_dispatcher(verb, twice, tmp_path):
    """Cancelled at the await of any of its tasks: it is cancelled after 0, 1, 2 … turns of the event loop."""
    course = Course(QUEUE, 3, tmp_path)
    await course.prepare()
    for turns in range(40):
        course.afresh()
        clock = ManualClock(NOW_MS + 1_000)
        before = asyncio.all_tasks()
        async with Queue.open(course.path, clock=clock) as queue:
            dispatcher = Dispatcher(queue, accepts_job, concurrency=2, poll_ms=1)
            task = asyncio.ensure_future(getattr(dispatcher, verb)())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            if twice:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            assert dispatcher.in_flight == 0
            assert asyncio.all_tasks() - before <= {*queue_tasks()}
            clock.advance(60_000)
            await dispatcher.drain()
            assert (await queue.stats()).done == 9
        assert asyncio.all_tasks() == before
        writes_at_once(course.path)


def queue_tasks():
    return [task for task in asyncio.all_tasks() if task.get_name() == "asyncqueue-batches"]


async def accepts_job(_job):
    await asyncio.sleep(0)
    return True


@pytest.mark.parametrize("verb", SENDS)
async def test_http_sender(verb, twice, tmp_path):
    course = Course(QUEUE, 3, tmp_path)
    await course.prepare()
    async with course.open() as queue, ScriptedReceiver() as server:
        (job,) = await queue.claim("w", queues=["default"])

        async def trial(number):
            before = resources()
            async with HttpSender(server.url) as sender:
                reached = await cancelled_at(lambda: SENDS[verb](sender, job), number, twice=twice)
                assert (await sender.send(job)).verdict == "ok"
            await at_rest((before[0] + 1, before[1] + 1))
            return reached

        await every_await(trial)
