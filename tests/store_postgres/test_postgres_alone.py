"""A finish and a claim in one exchange: whatever becomes of its answer, nothing is lost, burnt or told twice."""

import asyncio
import os
import signal
from dataclasses import replace

import asyncpg
import pytest

from asyncqueue import Dispatcher, Queue
from asyncqueue.clock import ManualClock
from asyncqueue.errors import StoreUnreachable
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.retry import ACCEPTED
from asyncqueue.stores.base import Claim, JobFilter, Rules
from asyncqueue.stores.postgres.connection import Database
from tests.store.raw import PostgresRaw, schema_of, server_of
from tests.waiting import until

OWNER = "whose-answer-is-lost"
LEASE_MS = 30_000
NEXT = Claim(OWNER, 4, LEASE_MS)
IDS = [f"j{n:02}" for n in range(12)]


@pytest.fixture
def asked(monkeypatch):
    """What was asked for, in order: the beginning of each statement."""
    found = []

    def noting(name):
        ask = getattr(asyncpg.Connection, name)

        async def noted(connection, sql, *args, **named):
            found.append(sql.split()[0] + (" finished" if "WITH finished" in sql else ""))
            return await ask(connection, sql, *args, **named)

        monkeypatch.setattr(asyncpg.Connection, name, noted)

    noting("fetch")
    noting("execute")
    return found


async def filled(store):
    """Put jobs in and lease four; after that the store knows where the others begin."""
    await store.write(lambda transaction: transaction.enqueue([NewJob(name, 1) for name in IDS]))
    for _ in range(2):
        held = await store.write(lambda transaction: transaction.claim(Claim(OWNER, 2, LEASE_MS)))
    return held


def at_once(store, held, claim=NEXT):
    reports = [Report.ok(job) for job in held]
    return store.write(lambda transaction: transaction.finish_and_claim(reports, claim), inline=True, at_once=True)


def raw_of(url):
    return PostgresRaw(url).connect()


async def state(store):
    return [(job.id, job.status, job.attempts, job.token) for job in await store.list_jobs(JobFilter())]


DONE_AND_LEASED = [
    *((name, Status.LEASED, 1, 1) for name in IDS[:2]),
    *((name, Status.DONE, 1, 1) for name in IDS[2:4]),
    *((name, Status.LEASED, 1, 1) for name in IDS[4:8]),
    *((name, Status.PENDING, 0, 0) for name in IDS[8:]),
]


async def holds_what_it_was_told(store, answers, leased):
    """Whatever came in between: the answers are those of a quiet day, and the leases are good for a report."""
    assert answers == [Status.DONE] * 2
    assert [(job.id, job.token, job.attempt, job.owner) for job in leased] == [
        (name, 1, 1, OWNER) for name in IDS[4:8]
    ]
    assert all(0 < job.lease_ms <= LEASE_MS and job.deadline > job.lease_until for job in leased)
    assert await state(store) == DONE_AND_LEASED
    reports = [Report.ok(job) for job in leased]
    assert await store.write(lambda transaction: transaction.finish(reports)) == [Status.DONE] * 4


async def test_it_is_one_exchange_and_one_commit(opened, asked):
    store = await opened()
    held = await filled(store)
    before = store.database.commits, await store.version()
    asked.clear()
    answer = await at_once(store, held)
    assert asked == ["WITH finished"]
    assert store.database.commits == before[0] + 1
    await holds_what_it_was_told(store, *answer)
    assert await store.version() != before[1]


@pytest.mark.parametrize(
    "work",
    [
        lambda held: lambda transaction: transaction.enqueue([NewJob("new", 1)]),
        lambda held: lambda transaction: transaction.claim(NEXT),
        lambda held: lambda transaction: transaction.finish([Report.ok(job) for job in held]),
        lambda held: lambda transaction: transaction.finish_and_claim([], NEXT),
        lambda held: lambda transaction: transaction.finish_and_claim([Report.retry(held[0], 0)], NEXT),
        lambda held: lambda transaction: transaction.finish_and_claim([Report.ok(held[0])] * 2, NEXT),
    ],
    ids=["enqueue", "claim", "finish", "nothing to report", "a retry", "one twice"],
)
async def test_whatever_else_is_asked_for_has_its_transaction(opened, asked, work):
    store = await opened()
    work = work(await filled(store))
    asked.clear()
    assert await store.write(work, inline=True, at_once=True)
    assert asked[0] == "BEGIN;"
    assert asked[-1] == "COMMIT;"
    assert "WITH finished" not in asked


async def test_without_a_place_to_begin_or_with_a_full_history_it_has_its_transaction(opened, own_url, asked):
    for rules, waits in ((Rules(), True), (Rules(keep_all=True), False)):
        store = await opened(rules=rules)
        held = await filled(store)
        if waits:
            store._sight = store._sight._replace(floor=store._sight.floor._replace(until=0.0))
        asked.clear()
        await at_once(store, held)
        assert "WITH finished" not in asked
        with raw_of(own_url) as connection:
            connection.execute("DELETE FROM jobs")


@pytest.mark.parametrize("fault", ["no answer", "never sent"])
async def test_an_answer_that_is_lost_is_read_back(opened, own_url, proxy, asked, fault):
    """FAULTS 29: whether it was done is asked, not assumed; no attempt is burnt and no lease forgotten."""
    store = await opened(proxy.url(own_url))
    held = await filled(store)
    asked.clear()
    if fault == "never sent":
        proxy.freeze()
        asking = asyncio.create_task(at_once(store, held))
        await until(lambda: asked)
        proxy.cut()
        proxy.thaw()
        answer = await asking
    else:
        proxy.cut_after(OWNER.encode())
        answer = await at_once(store, held)
    assert asked[0] == "WITH finished"
    assert asked.count("WITH finished") == 1
    await holds_what_it_was_told(store, *answer)


async def test_an_answer_that_is_lost_twice_is_read_back(opened, own_url, proxy):
    """The second time it is the transaction of the repetition whose COMMIT is not answered."""
    store = await opened(proxy.url(own_url))
    held = await filled(store)
    write = Database.write

    async def writing(database, work, *args, **named):
        proxy.cut_after(b"COMMIT")
        return await write(database, work, *args, **named)

    proxy.cut_after(OWNER.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write", writing)
        answer = await at_once(store, held)
    await holds_what_it_was_told(store, *answer)


async def test_leases_that_were_told_are_not_told_again_to_who_repeats_their_report(opened, own_url, proxy):
    store = await opened(proxy.url(own_url))
    first, second = await filled(store)
    answers, told = await at_once(store, [first], replace(NEXT, limit=2))
    assert (answers, [job.id for job in told]) == ([Status.DONE], IDS[4:6])
    proxy.cut_after(OWNER.encode())
    answers, leased = await at_once(store, [first, second])
    assert (answers, [job.id for job in leased]) == ([None, Status.DONE], IDS[6:10])
    proxy.cut_after(OWNER.encode())
    answers, leased = await at_once(store, [first, second], replace(NEXT, limit=1))
    assert (answers, [job.id for job in leased]) == ([None, None], IDS[10:11])
    assert {(job.token, job.attempts) for job in await store.list_jobs(JobFilter(status=Status.LEASED))} == {
        (1, 1)
    }


async def test_a_server_that_stood_still_for_longer_than_the_patience_is_read_back(opened, own_url, own_server):
    """It does what it was asked when it goes on, although the caller was told that it is away."""
    store = await opened(patience_ms=1_000, reply_ms=300)
    _, held = await at_once(store, await filled(store), replace(NEXT, limit=2))  # the statement is prepared now
    watch = await asyncpg.connect(server_of(own_url))
    ours = await watch.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'asyncqueue'")
    stopped = [own_server.pid, *(row[0] for row in ours)]
    try:
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(StoreUnreachable):
            await at_once(store, held)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    ended = f"""SELECT count(*) FROM "{schema_of(own_url)}".jobs WHERE status = 'done'"""
    while await watch.fetchval(ended) < 4:
        await asyncio.sleep(0)
    await watch.close()
    answers, leased = await at_once(store, held)
    assert (answers, [(job.id, job.token) for job in leased]) == ([Status.DONE] * 2, [(n, 1) for n in IDS[6:10]])
    assert not store._lost
    reports = [Report.ok(job) for job in leased]
    assert await store.write(lambda transaction: transaction.finish(reports)) == [Status.DONE] * 4


async def test_reports_that_are_repeated_without_a_claim_are_read_back(opened, own_url, proxy):
    store = await opened(proxy.url(own_url), patience_ms=1_000, reply_ms=300)
    held = await filled(store)

    async def away(*_args, **_named):
        raise StoreUnreachable("away")

    proxy.cut_after(OWNER.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "write", away)
        with pytest.raises(StoreUnreachable):
            await at_once(store, held)
    reports = [Report.ok(job) for job in held]
    assert await store.write(lambda transaction: transaction.finish(reports)) == [Status.DONE] * 2
    assert not store._lost


async def test_what_is_still_under_way_without_us_is_waited_for_and_read_back(opened, own_url, proxy):
    """The server goes on after its client has gone, and the repetition meets it in the rows of the reports."""
    store = await opened(proxy.url(own_url))
    held = await filled(store)
    lock, watch = [await asyncpg.connect(server_of(own_url)) for _ in range(2)]
    where = f'"{schema_of(own_url)}"'
    async with lock.transaction():
        await lock.execute(f"SELECT 1 FROM {where}.jobs WHERE id = $1 FOR UPDATE", held[1].id)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
        asking = asyncio.create_task(at_once(store, held))
        while not await watch.fetchval(waiting, "%finished%"):
            await asyncio.sleep(0)
        proxy.cut()
        while await watch.fetchval(waiting, "%UPDATE%") < 2:
            await asyncio.sleep(0)
    await holds_what_it_was_told(store, *await asking)
    await lock.close()
    await watch.close()


async def test_a_report_that_another_call_brings_meanwhile_costs_neither_its_answer(opened, own_url):
    store = await opened()
    first, second = held = await filled(store)
    lock, watch = [await asyncpg.connect(server_of(own_url)) for _ in range(2)]
    async with lock.transaction():
        await lock.execute(f'SELECT 1 FROM "{schema_of(own_url)}".jobs WHERE id = $1 FOR UPDATE', first.id)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%finished%'"
        )
        asking = asyncio.create_task(at_once(store, held))
        while not await watch.fetchval(waiting):
            await asyncio.sleep(0)
        reports = [Report.ok(second)]
        assert await store.write(lambda transaction: transaction.finish(reports)) == [Status.DONE]
    answers, leased = await asking
    assert (answers, [job.id for job in leased]) == ([Status.DONE, None], IDS[4:8])
    await lock.close()
    await watch.close()


async def test_one_that_comes_after_its_repetition_claims_nothing(opened):
    store = await opened()
    held = await filled(store)
    late = []

    class Keeping:
        async def fetch(self, sql, *args):
            late.append((sql, args))
            raise ConnectionResetError

        def __getattr__(self, name):
            return getattr(self.connection, name)

    alone, keeping = Database.alone, Keeping()

    async def losing(database, work, *args):
        async def lost(connection):
            keeping.connection = connection
            return await work(keeping)

        return await alone(database, lost, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "alone", losing)
        answer = await at_once(store, held)
    ((sql, args),) = late
    assert await store.database.alone(lambda connection: connection.fetch(sql, *args)) == []
    await holds_what_it_was_told(store, *answer)


async def test_a_stale_report_stays_stale_whatever_became_of_the_answer(opened, own_url, proxy):
    store = await opened(proxy.url(own_url))
    held = await filled(store)
    await store.write(lambda transaction: transaction.finish([Report.ok(held[0])]))
    proxy.cut_after(OWNER.encode())
    answers, leased = await at_once(store, [replace(held[0], token=7), held[1]])
    assert answers == [None, Status.DONE]
    assert [job.id for job in leased] == IDS[4:8]


async def test_reports_that_are_all_stale_do_not_keep_the_claim_from_the_others(opened):
    store = await opened()
    held = await filled(store)
    answers, leased = await at_once(store, [replace(job, token=7) for job in held])
    assert answers == [None, None]
    assert [job.id for job in leased] == IDS[4:8]


async def test_history_that_cannot_be_written_costs_the_claim_nothing(opened, own_url):
    clock = ManualClock()
    store = await opened(clock=clock)
    held = await filled(store)
    with raw_of(own_url) as connection:
        connection.execute("ALTER TABLE attempts ADD CHECK (outcome <> 'lost')")
    clock.advance(LEASE_MS - 1)
    await store.write(lambda transaction: transaction.claim(Claim("w", 1, LEASE_MS)))
    store._rules = Rules(accept_late=True)
    clock.advance(1)
    answers, leased = await at_once(store, held, replace(NEXT, limit=3))
    assert answers == [Status.DONE] * 2
    assert [(job.id, job.token) for job in leased] == [("j00", 2), ("j01", 2), ("j05", 1)]


async def test_what_cannot_be_claimed_after_it_does_not_hide_what_was(opened, monkeypatch):
    store = await opened()
    held = await filled(store)

    async def fail(*_args):
        raise asyncpg.ConnectionDoesNotExistError("gone")

    monkeypatch.setattr(Database, "within", fail)
    answers, leased = await at_once(store, held, replace(NEXT, limit=100))
    assert (answers, [job.id for job in leased]) == ([Status.DONE] * 2, IDS[4:])


async def test_a_connection_that_never_answers_is_given_up_within_one_patience(opened, own_url, proxy):
    store = await opened(proxy.url(own_url), patience_ms=1_000, reply_ms=300)
    held = await filled(store)
    proxy.freeze()
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(StoreUnreachable):
        await at_once(store, held)
    assert loop.time() - began_at < 3.0  # two would be more
    proxy.thaw()
    await holds_what_it_was_told(store, *await at_once(store, held))


async def test_the_question_and_its_repetition_have_one_patience(opened, own_url, proxy, monkeypatch):
    store = await opened(proxy.url(own_url))
    held = await filled(store)
    ends = []

    async def alone(database, work, until, ask=Database.alone):
        ends.append(until)
        return await ask(database, work, until)

    async def write(database, work, xact, *, until, ask=Database.write, **named):
        ends.append(until)
        return await ask(database, work, xact, until=until, **named)

    monkeypatch.setattr(Database, "alone", alone)
    monkeypatch.setattr(Database, "write", write)
    proxy.cut_after(OWNER.encode())
    await at_once(store, held)
    assert len(ends) == 2
    assert ends[0] == ends[1]


@pytest.mark.parametrize("fault", ["cut", "terminated"])
async def test_connections_that_break_all_the_time_burn_no_attempt_and_send_no_job_twice(own_url, proxy, fault):
    sent, ended, turn = [], [], asyncio.Lock()
    admin = await asyncpg.connect(server_of(own_url))
    end_all = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'asyncqueue' AND state = 'active' AND pid <> pg_backend_pid()
    """

    class Sender:
        async def send(self, job):
            sent.append(job.id)
            if len(sent) % 7 == 0:
                if fault == "cut":
                    proxy.cut_after(dispatcher.owner.encode())
                else:
                    async with turn:
                        ended.extend(await admin.fetch(end_all))
            return ACCEPTED

    async with Queue.open(proxy.url(own_url)) as queue:
        await queue.enqueue_many([NewJob(f"job-{n}", 1) for n in range(400)])
        async with Dispatcher(queue, Sender(), concurrency=8, lease_ms=600_000) as dispatcher:
            await dispatcher.drain()
        assert (dispatcher.counts.done, dispatcher.counts.stale, dispatcher.counts.lost) == (400, 0, 0)
        assert {(job.status, job.attempts) for job in await queue.list(limit=1_000)} == {(Status.DONE, 1)}
    assert sorted(sent) == sorted(f"job-{n}" for n in range(400))
    assert proxy.connections > 10 if fault == "cut" else ended
    await admin.close()
