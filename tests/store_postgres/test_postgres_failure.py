"""What servers, networks and operators do to a store: bounded, typed or unnoticed, and nothing lost."""

import asyncio
import re
import time

import asyncpg
import psycopg
import pytest

from asyncqueue.errors import NotAQueue, StoreBusy, StoreClosed, StoreDenied, StoreError, StoreUnreachable
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores.base import Claim, JobFilter
from asyncqueue.stores.postgres import statements
from tests.postgres_server import free_port
from tests.store.raw import PostgresRaw, schema_of, server_of
from tests.waiting import until


async def put(store, *ids):
    return await store.write(lambda transaction: transaction.enqueue([NewJob(job_id, 1) for job_id in ids]))


async def take(store, limit=1, lease_ms=30_000):
    return await store.write(lambda transaction: transaction.claim(Claim("w", limit, lease_ms)))


def bounded(seconds):
    return asyncio.timeout(seconds)


# --- opening -----------------------------------------------------------------------------------------


async def test_nobody_listens_there_is_told_at_once(opened):
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        async with bounded(5):
            await opened(f"postgresql://postgres:secret@127.0.0.1:{free_port()}/postgres")


async def test_pooler_that_lets_in_although_its_server_is_away_is_told_at_once(opened, own_url, proxy):
    proxy.cut_at_questions()
    async with bounded(20):
        with pytest.raises(StoreUnreachable):
            await opened(proxy.url(own_url), patience_ms=60_000)


async def test_host_that_nobody_knows_is_told_at_once(opened):
    with pytest.raises(StoreUnreachable):
        async with bounded(8):
            await opened("postgresql://postgres@no-such-host.invalid/postgres")


@pytest.mark.parametrize(
    ("user", "database"),
    [("locked:wrong", "postgres"), ("nobody-here", "postgres"), ("postgres", "no_such_database")],
)
async def test_wrong_password_user_or_database_is_denied_at_once_and_no_password_is_told(
    opened, own_server, user, database
):
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS locked")
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        rules = own_server.data / "pg_hba.conf"
        if "locked" not in rules.read_text():
            rules.write_text("host all locked all scram-sha-256\n" + rules.read_text())
        connection.execute("SELECT pg_reload_conf()")
    with pytest.raises(StoreDenied) as caught:
        async with bounded(5):
            await opened(f"postgresql://{user}@127.0.0.1:{own_server.port}/{database}")
    assert "wrong" not in str(caught.value).replace("password authentication failed", "")
    assert "\n" not in str(caught.value)


async def test_read_only_server_is_refused_in_words(opened, own_server, own_url):
    """FAULTS: a read-only replica by mistake; a standby answers like this one."""
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE replica")
        connection.execute("ALTER DATABASE replica SET default_transaction_read_only = on")
    url = own_url.replace("/postgres?", "/replica?")
    with pytest.raises(StoreUnreachable, match="read-only replica"):
        async with bounded(5):
            await opened(url, patience_ms=500)


async def test_schema_that_is_not_ours_is_refused_and_left_as_it_was(opened, own_url, own_server):
    schema = schema_of(own_url)
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.jobs (id text)")
    with pytest.raises(NotAQueue, match="choose another one"):
        await opened()
    assert PostgresRaw(own_url).tables() == [("jobs",)]


@pytest.mark.parametrize("question", ["PING", "PLACE"])
async def test_opening_that_fails_at_a_question_leaves_no_connection_open(
    opened, own_url, proxy, monkeypatch, question
):
    monkeypatch.setattr(statements, question, "SELECT 1 / 0")
    with pytest.raises(StoreError, match="division by zero") as caught:
        await opened(proxy.url(own_url))
    await until(lambda: proxy.is_idle)
    assert proxy.connections == 1, caught  # the error keeps alive what nobody closed


# --- while it is open --------------------------------------------------------------------------------


async def test_schema_that_is_dropped_meanwhile_is_a_typed_error(opened, own_url):
    store = await opened()
    await put(store, "a")
    PostgresRaw(own_url).execute(f"DROP SCHEMA {schema_of(own_url)} CASCADE")
    async with bounded(5):
        with pytest.raises(NotAQueue, match="missing"):
            await put(store, "b")
        with pytest.raises(NotAQueue):
            await store.stats()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_restarted_server_is_not_noticed_by_callers_and_loses_nothing_acknowledged(
    opened, own_server, own_url, mode
):
    store = await opened(patience_ms=30_000)
    acknowledged, stop = [], asyncio.Event()

    async def produce(name):
        number = 0
        while not stop.is_set():
            job_id = f"{name}-{number}"
            await put(store, job_id)
            acknowledged.append(job_id)
            number += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(produce(name))
        for _ in range(2):
            before = len(acknowledged)
            await until(lambda before=before: len(acknowledged) >= before + 50, 50)
            await asyncio.to_thread(own_server.restart, mode)
        before = len(acknowledged)
        await until(lambda: len(acknowledged) >= before + 50, 50)
        stop.set()
    there = {row[0] for row in PostgresRaw(own_url).select("SELECT id FROM jobs")}
    assert there == set(acknowledged)
    assert store.busy_retries > 0


async def test_server_that_stays_away_is_a_typed_error_after_the_patience_and_is_found_again(opened, own_server):
    store = await opened(patience_ms=600)
    await put(store, "a")
    await asyncio.to_thread(own_server.stop)
    try:
        started = time.monotonic()
        with pytest.raises(StoreUnreachable):
            await put(store, "b")
        with pytest.raises(StoreUnreachable):
            await store.stats()
        assert time.monotonic() - started < 10
    finally:
        await asyncio.to_thread(own_server.start)
    assert await put(store, "a") == [False]


async def test_commit_without_an_answer_is_resolved_by_asking_the_server(opened, own_url, proxy):
    """FAULTS 29: the outcome is read back, not assumed; a job that was stored is not answered as a duplicate."""
    store = await opened(proxy.url(own_url))
    proxy.cut_after(b"COMMIT")
    assert await put(store, "a") == [True]
    (leased,) = await take(store)
    proxy.cut_after(b"COMMIT")
    assert await store.write(lambda transaction: transaction.finish([Report.ok(leased)])) == [Status.DONE]
    assert proxy.connections >= 3


async def test_connection_cut_before_the_commit_is_a_silent_repeat(opened, own_url, proxy):
    store = await opened(proxy.url(own_url))
    await put(store, "warm")
    for words in (b"BEGIN", b"pg_current_xact_id"):
        proxy.cut_after(words)
        assert await put(store, f"job-{len(words)}") == [True]
    assert [job.id for job in await store.list_jobs(JobFilter())] == ["warm", "job-5", "job-18"]


async def test_half_open_connection_is_given_up_in_bounded_time_and_the_store_recovers__kind_57_half_open(
    opened, own_url, proxy
):
    """FAULTS 57: frozen, it neither answers nor ends."""
    store = await opened(proxy.url(own_url), patience_ms=700, reply_ms=300)
    await put(store, "a")
    proxy.freeze()
    async with bounded(8):
        with pytest.raises(StoreUnreachable, match="no answer"):
            await put(store, "b")
        with pytest.raises(StoreUnreachable):
            await store.get(["a"])
    proxy.thaw()
    assert await put(store, "a") == [False]


async def test_close_of_a_half_open_store_ends_in_bounded_time(opened, own_url, proxy):
    store = await opened(proxy.url(own_url), patience_ms=500, reply_ms=300)
    await store.version()
    proxy.freeze()
    async with bounded(8):
        await store.close()
    with pytest.raises(StoreClosed):
        await store.stats()


async def test_close_waits_for_who_still_works_no_longer_than_the_patience(opened):
    store = await opened(patience_ms=300)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(transaction):
        await transaction.enqueue([NewJob("a", 1)])
        inside.set()
        await go_on.wait()

    writing = asyncio.create_task(store.write(slow))
    await inside.wait()
    async with bounded(8):
        await store.close()
    go_on.set()
    with pytest.raises(StoreUnreachable):
        await writing


async def test_failover_to_another_address_goes_on_by_itself(opened, own_url, own_server, proxy):
    """Two addresses of one database, as a failover has: the first one dies, the second one is used."""
    both = f"127.0.0.1:{proxy.port},127.0.0.1:{own_server.port}"
    store = await opened(re.sub(r"127\.0\.0\.1:\d+", both, own_url))
    await put(store, "a")
    assert proxy.connections > 0
    await proxy.stop()
    assert await put(store, "a", "b") == [False, True]


async def test_pool_in_use_is_waited_for_and_then_a_typed_error(opened, own_url):
    store = await opened(connections=1, patience_ms=400)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_transaction):
        inside.set()
        await go_on.wait()

    holder = asyncio.create_task(store.write(slow))
    await inside.wait()
    async with bounded(5):
        with pytest.raises(StoreBusy, match="all 1 connections"):
            await store.stats()
    waiting = asyncio.create_task(store.stats())
    await asyncio.sleep(0)
    go_on.set()
    assert (await waiting).total == 0
    await holder


async def test_too_many_connections_of_others_is_a_wait_and_then_a_typed_error(opened, own_server, own_url):
    await opened()
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN CONNECTION LIMIT 0")
    with pytest.raises(StoreUnreachable, match="too many connections"):
        async with bounded(5):
            await opened(own_url.replace("postgres@", "guest@"), patience_ms=300)


async def test_server_whose_connections_are_all_in_use_is_waited_for_while_opening(
    opened, own_server, own_url, proxy
):
    await opened()
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE visitor LOGIN CONNECTION LIMIT 0 IN ROLE postgres")
        opening = asyncio.create_task(opened(proxy.url(own_url).replace("postgres@", "visitor@")))
        await until(lambda: proxy.connections > 1 or opening.done())
        assert not opening.done()
        connection.execute("ALTER ROLE visitor CONNECTION LIMIT -1")
        assert await put(await opening, "a") == [True]


async def test_statements_that_were_prepared_before_a_column_changed_are_prepared_anew_unnoticed(opened, own_url):
    store = await opened()
    await put(store, "a", "b")
    assert [job.id for job in await take(store)] == ["a"]
    PostgresRaw(own_url).execute("ALTER TABLE jobs ALTER COLUMN owner TYPE varchar(100)")
    assert [job.id for job in await take(store)] == ["b"]
    assert store.busy_retries > 0


async def test_row_that_another_transaction_holds_is_waited_for_in_bounded_time(opened, own_url):
    """Statement and lock timeouts: a silent repeat while patience lasts, then `StoreBusy`."""
    store = await opened(patience_ms=900, reply_ms=400)
    await put(store, "a")
    (leased,) = await take(store)
    finish = lambda: store.write(lambda transaction: transaction.finish([Report.ok(leased)]))  # noqa: E731
    holder = await asyncpg.connect(server_of(own_url))
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(f"SELECT FROM {schema_of(own_url)}.jobs FOR UPDATE")
    async with bounded(8):
        with pytest.raises(StoreBusy):
            await finish()
        going = asyncio.create_task(finish())
        await until(lambda: store.busy_retries >= 3)
        await transaction.rollback()
        assert await going == [Status.DONE]
    await holder.close()


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03", "57014"])
async def test_serialization_failures_and_deadlocks_are_repeated_silently(opened, own_url, state):
    store = await opened()
    raw = PostgresRaw(own_url)
    raw.execute("CREATE SEQUENCE tries")
    raw.execute(
        "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN"
        f" IF nextval(''tries'') < 3 THEN RAISE EXCEPTION ''trouble'' USING ERRCODE = ''{state}''; END IF;"
        " RETURN NULL; END'"
    )
    raw.execute("CREATE TRIGGER trouble AFTER INSERT ON jobs EXECUTE FUNCTION trouble()")
    assert await put(store, "a", "b") == [True, True]
    assert raw.select("SELECT last_value FROM tries") == [(3,)]


async def test_real_deadlock_ends_in_both_answers(opened):
    store = await opened()
    await put(store, "a", "b")
    first_has, second_has = asyncio.Event(), asyncio.Event()

    async def cross(one, other, mine, theirs):
        async def work(transaction):
            await transaction.cancel([one])
            mine.set()
            await theirs.wait()
            return await transaction.cancel([other])

        return await store.write(work)

    async with bounded(20):
        answers = await asyncio.gather(
            cross("a", "b", first_has, second_has), cross("b", "a", second_has, first_has)
        )
    assert sorted(answers) == [[Status.DEAD], [Status.PENDING]]
    assert store.busy_retries >= 1
    assert (await store.stats()).dead == 2


async def test_disk_full_of_the_server_is_a_typed_error_that_changes_nothing(opened, own_url):
    store = await opened()
    raw = PostgresRaw(own_url)
    raw.execute(
        "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''no space'' USING ERRCODE = ''53100''; END'"
    )
    raw.execute("CREATE TRIGGER trouble AFTER INSERT ON jobs EXECUTE FUNCTION trouble()")
    with pytest.raises(StoreError, match="no room"):
        await put(store, "a")
    raw.execute("DROP TRIGGER trouble ON jobs")
    assert await put(store, "a") == [True]


async def test_cancelled_writers_leave_no_transaction_and_no_connection__kind_59_rollback_on_a_cancelled_context(
    opened, own_url
):
    """FAULTS 29, 59: whatever the await at which the caller is cancelled."""
    store = await opened(connections=2)
    for steps in range(40):
        task = asyncio.create_task(put(store, f"j{steps}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
    assert await put(store, "last") == [True]
    asked = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND application_name = 'asyncqueue'"
    assert PostgresRaw(own_url).select(asked) == [(0,)]
    rows = await store.list_jobs(JobFilter(limit=100))
    assert (await store.stats()).pending == len(rows)


async def version_moves(store, before):
    """Wait for another version: the answer to a question serves for a moment."""

    async def has_moved():
        return await store.version() != before

    await until(has_moved, 8)


async def test_listener_that_dies_is_replaced_by_polling_and_then_by_another_one(opened, own_url, own_server):
    async with Queue.open(own_url) as other:
        store = await opened()
        before = await store.version()
        assert store._listener.is_listening
        with psycopg.connect(own_server.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND query LIKE 'LISTEN%'"
            )
        await until(lambda: not store._listener.is_listening)
        store._listener._again_at = time.monotonic() + 60
        polled = await store.version()
        assert polled != before, "what happened in between may have been missed"
        await other.enqueue("a", 1)
        await version_moves(store, polled)
        store._listener._again_at = 0
        await store.version()
        assert store._listener.is_listening


async def test_half_open_listener_is_found_out_by_a_question(opened, own_url, proxy, monkeypatch):
    from asyncqueue.stores.postgres import listen  # noqa: PLC0415 - its constants

    monkeypatch.setattr(listen, "_PROBE_S", 0.2)
    monkeypatch.setattr(listen, "_PROBE_EVERY_S", 0.0)
    monkeypatch.setattr(listen, "_CONNECT_S", 0.2)
    store = await opened(proxy.url(own_url), patience_ms=400, reply_ms=200)
    await store.version()
    assert store._listener.is_listening
    proxy.freeze()
    async with bounded(8):
        with pytest.raises(StoreUnreachable):
            await store.version()
    assert not store._listener.is_listening


async def test_behind_a_pooler_nothing_is_left_in_the_session(opened, own_url):
    """PgBouncer in transaction mode gives the session to others: no prepared statements, settings or LISTEN."""
    store = await opened(own_url + "&pgbouncer=true", connections=1)
    await put(store, *(f"j{n}" for n in range(20)))
    for _ in range(8):
        (leased,) = await take(store)
        await store.write(lambda transaction, leased=leased: transaction.finish([Report.ok(leased)]))
    first = await store.version()
    await put(store, "more")
    await version_moves(store, first)
    assert not store._listener.is_listening
    asked = (
        "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name <> ''), current_setting('enable_seqscan'),"
        " current_setting('statement_timeout'), (SELECT count(*) FROM pg_listening_channels())"
    )
    assert [tuple(row) for row in await store._database.read(asked)] == [(0, "on", "0", 0)]
