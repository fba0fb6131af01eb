"""A database of a service becomes a queue only if that is asked for, and nothing of its own is touched."""

import contextlib
import sqlite3

import pytest

from asyncqueue import Queue, outbox
from asyncqueue.errors import ConfigError, NotAQueue, UnsupportedConnection
from asyncqueue.stores.sqlite import schema

SERVICE = (
    "CREATE TABLE orders (id TEXT PRIMARY KEY)",
    "INSERT INTO orders VALUES ('order-1')",
    "CREATE INDEX orders_by_id ON orders(id)",
    "PRAGMA application_id = 4711",
    "PRAGMA journal_mode = WAL",
)


def make(path, *more):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in (*SERVICE, *more):
            connection.execute(statement)


def picture(path):
    """Everything that the database holds, as text."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
        return [*connection.iterdump(), *pragmas]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "app.db"


async def test_database_of_a_service_becomes_a_queue_and_keeps_what_it_has(path):
    make(path)
    async with Queue.open(path, adopt=True, journal="keep") as queue:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES ('order-2')")
            assert outbox.enqueue(connection, "order-2", 3, via=queue) is True
            connection.execute("COMMIT")
            assert connection.execute("PRAGMA application_id").fetchone() == (4711,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("SELECT id FROM orders").fetchall() == [("order-1",), ("order-2",)]
        assert [leased.id for leased in await queue.claim("w")] == ["order-2"]
    async with Queue.open(path, journal="keep") as queue:  # from now on a queue like any other
        assert (await queue.stats()).leased == 1


@pytest.mark.parametrize("create", [True, False])
async def test_database_of_a_service_is_refused_unless_it_is_asked_for(path, create):
    make(path)
    before = picture(path)
    with pytest.raises(NotAQueue, match=r"not a queue.*'asyncqueue init --adopt'"):
        await Queue.open(path, create=create)
    assert picture(path) == before


async def test_who_has_no_room_for_a_queue_is_not_told_to_adopt_one(path):
    make(path, "CREATE TABLE jobs (id)")
    with pytest.raises(NotAQueue, match=r"missing or differ$"):
        await Queue.open(path)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 7", "user_version is 7"),
        (f"PRAGMA user_version = {schema.VERSION}", "user_version"),
        ("CREATE TABLE Counts (x)", "Counts"),
        ("CREATE VIEW queues AS SELECT 1", "queues"),
        ("CREATE INDEX jobs_dead ON orders(id)", "jobs_dead"),
        ("CREATE TABLE jobs (id)", "the tables jobs and redrives are missing or differ"),
        ("CREATE TABLE redrives (id)", "the tables jobs and redrives are missing or differ"),
    ],
)
async def test_database_without_room_for_a_queue_is_refused_in_words_and_left_as_it_was(path, statement, words):
    make(path, statement)
    before = picture(path)
    with pytest.raises(NotAQueue, match=words) as caught:
        await Queue.open(path, adopt=True)
    assert "\n" not in str(caught.value)
    assert picture(path) == before


async def test_adopting_a_queue_or_a_new_file_is_opening_it(path):
    for _ in range(2):
        async with Queue.open(path, adopt=True) as queue:
            await queue.enqueue("a", 1)
            assert (await queue.stats()).pending == 1


# --- via another database ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["another file", "memory", "attached"])
async def test_queue_of_another_database_is_refused_in_words_and_the_transaction_goes_on(path, tmp_path, where):
    other = tmp_path / "other.db"
    async with Queue.open(path) as queue, Queue.open(other) as elsewhere:
        with contextlib.closing(sqlite3.connect(":memory:" if where == "memory" else other)) as connection:
            connection.isolation_level = None
            if where == "memory":
                for _lacks, name in schema.SCRIPTS:
                    for statement in schema.script(name):
                        connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {schema.VERSION}")
            if where == "attached":  # the job would still go into the first database
                connection.execute("ATTACH ? AS app", (str(path),))
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(UnsupportedConnection, match="via") as caught:
                outbox.enqueue(connection, "a", 1, via=queue)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            assert connection.in_transaction
            connection.execute("COMMIT")
        assert await queue.get("a") is None
        assert await elsewhere.get("a") is None


async def test_queue_is_the_same_by_whatever_path_it_was_opened(path, tmp_path):
    link = tmp_path / "link.db"
    async with Queue.open(path) as queue:
        link.symlink_to(path)
        with contextlib.closing(sqlite3.connect(link, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            assert outbox.enqueue(connection, "a", 1, via=queue) is True
            connection.execute("COMMIT")
        assert await queue.get("a") is not None


@pytest.mark.parametrize("first", ["business.db", ":memory:"])
@pytest.mark.parametrize("version", [0, schema.VERSION], ids=["no version", "a version like the queue's"])
@pytest.mark.parametrize("is_named", [False, True])
async def test_queue_that_is_attached_to_another_database_is_refused_in_words(
    path, tmp_path, monkeypatch, *, first, version, is_named
):
    """A commit over several files is not one commit wherever the first one is in memory, or in WAL mode."""
    monkeypatch.chdir(tmp_path)
    async with Queue.open(path) as queue:
        terms = {"via": queue} if is_named else {}
        with contextlib.closing(sqlite3.connect(first, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE orders (id TEXT)")
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("ATTACH ? AS app", (str(path),))
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(NotAQueue, match="attached database app") as caught:
                outbox.enqueue(connection, "a", 1, **terms)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            connection.execute("COMMIT")
        assert await queue.get("a") is None


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_other_databases_may_be_attached_to_the_queue(path, tmp_path, ending):
    business = tmp_path / "business.db"
    make(business)
    async with Queue.open(path) as queue:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("ATTACH ? AS app", (str(business),))
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO app.orders VALUES ('order-2')")
            assert outbox.enqueue(connection, "order-2", 1, via=queue, schema="main") is True
            connection.execute(ending)
            orders = connection.execute("SELECT count(*) FROM app.orders WHERE id = 'order-2'").fetchone()[0]
        assert (await queue.get("order-2") is not None, orders) == ((ending == "COMMIT"),) * 2


async def test_schema_that_only_postgresql_has_is_refused_on_sqlite(path):
    async with Queue.open(path) as queue:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("ATTACH ':memory:' AS app")
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(ConfigError, match="'app'"):
                outbox.enqueue(connection, "a", 1, schema="app")
            assert connection.in_transaction
        assert await queue.get("a") is None
