"""What does it cost to put jobs in, durably?

One by one (each waits for its commit), by 1,000 callers at once (who share commits), in bulk (`enqueue_many`), as
JSON Lines through the command line; and the peers one by one, each commit synced.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from asyncqueue import Queue
from asyncqueue.stores.sqlite.connection import Journal
from benchmarks.harness import ROOT, Bench, Figures, Run, Watch, folder, run_async
from benchmarks.jobs import fill
from benchmarks.peers import SQLITE_PEERS, SqlitePeer

__all__ = ["BENCH", "CONCURRENT", "ONE_BY_ONE"]

CALLERS = 1_000
ONE_BY_ONE = "one by one"
CONCURRENT = "1,000 callers at once"
BULK = "bulk, sets of 5,000"
LINES = "JSON Lines, a process"

Work = Callable[[Queue, int], Coroutine[Any, Any, None]]


async def one_by_one(queue: Queue, count: int) -> None:
    for number in range(count):
        await queue.enqueue(f"e{number}", 1, payload={"sku": 7})


async def concurrent(queue: Queue, count: int) -> None:
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await queue.enqueue(f"e{number}", 1, payload={"sku": 7})

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def timed(path: Path, work: Work, count: int, journal: Journal) -> Figures:
    async with Queue.open(path, journal=journal, force_wal=journal == "wal") as queue:
        watch = Watch()
        await work(queue, count)
        figures = watch.figures(count)
        pending = (await queue.stats()).pending
    if pending != count:
        raise SystemExit(f"{pending} of {count} jobs are there")
    return figures


def product(work: Work, count: int, journal: Journal = "delete") -> Figures:
    with folder() as place:
        return run_async(timed(place / "jobs.db", work, count, journal))


def json_lines(count: int) -> Figures:
    """Let `asyncqueue enqueue --file` read a file of lines; the start of the process counts, too."""
    with folder() as place:
        lines = place / "jobs.jsonl"
        lines.write_text("".join(f'{{"id":"l{n}","qty":1,"payload":{{"sku":7}}}}\n' for n in range(count)))
        command = [sys.executable, "-m", "asyncqueue", "enqueue", str(place / "jobs.db"), "--file", str(lines)]
        watch = Watch()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return {"jobs/s": watch.figures(count)["jobs/s"]}


def peer_enqueue(kind: type[SqlitePeer], count: int) -> Figures:
    with folder() as place, contextlib.closing(kind(place)) as peer:
        watch = Watch()
        peer.enqueue(count)
        return watch.figures(count)


def measure(run: Run) -> None:
    """Measure every way in; the slow ones with fewer jobs."""
    few, many = run.pick(20, 600, 1_500), run.pick(1_200, 20_000, 50_000)
    ways: dict[str, Callable[[], Figures]] = {
        ONE_BY_ONE: partial(product, one_by_one, few),
        f"{ONE_BY_ONE}, WAL": partial(product, one_by_one, few, "wal"),
        CONCURRENT: partial(product, concurrent, many),
        f"{CONCURRENT}, WAL": partial(product, concurrent, many, "wal"),
        BULK: partial(product, fill, many),
        LINES: partial(json_lines, many),
    }
    ways |= {f"{peer.name}, one by one": partial(peer_enqueue, peer, few) for peer in SQLITE_PEERS[1:]}
    run.note("Journal delete with synchronous=EXTRA unless WAL (FULL) is named; the peers run WAL with FULL.")
    run.paired(ways)


BENCH = Bench("enqueue", "What does it cost to put jobs in, durably?", measure)
