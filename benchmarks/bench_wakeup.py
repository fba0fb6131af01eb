"""How long until another process's commit becomes a request, and what does an idle dispatcher cost?

A dispatcher process with nothing to do; this process commits one job at a time through an outbox on plain sqlite3,
at random moments, and answers the request itself, so that one clock measures from the return of COMMIT to the
arrival of the request. Then the dispatcher is left alone for some seconds: its CPU time, as a share of one core.
"""

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

import psutil
from aiohttp import web

from asyncqueue import Queue, outbox
from benchmarks.harness import Bench, Figures, Run, folder, percentile, python_process, run_async
from benchmarks.raw_server import inbox

__all__ = ["BENCH", "DEFAULT"]

DEFAULT = "default settings"
PAUSE_S = (0.03, 0.09)
GIVE_UP_S = 10.0


async def latencies_ms(path: Path, count: int, options: tuple[str, ...], idle_s: float) -> Figures:
    """Return percentiles of the latency and the idle CPU share of one dispatcher process."""
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def answer(request: web.Request) -> web.Response:
        arrived.put_nowait(time.perf_counter())
        return await inbox(request)

    async with Queue.open(path):
        pass
    app = web.Application()
    app.router.add_post("/inbox", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/inbox"
    command = ("-m", "asyncqueue", "dispatch", str(path), url, "--json", *options)
    try:
        with python_process(*command) as (process, _ready):
            await latency_ms(path, arrived, 0)  # connects, and fills the caches
            waits = sorted([await latency_ms(path, arrived, number) for number in range(1, count + 1)])
            await asyncio.sleep(0.5)
            cpu = psutil.Process(process.pid).cpu_times()
            await asyncio.sleep(idle_s)
            after = psutil.Process(process.pid).cpu_times()
    finally:
        await runner.cleanup()
    used_s = after.user + after.system - cpu.user - cpu.system
    shown = {"ms, p50": percentile(waits, 0.5), "ms, p99": percentile(waits, 0.99), "ms, longest": waits[-1]}
    return {**shown, "idle CPU, % of a core": used_s / idle_s * 100}


async def latency_ms(path: Path, arrived: "asyncio.Queue[float]", number: int) -> float:
    """Commit one job at a random moment; return how long its request took to arrive."""
    await asyncio.sleep(random.uniform(*PAUSE_S))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=GIVE_UP_S)) as connection:
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("BEGIN IMMEDIATE")
        outbox.enqueue(connection, f"w{number}", 1)
        connection.execute("COMMIT")
        committed_at = time.perf_counter()
    async with asyncio.timeout(GIVE_UP_S):
        return max(0.0, await arrived.get() - committed_at) * 1000


def one(count: int, idle_s: float, *options: str) -> Figures:
    with folder() as place:
        return run_async(latencies_ms(place / "jobs.db", count, options, idle_s))


def measure(run: Run) -> None:
    """Measure the default settings."""
    count, idle_s = run.pick(3, 40, 150), run.pick(0.3, 2.0, 6.0)
    run.paired({DEFAULT: lambda: one(count, idle_s)}, repetitions=run.pick(1, 5, 7))


BENCH = Bench(
    "wakeup",
    "How long until another process's commit becomes a request, and what does an idle dispatcher cost?",
    measure,
)
