"""How fast are no-op jobs drained, against the peers?

Everybody drains a file that was filled before, in one process, with a handler that does nothing and full
durability: asyncqueue through its `Dispatcher` (64 at a time, handler in process) and through the verbs of its
store in sets of 64; plain sqlite3 with the very same SQL in a loop; the peers as their own worker loops do it.
"""

import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from asyncqueue import Dispatcher, LeasedJob, Queue
from asyncqueue.errors import ConfigError
from asyncqueue.job import Report
from asyncqueue.stores.sqlite.connection import Journal
from benchmarks.harness import Bench, Figures, Run, Skipped, Watch, folder, run_async
from benchmarks.jobs import fill
from benchmarks.peers import POSTGRES_PEERS, SQLITE_PEERS, PostgresPeer, SqlitePeer, postgres_server
from benchmarks.plain import PlainQueue

__all__ = ["BENCH", "DISPATCHER", "PLAIN", "VERBS"]

CONCURRENCY = 64
SETS = 64
DISPATCHER = "asyncqueue Dispatcher"
VERBS = "asyncqueue verbs, sets of 64"
PLAIN = "the same SQL on plain sqlite3"
Way = Callable[[Path | str, int, Journal], Coroutine[Any, Any, Figures]]


async def acknowledge(_job: LeasedJob) -> bool:
    return True


def opened(url: Path | str, journal: Journal) -> contextlib.AbstractAsyncContextManager[Queue]:
    return Queue.open(url, journal=journal, force_wal=journal == "wal")


async def by_dispatcher(url: Path | str, jobs: int, journal: Journal, concurrency: int = CONCURRENCY) -> Figures:
    """Drain by a dispatcher with a handler in process."""
    async with opened(url, journal) as queue:
        await fill(queue, jobs)
        async with Dispatcher(queue, acknowledge, concurrency=concurrency) as dispatcher:
            watch = Watch()
            await dispatcher.drain()
            figures = watch.figures(jobs)
        await check(queue, jobs)
    return figures


async def by_verbs(url: Path | str, jobs: int, journal: Journal) -> Figures:
    """Claim and finish sets of 64, one after the other."""
    async with opened(url, journal) as queue:
        await fill(queue, jobs)
        watch = Watch()
        while leased := await queue.claim("bench", limit=SETS):
            await queue.finish_many([Report.ok(job) for job in leased])
        figures = watch.figures(jobs)
        await check(queue, jobs)
    return figures


async def check(queue: Queue, jobs: int) -> None:
    stats = await queue.stats()
    if stats.done != jobs:
        raise SystemExit(f"{stats.done} of {jobs} jobs were done")


def product(way: Way, jobs: int, journal: Journal) -> Figures:
    with folder() as place:
        return run_async(way(place / "jobs.db", jobs, journal))


def plain(jobs: int, journal: Journal) -> Figures:
    with folder() as place:

        async def make() -> None:
            async with opened(place / "jobs.db", journal) as queue:
                await fill(queue, jobs)

        run_async(make())
        by_hand = PlainQueue(place / "jobs.db", time.time_ns() // 1_000_000, journal)
        watch = Watch()
        count = by_hand.drain(SETS)
        figures = watch.figures(jobs)
    if count != jobs:
        raise SystemExit(f"{count} of {jobs} jobs were drained")
    return figures


def peer_drain(kind: type[SqlitePeer], jobs: int) -> Figures:
    with folder() as place, contextlib.closing(kind(place)) as peer:
        peer.fill(jobs)
        watch = Watch()
        count = peer.drain()
        figures = watch.figures(jobs)
    if count != jobs:
        raise SystemExit(f"{kind.name}: {count} of {jobs} jobs were drained")
    return figures


def measure(run: Run) -> None:
    """Measure all ways on SQLite, or all on PostgreSQL."""
    if run.part == "postgres":
        measure_postgres(run)
        return
    jobs, few = run.pick(300, 10_000, 20_000), run.pick(100, 1_500, 3_000)
    ways: dict[str, Callable[[], Figures]] = {
        DISPATCHER: partial(product, by_dispatcher, jobs, "delete"),
        f"{DISPATCHER}, WAL": partial(product, by_dispatcher, jobs, "wal"),
        VERBS: partial(product, by_verbs, jobs, "delete"),
        f"{VERBS}, WAL": partial(product, by_verbs, jobs, "wal"),
        PLAIN: partial(plain, jobs, "delete"),
        f"{PLAIN}, WAL": partial(plain, jobs, "wal"),
    }
    ways |= {peer.name: partial(peer_drain, peer, few) for peer in SQLITE_PEERS}
    run.note("asyncqueue runs its default, journal delete with synchronous=EXTRA, unless WAL (FULL) is named.")
    run.note("The peers run WAL, which is their own default, with synchronous=FULL.")
    run.paired(ways)


def measure_postgres(run: Run) -> None:
    """Drain on PostgreSQL, everybody against one server with its default durability."""
    jobs = run.pick(100, 2_000, 4_000)
    try:
        with postgres_server() as server:

            def own() -> Figures:
                try:
                    return run_async(by_dispatcher(server.new_database(), jobs, "delete"))
                except ConfigError as error:
                    raise Skipped(str(error)) from None

            ways: dict[str, Callable[[], Figures]] = {DISPATCHER: own}
            for peer in POSTGRES_PEERS:
                ways[peer.name] = partial(postgres_drain, peer, server.new_database, jobs)
            run.note("PostgreSQL with its default durability: fsync and synchronous_commit are on.")
            run.paired(ways, repetitions=run.pick(1, 3, 7))
    except Skipped as why:
        run.note(f"Left out: {why}")


def postgres_drain(kind: Callable[[str], PostgresPeer], new_database: Callable[[], str], jobs: int) -> Figures:
    async def drain() -> Figures:
        peer = kind(new_database())
        await peer.prepare(jobs)
        cpu = time.process_time()
        seconds = await peer.drain(jobs)
        return {"jobs/s": jobs / seconds, "us CPU": (time.process_time() - cpu) / jobs * 1e6}

    return run_async(drain())


BENCH = Bench(
    "drain", "How fast are no-op jobs drained, against the peers?", measure, parts=("sqlite", "postgres")
)
