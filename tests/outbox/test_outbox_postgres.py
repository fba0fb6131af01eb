"""What only PostgreSQL can refuse, by every kind of its connections: one typed error, in words."""

import sqlite3
import sys
from contextlib import closing

import psycopg
import pytest

from asyncqueue import Queue, outbox
from asyncqueue.errors import (
    ConfigError,
    NewerSchema,
    NotAQueue,
    NoTransaction,
    StoreClosed,
    StoreError,
    UnsupportedConnection,
)
from asyncqueue.job import NewJob
from asyncqueue.stores.base import Terms
from asyncqueue.stores.postgres import outbox as postgres
from asyncqueue.stores.postgres import story
from asyncqueue.stores.postgres.address import Address, check_schema
from tests.outbox.outbox_callers import POSTGRES, Asyncpg, AsyncPsycopg, Psycopg
from tests.store.raw import raw_of


@pytest.mark.parametrize("kind", POSTGRES, ids=lambda kind: kind.__name__)
async def test_transaction_that_has_failed_is_told_as_aborted_and_can_be_rolled_back(caller, kind):
    await caller.begin()
    await caller.insert("once")
    with pytest.raises(Exception, match="duplicate key"):
        await caller.insert("once")
    with pytest.raises(StoreError, match="the transaction is aborted, roll it back"):
        await caller.enqueue("a", 1)
    await caller.rollback()


@pytest.mark.parametrize("kind", [Asyncpg, Psycopg, AsyncPsycopg], ids=lambda kind: kind.__name__)
async def test_closed_connection_is_told_as_closed(caller, kind):
    await caller.close()
    with pytest.raises(StoreClosed, match="closed"):
        await caller.enqueue("a", 1)


@pytest.mark.parametrize("refusal", [(99, NewerSchema, "newer than"), (0, NotAQueue, "is old")])
@pytest.mark.parametrize("kind", [Asyncpg, Psycopg], ids=lambda kind: kind.__name__)
async def test_queue_of_another_version_is_refused_in_words(caller, path, kind, refusal):
    version, error, words = refusal
    raw_of(path).execute(f"UPDATE versions SET version = {version}")
    await caller.begin()
    with pytest.raises(error, match=words):
        await caller.enqueue("a", 1)
    await caller.rollback()


@pytest.mark.parametrize("kind", [Asyncpg], ids=lambda kind: kind.__name__)
async def test_without_a_transaction_a_queue_or_the_same_place_nothing_is_put(caller, kind, new_postgres_url):
    with pytest.raises(NoTransaction):
        await caller.enqueue("a", 1)
    await caller.begin()
    with pytest.raises(NotAQueue, match="no queue in schema nowhere"):
        await outbox.enqueue_async(caller.connection, "a", 1, schema="nowhere")
    async with Queue.open(new_postgres_url()) as other:
        with pytest.raises(UnsupportedConnection, match="is not that of `via`"):
            await caller.enqueue("a", 1, via=other)
    assert await caller.enqueue("a", 1) is True
    await caller.rollback()


def test_row_that_was_in_the_way_and_is_purged_meanwhile_is_not_in_the_way():
    """Seen by nobody before the insert, refused by the insert, gone at the second look: so it goes in."""
    version = story.QUEUE.version
    answers = iter([[(True, True, True)], [(version, None, 5)], [], [], [], [(1,)]])
    asked = []

    def execute(sql, _arguments):
        asked.append(sql)
        return next(answers)

    assert story.put(execute, lambda: True, NewJob("a", 1), Terms()) is True
    assert asked[2:4] == asked[4:6]


def test_errors_that_are_not_the_drivers_come_back_as_they_are():
    error = LookupError("mine")
    assert story.failure(error) is error
    assert type(story.failure(SystemExit("over"))) is StoreError


def test_objects_of_others_have_no_outbox_with_or_without_psycopg(monkeypatch):
    assert postgres.outbox_for(object()) is None
    monkeypatch.setitem(sys.modules, "asyncqueue.stores.postgres.psycopg_outbox", None)
    monkeypatch.delattr(sys.modules["asyncqueue.stores.postgres"], "psycopg_outbox", raising=False)
    assert postgres.outbox_for(object()) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://[::1/db", "not a URL of a PostgreSQL server: postgresql:"),
        ("mysql://user:secret@host/db", "not a URL of a PostgreSQL server: 'mysql://host/db'"),
        ("postgresql://user:secret@host/db?pgbouncer=perhaps", "//host/db: pgbouncer must be true or false"),
        ("postgresql://user:secret@host/db?schema=a&schema=b", "//host/db: schema may be given once"),
        ("postgresql://host/db?pgbouncer=1&schema=a&pgbouncer=1", "//host/db: pgbouncer may be given once"),
        ("postgresql://user:secret@host/db?schema=Bad-Name", "schema must be 1-48 characters"),
        ("postgresql://user:secret/1@host/db", "are written as %2F"),
        ("postgresql://user:secret#1@host/db", "are written as %2F"),
        ("postgresql://user:secret?a=1@host/db", "are written as %2F"),
        ("postgresql://user:1@secret:x/y@host/db", "are written as %2F"),
    ],
)
def test_url_that_names_no_server_is_refused_and_no_password_is_told(url, words):
    with pytest.raises(ConfigError) as refused:
        Address.parse(url)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_names_of_schemas_need_no_quotes():
    check_schema("a_queue1")
    for name in ("", "pg_mine", "1st", "Upper", "x" * 49, "a-b"):
        with pytest.raises(ConfigError):
            check_schema(name)


@pytest.mark.parametrize("hosts", ["host", "host:5432", "a:1,b", "[::1]:5432", ":5432"])
def test_hosts_are_shown_as_they_were_given(hosts):
    assert Address.parse(f"postgresql://{hosts}/db?sslmode=disable").shown == f"postgresql://{hosts}/db"
    assert Address.parse(f"postgresql://me:secret@{hosts}/db").shown == f"postgresql://{hosts}/db"


@pytest.mark.parametrize("kind", [Psycopg], ids=lambda kind: kind.__name__)
async def test_pipeline_of_psycopg_is_refused_in_words(caller):
    with caller.connection.pipeline():
        caller.connection.execute("SELECT 1")
        with pytest.raises(UnsupportedConnection, match="pipeline"):
            await caller.enqueue("a", 1)
    assert await caller.enqueue("a", 1)


@pytest.mark.parametrize("kind", [AsyncPsycopg], ids=lambda kind: kind.__name__)
async def test_pipeline_of_an_async_connection_is_refused_in_words(caller):
    async with caller.connection.pipeline():
        await caller.connection.execute("SELECT 1")
        with pytest.raises(UnsupportedConnection, match="pipeline"):
            await caller.enqueue("a", 1)
    await caller.connection.execute("SELECT 1")
    assert await caller.enqueue("a", 1)


@pytest.mark.parametrize("kind", [Psycopg], ids=lambda kind: kind.__name__)
async def test_kind_of_cursor_that_the_caller_prefers_does_not_matter(caller):
    caller.connection.cursor_factory = psycopg.RawCursor
    caller.connection.execute("SELECT 1")
    assert await caller.enqueue("a", 1)


async def test_a_database_without_a_queue_is_not_that_of_via(tmp_path, postgres_url):
    async with Queue.open(tmp_path / "jobs.db") as here, Queue.open(postgres_url) as there:
        with closing(sqlite3.connect(tmp_path / "plain.db", isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(UnsupportedConnection, match="is not that of `via`"):
                outbox.enqueue(connection, "a", 1, via=here)
            with pytest.raises(ConfigError, match="`via` if that is a queue elsewhere"):
                outbox.enqueue(connection, "a", 1, via=there)
        with (
            closing(psycopg.connect(postgres_url.partition("?")[0])) as connection,
            pytest.raises(UnsupportedConnection, match="is not that of `via`"),
        ):
            outbox.enqueue(connection, "a", 1, via=here)
