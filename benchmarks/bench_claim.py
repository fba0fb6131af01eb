"""What does one pick cost in a million rows, whatever their shape?

Four shapes of the jobs table; for each, the time of the statement that finds the first 1 or 64 eligible jobs
(no commit), in milliseconds: median and slowest of many. The goal: the slowest median stays below 1 ms, and within
10 times of an almost empty file.
"""

import argparse
import asyncio
import contextlib
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from asyncqueue import Queue
from asyncqueue.stores.sqlite import statements
from benchmarks.harness import machine, table

NOW_MS = 1_000_000_000
LATER_MS = 2_000_000_000

FILL = """
WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < :count)
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, lease_until, owner)
SELECT :prefix || i, 1, :status, 0, 5, 0, :available_at, 9000000000000, NULL, NULL FROM s
"""


def shapes(rows: int) -> dict[str, list[tuple[str, int, int]]]:
    """Return, for each shape, its runs of rows in seq order: (status, available_at, count)."""
    return {
        "1k ready": [("pending", 0, 1_000)],
        f"{rows:,} done + 1k ready": [("done", 0, rows), ("pending", 0, 1_000)],
        f"{rows:,} ready": [("pending", 0, rows)],
        f"{rows:,} delayed before 1k ready": [("pending", LATER_MS, rows), ("pending", 0, 1_000)],
        f"{rows // 2:,} delayed before {rows // 2:,} ready": [
            ("pending", LATER_MS, rows // 2),
            ("pending", 0, rows // 2),
        ],
    }


def build(path: Path, runs: list[tuple[str, int, int]]) -> None:
    async def make() -> None:
        async with Queue.open(path):
            pass

    asyncio.run(make())
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for number, (status, available_at, count) in enumerate(runs):
            connection.execute(
                FILL,
                {"count": count, "prefix": f"r{number}-", "status": status, "available_at": available_at},
            )
        connection.execute("COMMIT")


def measure(path: Path, limit: int, repetitions: int) -> list[float]:
    """Return the milliseconds of each pick."""
    parameters = {"queue": "default", "kinds": None, "now": NOW_MS, "limit": limit}
    times_ms = []
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statements.PICK, parameters).fetchall()  # pages in
        for _ in range(repetitions):
            started = time.perf_counter()
            found = connection.execute(statements.PICK, parameters).fetchall()
            times_ms.append((time.perf_counter() - started) * 1000)
            if len(found) != limit:
                raise SystemExit(f"found {len(found)} jobs, not {limit}")
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=200)
    options = parser.parse_args()
    print(f"{machine()}\n")
    rows, worst, base = [], 0.0, 0.0
    for name, runs in shapes(options.rows).items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.db"
            build(path, runs)
            one, many = (measure(path, limit, options.repetitions) for limit in (1, 64))
        median = statistics.median(one)
        base = base or median
        worst = max(worst, median)
        rows.append(
            (name, f"{median:.3f}", f"{max(one):.3f}", f"{statistics.median(many):.3f}", f"{max(many):.3f}")
        )
        print(f"  {name}: {median:.3f} ms", flush=True)
    header = ("shape", "pick 1, median ms", "slowest", "pick 64, median ms", "slowest")
    print("\n" + table(header, rows))
    print(f"\nworst shape: {worst:.3f} ms for one job, {worst / base:.1f} times the almost empty file")


if __name__ == "__main__":
    main()
