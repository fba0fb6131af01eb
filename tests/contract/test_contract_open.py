import os
import sqlite3
import stat
from contextlib import closing

import aiosqlite
import contract_tools as tools
import pytest

from asyncqueue.errors import NotAQueue
from asyncqueue.stores.sqlite import schema
from asyncqueue.worker import claim, enqueue, open_queue


def columns(path, table):
    return tools.look(path, f"SELECT * FROM pragma_table_info('{table}')")


def indexes(path):
    return {
        name for (name,) in tools.look(path, "SELECT name FROM sqlite_schema WHERE type='index' AND sql NOT NULL")
    }


def plain_file(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript(tools.SCHEMA)


async def test_a_new_file_has_both_tables_with_exactly_the_columns_of_the_contract(tmp_path):
    await (await open_queue(tmp_path / "new.db")).close()
    plain_file(tmp_path / "plain.db")
    for table in ("jobs", "redrives"):
        assert columns(tmp_path / "new.db", table) == columns(tmp_path / "plain.db", table)
    assert tools.look(tmp_path / "new.db", "SELECT count(*) FROM jobs, redrives") == [(0,)]
    with pytest.raises(sqlite3.IntegrityError):
        tools.put(tmp_path / "new.db", status="sleeping")
    tools.put(tmp_path / "new.db")
    with pytest.raises(sqlite3.IntegrityError):
        tools.put(tmp_path / "new.db")


async def test_a_sequence_number_is_never_used_again(tmp_path):
    await (await open_queue(tmp_path / "q.db")).close()
    tools.put(tmp_path / "q.db")
    tools.run(tmp_path / "q.db", "DELETE FROM jobs")
    tools.put(tmp_path / "q.db")
    assert tools.look(tmp_path / "q.db", "SELECT seq FROM jobs") == [(2,)]


async def test_the_connection_is_autocommit_waits_one_second_and_is_durable(tmp_path):
    con = await open_queue(tmp_path / "q.db")
    try:
        assert con.isolation_level is None
        answers = {}
        for pragma in ("journal_mode", "synchronous", "busy_timeout"):
            ((answers[pragma],),) = await con.execute_fetchall(f"PRAGMA {pragma}")
        assert answers == {"journal_mode": "delete", "synchronous": 2, "busy_timeout": 1000}
        assert not con.in_transaction
    finally:
        await con.close()


async def test_a_build_that_takes_a_name_for_a_uri_only_if_told_so_opens_the_file_too(tmp_path, monkeypatch):
    """Some builds of SQLite take every name that begins like a URI for one, as those of Debian do."""
    plain = sqlite3.connect

    def connect(name, *, uri=False, **settings):
        return plain(name if uri else "no such folder/" + name, uri=uri, **settings)

    monkeypatch.setattr(sqlite3, "connect", connect)
    con = await open_queue(tmp_path / "q.db")
    try:
        assert await enqueue(con, {"id": "a", "qty": 1}, 0, 1)
    finally:
        await con.close()


async def test_a_wal_file_is_turned_to_the_rollback_journal(tmp_path):
    plain_file(tmp_path / "q.db")
    tools.run(tmp_path / "q.db", "PRAGMA journal_mode=WAL")
    tools.put(tmp_path / "q.db")
    await (await open_queue(tmp_path / "q.db")).close()
    assert tools.look(tmp_path / "q.db", "PRAGMA journal_mode") == [("delete",)]
    assert tools.job(tmp_path / "q.db")["id"] == "a"


async def test_a_file_that_others_hold_in_wal_mode_is_an_error_and_stays_as_it_is(tmp_path):
    plain_file(tmp_path / "q.db")
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("SELECT count(*) FROM jobs").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await open_queue(tmp_path / "q.db")
        assert other.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


async def test_opening_again_keeps_work_and_audit_rows(path):
    tools.put_leased(path, token=7)
    tools.run(path, "INSERT INTO redrives (id, token, at_ms, note) VALUES ('a', 6, 5, 'n')")
    before = tools.snapshot(path)
    for _ in range(2):
        await (await open_queue(path)).close()
    assert tools.snapshot(path) == before


async def test_only_a_file_that_we_make_gets_our_index(tmp_path):
    plain_file(tmp_path / "plain.db")
    for name in ("plain.db", "new.db"):
        await (await open_queue(tmp_path / name)).close()
    assert indexes(tmp_path / "plain.db") == set()
    assert indexes(tmp_path / "new.db") == {"contract_live"}


async def test_a_missing_table_is_added_beside_the_existing_one(tmp_path):
    plain_file(tmp_path / "q.db")
    tools.put(tmp_path / "q.db")
    tools.run(tmp_path / "q.db", "DROP TABLE redrives")
    await (await open_queue(tmp_path / "q.db")).close()
    assert len(columns(tmp_path / "q.db", "redrives")) == 5
    assert tools.job(tmp_path / "q.db")["id"] == "a"


async def test_an_empty_file_becomes_a_queue(tmp_path):
    (tmp_path / "q.db").touch()
    con = await open_queue(tmp_path / "q.db")
    try:
        assert await enqueue(con, {"id": "a", "qty": 1}, 0, 1) is True
    finally:
        await con.close()


async def test_a_new_file_is_private_and_an_existing_one_keeps_its_mode(tmp_path):
    await (await open_queue(tmp_path / "new.db")).close()
    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    plain_file(tmp_path / "old.db")
    (tmp_path / "old.db").chmod(0o640)
    await (await open_queue(tmp_path / "old.db")).close()
    assert stat.S_IMODE((tmp_path / "old.db").stat().st_mode) == 0o640


@pytest.mark.parametrize("name", ["", ":memory:", b":memory:", "file:x?mode=memory", "file::memory:", "a\0b"])
async def test_a_path_that_names_no_file_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="ordinary file"):
        await open_queue(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 1, True, 1.5, ["q.db"]])
async def test_a_path_of_another_type_is_a_type_error(path):
    with pytest.raises(TypeError):
        await open_queue(path)


async def test_what_is_not_an_ordinary_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("folder", "pipe", "device"):
        with pytest.raises(NotAQueue, match="not an ordinary file"):
            await open_queue(tmp_path / name)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        await open_queue(tmp_path / "dangling")
    with pytest.raises(FileNotFoundError):
        await open_queue(tmp_path / "missing" / "q.db")
    assert not (tmp_path / "nowhere").exists()


async def test_a_file_with_two_names_is_refused(tmp_path):
    plain_file(tmp_path / "q.db")
    os.link(tmp_path / "q.db", tmp_path / "other.db")
    with pytest.raises(NotAQueue, match="hard links"):
        await open_queue(tmp_path / "q.db")


@pytest.mark.parametrize("name", ["with space?mode=memory&x#y%41.db", "ünïcode.db", os.fsdecode(b"\xff.db")])
async def test_any_file_name_is_taken_literally(name, tmp_path):
    con = await open_queue(tmp_path / name)
    try:
        await enqueue(con, {"id": "a", "qty": 1}, 0, 1)
    finally:
        await con.close()
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - the plain name, undecodable bytes and all
    assert (tmp_path / name).stat().st_size > 0


async def test_a_relative_path_str_or_bytes_is_opened_where_the_process_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    await (await open_queue("q.db")).close()
    await (await open_queue(b"q.db")).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["q.db"]


async def test_a_file_of_something_else_is_an_error_closes_the_connection_and_keeps_every_byte(tmp_path):
    garbage = b"This is a diary, not a database. " * 100
    (tmp_path / "diary").write_bytes(garbage)
    before = tools.database_threads()
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        await open_queue(tmp_path / "diary")
    tools.assert_nothing_left(tmp_path / "diary", before)
    assert (tmp_path / "diary").read_bytes() == garbage


async def test_tables_are_made_together_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "script", lambda name: [tools.SCHEMA.split(";")[0], "CREATE TABLE broken ("])
    before = tools.database_threads()
    with pytest.raises(sqlite3.OperationalError):
        await open_queue(tmp_path / "q.db")
    tools.assert_nothing_left(tmp_path / "q.db", before)
    assert tools.look(tmp_path / "q.db", "SELECT name FROM sqlite_schema") == []
    tools.assert_writable_at_once(tmp_path / "q.db")


async def test_a_locked_file_is_an_error_and_closes_the_connection(tmp_path):
    plain_file(tmp_path / "q.db")
    before = tools.database_threads()
    with closing(sqlite3.connect(tmp_path / "q.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await open_queue(tmp_path / "q.db")
        other.execute("ROLLBACK")
    tools.assert_nothing_left(tmp_path / "q.db", before)


async def test_opening_does_not_drop_the_locks_that_this_process_holds(tmp_path):
    plain_file(tmp_path / "q.db")
    attempt = (
        "import sqlite3, sys\n"
        "plain = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "try:\n    plain.execute('BEGIN IMMEDIATE')\n    print('got in')\n"
        "except sqlite3.OperationalError as error:\n    print(error)\n"
    )
    async with aiosqlite.connect(tmp_path / "q.db", isolation_level=None) as holder:
        await holder.execute_fetchall("BEGIN IMMEDIATE")
        await (await open_queue(tmp_path / "q.db")).close()
        with pytest.raises(NotAQueue):
            await open_queue(tmp_path)
        assert tools.in_a_child(attempt, tmp_path / "q.db") == "database is locked\n"


async def test_opening_a_queue_need_not_wait_for_a_writer_or_a_reader(path):
    for lock in ("BEGIN IMMEDIATE", "BEGIN"):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(lock)
            other.execute("SELECT * FROM jobs").fetchall()
            await (await open_queue(path)).close()


async def test_the_claim_searches_live_jobs_only_in_our_file(tmp_path):
    con = await open_queue(tmp_path / "q.db")
    try:
        steps = []
        await con.set_trace_callback(steps.append)
        assert await claim(con, "one", 0) is None
        await con.set_trace_callback(None)
        hot = [step for step in steps if "UPDATE jobs" in step]
        assert len(hot) == 2
        for statement in hot:
            plan = [row[3] for row in await con.execute_fetchall(f"EXPLAIN QUERY PLAN {statement}")]
            assert any("USING INDEX contract_live" in step for step in plan), plan
            assert "SCAN jobs" not in plan
    finally:
        await con.close()
