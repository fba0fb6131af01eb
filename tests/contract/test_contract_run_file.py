import asyncio
import os
import sqlite3

import contract_tools as tools
import pytest

from asyncqueue import worker
from asyncqueue.worker import BadAck, Retryable, run_file


async def acknowledge(_event):
    return True


def clock():
    return 100


async def test_it_returns_what_run_once_returns(path):
    tools.put(path)
    before = tools.database_threads()
    assert await run_file(path, "one", clock, acknowledge, 0.5) == {"id": "a", "token": 1, "status": "done"}
    tools.assert_nothing_left(path, before)
    assert await run_file(str(path), "one", clock, acknowledge, 0.5) is None
    tools.assert_nothing_left(path, before)


async def test_it_passes_the_lease_on(path):
    tools.put(path)
    with pytest.raises(BadAck):
        await run_file(path, "one", clock, not_an_ack, 0.5, 7_000)
    assert tools.job(path)["lease_until"] == 7_100


async def not_an_ack(_event):
    return "yes"


@pytest.mark.parametrize("name", ["missing.db", "missing/q.db", "folder", "pipe", "dangling", "device", "a\0b"])
async def test_what_is_not_an_existing_ordinary_file_is_not_found_and_nothing_is_made(name, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "device").symlink_to("/dev/null")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileNotFoundError):
        await run_file(tmp_path / name, "one", fail, fail, 0.5)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["", ":memory:", "file:q.db"])
async def test_a_path_that_names_no_file_is_not_found(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        await run_file(name, "one", fail, fail, 0.5)
    assert list(tmp_path.iterdir()) == []


def fail(*_arguments):
    pytest.fail("must not be called")


async def test_a_symlink_to_a_queue_file_is_followed(path):
    tools.put(path)
    link = path.with_name("link.db")
    link.symlink_to(path)
    assert (await run_file(link, "one", clock, acknowledge, 0.5))["status"] == "done"


async def test_a_file_that_vanishes_at_the_last_moment_is_not_made_anew(path, monkeypatch):
    connect = sqlite3.connect

    def vanish_first(*arguments, **options):
        path.unlink()
        return connect(*arguments, **options)

    monkeypatch.setattr(worker.sqlite3, "connect", vanish_first)
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await run_file(path, "one", fail, fail, 0.5)
    assert list(path.parent.iterdir()) == []


async def test_a_wrong_jitter_is_refused_before_the_file_is_touched(tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(ValueError, match="jitter"):
        await run_file(tmp_path / "empty.db", "one", fail, fail, 2)
    assert (tmp_path / "empty.db").stat().st_size == 0


@pytest.mark.parametrize("error", [RuntimeError("x"), BadAck("x"), asyncio.CancelledError()])
async def test_it_closes_the_connection_when_the_send_fails(error, path):
    tools.put(path)
    before = tools.database_threads()

    async def send(_event):
        raise error

    with pytest.raises(type(error)) as caught:
        await run_file(path, "one", clock, send, 0.5)
    assert caught.value is error
    tools.assert_nothing_left(path, before)
    assert tools.job(path)["status"] == "leased"
    tools.assert_writable_at_once(path)


async def test_it_closes_the_connection_when_the_claim_fails(path):
    before = tools.database_threads()
    with pytest.raises(ValueError, match="owner"):
        await run_file(path, "not an owner", clock, acknowledge, 0.5)
    tools.assert_nothing_left(path, before)


async def test_it_closes_the_connection_when_the_file_is_no_database(tmp_path):
    (tmp_path / "diary").write_bytes(b"dear diary " * 500)
    before = tools.database_threads()
    with pytest.raises(sqlite3.DatabaseError):
        await run_file(tmp_path / "diary", "one", fail, fail, 0.5)
    tools.assert_nothing_left(tmp_path / "diary", before)


async def test_a_second_run_recovers_the_work_of_one_that_died_after_its_send(path):
    tools.put(path)
    sent = []

    async def die(event):
        sent.append(event)
        raise RuntimeError("killed")

    async def again(event):
        sent.append(event)
        return True

    with pytest.raises(RuntimeError):
        await run_file(path, "one", lambda: 100, die, 0.5)
    assert await run_file(path, "two", lambda: 1_099, again, 0.5) is None
    assert await run_file(path, "two", lambda: 1_100, again, 0.5) == {"id": "a", "token": 2, "status": "done"}
    assert sent == [{"id": "a", "qty": 3}] * 2


async def test_work_lost_on_its_last_attempt_dies_and_is_not_sent_again(path):
    tools.put(path, max_attempts=3)
    calls = []

    async def crash(_event):
        calls.append(1)
        raise RuntimeError("killed")

    for attempt in range(3):
        with pytest.raises(RuntimeError):
            await run_file(path, "one", lambda now=attempt * 1_000: now, crash, 0.5)
    assert await run_file(path, "two", lambda: 3_000, crash, 0.5) is None
    assert len(calls) == 3
    assert (tools.job(path)["status"], tools.job(path)["reason"]) == ("dead", "exhausted")


async def test_poison_work_does_not_keep_other_work_from_running(path):
    tools.put(path, "poison")
    tools.put(path, "good")

    async def send(event):
        if event["id"] == "poison":
            raise Retryable
        return True

    results = [await run_file(path, "one", clock, send, 1) for _ in range(2)]
    assert [(result["id"], result["status"]) for result in results] == [("poison", "pending"), ("good", "done")]
