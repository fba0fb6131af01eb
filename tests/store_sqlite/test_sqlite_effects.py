"""The ways to end a transaction that only this driver has; the words of SQL are refused on every store alike."""

import asyncio
import sqlite3

import pytest

from asyncqueue.errors import BadEffect
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

ENDINGS = {
    "commit": lambda connection: connection.commit(),
    "rollback": lambda connection: connection.rollback(),
    "a script, which commits first": lambda connection: connection.executescript("SELECT 1;"),
}


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "hides the refusal"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_effect_that_ends_the_transaction_by_the_driver_is_refused(path, no_sync, ending, swallows):
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        (leased,) = await queue.claim("w")

        async def work(connection):
            try:
                await ENDINGS[ending](connection)
            except sqlite3.Error:
                if not swallows:
                    raise
            await asyncio.sleep(0)  # CPython 3.11 traces what comes next only after one more wait

        with pytest.raises(BadEffect, match="commit"):
            await queue.finish(leased, "ok", effect=work)
        assert (await queue.get("a")).status is Status.LEASED
        assert await queue.finish(leased, "ok") is Status.DONE
