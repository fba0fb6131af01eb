"""Claims and reports whose content is named when their transaction has begun."""

import asyncio
import threading

import pytest

from asyncqueue.errors import BadEffect
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status


class Waits:
    """Keeps transactions from beginning until told to."""

    def __init__(self, queue, monkeypatch):
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.count = 0
        original = queue._store.write

        async def write(work, **options):
            self.asked.set()
            await self.go.wait()
            self.count += 1
            return await original(work, **options)

        monkeypatch.setattr(queue._store, "write", write)


@pytest.fixture
async def stocked(queue):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(6)])
    return queue


async def test_room_is_asked_when_the_transaction_has_begun(stocked, monkeypatch):
    waits = Waits(stocked, monkeypatch)
    room, asked_in = 1, []

    def now():
        asked_in.append(threading.current_thread())
        return room

    claiming = asyncio.ensure_future(stocked.claim_late("w", now))
    await waits.asked.wait()
    assert asked_in == []
    room = 3
    waits.go.set()
    assert [job.id for job in await claiming] == ["j0", "j1", "j2"]
    assert len(asked_in) == 1


@pytest.mark.parametrize("room", [0, -1])
async def test_no_room_claims_nothing(stocked, room):
    assert await stocked.claim_late("w", lambda: room) == []
    assert (await stocked.stats()).leased == 0


async def test_room_beyond_what_one_claim_takes_is_cut(queue):
    for part in range(2):
        await queue.enqueue_many([NewJob(f"j{part}-{n}", 1) for n in range(600)])
    assert len(await queue.claim_late("w", lambda: 10_000)) == 1_024


async def test_reports_are_named_when_the_transaction_has_begun(stocked, monkeypatch):
    first, second, third = await stocked.claim("w", limit=3)
    waits = Waits(stocked, monkeypatch)
    ended = [Report(first, "ok")]
    finishing = asyncio.ensure_future(stocked.finish_late(lambda: list(ended)))
    await waits.asked.wait()
    ended.append(Report(second, "retry"))
    waits.go.set()
    assert await finishing == [Status.DONE, Status.PENDING]
    assert (await stocked.get(third.id)).status is Status.LEASED


async def test_late_report_and_late_claim_share_a_commit_and_the_report_goes_first(queue, monkeypatch):
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    waits = Waits(queue, monkeypatch)
    waits.go.set()
    claimed, answers = await asyncio.gather(
        queue.claim_late("w", lambda: 5), queue.finish_late(lambda: [Report(leased, "retry")])
    )
    assert answers == [Status.PENDING]
    assert [(job.id, job.attempt) for job in claimed] == [("a", 2)]
    assert waits.count == 1


async def test_room_that_raises_fails_its_own_call_only(stocked):
    def room():
        raise LookupError

    claimed, new = await asyncio.gather(
        stocked.claim_late("w", room), stocked.enqueue("beside", 1), return_exceptions=True
    )
    assert isinstance(claimed, LookupError)
    assert new is True


async def test_late_report_with_an_effect_is_refused_and_nothing_of_it_is_done(stocked):
    first, second = await stocked.claim("w", limit=2)

    async def effect(_connection):
        raise AssertionError

    with pytest.raises(BadEffect, match="finish_many"):
        await stocked.finish_late(lambda: [Report(first, "ok"), Report(second, "ok", effect=effect)])
    assert (await stocked.stats()).leased == 2
