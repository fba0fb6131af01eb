"""What the roles do, one step after the other, each with an answer that can be compared."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.errors import StoreError
from asyncqueue.job import NewJob, Ticket
from asyncqueue.queue import Queue
from asyncqueue.wire import Message
from receiver.inbox import Inbox
from receiver.stores import open_inbox

__all__ = ["CONTRACT", "QUEUE", "RECEIVER", "ROLES", "Role"]

Step = Callable[[Any], Awaitable[object]]
NOW_MS = 1_000_000
PATIENCE_MS = 20


@dataclass(frozen=True, slots=True)
class Role:
    """How to open it, what it does then in a fixed order, and which errors it may answer with."""

    open: Callable[[Path, int], Any]
    steps: tuple[tuple[str, Step], ...]
    errors: tuple[type[Exception], ...]


@asynccontextmanager
async def _queue(path: Path, step: int) -> AsyncIterator[Queue]:
    clock = ManualClock(NOW_MS + 10 * step)
    async with Queue.open(path, clock=clock, patience_ms=PATIENCE_MS, dedup_ms=0) as opened:
        yield opened


def _ticket(number: int, *, token: int = 1) -> Ticket:
    """Return the ticket of job `number` in the claim of the fifth step."""
    return Ticket(f"job{number}", 1, "w", token, 1, NOW_MS + 50 + 30_000)


async def _effect(connection: Any) -> None:
    try:
        await connection.execute_fetchall("INSERT INTO queues (name) VALUES ('by-an-effect')")
    except sqlite3.Error as error:  # what an effect raises is its own affair and is handed on as it is
        raise StoreError(str(error)) from error


QUEUE = Role(
    _queue,
    (
        ("open", lambda queue: queue.version()),
        ("enqueue", lambda queue: queue.enqueue("large", 1, payload="x" * 9_000, queue="other")),
        ("enqueue many", lambda queue: queue.enqueue_many([NewJob(f"job{n}", 1) for n in range(8)])),
        ("enqueue again", lambda queue: queue.enqueue("job1", 1)),
        ("pause", lambda queue: queue.pause("other")),
        ("claim", lambda queue: queue.claim("w", limit=7)),
        ("finish ok", lambda queue: queue.finish(_ticket(0), "ok")),
        ("finish ok with an effect", lambda queue: queue.finish(_ticket(1), "ok", effect=_effect)),
        ("finish retry", lambda queue: queue.finish(_ticket(2), "retry", error="later", delay_ms=5)),
        ("finish permanent", lambda queue: queue.finish(_ticket(3), "permanent", error="never")),
        ("renew", lambda queue: queue.renew(_ticket(4), 60_000)),
        ("release", lambda queue: queue.release(_ticket(5))),
        ("cancel", lambda queue: queue.cancel("job6")),
        ("redrive", lambda queue: queue.redrive("job3", note="again")),
        ("get", lambda queue: queue.get("job3")),
        ("list", lambda queue: queue.list(status="pending")),
        ("history", lambda queue: queue.history("job3")),
        ("stats", lambda queue: queue.stats(detail=True)),
        ("purge", lambda queue: queue.purge(older_than_ms=1)),
    ),
    (StoreError,),
)


@asynccontextmanager
async def _receiver(path: Path, _step: int) -> AsyncIterator[Inbox]:
    store = await open_inbox(path, effect=None, journal="delete", force_wal=False, patience_ms=PATIENCE_MS)
    inbox = Inbox(store)
    try:
        yield inbox
    finally:
        await inbox.close()


RECEIVER = Role(
    _receiver,
    (
        ("open", lambda inbox: inbox.totals()),
        ("accept", lambda inbox: inbox.receive(Message("one", 1, None), 1, 1)),
        ("accept a large one", lambda inbox: inbox.receive(Message("two", 2, '"' + "x" * 9_000 + '"'), 1, 1)),
        ("duplicate", lambda inbox: inbox.receive(Message("one", 1, None), 2, 2)),
        ("conflict", lambda inbox: inbox.receive(Message("one", 2, None), 1, 1)),
        ("get", lambda inbox: inbox.get("two")),
        ("totals", lambda inbox: inbox.totals()),
    ),
    (StoreError,),
)


@asynccontextmanager
async def _contract(path: Path, _step: int) -> AsyncIterator[aiosqlite.Connection]:
    connection = await worker.open_queue(path)
    try:
        yield connection
    finally:
        await connection.close()


def _contract_ticket(number: int) -> dict[str, Any]:
    job = {"id": f"job{number}", "qty": 1}
    return {**job, "owner": "w", "token": 1, "attempt": 1, "lease_until": NOW_MS + 1_000}


def _enqueued(number: int) -> Step:
    return lambda con: worker.enqueue(con, {"id": f"job{number}", "qty": 1}, NOW_MS, 60_000)


def _claimed(con: aiosqlite.Connection) -> Awaitable[object]:
    return worker.claim(con, "w", NOW_MS)


CONTRACT = Role(
    _contract,
    (
        ("open", lambda con: con.execute_fetchall("SELECT count(*) FROM jobs")),
        *((f"enqueue {number}", _enqueued(number)) for number in range(3)),
        ("enqueue again", _enqueued(0)),
        *((f"claim {number}", _claimed) for number in range(3)),
        ("claim in vain", _claimed),
        ("finish ok", lambda con: worker.finish(con, _contract_ticket(0), "ok", NOW_MS + 1)),
        ("finish retry", lambda con: worker.finish(con, _contract_ticket(1), "retry", NOW_MS + 1, 5)),
        ("finish permanent", lambda con: worker.finish(con, _contract_ticket(2), "permanent", NOW_MS + 1)),
        ("redrive", lambda con: worker.redrive(con, "job2", NOW_MS + 2, 60_000, "again")),
    ),
    (sqlite3.Error,),
)

ROLES = {"queue": QUEUE, "receiver": RECEIVER, "contract": CONTRACT}
