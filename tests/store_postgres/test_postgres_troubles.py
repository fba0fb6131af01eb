"""What goes wrong below the verbs is told by a typed error, undone, and over with it."""

import asyncio
import sys
import time
from contextlib import asynccontextmanager, suppress

import asyncpg
import psycopg
import pytest

from asyncqueue import stores
from asyncqueue.errors import (
    BadEffect,
    ConfigError,
    ForkedProcess,
    InvalidJob,
    NotAQueue,
    StoreBusy,
    StoreDenied,
    StoreError,
    StoreUnreachable,
)
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores import ring as ring_module
from asyncqueue.stores.postgres import connection as connection_module
from asyncqueue.stores.postgres import listen, turns
from asyncqueue.stores.postgres.connection import Profile, judged
from asyncqueue.stores.postgres.store import PostgresStore
from tests.store.raw import raw_of, schema_of
from tests.strays import Stray

DIE = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.fixture
async def queue(postgres_url):
    async with Queue.open(postgres_url) as opened:
        await opened.enqueue("a", 1)
        yield opened


async def test_effect_that_hides_an_error_of_the_database_is_undone_and_told(queue):
    (leased,) = await queue.claim("w")

    async def work(connection):
        try:
            await connection.execute("SELECT 1 / 0")
        except asyncpg.DivisionByZeroError:
            return

    with pytest.raises(BadEffect, match="hid an error of the database"):
        await queue.finish(leased, "ok", effect=work)
    assert (await queue.get("a")).status is Status.LEASED
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_transaction_of_an_effect_is_a_savepoint_that_it_may_undo(queue, postgres_url):
    (leased,) = await queue.claim("w")
    raw = raw_of(postgres_url)
    raw.execute("CREATE TABLE kept (name TEXT)")

    async def work(connection):
        await connection.execute("INSERT INTO kept VALUES ('before')")
        with suppress(asyncpg.DivisionByZeroError):
            async with connection.transaction():
                await connection.execute("INSERT INTO kept VALUES ('undone')")
                await connection.execute("SELECT 1 / 0")
        async with connection.transaction():
            await connection.execute("INSERT INTO kept VALUES ('after')")

    assert await queue.finish(leased, "ok", effect=work) is Status.DONE
    assert raw.select("SELECT name FROM kept") == [("before",), ("after",)]


async def lose(connection):
    try:
        await connection.execute(DIE)
    finally:
        await asyncio.sleep(
            0
        )  # else CPython 3.11 traces no caller of who handles this error, and coverage is blind


async def test_effect_whose_connection_is_lost_under_it_runs_again_on_another(queue):
    (leased,) = await queue.claim("w")
    runs = []

    async def work(connection):
        runs.append(connection)
        if len(runs) == 1:
            await lose(connection)

    assert await queue.finish(leased, "ok", effect=work) is Status.DONE
    assert len(runs) == 2


async def test_connection_that_is_lost_with_the_history_repeats_the_change_on_another(queue, postgres_url):
    """A history that cannot be written is left out; but then the change, too, must be able to go on."""
    (leased,) = await queue.claim("w")
    raw = raw_of(postgres_url)
    raw.execute("CREATE SEQUENCE losses")  # which no rollback sets back
    raw.execute(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('losses') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$"
    )
    raw.execute("CREATE TRIGGER lose BEFORE INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION lose()")
    assert await queue.finish(leased, "retry", error="later") is Status.PENDING
    assert raw.select("SELECT last_value FROM losses") == [(2,)]
    assert [row.detail for row in await queue.history("a")] == ["later"]


async def test_effect_that_hides_the_loss_of_its_connection_is_refused(queue):
    (leased,) = await queue.claim("w")

    async def work(connection):
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await lose(connection)

    with pytest.raises(BadEffect, match="must not end the transaction or close the connection"):
        await queue.finish(leased, "ok", effect=work)
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_effect_that_cancels_its_own_task_undoes_the_transaction(queue):
    (leased,) = await queue.claim("w")

    async def work(_connection):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await queue.finish(leased, "ok", effect=work)
    assert (await queue.get("a")).status is Status.LEASED
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_schema_that_somebody_made_before_is_used(postgres_url):
    name = schema_of(postgres_url)
    raw_of(postgres_url).execute(f"CREATE SCHEMA {name}")
    async with Queue.open(postgres_url) as queue:
        assert await queue.enqueue("a", 1) is True


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TYPE {}.jobs AS ENUM ('one')",
        "CREATE FUNCTION {}.now_ms() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
        "CREATE VIEW {}.redrives AS SELECT 1",
    ],
)
async def test_name_that_is_somebody_elses_is_told_and_nothing_is_made(postgres_url, other):
    name, raw = schema_of(postgres_url), raw_of(postgres_url)
    raw.execute(f"CREATE SCHEMA {name}")
    raw.execute(other.format(name))
    with pytest.raises(NotAQueue, match=r"of a name that a queue needs.*choose another one by \?schema="):
        async with Queue.open(postgres_url, adopt=True):
            pass
    assert raw.select(f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}'") == []


async def test_name_that_is_in_the_way_of_an_upgrade_is_told_as_it_is(postgres_url):
    async with Queue.open(postgres_url):
        pass
    raw_of(postgres_url).execute("UPDATE versions SET version = 2 WHERE part = 'queue'")
    with pytest.raises(StoreError, match="already exists") as told:
        async with Queue.open(postgres_url):
            pass
    assert type(told.value) is StoreError


@pytest.mark.parametrize("setting", ["patience_ms", "reply_ms", "connections"])
def test_settings_of_a_connection_are_at_least_one(setting):
    with pytest.raises(ConfigError, match=f"{setting} must be at least 1"):
        Profile(**{setting: 0}).check()


async def test_turns_are_forgotten_for_the_levels_noted_longest_ago(monkeypatch):
    monkeypatch.setattr(ring_module, "_LEVELS_MAX", 2)
    ring = turns.Turns()

    async def names(after, until, count):
        return [name for name in ("one", "other") if after < name and (until is None or name <= until)][:count]

    async def take(rooms):
        return [{"queue": name, "seq": 1} for name, room in rooms.items() if room]

    for level in range(4):
        assert len(await ring.claim(level, 2, names, take)) == 2
    assert sorted(ring._served) == [2, 3]


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (asyncpg.exceptions.ClientConfigurationError("no such option"), ConfigError, "there: no such option"),
        (
            asyncpg.exceptions.ProtocolViolationError("unsupported startup parameter: x"),
            ConfigError,
            "pgbouncer=true",
        ),
        (asyncpg.exceptions.ProtocolViolationError("odd"), StoreUnreachable, "odd"),
        (asyncpg.exceptions.ProtocolViolationError("password authentication failed"), StoreDenied, "check user"),
        (asyncpg.exceptions.ProtocolViolationError('database "x" does not exist'), StoreDenied, "check user"),
        (asyncpg.exceptions.ProtocolViolationError("no such user: x"), StoreDenied, "check user"),
        (
            asyncpg.exceptions.UndefinedObjectError('unrecognized configuration parameter "x"'),
            ConfigError,
            "option",
        ),
        (asyncpg.exceptions.UndefinedObjectError('type "x" does not exist'), StoreError, "does not exist"),
        (asyncpg.exceptions.InvalidSQLStatementNameError("no such statement"), ConfigError, "pgbouncer=true"),
        (asyncpg.exceptions.DuplicatePreparedStatementError("there already"), ConfigError, "pgbouncer=true"),
        (asyncpg.exceptions.OutdatedSchemaCacheError("stale"), StoreBusy, "the schema has just changed"),
        (TimeoutError(), StoreUnreachable, "no answer in time"),
        (ConnectionResetError("reset"), StoreUnreachable, "cannot be reached .reset"),
        (asyncpg.exceptions.DataError("odd"), InvalidJob, "odd"),
        (asyncpg.exceptions.NumericValueOutOfRangeError("odd"), InvalidJob, "odd"),
        (asyncpg.exceptions.CharacterNotInRepertoireError("odd"), InvalidJob, "odd"),
        (asyncpg.exceptions.UntranslatableCharacterError("odd"), InvalidJob, "odd"),
        (asyncpg.exceptions.DivisionByZeroError("odd"), StoreError, "odd"),
        (asyncpg.exceptions.InvalidRowCountInLimitClauseError("odd"), StoreError, "odd"),
        (asyncpg.exceptions.UniqueViolationError("odd"), StoreError, "odd"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_driver_are_typed(error, expected, words):
    told = judged(error, "there").error
    assert type(told) is expected
    with pytest.raises(expected, match=words):
        raise told


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["started", "committed"], True),
        (["started", "aborted"], False),
        (["started", "in progress", "started", "committed"], True),
        ([OSError("away"), "started", "committed"], True),
        (["started since", "committed"], False),
        (["started", None], StoreUnreachable),
        ([asyncpg.exceptions.ClientConfigurationError("no such option")], StoreUnreachable),
    ],
    ids=str,
)
async def test_what_became_of_a_commit_without_an_answer_is_asked_until_it_is_known(
    queue, monkeypatch, answers, expected
):
    database, left = queue._store.database, iter(answers)

    class Server:
        async def fetchval(self, *_question):
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

    @asynccontextmanager
    async def borrowed(_until):
        yield Server()

    monkeypatch.setattr(database, "_borrowed", borrowed)
    asking = database._has_committed("7", "started", time.monotonic() + 20)
    if isinstance(expected, bool):
        assert await asking is expected
    else:
        with pytest.raises(expected, match="whether it was done is not known"):
            await asking


async def test_patience_ends_the_question_what_became_of_a_commit(queue, monkeypatch):
    database = queue._store.database

    @asynccontextmanager
    async def borrowed(_until):
        raise OSError("away")
        yield

    monkeypatch.setattr(database, "_borrowed", borrowed)
    with pytest.raises(StoreUnreachable, match="whether it was done is not known"):
        await database._has_committed("7", "started", time.monotonic())


async def test_url_that_the_driver_cannot_read_is_a_config_error():
    with pytest.raises(ConfigError, match="not a URL that the driver understands"):
        await PostgresStore.open("postgresql://me@127.0.0.1:no-port/db")


async def test_error_at_the_commit_itself_is_typed_and_undoes_the_transaction(queue):
    async def work(transaction):
        connection = transaction._connection
        await connection.execute("CREATE TABLE late (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        await connection.execute("INSERT INTO late VALUES (1), (1)")

    with pytest.raises(StoreError, match="late_a_key"):
        await queue._store.write(work)
    assert await queue.enqueue("b", 1) is True


async def test_connection_that_was_left_in_a_transaction_does_not_go_back_to_the_pool(queue):
    database = queue._store.database
    async with database._borrowed(time.monotonic() + 20) as connection:
        await connection.execute("BEGIN")
        raw = connection._con
    assert raw.is_closed()


async def test_one_connection_stays_at_hand_and_the_others_go_back_to_the_pool(queue):
    database = queue._store.database
    until = time.monotonic() + 20
    async with database._borrowed(until) as first, database._borrowed(until) as second:
        assert database._spare is None
        assert first is not second
    assert database._spare is second
    assert database._pool.get_idle_size() == 1
    async with database._borrowed(until) as again:
        assert again is second
    second.terminate()
    async with database._borrowed(until) as another:
        assert await another.fetchval("SELECT 1") == 1
        raw = another._con
    await database.close()
    assert database._spare is None
    assert raw.is_closed()


async def test_a_connection_that_was_at_hand_for_too_long_is_not_trusted(queue, monkeypatch):
    """The network may have forgotten it without a word: the next call would wait until its patience is over."""
    monkeypatch.setattr(connection_module, "_SPARE_S", -1)
    database = queue._store.database
    async with database._borrowed(time.monotonic() + 20) as connection:
        raw = connection._con
    async with database._borrowed(time.monotonic() + 20) as connection:
        assert connection._con is not raw
    assert raw.is_closed()


async def test_what_an_effect_has_left_running_cannot_reach_a_later_transaction(queue):
    """A task that outlives the effect that began it finds that its connection was taken away."""
    stray = Stray()

    async def effect(connection):
        stray.begin(connection)

    await queue.enqueue("a", 1)
    (job,) = await queue.claim("w")
    assert await queue.finish(job, "ok", effect=effect) == "done"
    await stray.run_on()
    assert await queue.enqueue("b", 1) is True
    assert ["released back to the pool" in text for text in stray.told] == [True]
    assert (await queue.get("b")).status == "pending"


async def test_a_connection_that_is_returned_while_its_database_closes_is_closed_with_it(queue):
    database = queue._store.database
    async with database._borrowed(time.monotonic() + 20) as connection:
        raw = connection._con
        closing = asyncio.create_task(database.close())
        await asyncio.sleep(0)
    await closing
    assert raw.is_closed()
    assert database._spare is None


async def test_another_process_than_the_one_that_opened_it_is_refused(queue, monkeypatch):
    monkeypatch.setattr(queue._store.database, "_pid", 0)
    with pytest.raises(ForkedProcess, match="opened before a fork"):
        await queue._store.get(["a"])


async def test_listener_that_answers_its_question_is_kept(queue, monkeypatch):
    monkeypatch.setattr(listen, "_PROBE_EVERY_S", 0)
    await queue.version()
    first = queue._store._listener._connection
    await queue.version()
    assert queue._store._listener._connection is first is not None


async def unlistened(listener):
    """Let it begin anew at the next question."""
    connection, listener._connection = listener._connection, None
    if connection is not None:
        await connection.close()


async def test_callers_that_find_no_listener_at_the_same_moment_make_one(queue, monkeypatch):
    listener, connect, made = queue._store._listener, queue._store.database.connect, []

    async def counted():
        made.append(await connect())
        return made[-1]

    async def answers(_connection):
        raise AssertionError("asked whether a listener lives that has just been made")

    monkeypatch.setattr(queue._store.database, "connect", counted)
    monkeypatch.setattr(listener, "_answers", answers)
    monkeypatch.setattr(listener, "_again_at", 0.0)
    await unlistened(listener)
    assert len(set(await asyncio.gather(*[queue.version() for _ in range(4)]))) == 1
    assert made == [listener._connection]


@pytest.mark.parametrize("error", [asyncpg.InterfaceError("no"), LookupError("a bug")], ids=["driver", "other"])
async def test_listener_that_cannot_begin_leaves_no_connection_open(queue, monkeypatch, error):
    made = []

    async def add_listener(connection, *_):
        made.append(connection)
        raise error

    await unlistened(queue._store._listener)
    monkeypatch.setattr(asyncpg.Connection, "add_listener", add_listener)
    monkeypatch.setattr(queue._store._listener, "_again_at", 0.0)
    if isinstance(error, LookupError):
        with pytest.raises(LookupError):
            await queue.version()
    else:
        assert isinstance(await queue.version(), int)  # by a question
    assert [connection.is_closed() for connection in made] == [True]


async def test_listener_cancelled_while_it_connects_has_nothing_to_close(queue, monkeypatch):
    listener, connecting = queue._store._listener, asyncio.Event()

    async def connect():
        connecting.set()
        await asyncio.Event().wait()

    await unlistened(listener)
    monkeypatch.setattr(listener, "_again_at", 0.0)
    monkeypatch.setattr(queue._store.database, "connect", connect)
    asking = asyncio.ensure_future(queue.version())
    await connecting.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    assert not listener.is_listening


@pytest.fixture
def without(monkeypatch):
    """Let the store be imported anew without a module."""

    def forget(missing):
        for name in [name for name in sys.modules if name.startswith("asyncqueue.stores.postgres")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(stores, "postgres", raising=False)
        monkeypatch.setitem(sys.modules, missing, None)

    return forget


URL = "postgresql://127.0.0.1/db"
OPENINGS = {"store": lambda: stores.open_store(URL), "side": lambda: stores.open_side(URL, create=True)}


@pytest.mark.parametrize("opening", OPENINGS)
async def test_missing_driver_is_named_with_what_installs_it(without, opening):
    without("asyncpg")
    with pytest.raises(ConfigError, match=r"pip install 'asyncqueue.postgres.'"):
        await OPENINGS[opening]()


@pytest.mark.parametrize("opening", OPENINGS)
async def test_another_missing_module_is_not_blamed_on_the_driver(without, opening):
    without("asyncqueue.stores.postgres.connection")
    with pytest.raises(ModuleNotFoundError, match=r"postgres\.connection"):
        await OPENINGS[opening]()


def test_connection_of_a_driver_without_the_other_is_told_what_to_install(without):
    connection = psycopg.Connection.__new__(psycopg.Connection)
    without("asyncpg")
    with pytest.raises(ConfigError, match="pip install"):
        stores.outbox_for(connection)
