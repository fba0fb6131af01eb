"""Planted bugs: each must be found by some seed of a small range. Also the files that runs start from."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.flight import Flight, Handoff
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.queue import Queue
from asyncqueue.retry import ACCEPTED
from asyncqueue.stores import batching
from asyncqueue.stores.batching import BatchedStore
from asyncqueue.stores.sqlite import connection, statements
from asyncqueue.stores.sqlite.connection import Database, _OneHop
from receiver.inbox import Arrival, Inbox, Result
from receiver.stores import open_inbox
from receiver.stores.sqlite import statements as inbox_statements


def make_templates(folder: Path) -> None:
    """Make an empty queue and an empty inbox, outside the simulation."""

    async def make() -> None:
        async with Queue.open(folder / "queue.db"):
            pass
        store = await open_inbox(
            folder / "inbox.db", effect=None, journal="delete", force_wal=False, patience_ms=10_000
        )
        await store.close()

    asyncio.run(make())


@dataclass(frozen=True)
class Plant:
    """A bug, how to plant it, the invariants that it breaks (a pattern), and a seed just before one that finds it.

    Another order of steps in the code under test makes other seeds find it: then the search is longer, no more.
    """

    what: str
    plant: Callable[[], None]
    found: str
    first: int = 0


def _edit(module: Any, name: str, old: str, new: str) -> None:
    """Change the text of a statement; a statement that no longer has `old` is no plant."""
    text = getattr(module, name)
    if old not in text:
        raise LookupError(f"{name} does not hold {old!r}: plant the bug anew")
    setattr(module, name, text.replace(old, new))


def _drop_fence() -> None:
    for name in ("VALID", "FINISH", "RELEASE", "RENEW"):
        _edit(statements, name, "AND jobs.token = item.value ->> 1", "")
        _edit(statements, name, "AND jobs.owner = item.value ->> 3 AND jobs.attempts = item.value ->> 4", "")
        text = getattr(statements, name)
        for check in ("AND (:late OR :now < jobs.lease_until)", "AND :now < jobs.lease_until"):
            text = text.replace(check, "")
        setattr(statements, name, text)


def _drop_dedup() -> None:
    _edit(inbox_statements, "KNOWN", "inbox.id = item.value ->> 0", "false")
    inbox_statements.LEDGER += " WHERE true ON CONFLICT (id) DO UPDATE SET qty = qty + excluded.qty"


def _refund_nothing() -> None:
    _edit(statements, "RELEASE", "attempts = attempts - 1", "attempts = attempts")


def _refund_twice() -> None:
    _edit(statements, "RELEASE", "attempts = attempts - 1", "attempts = attempts - 2")


def _ignore_leases() -> None:
    due = "CASE j.status WHEN 'pending' THEN j.available_at ELSE j.lease_until END <= :now"
    _edit(statements, "PICK_JSON", due, due.replace("lease_until", "lease_until - 2500"))
    _edit(statements, "PICK_JSON", "ifnull(walk.due, :now) <= :now", "ifnull(walk.due, :now) - 2500 <= :now")


def _send_after_deadline() -> None:
    real = HttpSender.send

    async def send(self: HttpSender, job: Any) -> Any:
        return await real(self, replace(job, deadline=job.deadline + 10**9))

    HttpSender.send = send  # type: ignore[method-assign]
    _edit(statements, "PICK_JSON", "AND j.deadline > :now", "")
    _edit(statements, "LOOK", "deadline <= :now", "deadline <= :now - 10000")
    _edit(statements, "CLAIM", "min(:now + :lease_ms, deadline)", ":now + :lease_ms")


def _forget_audit() -> None:
    _edit(statements, "REDRIVE_AUDIT", "WHERE jobs.status = 'dead'", "WHERE false")


def _acknowledge_before_commit() -> None:
    async def receive(self: Inbox, message: Any, token: int | None, attempt: int | None) -> Result:
        self._batcher.post(Arrival(message, token, attempt))
        return Result.ACCEPTED

    Inbox.receive = receive  # type: ignore[method-assign]


def _take_lost_connections_for_success() -> None:
    real = HttpSender._failed

    def failed(self: HttpSender, error: Exception, status: int | None) -> Any:
        return ACCEPTED if isinstance(error, aiohttp.ClientConnectionError) else real(self, error, status)

    HttpSender._failed = failed  # type: ignore[method-assign]


def _overbook_slots() -> None:
    Flight.free = property(lambda self: self.concurrency)  # type: ignore[assignment,method-assign]

    real = Dispatcher._run

    async def run(self: Dispatcher, **settings: Any) -> None:
        self._flight.concurrency = 2 * self._concurrency
        self._flight.handoff = Handoff(2 * self._concurrency)
        for lane in self._lanes:
            lane.most = 2 * self._concurrency
        await real(self, **settings)

    Dispatcher._run = run  # type: ignore[method-assign]


def _answer_before_commit() -> None:
    async def enqueue(self: BatchedStore, jobs: Any) -> Any:
        self._batcher.post(batching._Call("enqueue", jobs), len(jobs))
        return [True] * len(jobs)

    BatchedStore.enqueue = enqueue  # type: ignore[method-assign]


def _leave_transaction_open() -> None:
    async def roll_back(_self: Database, _writer: Any) -> None:
        return

    Database._roll_back = roll_back  # type: ignore[method-assign]
    connection._is_lost = lambda _writer: False  # else the next write would find it, and connect again
    _OneHop.run = _run_without_rollback  # type: ignore[method-assign]


def _run_without_rollback(self: Any, raw: Any) -> Any:
    raw.execute(statements.BEGIN)
    self.result = connection._completed(self._work(connection.InlineConnection(raw)))
    raw.execute(statements.COMMIT)
    self.is_committed = True
    return self


def _count_twice() -> None:
    _edit(
        inbox_statements,
        "TOTALS_ADD",
        "quantity = quantity + :quantity",
        "quantity = quantity + :quantity + :duplicates",
    )


PLANTS: dict[str, Plant] = {
    "no-fence": Plant("a stale ticket is taken", _drop_fence, "I3", first=131),
    "no-dedup": Plant("the receiver takes a message again", _drop_dedup, "I2"),
    "no-refund": Plant("a release burns its attempt", _refund_nothing, "I5", first=47),
    "double-refund": Plant("a release gives two attempts back", _refund_twice, "I5", first=47),
    "early-take-over": Plant("a lease is taken 2.5 s before its end", _ignore_leases, "I3"),
    "no-deadline": Plant("a job is claimed and sent after its deadline", _send_after_deadline, "I5"),
    "no-audit": Plant("a redrive without its audit row", _forget_audit, "I6"),
    "ack-before-commit": Plant(
        "the receiver acknowledges what is not on its disk", _acknowledge_before_commit, "I2"
    ),
    "optimist": Plant("a lost connection is taken for a success", _take_lost_connections_for_success, "I[23]"),
    "overbooked": Plant("claims exceed the free slots", _overbook_slots, "I8"),
    "enqueue-before-commit": Plant(
        "an enqueue is acknowledged before it is on the disk", _answer_before_commit, "I1"
    ),
    "no-rollback": Plant("a failed transaction is left open", _leave_transaction_open, "I7", first=10),
    "wrong-total": Plant("duplicates count in the receiver's total", _count_twice, "I2"),
}
