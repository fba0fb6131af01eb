"""The inbox between its front and its store: what shares a transaction, and what a close waits for."""

import asyncio

import pytest

from asyncqueue.wire import Message
from receiver.inbox import Inbox
from receiver.stores import open_inbox
from receiver.stores.base import Arrival, Result


@pytest.fixture
async def inbox(url):
    inbox = Inbox(await open_inbox(url, effect=None, journal="delete", force_wal=False, patience_ms=5_000))
    yield inbox
    await inbox.close()


def sizes_of_transactions(inbox):
    """Return a list to which the number of messages of each transaction is added."""
    sizes = []
    receive = inbox._store.receive

    async def counted(take):
        results = await receive(take)
        sizes.append(len(results))
        return results

    inbox._store.receive = counted
    return sizes


@pytest.mark.parametrize(
    ("payload_chars", "expected"), [(None, [1024, 6]), (0, [1024, 6]), (1023, [1024, 6]), (1024, [512, 512, 6])]
)
async def test_a_transaction_takes_a_thousand_messages_or_about_a_million_characters(
    inbox, payload_chars, expected
):
    payload = None if payload_chars is None else "x" * payload_chars
    sizes = sizes_of_transactions(inbox)
    messages = [Message(f"m{number}", 1, payload) for number in range(1030)]
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(inbox.receive(message, None, None)) for message in messages]
    assert {task.result() for task in waiting} == {Result.ACCEPTED}
    assert sizes == expected


async def test_a_set_of_messages_weighs_as_much_as_they_do_alone(inbox):
    sizes = sizes_of_transactions(inbox)
    halves = [[Arrival(Message(f"{half}-{n}", 1, None), None, None) for n in range(513)] for half in "ab"]
    async with asyncio.TaskGroup() as tasks:
        for half in halves:
            tasks.create_task(inbox.receive_many(half))
    assert sizes == [513, 513]


async def test_a_close_waits_for_those_who_wait_for_an_answer(url):
    inbox = Inbox(await open_inbox(url, effect=None, journal="delete", force_wal=False, patience_ms=5_000))
    waiting = asyncio.create_task(inbox.receive(Message("a", 1, None), None, None))
    await asyncio.sleep(0)  # it has asked; no transaction has begun
    await inbox.close()
    assert await waiting is Result.ACCEPTED
