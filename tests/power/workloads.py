"""What the roles do while the power may go: each answer that somebody was given is told to `acknowledge`."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.job import NewJob, encode_payload
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite.connection import Journal
from asyncqueue.wire import Message
from receiver.inbox import Inbox
from receiver.stores import open_inbox
from receiver.stores.base import Arrival

__all__ = ["Workload", "contract", "queue", "receiver"]

Acknowledge = Callable[[], None]
Workload = Callable[[Path, Acknowledge], Awaitable[None]]

LARGE = encode_payload("x" * 9_000)  # more than a page holds: overflow pages


def queue(journal: Journal, jobs: int = 12) -> Workload:
    """Return the workload of a queue: every verb, small and large sets, and one that is rolled back."""

    async def run(path: Path, acknowledge: Acknowledge) -> None:
        clock = ManualClock()
        async with Queue.open(path, journal=journal, force_wal=True, clock=clock, dedup_ms=0) as opened:
            acknowledge()

            async def told(answer: Awaitable[Any]) -> Any:
                result = await answer
                acknowledge()
                return result

            await told(opened.enqueue("first", 1))
            await told(opened.enqueue_many([NewJob(f"job{n}", 1, priority=n % 3) for n in range(jobs)]))
            await told(opened.enqueue("large", 2, payload="x" * 9_000, queue="other"))
            held = await told(opened.claim("w", limit=7))
            await told(opened.finish(held[0], "ok"))
            await told(opened.finish(held[1], "retry", error="later", delay_ms=10))
            await told(opened.finish(held[2], "permanent", error="never"))
            await told(opened.renew(held[3], 60_000))
            await told(opened.release(held[4]))
            await told(opened.finish(held[5], "ok", effect=_effect))
            try:
                await opened.finish(held[6], "ok", effect=_failing_effect)
            except ZeroDivisionError:
                acknowledge()
            await told(opened.redrive(held[2].id, note="again"))
            await told(opened.cancel("large"))
            clock.advance(100_000)
            await told(opened.claim("w", limit=3))  # takes leases over
            await told(opened.pause("other"))
            await told(opened.purge(older_than_ms=1))

    return run


async def _effect(connection: Any) -> None:
    await connection.execute_fetchall("CREATE TABLE IF NOT EXISTS receipts (id TEXT)")
    await connection.execute_fetchall("INSERT INTO receipts VALUES ('one')")


async def _failing_effect(connection: Any) -> None:
    await _effect(connection)
    raise ZeroDivisionError


def receiver(journal: Journal, messages: int = 12) -> Workload:
    """Return the workload of a receiver: new messages alone and in sets, repeats, conflicts, large payloads."""

    async def run(path: Path, acknowledge: Acknowledge) -> None:
        inbox = Inbox(await open_inbox(path, effect=None, journal=journal, force_wal=True, patience_ms=1_000))
        acknowledge()
        try:
            for messages_of_set in (
                [Message("one", 1, None)],
                [Message(f"m{n}", n + 1, None) for n in range(messages)],
                [Message("one", 1, None)],
                [Message("one", 2, None), Message("m1", 2, None), Message("two", 1, None)],
                [Message("large", 1, LARGE), Message("m2", 9, LARGE)],
                [Message(f"n{n}", 1, '{"x":1}') for n in range(messages)],
            ):
                await inbox.receive_many([Arrival(message, 1, 1) for message in messages_of_set])
                acknowledge()
        finally:
            await inbox.close()

    return run


async def contract(path: Path, acknowledge: Acknowledge) -> None:
    """Do what the contract's functions do, with the journal and the syncs that the contract prescribes."""
    con = await worker.open_queue(path)
    acknowledge()
    try:
        for number in range(4):
            await worker.enqueue(con, {"id": f"job{number}", "qty": 1}, 0, 60_000)
            acknowledge()
        for outcome in ("ok", "retry", "permanent"):
            ticket = await worker.claim(con, "w", 1)
            acknowledge()
            assert ticket is not None
            await worker.finish(con, ticket, outcome, 2)
            acknowledge()
            if outcome == "permanent":
                await worker.redrive(con, ticket["id"], 3, 60_000, "again")
                acknowledge()
    finally:
        await con.close()
