"""Many receivers on one PostgreSQL inbox: one acceptance for each id, no deadlock, no row that all wait for."""

import asyncio
import random
import signal
from contextlib import asynccontextmanager

import asyncpg
import psycopg
import pytest
from receiver_tools import check_whole, get, look, message, post, request, running, totals_of
from test_receiver_atomic import stock
from test_receiver_process import flood

from asyncqueue.errors import ConfigError, NewerSchema, NotAQueue, StoreUnreachable
from asyncqueue.queue import Queue
from asyncqueue.wire import Message
from receiver.stores import open_inbox
from receiver.stores.base import Arrival, Result, Totals
from receiver.stores.postgres import statements
from receiver.stores.postgres.store import PostgresInbox, Profile
from tests.asking import asked
from tests.postgres_server import Server
from tests.store.raw import raw_of
from tests.strays import Stray
from tests.waiting import until

LONG = '"' + "x" * 100_000 + '"'


@pytest.fixture
def url(postgres_url):
    return postgres_url


@pytest.fixture
async def inboxes(url):
    """Four receivers' stores."""
    opened = [await PostgresInbox.open(url, Profile()) for _ in range(4)]
    yield opened
    for inbox in opened:
        await inbox.close()


def arrivals(*messages):
    return [Arrival(Message(*values), None, None) for values in messages]


@pytest.mark.parametrize("seed", range(5))
async def test_receivers_that_get_the_same_ids_at_once_accept_each_once(inboxes, url, seed):
    rng = random.Random(seed)
    sets = [[(f"m{n}", n + 1, None) for n in rng.sample(range(300), 200)] for _ in range(40)]
    calls = [inboxes[number % 4].receive(lambda one=one: arrivals(*one)) for number, one in enumerate(sets)]
    results = await asyncio.gather(*calls)
    accepted = [
        values[0]
        for one, answers in zip(sets, results, strict=True)
        for values, answer in zip(one, answers, strict=True)
        if answer is Result.ACCEPTED
    ]
    assert len(accepted) == len(set(accepted)) == len(check_whole(url))
    assert {answer for answers in results for answer in answers} == {Result.ACCEPTED, Result.DUPLICATE}
    assert totals_of(url)[2] == 40 * 200 - len(accepted)
    assert sum(inbox._database.retries for inbox in inboxes) == 0  # no deadlock that a second try hides


async def test_new_and_known_ids_and_conflicts_in_any_order_never_lock_in_a_circle(inboxes, url):
    rng = random.Random(1)
    await inboxes[0].receive(lambda: arrivals(*((f"m{n}", 1, None) for n in range(0, 200, 2))))

    def mixed():
        ids = rng.sample(range(200), 150)
        return arrivals(*((f"m{n}", rng.choice((1, 1, 2, 3)), None) for n in ids))

    async def one(inbox):
        for _ in range(15):
            offer = mixed()
            await inbox.receive(lambda offer=offer: offer)

    await asyncio.gather(*(one(inbox) for inbox in inboxes for _ in range(2)))
    assert sum(inbox._database.retries for inbox in inboxes) == 0
    assert sum(totals_of(url)[i] for i in (0, 2, 3)) == 100 + 8 * 15 * 150
    assert look(url, "SELECT sum(times) FROM inbox") == [(totals_of(url)[0] + totals_of(url)[2],)]
    assert look(url, "SELECT sum(times) FROM conflicts") == [(totals_of(url)[3],)]
    check_whole(url)


async def test_evidence_stays_bounded_when_many_receivers_meet_in_one_id(inboxes, url):
    await inboxes[0].receive(lambda: arrivals(("a", 1, None)))
    offers = [arrivals(*(("a", 2 + n + 10 * k, LONG) for n in range(10))) for k in range(20)]
    results = await asyncio.gather(*(inboxes[k % 4].receive(lambda k=k: offers[k]) for k in range(20)))
    assert {answer for answers in results for answer in answers} == {Result.CONFLICT}
    assert look(url, "SELECT count(*), max(length(payload)) FROM conflicts") == [(16, 4_096)]
    assert totals_of(url)[3] == 200


async def test_a_set_whose_receiver_died_before_its_commit_is_accepted_by_the_one_that_waited(inboxes, url):
    raw = raw_of(url)
    with raw.connect() as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO inbox (id, qty, result, received_at) VALUES ('a', 9, 'accepted', 1)")
        waiting = asyncio.ensure_future(inboxes[0].receive(lambda: arrivals(("a", 1, None))))
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%inbox%'"
        await until(lambda: look(url, blocked)[0][0])
        assert not waiting.done()
        pid = other.info.backend_pid
        look(url, f"SELECT pg_terminate_backend({pid})")
        assert await waiting == [Result.ACCEPTED]
        with pytest.raises(psycopg.Error):
            other.execute("COMMIT")
    assert check_whole(url) == {"a": 1}


@asynccontextmanager
async def accepting(inbox, name, qty):
    """Another receiver has just accepted a message, which is committed at the end."""
    held, go = asyncio.Event(), asyncio.Event()
    sql = inbox._database.sql(statements.ACCEPT_NEW)

    async def slow(connection):
        await connection.fetch(sql, [name], [qty], [None], [None], [None])
        held.set()
        await go.wait()

    task = asyncio.create_task(inbox._database.write(slow))
    try:
        await held.wait()
        yield
    finally:
        go.set()
        await task


async def test_receivers_do_not_wait_for_each_others_commits(inboxes, url):
    """An open transaction that has already counted holds up nobody who brings other ids."""
    await inboxes[0].receive(lambda: arrivals(("a", 1, None)))
    async with accepting(inboxes[0], "b", 1), asyncio.timeout(5):
        assert await inboxes[1].receive(lambda: arrivals(("c", 1, None))) == [Result.ACCEPTED]
        assert (await inboxes[2].totals()).messages == 2
    assert (await inboxes[3].totals()).messages == 3


async def test_new_messages_cost_one_statement_and_others_are_told_apart_in_one_transaction(inboxes, monkeypatch):
    texts = asked(monkeypatch, "fetch", "fetchval", "execute")
    inbox = inboxes[0]
    inbox._database.commits = 0
    new = [("a", 2, None), ("b", 3, None)]
    assert await inbox.receive(lambda: arrivals(*new)) == [Result.ACCEPTED] * 2
    assert len(texts) == 1
    mixed = [("c", 5, None), ("a", 2, None), ("b", 4, None)]
    assert await inbox.receive(lambda: arrivals(*mixed)) == [Result.ACCEPTED, Result.DUPLICATE, Result.CONFLICT]
    assert inbox._database.commits == 1
    twice = [("d", 1, None), ("d", 1, None)]
    assert await inbox.receive(lambda: arrivals(*twice)) == [Result.ACCEPTED, Result.DUPLICATE]
    assert await inbox.totals() == Totals(messages=4, quantity=11, duplicates=2, conflicts=1)


async def test_sets_of_new_messages_that_meet_record_each_of_them_once(inboxes, url):
    """The one that comes second waits for the first, and then finds that not all of its own are new."""
    ours = [("a", 1, None), ("b", 2, None), ("c", 3, None)]
    async with accepting(inboxes[0], "b", 2):
        second = asyncio.create_task(inboxes[1].receive(lambda: arrivals(*ours)))
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%inbox%'"
        await until(lambda: look(url, blocked)[0][0])
    assert await second == [Result.ACCEPTED, Result.DUPLICATE, Result.ACCEPTED]
    assert check_whole(url) == {"a": 1, "b": 2, "c": 3}
    assert await inboxes[0].totals() == Totals(messages=3, quantity=6, duplicates=1, conflicts=0)


async def test_what_an_effect_has_left_running_cannot_reach_a_later_transaction(url):
    stray = Stray()

    async def effect(connection, _message):
        stray.begin(connection)

    inbox = await PostgresInbox.open(url, Profile(), effect)
    try:
        assert await inbox.receive(lambda: arrivals(("a", 1, None))) == [Result.ACCEPTED]
        await stray.run_on()
        assert await inbox.receive(lambda: arrivals(("b", 1, None))) == [Result.ACCEPTED]
        assert ["released back to the pool" in text for text in stray.told] == [True]
        assert await inbox.get("b") is not None
    finally:
        await inbox.close()


async def test_one_patience_is_for_both_ways_of_a_set(inboxes, monkeypatch):
    """Not all are new: what is asked then has what the first statement has left of the patience."""
    inbox = inboxes[0]
    await inbox.receive(lambda: arrivals(("a", 1, None)))
    plain, begun = inbox._database.patience_ends, []
    monkeypatch.setattr(inbox._database, "patience_ends", lambda: begun.append(plain()) or begun[-1])
    mixed = [("a", 1, None), ("b", 1, None)]
    assert await inbox.receive(lambda: arrivals(*mixed)) == [Result.DUPLICATE, Result.ACCEPTED]
    assert len(begun) == 1


async def test_a_set_whose_answer_was_lost_is_recorded_once_and_answered(inboxes, url, monkeypatch):
    """The connection breaks when all is done: it is asked again, and what was done is answered as duplicates."""
    plain = asyncpg.Connection.fetchval
    lost = []

    async def cut(self, sql, *arguments, **settings):
        result = await plain(self, sql, *arguments, **settings)
        if not lost and "counted" in sql:
            lost.append(result)
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return result

    monkeypatch.setattr(asyncpg.Connection, "fetchval", cut)
    ours = [("a", 1, None), ("b", 2, None)]
    assert await inboxes[0].receive(lambda: arrivals(*ours)) == [Result.DUPLICATE] * 2
    assert lost == [2]
    assert check_whole(url) == {"a": 1, "b": 2}
    assert await inboxes[0].totals() == Totals(messages=2, quantity=3, duplicates=2, conflicts=0)


async def test_real_receivers_killed_at_random_lose_nothing_and_apply_each_message_once(url):
    acknowledged = set()
    async with running(url) as one, running(url) as two, asyncio.timeout(50):
        floods = [
            asyncio.create_task(flood(port, 100_000 * n, acknowledged))
            for n in range(6)
            for port in (one.port, two.port)
        ]
        await until(lambda: len(acknowledged) >= 200)
        one.send_signal(signal.SIGKILL)
        await until(lambda: len(acknowledged) >= 600)
        two.send_signal(signal.SIGKILL)
        await asyncio.gather(*floods)
    async with running(url) as third:
        kept = check_whole(url)
        assert {f"m{number}" for number in acknowledged} <= kept.keys()
        for number in list(acknowledged)[:20]:
            assert (await post(third.port, f"m{number}", number % 7 + 1)).result == "duplicate"
        assert await third.stopped() == 0
        assert third.process.stderr.read() == b""


async def test_two_real_receivers_that_get_the_same_messages_accept_each_once(url):
    async with running(url) as one, running(url) as two, asyncio.timeout(40):
        both = [post(port, f"m{n}", 2) for n in range(100) for port in (one.port, two.port)]
        results = [answer.result for answer in await asyncio.gather(*both)]
        assert (results.count("accepted"), results.count("duplicate")) == (100, 100)
        told = [(await get(receiver.port, "/totals")).json for receiver in (one, two)]
        assert told[0] == told[1]
    assert check_whole(url) == {f"m{n}": 2 for n in range(100)}


async def test_a_server_that_restarts_is_a_pause_and_nothing_is_lost():
    server = Server.made().start()
    try:
        async with running(server.url) as receiver, asyncio.timeout(50):
            acknowledged = set()
            floods = [asyncio.create_task(flood(receiver.port, 100_000 * n, acknowledged)) for n in range(4)]
            await until(lambda: len(acknowledged) > 100)
            server.restart("immediate")
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 100)
            receiver.send_signal(signal.SIGKILL)
            await asyncio.gather(*floods)
        with psycopg.connect(server.url) as plain:
            kept = {row[0] for row in plain.execute("SELECT id FROM asyncqueue.inbox")}
            assert {f"m{number}" for number in acknowledged} <= kept
            assert plain.execute("SELECT sum(messages) FROM asyncqueue.inbox_totals").fetchone() == (len(kept),)
    finally:
        server.remove()


async def test_while_the_server_is_away_it_is_a_503_and_not_ready():
    server = Server.made().start()
    try:
        store = await open_inbox(server.url, effect=None, journal="delete", force_wal=False, patience_ms=300)
        server.stop("immediate")
        with pytest.raises(StoreUnreachable):
            await store.receive(lambda: arrivals(("a", 1, None)))
        server.start()
        assert await store.receive(lambda: arrivals(("a", 1, None))) == [Result.ACCEPTED]
        await store.close()
    finally:
        server.remove()


async def test_a_queue_and_an_inbox_live_in_one_schema(url):
    store = await PostgresInbox.open(url, Profile())
    async with Queue.open(url) as queue:
        assert await queue.enqueue("a", 1)
        assert await store.receive(lambda: arrivals(("a", 1, None))) == [Result.ACCEPTED]
        assert (await queue.stats()).pending == 1
    await store.close()


async def test_a_schema_with_an_inbox_of_somebody_else_or_a_newer_one_is_refused(url):
    raw = raw_of(url)
    raw.execute(f"CREATE SCHEMA {raw.schema}")
    raw.execute("CREATE TABLE inbox (id text)")
    with pytest.raises(NotAQueue, match="no inbox's"):
        await PostgresInbox.open(url, Profile())
    raw.execute("DROP TABLE inbox")
    await (await PostgresInbox.open(url, Profile())).close()
    raw.execute("UPDATE versions SET version = 99 WHERE part = 'inbox'")
    with pytest.raises(NewerSchema, match="99"):
        await PostgresInbox.open(url, Profile())


async def test_ten_receivers_that_start_at_once_make_one_inbox(url):
    opened = await asyncio.gather(*(PostgresInbox.open(url, Profile()) for _ in range(10)))
    for number, inbox in enumerate(opened):
        assert await inbox.receive(lambda number=number: arrivals((f"m{number}", 1, None))) == [Result.ACCEPTED]
        await inbox.close()
    assert len(check_whole(url)) == 10


async def test_an_address_without_a_server_is_one_line_without_the_password():
    with pytest.raises(StoreUnreachable) as told:
        await PostgresInbox.open("postgresql://me:secret@127.0.0.1:1/x", Profile(patience_ms=500))
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError) as told:
        await open_inbox("mysql://me:secret@h/x", effect=None, journal="delete", force_wal=False, patience_ms=1)
    assert "secret" not in str(told.value)


HOT = {
    "ACCEPT": (["m5"], [1], ["1"], [1], [1]),
    "ACCEPT_IN_LEDGER": (["m5"], [1], ["1"], [1], [1]),
    "ACCEPT_NEW": (["m5"], [1], ["1"], [1], [1]),
    "JUDGE": (["m5"], [1], ["1"]),
    "HOLD": (["m5"],),
    "SEEN_AGAIN": (["m5"], [1]),
    "CONFLICT": (["m5"], [1], ["1"], [1], [1], [b"x"], 16),
    "FORGET": (["m5"],),
    "GET": ("m5",),
}


@pytest.mark.parametrize("name", HOT)
async def test_a_hot_statement_scans_no_table(inboxes, url, name):
    raw = raw_of(url)
    numbers = "generate_series(1, 2000) AS n"
    raw.execute(
        f"INSERT INTO inbox (id, qty, result, received_at) SELECT 'm' || n, 1, 'accepted', 1 FROM {numbers}"
    )
    raw.execute(f"INSERT INTO conflicts SELECT 'm' || n, 1, 2, '', 'x', 1, 1, 1 FROM {numbers}")
    database = inboxes[0]._database
    sql = database.sql("EXPLAIN (COSTS OFF) " + getattr(statements, name))
    plan = [row[0] for row in await database.read(sql, *HOT[name])]
    assert any("Index" in line or "Conflict Arbiter" in line for line in plan)
    assert [line for line in plan if "Seq Scan" in line] == []


async def test_a_message_with_every_odd_character_is_kept_word_for_word(serve):
    async with serve() as inbox:
        odd = {"nul": "\0", "bidi": "\u202e", "astral": "\U0001f600", "quote": "'\"\\$1", "sep": "\u2028"}
        answer = await inbox.speak(request(message("a", 1, payload=odd)))
        assert answer.result == "accepted"
        assert (await get(inbox.port, "/inbox/a")).json["payload"] == odd
        assert (await inbox.speak(request(message("a", 1, payload=odd)))).result == "duplicate"


async def test_an_effect_whose_connection_is_lost_under_it_runs_again_on_another(serve):
    runs = []

    async def effect(connection, one):
        runs.append(one.id)
        await stock(connection, one)
        if len(runs) == 1:
            try:
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            finally:
                await until(connection.is_closed)

    async with serve(effect=effect) as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"
        assert runs == ["a", "a"]
        assert look(inbox.path, "SELECT id FROM stock") == [("a",)]
