"""What only an inbox in a SQLite file has: the driver's ways to end a transaction, locks, a private file."""

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from receiver_tools import get, look, post
from test_receiver_atomic import stock

from asyncqueue.errors import NotAQueue, StoreError
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Result


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "inbox.db")


async def test_a_message_and_a_set_are_the_same_six_statements(inbox):
    async with inbox.statements() as seen:
        await inbox.store.receive(lambda: [Arrival(Message(f"m{n}", 1, None), n, n) for n in range(1_000)])
    assert seen == ["BEGIN", "SELECT", "INSERT", "INSERT", "UPDATE", "COMMIT"]


async def test_the_file_is_private(inbox):
    assert os.stat(inbox.path).st_mode & 0o777 == 0o600  # noqa: PTH116 - stat only: FAULTS, fact 4


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_an_inbox_whose_file_was_moved_away_acknowledges_nothing_more(serve, tmp_path, journal, caplog):
    """Else nobody would ever see what it says it has."""
    (tmp_path / "away").mkdir()
    async with serve(journal=journal, force_wal=True) as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"
        assert (await get(inbox.port, "/readyz")).status == 200
        for file in Path(inbox.path).parent.glob(f"{Path(inbox.path).name}*"):
            file.rename(tmp_path / "away" / file.name)
        assert (await get(inbox.port, "/readyz")).status == 503
        assert (await post(inbox.port, "b")).status == 503
        assert "was removed or replaced" in caplog.text
    assert not [*tmp_path.glob(Path(inbox.path).name)]
    assert look(str(tmp_path / "away" / Path(inbox.path).name), "SELECT id FROM inbox") == [("a",)]


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.rollback(),
        lambda connection: connection.executescript("SELECT 1"),
    ],
    ids=["commit()", "rollback()", "executescript"],
)
async def test_an_effect_cannot_end_the_transaction_by_the_driver(serve, end, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            await end(connection)

    async with serve(effect=effect) as inbox:
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        assert await inbox.store.receive(lambda: arrivals) == [
            Result.ACCEPTED,
            Result.EFFECT_FAILED,
            Result.ACCEPTED,
        ]
        assert sorted(look(inbox.path, "SELECT id FROM stock")) == sorted(look(inbox.path, "SELECT id FROM inbox"))
        assert (await post(inbox.port, "next")).result == "accepted"


async def test_an_effect_that_loses_the_transaction_fails_its_set_loudly(serve, caplog):
    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            await connection.execute_fetchall("CREATE TABLE one (x PRIMARY KEY)")
            await connection.execute_fetchall("INSERT INTO one VALUES (1)")
            with pytest.raises(sqlite3.IntegrityError):
                await connection.execute_fetchall("INSERT OR ROLLBACK INTO one VALUES (1)")

    async with serve(effect=effect) as inbox:
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        with pytest.raises(StoreError, match="effect of bad"):
            await inbox.store.receive(lambda: arrivals)
        answer = await post(inbox.port, "bad")
        assert (answer.status, answer.problem) == (503, "busy")
        assert "effect of bad" in caplog.text
        assert look(inbox.path, "SELECT count(*) FROM inbox") == [(0,)]
        assert (await post(inbox.port, "first")).result == "accepted"


async def test_an_effect_may_change_the_row_factory(serve):
    async def effect(connection, one):
        connection.row_factory = lambda _cursor, row: {"row": row}
        await stock(connection, one)

    async with serve(effect=effect) as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"
        assert (await post(inbox.port, "a")).result == "duplicate"


async def test_a_database_that_others_hold_is_a_503_until_they_let_go(serve):
    async with serve(patience_ms=50) as inbox:
        with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (await post(inbox.port, "a")).problem == "busy"
            assert (await get(inbox.port, "/readyz")).problem == "busy"
            assert (await get(inbox.port, "/livez")).status == 200
            other.execute("ROLLBACK")
        assert (await get(inbox.port, "/readyz")).status == 200
        assert (await post(inbox.port, "a")).result == "accepted"


@pytest.mark.parametrize(
    "script",
    ["CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT); DROP TABLE users", "CREATE VIEW one AS SELECT 1"],
    ids=["after all were dropped", "with a view"],
)
async def test_a_database_without_tables_becomes_an_inbox(serve, url, script):
    with closing(sqlite3.connect(url)) as other:
        other.executescript(script)
    async with serve() as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"


async def test_an_inbox_in_which_effects_have_tables_of_their_own_is_still_one(serve):
    async with serve(effect=stock) as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"
    async with serve(effect=stock) as inbox:
        assert (await post(inbox.port, "a")).result == "duplicate"
        assert look(inbox.path, "SELECT id FROM stock") == [("a",)]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_database_of_something_else_is_refused_and_left_as_it_was(serve, url, journal):
    with closing(sqlite3.connect(url)) as other:
        other.executescript(f"PRAGMA journal_mode={journal}; CREATE TABLE users (id INTEGER PRIMARY KEY)")
    before = {file.name: file.read_bytes() for file in Path(url).parent.iterdir()}
    with pytest.raises(NotAQueue, match="a database, but not an inbox"):
        async with serve():
            pass
    assert {file.name: file.read_bytes() for file in Path(url).parent.iterdir()} == before
