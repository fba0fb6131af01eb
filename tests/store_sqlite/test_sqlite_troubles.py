"""What goes wrong below the verbs is told by a typed error, undone, and over with it."""

import asyncio

import pytest

from asyncqueue.errors import StoreClosed, StoreError
from asyncqueue.job import NewJob
from asyncqueue.stores import open_store
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
