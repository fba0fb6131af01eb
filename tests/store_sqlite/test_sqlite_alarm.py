"""The bell that the kernel rings when somebody writes to the files."""

import asyncio
import ctypes
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from asyncqueue.errors import StoreClosed
from asyncqueue.stores.sqlite import alarm as alarm_module
from asyncqueue.stores.sqlite.alarm import Alarm
from asyncqueue.stores.sqlite.connection import Profile
from asyncqueue.stores.sqlite.store import SqliteStore
from tests.waiting import until

pytestmark = pytest.mark.skipif(alarm_module.sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture(params=["delete", "wal"])
async def store(tmp_path, request):
    store = await SqliteStore.open(tmp_path / "jobs.db", profile=Profile(journal=request.param, force_wal=True))
    yield store
    await store.close()


def write_elsewhere(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        plain.execute(
            "INSERT INTO queues VALUES ('other', 0) ON CONFLICT (name) DO UPDATE SET paused = 1 - paused"
        )


def bells():
    """Count the inotify descriptors of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            count += "inotify" in str(descriptor.readlink())
    return count


async def test_a_commit_of_another_connection_rings_once_for_each_time_it_is_armed(store):
    rung = []
    for round_ in range(1, 4):
        assert store.alarm(lambda: rung.append("first"))
        assert store.alarm(lambda: rung.append("second"))  # two dispatchers on one queue
        before = await store.version()
        write_elsewhere(store.database.path)
        write_elsewhere(store.database.path)
        await until(lambda most=2 * round_: len(rung) == most)
        assert await store.version() != before
        write_elsewhere(store.database.path)  # not armed
        await asyncio.sleep(0)
        assert sorted(rung) == ["first"] * round_ + ["second"] * round_


async def test_what_is_committed_between_arming_and_looking_rings_or_is_seen(store):
    rung = []
    before = await store.version()
    store.alarm(lambda: rung.append(None))
    write_elsewhere(store.database.path)
    assert await store.version() != before
    await until(lambda: rung)


async def test_reading_rings_nothing(store):
    rung = []
    store.alarm(lambda: rung.append(None))
    with closing(sqlite3.connect(store.database.path)) as plain:
        plain.execute("SELECT count(*) FROM jobs").fetchall()
    await store.version()
    assert not rung
    write_elsewhere(store.database.path)
    await until(lambda: rung)


async def test_a_closed_store_holds_no_descriptor_and_refuses(tmp_path):
    before = bells()
    store = await SqliteStore.open(tmp_path / "jobs.db")
    assert store.alarm(lambda: None)
    assert bells() == before + 1
    await store.close()
    await store.close()
    assert bells() == before
    with pytest.raises(StoreClosed):
        store.alarm(lambda: None)


async def test_a_file_that_is_gone_has_no_alarm(store):
    assert store.alarm(lambda: None)
    store.database.path.unlink()
    await until(lambda: not store.alarm(lambda: None))


async def test_a_log_that_cannot_be_watched_is_no_alarm_where_there_is_one(store, monkeypatch):
    monkeypatch.setattr(Alarm, "_watch", lambda _alarm, file: not file.endswith(b"-wal"))
    has_log = store.database.path.with_name("jobs.db-wal").exists()
    assert has_log is (store.database.profile.journal == "wal")
    assert store.alarm(lambda: None) is not has_log


async def test_where_there_is_no_inotify_there_is_no_alarm_and_no_descriptor(tmp_path, monkeypatch):
    file = tmp_path / "jobs.db"
    file.touch()
    before = bells()

    class NoInstances:
        def inotify_init1(self, _flags):
            return -1

    for libc in (NoInstances(), object()):  # none left (EMFILE); a libc without the call
        monkeypatch.setattr(alarm_module, "_libc", lambda libc=libc: libc)
        alarm = Alarm(file)
        assert not alarm.arm(lambda: None)
        assert not alarm.arm(lambda: None)
        alarm.close()
    monkeypatch.undo()
    monkeypatch.setattr(alarm_module.sys, "platform", "win32")
    assert not Alarm(file).arm(lambda: None)
    assert bells() == before


async def test_a_loop_that_watches_no_descriptors_has_no_alarm(tmp_path, monkeypatch):
    def refuse(*_):
        raise NotImplementedError

    file = tmp_path / "jobs.db"
    file.touch()
    before = bells()
    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse, raising=False)
    alarm = Alarm(file)
    assert not alarm.arm(lambda: None)
    assert not alarm.arm(lambda: None)
    assert bells() == before
    alarm.close()


async def test_a_file_that_cannot_be_watched_has_no_alarm(tmp_path):
    alarm = Alarm(tmp_path / "nothing.db")
    assert not alarm.arm(lambda: None)
    (tmp_path / "nothing.db").touch()
    assert alarm.arm(lambda: None)  # it may be there later
    alarm.close()


def test_an_alarm_belongs_to_its_event_loop(tmp_path):
    file = tmp_path / "jobs.db"
    file.touch()
    alarm = Alarm(file)

    async def arm():
        return alarm.arm(lambda: None)

    assert asyncio.run(arm())
    assert not asyncio.run(arm())
    alarm.close()


def test_the_numbers_are_those_of_the_header():
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0
    assert not os.get_inheritable(fd)
    assert not os.get_blocking(fd)
    os.close(fd)
