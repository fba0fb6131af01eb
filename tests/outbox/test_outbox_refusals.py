"""What the outbox refuses, in words; and what it must not be confused by."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import asyncqueue
from asyncqueue import AsyncQueueError, Conflict, NotAQueue, NoTransaction, Queue, UnsupportedConnection, outbox
from asyncqueue.errors import NewerSchema, StoreClosed, StoreError
from asyncqueue.stores import alchemy
from asyncqueue.stores.sqlite.schema import CONTRACT_SCRIPT, script
from tests.outbox.outbox_callers import (
    Aiosqlite,
    Alchemy,
    AlchemyAsync,
    AlchemyAsyncSession,
    AlchemySession,
    Sqlite3,
)


def one_line(caught):
    assert isinstance(caught.value, AsyncQueueError)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


async def no_job(queue):
    assert (await queue.stats()).total == 0


@pytest.mark.parametrize("kind", [Sqlite3, Aiosqlite, Alchemy, AlchemyAsync])
async def test_a_connection_without_a_transaction_is_refused(kind, queue, path):
    caller = await kind().open(path)
    with pytest.raises(NoTransaction) as caught:
        await caller.enqueue("a", 1)
    assert "begin" in one_line(caught).lower()
    await caller.close()
    await no_job(queue)


@pytest.mark.parametrize("via", ["x", Queue, 0])
async def test_a_via_that_is_no_open_queue_is_refused(queue, path, via):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnsupportedConnection) as caught:
            outbox.enqueue(connection, "a", 1, via=via)
    assert "via must be an open Queue" in one_line(caught)
    await no_job(queue)


async def test_the_drivers_default_mode_is_not_begun_by_the_outbox(queue, path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        with connection, pytest.raises(NoTransaction, match="BEGIN IMMEDIATE"):
            outbox.enqueue(connection, "a", 1)
        assert not connection.in_transaction
    await no_job(queue)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no attribute autocommit before Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_the_attribute_autocommit_decides_whether_there_is_a_transaction(queue, path, autocommit):
    with contextlib.closing(sqlite3.connect(path, autocommit=autocommit)) as connection:
        if autocommit:
            with pytest.raises(NoTransaction):
                outbox.enqueue(connection, "a", 1)
        else:
            assert outbox.enqueue(connection, "a", 1) is True
            connection.rollback()
    await no_job(queue)


@pytest.mark.parametrize("make", [lambda engine: engine.connect(), Session], ids=["Connection", "Session"])
async def test_sqlalchemys_autocommit_is_refused_before_anything_is_stored(queue, path, make):
    engine = sa.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with make(engine) as handle:
        handle.begin()
        with pytest.raises(NoTransaction, match="autocommit"):
            outbox.enqueue(handle, "a", 1)
    engine.dispose()
    await no_job(queue)


async def test_a_fresh_session_begins_by_its_own_autobegin_and_the_commit_is_the_callers(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        assert outbox.enqueue(session, "lost", 1) is True
    with Session(engine) as session:
        assert outbox.enqueue(session, "kept", 1) is True
        session.commit()
    engine.dispose()
    assert [job.id for job in await queue.list()] == ["kept"]


async def test_a_session_that_must_not_begin_by_itself_is_refused(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    with Session(engine, autobegin=False) as session, pytest.raises(NoTransaction) as caught:
        outbox.enqueue(session, "a", 1)
    assert "begin()" in one_line(caught)
    engine.dispose()
    await no_job(queue)


async def test_a_session_whose_transaction_has_failed_is_refused_until_it_is_rolled_back(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    meta = sa.MetaData()

    class Order:
        pass

    sa.orm.registry().map_imperatively(Order, sa.Table("orders", meta, sa.Column("id", sa.Text, primary_key=True)))
    with Session(engine) as session:
        session.execute(sa.text("INSERT INTO orders VALUES ('taken')"))
        order = Order()
        order.id = "taken"
        session.add(order)
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        with pytest.raises(NoTransaction) as caught:
            outbox.enqueue(session, "a", 1)
        assert "rolled back" in one_line(caught)
        session.rollback()
        assert outbox.enqueue(session, "b", 1) is True
        session.commit()
    engine.dispose()
    assert [job.id for job in await queue.list()] == ["b"]


@pytest.mark.parametrize("kind", [Sqlite3, Aiosqlite, Alchemy, AlchemyAsync])
async def test_a_closed_connection_is_refused(kind, queue, path):
    caller = await kind().open(path)
    await caller.close()
    with pytest.raises(StoreClosed) as caught:
        await caller.enqueue("a", 1)
    one_line(caught)
    await no_job(queue)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ([], "empty; open it once by Queue.open"),
        (script(CONTRACT_SCRIPT), "contract functions made it; open it once by Queue.open"),
        (["CREATE TABLE other (x)"], "not a queue"),
        (["CREATE TABLE jobs (id)"], "not a queue"),
    ],
    ids=["empty", "contract", "other", "other-jobs"],
)
@pytest.mark.parametrize("kind", [Sqlite3, Aiosqlite, Alchemy, AlchemySession, AlchemyAsync, AlchemyAsyncSession])
async def test_a_database_without_the_queues_schema_is_refused_and_its_transaction_goes_on(
    kind, tmp_path, statements, words
):
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in [*statements, "CREATE TABLE IF NOT EXISTS keep (x)"][
            : len(statements) + bool(statements)
        ]:
            connection.execute(statement)
    caller = await kind().open(path)
    await caller.begin()
    with pytest.raises(NotAQueue) as caught:
        await caller.enqueue("a", 1)
    assert words in one_line(caught)
    await caller.commit()
    await caller.close()


async def test_a_database_of_a_newer_version_is_refused(queue, path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("BEGIN")
        with pytest.raises(NewerSchema, match="newer"):
            outbox.enqueue(connection, "a", 1)
        assert connection.in_transaction
        connection.rollback()
    await no_job(queue)


async def test_a_contract_file_is_taken_once_it_was_opened_by_the_queue(tmp_path):
    path = tmp_path / "contract.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in script(CONTRACT_SCRIPT):
            connection.execute(statement)
    async with Queue.open(path) as queue:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            assert outbox.enqueue(connection, "a", 1) is True
            connection.commit()
        assert (await queue.get("a")).status == "pending"


async def test_a_connection_of_another_kind_of_database_is_refused(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    engine.dialect.name = "oracle"
    with engine.begin() as connection, pytest.raises(UnsupportedConnection, match="oracle"):
        outbox.enqueue(connection, "a", 1)
    engine.dispose()
    await no_job(queue)


async def test_a_session_that_belongs_to_no_database_is_refused():
    with Session() as session, pytest.raises(UnsupportedConnection) as caught:
        outbox.enqueue(session, "a", 1)
    assert "connection of the queue's database" in one_line(caught)


@pytest.mark.parametrize("thing", [None, "app.db", object(), 3])
async def test_what_is_no_connection_is_refused(thing):
    with pytest.raises(UnsupportedConnection, match=type(thing).__name__):
        outbox.enqueue(thing, "a", 1)
    with pytest.raises(UnsupportedConnection):
        await outbox.enqueue_async(thing, "a", 1)


async def test_an_engine_is_refused_since_it_is_no_connection(path):
    engine = sa.create_engine(f"sqlite:///{path}")
    with pytest.raises(UnsupportedConnection, match="Engine"):
        outbox.enqueue(engine, "a", 1)
    engine.dispose()


async def test_each_function_names_the_other_one_for_the_other_kind(queue, path):
    async with aiosqlite.connect(path) as connection:
        with pytest.raises(UnsupportedConnection, match="use `await"):
            outbox.enqueue(connection, "a", 1)
    connection = sqlite3.connect(path)
    with contextlib.closing(connection), pytest.raises(UnsupportedConnection, match="without await"):
        await outbox.enqueue_async(connection, "a", 1)
    await no_job(queue)


async def test_a_connection_of_another_thread_is_refused(queue, path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        with pytest.raises(StoreError, match="thread"):
            await asyncio.to_thread(outbox.enqueue, connection, "a", 1)
        assert outbox.enqueue(connection, "b", 1) is True
        connection.rollback()
    await no_job(queue)


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda _cursor, _row: {}], ids=["Row", "nonsense"])
@pytest.mark.parametrize("text", [str, bytes])
async def test_factories_of_the_caller_change_no_answer(queue, path, factory, text):
    await queue.enqueue("there", 1, payload={"a": "b"})
    async with aiosqlite.connect(path) as connection:
        connection.row_factory = factory
        connection.text_factory = text
        await connection.execute_fetchall("BEGIN")
        assert await outbox.enqueue_async(connection, "a", 1, max_pending=9) is True
        assert await outbox.enqueue_async(connection, "there", 1, payload={"a": "b"}) is False
        with pytest.raises(Conflict):
            await outbox.enqueue_async(connection, "there", 1, payload={"a": "c"})
        await connection.commit()
    assert (await queue.stats()).pending == 2


async def test_scoped_sessions_are_sessions(queue, path):
    engine = sa.create_engine(f"sqlite:///{path}")
    scoped = scoped_session(sessionmaker(engine))
    assert outbox.enqueue(scoped, "a", 1) is True
    scoped.commit()
    scoped.remove()
    engine.dispose()
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    assert await outbox.enqueue_async(scoped, "b", 1) is True
    await scoped.commit()
    await scoped.remove()
    await engine.dispose()
    assert [job.id for job in await queue.list()] == ["a", "b"]


async def test_a_savepoint_that_is_rolled_back_takes_its_job_along(queue, path):
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session, session.begin():
        assert await outbox.enqueue_async(session, "outer", 1) is True
        savepoint = await session.begin_nested()
        assert await outbox.enqueue_async(session, "inner", 1) is True
        await savepoint.rollback()
    await engine.dispose()
    assert [job.id for job in await queue.list()] == ["outer"]


def test_sqlalchemy_is_not_imported_for_a_connection_of_the_standard_library(tmp_path):
    code = """
import sqlite3, sys
from asyncqueue import outbox
from asyncqueue.errors import NotAQueue
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
try:
    outbox.enqueue(connection, "a", 1)
except NotAQueue:
    print("sqlalchemy" in sys.modules)
connection.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.db"], capture_output=True, text=True, check=True, timeout=30
    )
    assert ran.stdout == "False\n"


def test_the_module_is_reached_by_the_package():
    assert asyncqueue.outbox is outbox
    assert "outbox" in dir(asyncqueue)


async def test_queue_of_an_older_version_is_refused_in_words(tmp_path):
    path = tmp_path / "app.db"
    async with Queue.open(path):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 2")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotAQueue, match="a queue of an older version; open it once by Queue"):
            outbox.enqueue(connection, "a", 1)


async def test_via_a_queue_whose_file_is_gone_is_refused(tmp_path):
    path, other = tmp_path / "app.db", tmp_path / "other.db"
    async with Queue.open(path), Queue.open(other) as via:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            other.rename(tmp_path / "elsewhere.db")
            with pytest.raises(UnsupportedConnection, match="give the queue of the same database"):
                outbox.enqueue(connection, "a", 1, via=via)


async def test_session_without_a_database_is_refused_in_words():
    async with AsyncSession() as session:
        with pytest.raises(UnsupportedConnection, match="give the connection of the queue's database"):
            await outbox.enqueue_async(session, "a", 1)


@pytest.mark.parametrize(
    ("error", "typed"),
    [
        (sa.exc.ResourceClosedError("closed"), StoreClosed),
        (sa.exc.InvalidRequestError("not begun"), NoTransaction),
        (sa.exc.SQLAlchemyError("odd"), StoreError),
    ],
)
def test_errors_of_sqlalchemy_itself_are_typed(error, typed):
    with pytest.raises(typed, match=str(error)) as told:
        alchemy._refuse(error)
    assert type(told.value) is typed
