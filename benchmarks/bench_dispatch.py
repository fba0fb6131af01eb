"""How close is end-to-end dispatch to a bare HTTP loop?

One client process, one server process, 64 requests in flight. Raw: an aiohttp client loop (and one of httpx)
against a handler that echoes. Product: claim, send, finish in one dispatcher; dedup row, ledger and answer in
one receiver, both with full durability, each in a file of its own or (`postgres`) the queue on a server and the
inbox in a file or on that server, too. Both sides of a pair run on the same kind of event loop. `us CPU` is the
client process's CPU time per job.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from asyncqueue import Dispatcher, HttpSender, Queue
from asyncqueue.stores.sqlite.connection import Journal
from asyncqueue.wire import encode_body
from benchmarks.harness import Bench, Figures, Run, Skipped, Watch, folder, python_process, run_async
from benchmarks.jobs import fill
from benchmarks.peers import postgres_server
from benchmarks.peers.base import needed
from benchmarks.peers.server import PostgresServer

__all__ = ["BATCH", "BENCH", "BOTH", "PRODUCT", "RAW"]

CONCURRENCY = 64
RAW = "raw aiohttp loop"
HTTPX = "raw httpx loop"
PRODUCT = "asyncqueue, one job a request"
BATCH = "asyncqueue, up to 256 jobs a request"
BOTH = "asyncqueue, inbox on the server, too"
BATCH_JOBS = 256
BATCHES = 4  # requests of that size in flight
HEADERS = {"Content-Type": "application/json"}


async def raw(url: str, jobs: int) -> Figures:
    """Post from 64 tasks over one aiohttp session."""
    numbers = iter(range(jobs))

    async def post() -> None:
        for number in numbers:
            async with session.post(url, data=encode_body(f"r{number}", 1, None), headers=HEADERS) as answer:
                await answer.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        watch = Watch()
        await asyncio.gather(*(post() for _ in range(CONCURRENCY)))
        return watch.figures(jobs)


async def raw_httpx(httpx: Any, in_flight: int, url: str, jobs: int) -> Figures:
    """Post from `in_flight` tasks over one httpx client."""
    numbers = iter(range(jobs))

    async def post() -> None:
        for number in numbers:
            await client.post(url, content=encode_body(f"r{number}", 1, None), headers=HEADERS)

    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        watch = Watch()
        await asyncio.gather(*(post() for _ in range(in_flight)))
        return watch.figures(jobs)


async def product(url: str, path: Path | str, jobs: int, journal: Journal, batch: int = 1) -> Figures:
    """Drain `jobs` jobs from a file or a server through a dispatcher, `batch` at most in one request."""
    concurrency = CONCURRENCY if batch == 1 else BATCHES * batch
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        await fill(queue, jobs)
        async with Dispatcher(queue, HttpSender(url, batch=batch), concurrency=concurrency) as dispatcher:
            watch = Watch()
            await dispatcher.drain()
            figures = watch.figures(jobs)
        stats = await queue.stats()
        if stats.done != jobs:
            raise SystemExit(f"{stats.done} of {jobs} jobs were done: {dispatcher.counts}")
        return figures


def bare(client: Callable[..., Any], jobs: int, loop: str) -> Figures:
    with python_process("-m", "benchmarks.raw_server", loop=loop) as (_process, ready):
        return run_async(client(str(ready["url"]), jobs), loop)


def httpx_bare(jobs: int, loop: str, in_flight: int) -> Figures:
    return bare(partial(raw_httpx, needed("httpx"), in_flight), jobs, loop)


def end_to_end(jobs: int, journal: Journal, loop: str, batch: int = 1) -> Figures:
    with folder() as place:
        flags = ["--journal", journal, *(["--force-wal"] if journal == "wal" else [])]
        inbox = str(place / "inbox.db")
        with python_process("-m", "receiver", inbox, "--port", "0", *flags, loop=loop) as (_process, ready):
            return run_async(product(str(ready["url"]), place / "jobs.db", jobs, journal, batch), loop)


def on_server(server: PostgresServer, jobs: int, loop: str, batch: int = 1, *, both: bool = False) -> Figures:
    """Do the same with the queue on `server`, and with `both` the inbox as well."""
    with folder() as place:
        inbox = server.new_database() if both else str(place / "inbox.db")
        with python_process("-m", "receiver", inbox, "--port", "0", loop=loop) as (_process, ready):
            return run_async(product(str(ready["url"]), server.new_database(), jobs, "delete", batch), loop)


def measure_postgres(run: Run, loop: str) -> None:
    """Measure the queue on a server with its default durability."""
    jobs = run.pick(200, 5_000, 30_000)
    try:
        with postgres_server() as server:
            ways: dict[str, Callable[[], Figures]] = {
                RAW: partial(bare, raw, jobs, loop),
                PRODUCT: partial(on_server, server, jobs, loop),
                BATCH: partial(on_server, server, jobs, loop, BATCH_JOBS),
                BOTH: partial(on_server, server, jobs, loop, both=True),
            }
            run.note("PostgreSQL with its default durability: fsync and synchronous_commit are on.")
            run.paired(ways)
    except Skipped as why:
        run.note(f"Left out: {why}")


def measure(run: Run) -> None:
    """Measure one journal, or the server, on one kind of event loop; `run.part` names both."""
    name, _, loop = run.part.partition("-")
    if name == "postgres":
        measure_postgres(run, loop or "asyncio")
        return
    journal: Journal = "wal" if name == "wal" else "delete"
    loop = loop or "asyncio"
    jobs, few = run.pick(200, 5_000, 10_000), run.pick(50, 500, 1_000)
    ways: dict[str, Callable[[], Figures]] = {
        RAW: partial(bare, raw, jobs, loop),
        PRODUCT: partial(end_to_end, jobs, journal, loop),
        BATCH: partial(end_to_end, jobs, journal, loop, BATCH_JOBS),
    }
    if loop == "asyncio" and journal == "delete":
        ways[HTTPX] = partial(httpx_bare, few, loop, CONCURRENCY)
        ways[f"{HTTPX}, 1 in flight"] = partial(httpx_bare, few, loop, 1)
    run.paired(ways)


BENCH = Bench(
    "dispatch",
    "How close is end-to-end dispatch to a bare HTTP loop?",
    measure,
    parts=("delete", "wal", "delete-uvloop", "wal-uvloop", "postgres", "postgres-uvloop"),
    full_only=("delete-uvloop", "wal-uvloop", "postgres-uvloop"),
)
