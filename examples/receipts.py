"""A receipt and its event commit together; the event is read again until it is acknowledged.

Run it: `python examples/receipts.py`. It makes its database in a temporary folder.
"""

import asyncio
import contextlib
import sqlite3
import tempfile
from pathlib import Path

from asyncqueue import Queue, outbox
from asyncqueue.clock import ManualClock

LEASE_MS = 10


def create_receipt(
    database: sqlite3.Connection, queue: Queue, identifier: str, amount: int, *, fail: bool = False
) -> None:
    """Write the receipt and the event that tells of it; `fail` breaks off between the two."""
    with database:  # commits, or rolls back if anything below raises
        database.execute("INSERT INTO receipts VALUES (?, ?)", (identifier, amount))
        if fail:
            raise RuntimeError("staged failure")
        outbox.enqueue(database, f"created-{identifier}", 1, kind="created", payload=identifier, via=queue)


async def pending_events(queue: Queue) -> list[tuple[str, str]]:
    """Return what nobody has acknowledged yet."""
    jobs = await queue.list(limit=16)
    return [(job.id, job.json()) for job in jobs if job.status in ("pending", "leased")]


async def main() -> None:
    """Show the four moments of an event's life."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "receipts.db"
        async with Queue.open(path, clock=clock) as queue:
            with contextlib.closing(sqlite3.connect(path)) as database:
                database.execute("CREATE TABLE receipts (id TEXT PRIMARY KEY, amount INTEGER NOT NULL)")
                await show(database, queue, clock)


async def show(database: sqlite3.Connection, queue: Queue, clock: ManualClock) -> None:
    """Print what happened."""
    create_receipt(database, queue, "R-0041", 125)
    try:
        create_receipt(database, queue, "R-0042", 250, fail=True)
    except RuntimeError:
        print("failed receipt rolled back")
    print("receipts:", database.execute("SELECT count(*) FROM receipts").fetchone()[0])
    first = await pending_events(queue)
    print("pending:", first)

    [lost] = await queue.claim("worker-a", lease_ms=LEASE_MS)  # delivered, but this worker stops before it says so
    clock.advance(LEASE_MS)
    [again] = await queue.claim("worker-b", lease_ms=LEASE_MS)
    print("replay before acknowledgement:", (again.id, again.json()) == (lost.id, lost.json()) == first[0])
    await queue.finish(again, "ok")
    print("pending after acknowledgement:", await pending_events(queue))


if __name__ == "__main__":
    asyncio.run(main())
