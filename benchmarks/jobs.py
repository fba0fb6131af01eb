"""Files full of jobs, as several benchmarks need them."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from asyncqueue import NewJob, Queue

__all__ = ["fill", "fill_fast", "in_sets"]

SET = 5_000
DEADLINE_MS = 9_000_000_000_000

FILL = """
WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < :count)
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, lease_until, owner)
SELECT :prefix || i, 1, :status, 0, 20, 0, :available_at, :deadline, NULL, NULL FROM s
"""


def in_sets(count: int, size: int = SET) -> Iterator[range]:
    """Cut 0..count-1 into ranges."""
    for first in range(0, count, size):
        yield range(first, min(first + size, count))


async def fill(queue: Queue, count: int, prefix: str = "p") -> None:
    """Enqueue `count` jobs as a caller would, in sets."""
    for numbers in in_sets(count):
        await queue.enqueue_many([NewJob(f"{prefix}{n}", 1) for n in numbers])


def fill_fast(path: Path, runs: list[tuple[str, int, int]]) -> None:
    """Make a queue with runs of rows in seq order, each (status, available_at, count), without any durability."""

    async def make() -> None:
        async with Queue.open(path):
            pass

    asyncio.run(make())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-400000")
        connection.execute("BEGIN")
        for number, (status, available_at, count) in enumerate(runs):
            values = {"status": status, "available_at": available_at, "deadline": DEADLINE_MS}
            connection.execute(FILL, {"count": count, "prefix": f"r{number}-", **values})
        connection.execute("COMMIT")
