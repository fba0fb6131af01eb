"""A queue that is opened for reads alone, although its file cannot be written: it makes and changes nothing."""

import contextlib
import os
import shutil
import sqlite3

import pytest

from asyncqueue import worker
from asyncqueue.errors import NotAQueue, StoreError
from asyncqueue.job import NewJob, encode_payload
from asyncqueue.queue import Queue


def picture(path):
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


@pytest.fixture
async def closed(path):
    """A file with a job, which may not be written; nothing is beside it."""
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
    path.with_name("jobs.db-gate").unlink()
    path.chmod(0o400)
    return path


async def refuses_changes(queue):
    for change in (queue.enqueue("b", 1), queue.claim("w"), queue.pause("default"), queue.sweep()):
        with pytest.raises(StoreError, match="was opened to be read only"):
            await change


async def test_it_is_read_and_every_change_is_refused(closed):
    before = picture(closed)
    async with Queue.open(closed, only_reads=True) as queue:
        assert (await queue.get("a")).qty == 1
        assert (await queue.stats()).pending == 1
        await refuses_changes(queue)
    assert picture(closed) == before


async def test_it_sees_what_somebody_else_commits(path):
    async with Queue.open(path) as writer:
        path.chmod(0o400)  # which does not bind who has it open
        async with Queue.open(path, only_reads=True) as queue:
            version = await queue.version()
            await writer.enqueue("later", 1)
            assert await queue.version() != version
            assert (await queue.get("later")).qty == 1
            await refuses_changes(queue)
        assert await writer.get("b") is None


async def test_without_that_promise_it_is_not_opened(closed):
    with pytest.raises(NotAQueue, match="is read-only"):
        await Queue.open(closed)


async def test_a_file_that_must_be_migrated_first_is_refused(path):
    await (await worker.open_queue(str(path))).close()
    path.chmod(0o400)
    before = picture(path)
    with pytest.raises(NotAQueue, match="cannot be written, and must be migrated"):
        await Queue.open(path, only_reads=True)
    assert picture(path) == before


async def test_a_file_that_cannot_be_read_is_refused(closed, monkeypatch):
    asked = os.access  # root may read everything
    monkeypatch.setattr(os, "access", lambda where, mode: mode != os.R_OK and asked(where, mode))
    with pytest.raises(NotAQueue, match="cannot be read: check its permissions"):
        await Queue.open(closed, only_reads=True)


async def test_a_file_that_a_crash_left_half_written_waits_for_a_writer(path, tmp_path):
    async with Queue.open(path) as queue:
        jobs = [NewJob(f"j{n}", 1, encode_payload("x" * 2_000)) for n in range(200)]
        assert set(await queue.enqueue_many(jobs)) == {True}
    crashed = tmp_path / "crashed" / "jobs.db"
    crashed.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(
            "PRAGMA cache_size=1"
        )  # pages go to the file before the commit, their old state to the journal
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE jobs SET qty = 2")
        for name in ("jobs.db", "jobs.db-journal"):
            shutil.copy(path.with_name(name), crashed.with_name(name))
    crashed.chmod(0o400)
    before = picture(crashed)
    with pytest.raises(NotAQueue, match="cannot be written, and a writer must put it in order first"):
        await Queue.open(crashed, only_reads=True)
    assert picture(crashed) == before
    crashed.chmod(0o600)
    async with Queue.open(crashed) as queue:
        assert {job.qty for job in await queue.list(limit=200)} == {1}
