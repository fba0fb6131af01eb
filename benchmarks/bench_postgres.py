"""What a queue on PostgreSQL costs: one claim in a million rows, a batch, and both after millions of jobs.

`shapes`: the whole statement that claims 1 or 64 jobs, rolled back, in four shapes of the jobs table. `rates`:
jobs enqueued and drained (claim and finish, no delivery) a second, and a thousand concurrent callers. `queues`: a
claim of 1 and of 64 jobs over so many queues. `sets`: what a job costs in a claim, and in a finish, of so many,
each with a commit of its own. `churn`: the claim's p99 while --jobs jobs go through a queue with a
standing backlog, first twentieth against the last. `room`: --room-jobs go through with other fill factors and
vacuum thresholds of the jobs table; a server of our own looks for tables to vacuum every 5 s then. `notify`:
commits a second of 1 to 8 writers that touch nothing in common, with and without a notification each.

Runs on a server of its own (fsync and synchronous_commit on, otherwise as shipped), or on --url.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg

from asyncqueue import Queue
from asyncqueue.job import NewJob, Report
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.address import Address
from asyncqueue.stores.postgres.connection import in_schema
from benchmarks.harness import table
from benchmarks.results import machine
from tests.postgres_server import Server

PARTS = ("shapes", "rates", "queues", "sets", "notify", "room", "churn")
QUEUES = (1, 64, 1_000)
SETS = (1, 8, 30, 64, 128, 512)
LATER_MS = 4_000_000_000_000
BACKLOG = 5_000
NOTIFY_S = 1.2
ROOMS = (
    *(f"fillfactor = {percent}" for percent in (100, 90, 85, 70, 50)),
    *(f"autovacuum_vacuum_threshold = {rows}" for rows in (1_000, 20_000, 200_000)),
)
SIZES = """
SELECT pg_relation_size(relid) >> 20, pg_indexes_size(relid) >> 20, 100 * n_tup_hot_upd / greatest(n_tup_upd, 1)
FROM pg_stat_user_tables WHERE relid = 'asyncqueue.jobs'::regclass
"""
BATCH = 256

FILL = """
INSERT INTO asyncqueue.jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline)
SELECT $1 || i, 1, $2, 0, 5, 0, $3, 9000000000000 FROM generate_series(1, $4::int) AS i
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


class Bench:
    """A server, and fresh schemas in it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()

    def fresh(self) -> str:
        """Return the URL of a schema that does not exist yet."""
        glue = "&" if "?" in self._url else "?"
        return f"{self._url}{glue}schema=bench_{os.getpid()}_{next(self._numbers)}"

    async def connect(self, url: str) -> tuple[Any, str]:
        """Return a connection set up like the store's own, and the schema."""
        address = Address.parse(url)
        settings = statements.settings(600_000)
        return await asyncpg.connect(address.dsn, server_settings=settings), address.schema

    async def drop(self, url: str) -> None:
        """Delete the schema."""
        connection, schema = await self.connect(url)
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
        await connection.close()


async def claim_cost(bench: Bench, runs: list[tuple[str, int, int]], repetitions: int) -> list[list[float]]:
    """Return the milliseconds of each claim of 1 and of each claim of 64."""
    url = bench.fresh()
    async with Queue.open(url):
        pass
    connection, schema = await bench.connect(url)
    for number, (status, due_ms, count) in enumerate(runs):
        await connection.execute(in_schema(FILL, schema), f"r{number}-", status, due_ms, count)
    await connection.execute(in_schema("VACUUM ANALYZE asyncqueue.jobs", schema))
    claim = in_schema(statements.CLAIM, schema)
    times_ms: list[list[float]] = [[], []]
    for limit, times in zip((1, 64), times_ms, strict=True):
        for repetition in range(repetitions + 3):
            transaction = connection.transaction()
            await transaction.start()
            started = time.perf_counter()
            found = await connection.fetch(claim, None, ["default"], [limit], None, "w", 30_000, 0, None, None)
            if repetition >= 3:  # plans made, pages in
                times.append((time.perf_counter() - started) * 1000)
            await transaction.rollback()
            if len(found) != limit:
                raise SystemExit(f"found {len(found)} jobs, not {limit}")
    await connection.close()
    await bench.drop(url)
    return times_ms


async def run_shapes(bench: Bench, rows: int, repetitions: int) -> None:
    lines, worst = [], 0.0
    for name, runs in shapes(rows).items():
        one, many = await claim_cost(bench, runs, repetitions)
        worst = max(worst, statistics.median(one))
        lines.append((name, f"{statistics.median(one):.2f}", f"{max(one):.2f}", f"{statistics.median(many):.2f}"))
        print(f"  {name}: {statistics.median(one):.2f} ms", flush=True)
    header = ("shape", "claim 1, median ms", "slowest", "claim 64, median ms")
    print("\n" + table(header, lines))
    print(f"\nworst shape: {worst:.2f} ms for one job\n")


async def enqueue(queue: Queue, first: int, count: int) -> None:
    for start in range(first, first + count, 1_000):
        await queue.enqueue_many([NewJob(f"j{n:09}", 1) for n in range(start, min(start + 1_000, first + count))])


async def drain(queue: Queue, batch: int) -> int:
    """Claim and finish until nothing is left; whoever finishes claims in the same commit."""
    done = 0
    held = await queue.claim("w", limit=batch)
    while held:
        reports = [Report.ok(job) for job in held]
        _, held = await asyncio.gather(queue.finish_many(reports), queue.claim("w", limit=batch))
        done += len(reports)
    return done


async def run_rates(bench: Bench, jobs: int) -> None:
    lines = []
    url = bench.fresh()
    async with Queue.open(url) as queue:
        started = time.perf_counter()
        await asyncio.gather(*(queue.enqueue(f"one-{n}", 1) for n in range(1_000)))
        lines.append(("1,000 concurrent callers of enqueue", f"{1_000 / (time.perf_counter() - started):,.0f}"))
        await drain(queue, BATCH)
        started = time.perf_counter()
        await enqueue(queue, 0, jobs)
        lines.append(("enqueue_many, 1,000 a call", f"{jobs / (time.perf_counter() - started):,.0f}"))
        for number, batch in enumerate((64, BATCH, 1_024)):
            if number:
                await enqueue(queue, jobs * number, jobs)
            started = time.perf_counter()
            done = await drain(queue, batch)
            lines.append((f"drain, {batch} at a time", f"{done / (time.perf_counter() - started):,.0f}"))
    await bench.drop(url)
    print(table(("what", "jobs/s"), lines) + "\n")


async def run_queues(bench: Bench, repetitions: int) -> None:
    """Time claims over many queues."""
    lines = []
    for count in QUEUES:
        url = bench.fresh()
        async with Queue.open(url) as queue:
            jobs = [NewJob(f"j{n}", 1, queue=f"q{n % count}") for n in range(20_000)]
            for start in range(0, len(jobs), 5_000):
                await queue.enqueue_many(jobs[start : start + 5_000])
            medians = []
            for limit in (1, 64):
                times_ms = []
                for _ in range(repetitions):
                    started = time.perf_counter()
                    held = await queue.claim("w", limit=limit)
                    times_ms.append((time.perf_counter() - started) * 1000)
                    await queue.finish_many([Report.ok(job) for job in held])
                medians.append(f"{statistics.median(times_ms):.2f}")
        lines.append((f"{count:,}", *medians))
        await bench.drop(url)
    print(table(("queues", "claim 1, median ms", "claim 64, median ms"), lines) + "\n")


async def run_sets(bench: Bench, repetitions: int) -> None:
    """Time claims and finishes of several sizes, one after the other."""
    lines = []
    for size in SETS:
        url = bench.fresh()
        claims_us, finishes_us = [], []
        async with Queue.open(url) as queue:
            await enqueue(queue, 0, (repetitions + 3) * size)
            for repetition in range(repetitions + 3):
                started = time.perf_counter()
                held = await queue.claim("w", limit=size)
                claimed = time.perf_counter()
                await queue.finish_many([Report.ok(job) for job in held])
                if repetition >= 3:  # plans made, pages in
                    claims_us.append((claimed - started) / size * 1e6)
                    finishes_us.append((time.perf_counter() - claimed) / size * 1e6)
        await bench.drop(url)
        lines.append((size, f"{statistics.median(claims_us):.1f}", f"{statistics.median(finishes_us):.1f}"))
    print(table(("jobs in a set", "claim, us a job", "finish, us a job"), lines) + "\n")


async def commits(url: str, writers: int, text: str) -> float:
    """Let each of so many writers commit `text` on a row of its own for a while; return commits a second."""
    connections = [await asyncpg.connect(url) for _ in range(writers)]
    done = 0
    ends = time.perf_counter() + NOTIFY_S

    async def work(number: int, connection: Any) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await connection.execute(f"BEGIN; UPDATE bench_rows SET n = n + 1 WHERE id = {number}; {text}; COMMIT")
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*itertools.starmap(work, enumerate(connections)))
    rate = done / (time.perf_counter() - started)
    for connection in connections:
        await connection.close()
    return rate


async def run_notify(url: str) -> None:
    """Compare commits that notify with commits that do not."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE bench_rows (id int PRIMARY KEY, n int) WITH (fillfactor = 50)")
    await connection.execute("INSERT INTO bench_rows SELECT n, 0 FROM generate_series(0, 15) AS n")
    lines = []
    for writers in (1, 4, 8):
        rates = [await commits(url, writers, text) for text in ("SELECT 1", "NOTIFY bench_rows")]
        lines.append((writers, *(f"{rate:,.0f}" for rate in rates)))
    await connection.execute("DROP TABLE bench_rows")
    await connection.close()
    print(table(("writers", "commits/s", "commits/s, each notifies"), lines) + "\n")


async def churned(url: str, jobs: int) -> tuple[list[float], float]:
    """Keep a backlog while jobs pass through; return the milliseconds of each claim, and jobs a second."""
    backlog = min(BACKLOG, jobs // 4)
    times_ms: list[float] = []
    async with Queue.open(url) as queue:
        await enqueue(queue, 0, backlog)
        added, done = backlog, 0
        started = time.perf_counter()
        while done < jobs:
            at = time.perf_counter()
            held = await queue.claim("w", limit=BATCH)
            times_ms.append((time.perf_counter() - at) * 1000)
            await queue.finish_many([Report.ok(job) for job in held])
            done += len(held)
            await enqueue(queue, added, len(held))
            added += len(held)
        return times_ms, done / (time.perf_counter() - started)


async def run_room(bench: Bench, jobs: int, *, is_ours: bool) -> None:
    """Let jobs pass with each setting of the table, and look at its size."""
    lines = []
    if is_ours:
        connection, _schema = await bench.connect(bench.fresh())
        await connection.execute("ALTER SYSTEM SET autovacuum_naptime = '5s'")
        await connection.execute("SELECT pg_reload_conf()")
        await connection.close()
    for setting in ROOMS:
        url = bench.fresh()
        async with Queue.open(url):
            pass
        connection, schema = await bench.connect(url)
        await connection.execute(in_schema(f"ALTER TABLE asyncqueue.jobs SET ({setting})", schema))
        times_ms, rate = await churned(url, jobs)
        sizes = await connection.fetchrow(in_schema(SIZES, schema))
        await connection.close()
        await bench.drop(url)
        p99 = sorted(times_ms)[int(len(times_ms) * 0.99)]
        lines.append((setting, f"{rate:,.0f}", f"{statistics.median(times_ms):.2f}", f"{p99:.2f}", *sizes))
    header = (
        "setting",
        "jobs/s",
        "claim, median ms",
        "p99 ms",
        "table, MB",
        "indexes, MB",
        "% of updates in their page",
    )
    print(f"{jobs:,} jobs pass:\n\n" + table(header, lines) + "\n")


async def run_churn(bench: Bench, jobs: int) -> None:
    """Let jobs pass, and compare the first claims with the last ones."""
    url = bench.fresh()
    times_ms, rate = await churned(url, jobs)
    await bench.drop(url)
    part = max(1, len(times_ms) // 20)
    windows = (times_ms[:part], times_ms[-part:], times_ms)
    p99 = [sorted(some)[int(len(some) * 0.99)] for some in windows]
    lines = [
        (name, f"{statistics.median(some):.2f}", f"{each:.2f}")
        for name, some, each in zip(("first twentieth", "last twentieth", "all"), windows, p99, strict=True)
    ]
    print(table((f"claims of {BATCH} while {jobs:,} jobs pass", "median ms", "p99 ms"), lines))
    print(f"\n{rate:,.0f} jobs/s; p99 of the end against the start: {p99[1] / p99[0]:.2f}")


@contextmanager
def server(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    own = Server.made(settings={}).start()
    try:
        yield own.url
    finally:
        own.remove()


async def run(options: argparse.Namespace, url: str) -> None:
    bench = Bench(url)
    connection, _schema = await bench.connect(bench.fresh())
    version = await connection.fetchval("SHOW server_version")
    await connection.close()
    print(f"{machine()}, PostgreSQL {version}, asyncpg {asyncpg.__version__}\n")
    if "shapes" in options.part:
        await run_shapes(bench, options.rows, options.repetitions)
    if "rates" in options.part:
        await run_rates(bench, options.rate_jobs)
    if "queues" in options.part:
        await run_queues(bench, options.repetitions)
    if "sets" in options.part:
        await run_sets(bench, options.repetitions)
    if "notify" in options.part:
        await run_notify(url)
    if "churn" in options.part:
        await run_churn(bench, options.jobs)
    if "room" in options.part:  # the last: it changes the server
        await run_room(bench, options.room_jobs, is_ours=options.url is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server to use instead of one of our own")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--rate-jobs", type=int, default=50_000)
    parser.add_argument("--room-jobs", type=int, default=200_000, help="how many pass with each setting")
    parser.add_argument("--jobs", type=int, default=2_000_000, help="how many pass in the churn")
    options = parser.parse_args()
    options.part = options.part or PARTS
    with server(options.url) as url:
        asyncio.run(run(options, url))


if __name__ == "__main__":
    main()
