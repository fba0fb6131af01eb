"""How close is end-to-end dispatch to a bare HTTP loop?

One client process, one server process, 64 requests in flight. Raw: an aiohttp client loop against a handler that
echoes. Product: claim, send, finish in one dispatcher, dedup row, ledger and answer in one receiver, both at full
durability. The runs alternate; the answer is the ratio product/raw of each pair, with its median. `us CPU` is the
client process's CPU time per job. With `--batch N` a third run sends up to N jobs a request, four times N in
flight, and is set against the same raw loop of one job a request.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp

from asyncqueue import Dispatcher, HttpSender, NewJob, Queue
from asyncqueue.stores.sqlite.connection import Journal
from asyncqueue.wire import encode_body
from benchmarks.harness import machine, python_process, spread, table


class Figure(NamedTuple):
    """Jobs per second and client CPU microseconds per job."""

    rate: float
    cpu_us: float


async def raw(url: str, jobs: int, concurrency: int) -> Figure:
    """Post `jobs` requests from `concurrency` tasks over one session."""
    numbers = iter(range(jobs))
    headers = {"Content-Type": "application/json"}

    async def post() -> None:
        for number in numbers:
            async with session.post(url, data=encode_body(f"r{number}", 1, None), headers=headers) as answer:
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        started, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(post() for _ in range(concurrency)))
        return Figure(jobs / (time.perf_counter() - started), (time.process_time() - cpu) / jobs * 1e6)


async def product(  # noqa: PLR0913 - what one run is made of
    url: str, path: Path, jobs: int, concurrency: int, *, journal: Journal, batch: int
) -> Figure:
    """Drain `jobs` jobs from a file through a dispatcher, `batch` at most in one request."""
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        for first in range(0, jobs, 5_000):
            await queue.enqueue_many([NewJob(f"p{n}", 1) for n in range(first, min(first + 5_000, jobs))])
        async with Dispatcher(queue, HttpSender(url, batch=batch), concurrency=concurrency) as dispatcher:
            started, cpu = time.perf_counter(), time.process_time()
            await dispatcher.drain()
            figure = Figure(jobs / (time.perf_counter() - started), (time.process_time() - cpu) / jobs * 1e6)
        stats = await queue.stats()
        if stats.done != jobs:
            raise SystemExit(f"{stats.done} of {jobs} jobs were done: {dispatcher.counts}")
        return figure


def one_round(options: argparse.Namespace, journal: Journal) -> list[Figure]:
    """Return the figures of one raw run and one product run or two, each with fresh processes and files."""
    with python_process("-m", "benchmarks.raw_server") as (_process, ready):
        figures = [asyncio.run(raw(str(ready["url"]), options.jobs, options.concurrency))]
    for batch in (1, options.batch) if options.batch > 1 else (1,):
        concurrency = options.concurrency if batch == 1 else 4 * batch
        with tempfile.TemporaryDirectory() as folder:
            inbox = str(Path(folder) / "inbox.db")
            flags = ["--journal", journal, *(["--force-wal"] if journal == "wal" else [])]
            with python_process("-m", "receiver", inbox, "--port", "0", *flags) as (_process, ready):
                url, path = str(ready["url"]), Path(folder) / "jobs.db"
                figures.append(
                    asyncio.run(product(url, path, options.jobs, concurrency, journal=journal, batch=batch))
                )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="also send up to so many jobs a request")
    parser.add_argument("--journal", choices=("delete", "wal", "both"), default="delete")
    options = parser.parse_args()
    print(f"{machine()}\n{options.jobs:,} jobs, {options.concurrency} in flight, {options.pairs} pairs")
    print(
        f"batch: up to {options.batch} jobs a request, {4 * options.batch} in flight\n"
        if options.batch > 1
        else ""
    )
    names = ("raw", "product", "batch") if options.batch > 1 else ("raw", "product")
    rows = []
    journals: tuple[Journal, ...] = ("delete", "wal") if options.journal == "both" else (options.journal,)
    for journal in journals:
        rounds = []
        for number in range(options.pairs + 1):
            figures = one_round(options, journal)
            rates = ", ".join(
                f"{name} {figure.rate:,.0f}/s ({figure.rate / figures[0].rate:.2f})"
                for name, figure in zip(names, figures, strict=True)
            )
            print(f"  {journal} {number or 'warm-up'}: {rates}", flush=True)
            if number:
                rounds.append(figures)
        for place, name in enumerate(names):
            rows.append(
                (
                    journal,
                    name,
                    spread([figures[place].rate for figures in rounds], 0),
                    spread([figures[place].rate / figures[0].rate for figures in rounds]),
                    spread([figures[place].cpu_us for figures in rounds], 0),
                )
            )
    print("\n" + table(("journal", "what", "jobs/s", "ratio to raw", "client us CPU"), rows))


if __name__ == "__main__":
    main()
