"""What goes wrong below the verbs is told by a typed error, undone, and over with it."""

import asyncio
import os
import resource
import sqlite3
from functools import partial

import pytest

from asyncqueue.errors import StoreClosed, StoreError
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores import open_store
from asyncqueue.stores import ring as ring_module
from asyncqueue.stores.sqlite.connection import Profile

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
async def store(path):
    opened = await open_store(path)
    yield opened
    await opened.close()


async def test_inline_work_that_waits_for_something_else_is_undone_and_told(store, writes_at_once, path):
    async def work(transaction):
        await transaction.enqueue([NewJob("a", 1)])
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="waited for something else"):
        await store.write(work, inline=True)
    assert await store.get(["a"]) == [None]
    writes_at_once(path)


@pytest.mark.parametrize("inline", [False, True])
async def test_error_of_the_driver_is_typed_and_undoes_the_transaction(store, writes_at_once, path, inline):
    async def work(transaction):
        await transaction.enqueue([NewJob("a", 1)])
        await transaction._rows("SELECT 1 FROM nowhere")

    with pytest.raises(StoreError, match="no such table: nowhere"):
        await store.write(work, inline=inline)
    assert await store.get(["a"]) == [None]
    writes_at_once(path)


async def test_reader_that_somebody_closed_is_told_as_closed(store):
    await store.database._reader.close()
    with pytest.raises(StoreClosed):
        await store.get(["a"])
    assert await store.write(lambda transaction: transaction.enqueue([NewJob("a", 1)])) == [True]


@pytest.mark.parametrize("inline", [False, True])
async def test_without_a_gate_all_works(path, inline):
    store = await open_store(path, profile=Profile(gate=False))
    assert await store.write(lambda transaction: transaction.enqueue([NewJob("a", 1)]), inline=inline) == [True]
    await store.close()


@pytest.fixture
def no_descriptors():
    """Let this process open nothing more, until the returned function is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    allow = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    yield allow
    allow()


@pytest.mark.parametrize("inline", [False, True])
async def test_process_without_a_free_descriptor_is_told_that_and_goes_on_when_it_has_one(
    store, no_descriptors, inline
):
    def put():
        return store.write(lambda transaction: transaction.enqueue([NewJob("a", 1)]), inline=inline)

    with pytest.raises(StoreError, match="is the process out of file descriptors"):
        await put()
    no_descriptors()
    assert await put() == [True]


@pytest.fixture
async def queue(path):
    async with Queue.open(path) as opened:
        await opened.enqueue("a", 1)
        yield opened


async def test_effect_that_loses_the_transaction_and_hides_it_is_told_by_an_error(queue):
    (leased,) = await queue.claim("w")

    async def work(connection):
        for _ in range(2):
            try:
                await connection.execute_fetchall("INSERT OR ROLLBACK INTO queues (name) VALUES ('twice')")
            except sqlite3.IntegrityError:
                await asyncio.sleep(0)  # else CPython 3.11 traces no caller of who handles it: coverage is blind

    with pytest.raises(StoreError, match="an effect ended the transaction"):
        await queue.finish(leased, "ok", effect=work)
    assert (await queue.get("a")).status is Status.LEASED
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_effect_that_cancels_its_own_task_undoes_the_transaction(queue):
    (leased,) = await queue.claim("w")

    async def work(connection):
        await connection.execute_fetchall("INSERT INTO queues (name) VALUES ('undone')")
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        await queue.finish(leased, "ok", effect=work)
    assert (await queue.get("a")).status is Status.LEASED
    assert "undone" not in await queue.queues()
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_history_whose_failure_costs_the_whole_transaction_is_an_error(queue, path, plain):
    (leased,) = await queue.claim("w")
    other = plain(path)
    other.execute("CREATE TRIGGER spoil BEFORE INSERT ON attempts BEGIN SELECT raise(ROLLBACK, 'spoiled'); END")
    with pytest.raises(StoreError, match="spoiled"):
        await queue.finish(leased, "retry", error="later")
    assert (await queue.get("a")).status is Status.LEASED
    other.execute("DROP TRIGGER spoil")
    assert await queue.finish(leased, "retry", error="later") is Status.PENDING


async def test_trouble_of_the_database_at_any_statement_of_a_claim_condemns_no_job(queue):
    """A statement fails for a damaged row, too; only then the rows are looked through and the damaged ones die."""
    writer = queue._store.database._writer
    begun: dict[str, None] = {}  # in their order; one that has triggers is told of again for each of them
    await writer.set_trace_callback(begun.setdefault)
    for statement in range(2, 6):  # behind BEGIN: look, pick, claim, read what was claimed
        begun.clear()
        await writer.set_progress_handler(lambda n=statement: len(begun) == n, 1)
        with pytest.raises(StoreError, match="interrupted"):
            await queue.claim("w")
        assert set(list(begun)[statement:]) <= {"ROLLBACK", "PRAGMA shrink_memory"}  # nothing was tried after it
        assert (await queue.get("a")).status is Status.PENDING
    await writer.set_progress_handler(None, 0)
    assert [job.id for job in await queue.claim("w")] == ["a"]


async def test_turns_are_forgotten_for_the_levels_noted_longest_ago(queue, monkeypatch):
    monkeypatch.setattr(ring_module, "_LEVELS_MAX", 2)
    for level in range(1, 5):
        for name in ("one", "other"):
            await queue.enqueue(f"{name}{level}", 1, queue=name, priority=level)
    claimed = [(await queue.claim("w"))[0] for _ in range(9)]
    assert [job.priority for job in claimed] == [4, 4, 3, 3, 2, 2, 1, 1, 0]
    assert [{job.queue for job in claimed[n : n + 2]} for n in (0, 2, 4, 6)] == [{"one", "other"}] * 4
    assert len(queue._store._turns._served) == 2


@pytest.mark.parametrize("outcome", ["ok", "retry"])
async def test_reason_that_somebody_wrote_beside_a_lease_ends_with_it(queue, path, plain, outcome):
    (leased,) = await queue.claim("w")
    plain(path).execute("UPDATE jobs SET reason = 'exhausted'")
    await queue.finish(leased, outcome)
    assert (await queue.get("a")).reason == (None if outcome == "ok" else "retry")
