"""A schema of somebody else gets a queue only if that is asked for; what has something of ours is ours."""

import pytest

from asyncqueue.errors import NotAQueue
from asyncqueue.queue import Queue
from asyncqueue.stores import open_side
from receiver.stores.postgres.store import PostgresInbox, Profile
from tests.store.raw import raw_of

THINGS = {
    "table": "CREATE TABLE orders (id text)",
    "view": "CREATE VIEW orders AS SELECT 1",
    "materialized view": "CREATE MATERIALIZED VIEW orders AS SELECT 1 AS one",
    "partitioned table": "CREATE TABLE orders (id text) PARTITION BY LIST (id)",
}


@pytest.fixture
def raw(postgres_url):
    """A schema that exists already, of a service."""
    raw = raw_of(postgres_url)
    raw.execute(f"CREATE SCHEMA {raw.schema}")
    return raw


def _there(raw):
    names = raw.select(
        f"SELECT relname FROM pg_class WHERE relnamespace = '{raw.schema}'::regnamespace AND relkind <> 'i'"
    )
    return sorted(name for (name,) in names)


@pytest.mark.parametrize("thing", THINGS)
async def test_schema_of_a_service_gets_a_queue_only_when_told(raw, postgres_url, thing):
    raw.execute(THINGS[thing])
    with pytest.raises(NotAQueue, match=r"\(orders\) and no queue; .*\?schema=name.*init --adopt.*adopt=True"):
        await Queue.open(postgres_url)
    assert _there(raw) == ["orders"]
    async with Queue.open(postgres_url, adopt=True) as queue:
        assert await queue.enqueue("a", 1)
    async with Queue.open(postgres_url) as queue:  # from now on a queue like any other
        assert (await queue.stats()).pending == 1
    assert "orders" in _there(raw)


async def test_of_many_tables_the_first_are_told(raw, postgres_url):
    for name in ("d", "b", "e", "c", "a"):
        raw.execute(f"CREATE TABLE {name} (id text)")
    with pytest.raises(NotAQueue, match=r"\(a, b, c, \.\.\.\)"):
        await Queue.open(postgres_url)


async def test_no_move_goes_into_a_schema_of_a_service_until_it_was_adopted(raw, postgres_url):
    raw.execute(THINGS["table"])
    with pytest.raises(NotAQueue, match="init --adopt"):
        await open_side(postgres_url, create=True)
    await (await Queue.open(postgres_url, adopt=True)).close()
    await (await open_side(postgres_url, create=True)).close()


async def test_tables_that_come_after_the_queue_are_no_question(postgres_url):
    await (await Queue.open(postgres_url)).close()
    raw_of(postgres_url).execute(THINGS["table"])
    await (await Queue.open(postgres_url)).close()


@pytest.mark.parametrize("is_first", ["queue", "inbox"])
async def test_queue_and_inbox_share_a_schema_whichever_comes_first(raw, postgres_url, is_first):
    if is_first == "inbox":
        raw.execute(THINGS["table"])  # of an effect
        await (await PostgresInbox.open(postgres_url, Profile())).close()
    await (await Queue.open(postgres_url)).close()
    await (await PostgresInbox.open(postgres_url, Profile())).close()
    assert {"inbox", "jobs", "versions"} <= set(_there(raw))


async def test_what_an_extension_brought_is_nobodys(postgres_url, raw, monkeypatch):
    raw.execute(THINGS["table"])
    # the server of the tests has no extension that brings a table: this makes one of what is there
    raw.execute(
        "INSERT INTO pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype) "
        "SELECT 'pg_class'::regclass, 'orders'::regclass, 0, 'pg_extension'::regclass, oid, 0, 'e' "
        "FROM pg_extension WHERE extname = 'plpgsql'"
    )
    try:
        await (await Queue.open(postgres_url)).close()
    finally:
        raw.execute("DELETE FROM pg_depend WHERE deptype = 'e' AND objid = 'orders'::regclass")


@pytest.mark.parametrize("columns", ["number integer", "part text, version integer", ""])
@pytest.mark.parametrize("adopt", [False, True])
async def test_table_versions_of_another_program_is_told_as_what_it_is(raw, postgres_url, columns, adopt):
    raw.execute(f"CREATE TABLE versions ({columns})")
    with pytest.raises(NotAQueue, match="has a table versions of another program, a name that this queue needs"):
        await Queue.open(postgres_url, adopt=adopt)
    with pytest.raises(NotAQueue, match="a name that this inbox needs"):
        await PostgresInbox.open(postgres_url, Profile())
    assert _there(raw) == ["versions"]
