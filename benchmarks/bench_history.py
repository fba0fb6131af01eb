"""Does a long history cost anything: to count, to claim, or while it is being purged?

Two files with the same 1,000 ready jobs: one holds little else, the other ten million ended jobs besides.
Measured in turns, call by call: `stats()`, and a claim of 1 and of 64 as a caller sees it (with its commit, fully
durable) and without the commit, whose disk write would hide everything else. The goal: within 2 times.

Then a dispatcher works on the large file, one job every 50 ms, while a million rows are purged: by another
process, and a tenth as many again in the dispatcher's own. The goal: the p99 of its claims within 3 times that of
the same dispatcher without a purge, measured before and after. Exit status 1 if a goal is missed.
"""

import argparse
import asyncio
import contextlib
import functools
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from asyncqueue import Dispatcher, LeasedJob, Queue
from asyncqueue.job import DEFAULT_LEASE_MS, Release
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Claim, Store, Transaction
from benchmarks.harness import ROOT, table
from benchmarks.results import machine

READY = 1_000
COST_MAX = 2.0
P99_MAX = 3.0
AGE_MS = 3_600_000  # the youngest ended job is this old
Claiming = Callable[..., Awaitable[list[LeasedJob]]]
CALLS = ("stats()", "claim 1", "claim 64", "claim 1, no commit", "claim 64, no commit")

# Every thousandth job is dead; the ends lie a millisecond apart. Ids come in order, or as random as a UUID.
FILL = """
WITH RECURSIVE s(i) AS (SELECT 1 WHERE :count > 0 UNION ALL SELECT i + 1 FROM s WHERE i < :count)
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, reason, created_at,
                  finished_at)
SELECT CASE WHEN :scattered THEN printf('%08x', (i * 2654435761) & 0xffffffff) ELSE printf('old-%09d', i) END,
       1, CASE i % 1000 WHEN 0 THEN 'dead' ELSE 'done' END, 1, 5, 1, :ended + i, :deadline,
       CASE i % 1000 WHEN 0 THEN 'permanent' END, :ended + i, :ended + i
FROM s
"""
FILL_READY = """
WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < :count)
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, created_at)
SELECT 'ready-' || i, 1, 'pending', 0, 100000, 0, :now, :deadline, :now FROM s
"""
OBJECTS = "SELECT type, name, sql FROM sqlite_schema WHERE tbl_name = 'jobs' AND type = ? AND sql IS NOT NULL"
RECOUNT = "INSERT INTO counts SELECT queue, status, count(*) FROM jobs GROUP BY queue, status"


class UndoneError(Exception):
    """Rolls a measured transaction back."""


async def build(path: Path, rows: int, *, scattered: bool) -> None:
    """Make a queue with `rows` ended jobs: indexes and counts are made once, after all rows are there."""
    async with Queue.open(path):
        pass
    now_ms = time.time_ns() // 1_000_000
    times = {"now": now_ms, "ended": now_ms - AGE_MS - rows, "deadline": now_ms + 365 * 24 * 3_600_000}
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1000000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        triggers, indexes = (connection.execute(OBJECTS, (kind,)).fetchall() for kind in ("trigger", "index"))
        for kind, name, _sql in triggers + indexes:
            connection.execute(f"DROP {kind} {name}")
        connection.execute(FILL, {"count": rows, "scattered": scattered, **times})
        connection.execute(FILL_READY, {"count": READY, **times})
        for _kind, _name, sql in indexes:
            connection.execute(sql)
        connection.execute("DELETE FROM counts")
        connection.execute(RECOUNT)
        for _kind, _name, sql in triggers:
            connection.execute(sql)
        connection.execute("COMMIT")


async def call(store: Store, name: str) -> float:
    """Make one call and return its milliseconds; what it claimed is given back outside of them."""
    leased: list[LeasedJob] = []

    async def work(transaction: Transaction) -> None:
        leased[:] = await transaction.claim(Claim("bench", 64 if "64" in name else 1, DEFAULT_LEASE_MS))
        if "no commit" in name:
            raise UndoneError

    started = time.perf_counter()
    if name == "stats()":
        await store.stats()
        return (time.perf_counter() - started) * 1000
    with contextlib.suppress(UndoneError):
        await store.write(work, inline=True)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if "no commit" not in name:
        await store.write(lambda transaction: transaction.release([Release(job) for job in leased]))
    return elapsed_ms


async def measure_calls(small: Path, large: Path, repetitions: int) -> float:
    """Print what each call costs on both files; return the largest ratio of medians."""
    stores = [await open_store(path) for path in (small, large)]
    worst, lines = 0.0, []
    try:
        for name in CALLS:
            times: tuple[list[float], list[float]] = ([], [])
            for repetition in range(repetitions + 5):
                for store, log in zip(stores, times, strict=True):
                    elapsed_ms = await call(store, name)
                    if repetition >= 5:
                        log.append(elapsed_ms)
            base, full = map(statistics.median, times)
            worst = max(worst, full / base)
            lines.append((name, f"{base:.3f}", f"{full:.3f}", f"{full / base:.2f}", f"{max(times[1]):.1f}"))
    finally:
        for store in stores:
            await store.close()
    header = ("call", "almost empty, median ms", "full, median ms", "ratio", "full, slowest ms")
    print("\n" + table(header, lines), flush=True)
    return worst


class Log:
    """The waits for claims that found work, in milliseconds, under the name of what went on meanwhile."""

    def __init__(self) -> None:
        self.phase = "warm-up"
        self.waits_ms: dict[str, list[float]] = {}

    def timed(self, claim: Claiming) -> Claiming:
        """Return `claim` with a look at the clock around it."""

        @functools.wraps(claim)
        async def measured(*arguments: Any, **options: Any) -> list[LeasedJob]:
            started = time.perf_counter()
            leased = await claim(*arguments, **options)
            if leased:
                self.waits_ms.setdefault(self.phase, []).append((time.perf_counter() - started) * 1000)
            return leased

        return measured

    def p99(self, phase: str) -> float:
        """Return the 99th percentile of a phase."""
        waits = sorted(self.waits_ms[phase])
        return waits[int(len(waits) * 0.99)]

    def row(self, phase: str, idle: str, seconds: float, purged: int) -> tuple[object, ...]:
        """Return a phase's line of the table."""
        waits = self.waits_ms[phase]
        return (
            phase,
            f"{seconds:.0f}",
            len(waits),
            f"{statistics.median(waits):.1f}",
            f"{self.p99(phase):.1f}",
            f"{max(waits):.1f}",
            f"{self.p99(phase) / self.p99(idle):.2f}",
            f"{purged / seconds:,.0f}" if purged else "",
        )


async def acknowledge(_job: LeasedJob) -> bool:
    return True


async def feed(queue: Queue) -> None:
    """Put in a job every 50 ms, for ever."""
    number = 0
    while True:
        started = time.perf_counter()
        await queue.enqueue(f"fed-{number}", 1)
        number += 1
        await asyncio.sleep(max(0.0, 0.05 - (time.perf_counter() - started)))


async def purge_elsewhere(path: Path, rows: int) -> int:
    command = ["-m", "benchmarks.bench_history", "--purge-file", str(path), "--purge", str(rows)]
    child = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdout=subprocess.PIPE)
    output, _errors = await child.communicate()
    return int(output)


async def purge(path: Path, rows: int) -> int:
    async with Queue.open(path, dedup_ms=0, create=False) as queue:
        return await queue.purge(older_than_ms=0, limit=rows)


async def measure_purge(path: Path, rows: int, idle_s: float) -> float:
    """Print the waits of a dispatcher's claims with and without a purge; return the larger ratio of p99s."""
    log = Log()
    idle, elsewhere, here = "no purge", "purge by another process", "purge in the same process"
    seconds, purged = dict.fromkeys((idle, elsewhere, here), 0.0), {idle: 0}
    async with Queue.open(path, dedup_ms=0) as queue:
        queue.claim_late = log.timed(queue.claim_late)  # type: ignore[assignment, method-assign]
        steps: list[tuple[str, Callable[[], Awaitable[int | None]]]] = [
            (idle, lambda: asyncio.sleep(idle_s, 0)),
            (elsewhere, lambda: purge_elsewhere(path, rows)),
            (here, lambda: queue.purge(older_than_ms=AGE_MS, limit=rows // 10)),
            (idle, lambda: asyncio.sleep(idle_s, 0)),
        ]
        async with Dispatcher(queue, acknowledge, concurrency=16) as dispatcher, asyncio.TaskGroup() as group:
            tasks = [group.create_task(dispatcher.run()), group.create_task(feed(queue))]
            while (await queue.stats()).pending > 16:  # noqa: ASYNC110 - the queue tells, no event
                await asyncio.sleep(0.1)
            for log.phase, step in steps:
                started = time.perf_counter()
                purged[log.phase] = await step() or 0
                seconds[log.phase] += time.perf_counter() - started
            for task in tasks:
                task.cancel()
    header = ("meanwhile", "s", "claims", "p50 ms", "p99 ms", "longest ms", "p99 ratio", "purged/s")
    lines = [log.row(phase, idle, seconds[phase], purged[phase]) for phase in seconds]
    print("\n" + table(header, lines), flush=True)
    if (purged[elsewhere], purged[here]) != (rows, rows // 10):
        raise SystemExit(f"purged {purged}, not what was asked for")
    return max(log.p99(elsewhere), log.p99(here)) / log.p99(idle)


async def run(options: argparse.Namespace) -> bool:
    """Run both halves; True if every goal is met."""
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.db", Path(folder) / "large.db"
        started = time.perf_counter()
        await build(small, 0, scattered=False)
        await build(large, options.rows, scattered=options.ids == "scattered")
        size_mb = large.stat().st_size / 2**20
        print(f"built in {time.perf_counter() - started:.0f} s: {size_mb:,.0f} MB", flush=True)
        cost = await measure_calls(small, large, options.repetitions)
        p99 = await measure_purge(large, options.purge, options.idle_seconds)
    print(f"\nfull file against almost empty: at most {cost:.2f} times (goal {COST_MAX:g})")
    print(f"claim p99 during a purge: at most {p99:.2f} times that without (goal {P99_MAX:g})")
    return cost <= COST_MAX and p99 <= P99_MAX


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="ended jobs in the large file (10,000,000; 2,000,000 if quick)")
    parser.add_argument("--purge", type=int, help="rows to purge (1,000,000; 200,000 if quick)")
    parser.add_argument("--ids", choices=("ordered", "scattered"), default="scattered", help="order of the ids")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--idle-seconds", type=float, default=20.0, help="of each phase without a purge")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--purge-file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.purge_file:
        print(asyncio.run(purge(options.purge_file, options.purge)))
        return
    options.rows = options.rows or (2_000_000 if options.quick else 10_000_000)
    options.purge = options.purge or (200_000 if options.quick else 1_000_000)
    if options.purge + options.purge // 10 > options.rows * 0.99:
        parser.error("there would be too few done rows to purge")
    print(f"{machine()}\n{options.rows:,} ended jobs, ids {options.ids}, purge of {options.purge:,}", flush=True)
    sys.exit(0 if asyncio.run(run(options)) else 1)


if __name__ == "__main__":
    main()
