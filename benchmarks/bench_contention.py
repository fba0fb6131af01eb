"""Do processes that work back to back on one file get fair turns, and what does each verb cost them?

`verbs`: 1 to 8 processes; each enqueues, claims, renews and finishes single jobs, one call after the other
without a pause, fully durable. Reported: all calls per second, and for each verb the p50 and p99 that a caller
waits, of the process that fares worst. `turns`: four processes that only enqueue, through the store with its
gate, without it, and by plain sqlite3 with SQLite's own busy wait; and how much the slowest got of what the
fastest got.
"""

import argparse
import asyncio
import contextlib
import json
import sqlite3
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from asyncqueue import Queue
from asyncqueue.errors import StoreBusy
from asyncqueue.job import NewJob
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Transaction
from asyncqueue.stores.sqlite import statements
from asyncqueue.stores.sqlite.connection import Profile
from benchmarks.harness import Bench, Figures, Run, child, folder, percentile, run_async

__all__ = ["BENCH", "TURNS", "VERBS"]

HEAD_START_S = 2.0
WRITERS = 4
VERBS = ("enqueue", "claim", "renew", "finish")
TURNS = {
    "gate": "store, gate",
    "gate2": "store, gate, two at once",
    "retry": "store, no gate",
    "plain": "plain sqlite3, busy wait",
}


class Waits:
    """The duration of each call, in milliseconds, by verb."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._ends_at = options.start_at + options.seconds
        self.busy = 0
        self.calls = 0
        self.ms: dict[str, list[float]] = {}
        time.sleep(max(0.0, options.start_at - time.time()))

    def is_over(self) -> bool:
        """Whether the time is over."""
        return bool(time.time() >= self._ends_at)

    def begin(self) -> float:
        """Return the start of a call."""
        self.calls += 1
        return time.perf_counter()

    def end(self, verb: str, started: float) -> None:
        """Note the end of a call."""
        self.ms.setdefault(verb, []).append((time.perf_counter() - started) * 1000)

    def report(self) -> dict[str, Any]:
        """Return the number of calls and the percentiles of each verb."""
        shown = {verb: [percentile(ms, 0.5), percentile(ms, 0.99), max(ms)] for verb, ms in self.ms.items()}
        return {"count": self.calls - self.busy, "busy": self.busy, "waits": shown}


async def work(options: argparse.Namespace) -> dict[str, Any]:
    """Go through the life of one job after the other."""
    async with Queue.open(options.file, create=False, patience_ms=60_000) as queue:
        log = Waits(options)
        while not log.is_over():
            started = log.begin()
            await queue.enqueue(f"{options.name}-{log.calls}", 1)
            log.end("enqueue", started)
            started = log.begin()
            leased = await queue.claim(options.name)
            log.end("claim", started)
            for job in leased:
                started = log.begin()
                await queue.renew(job)
                log.end("renew", started)
                started = log.begin()
                await queue.finish(job, "ok")
                log.end("finish", started)
    return log.report()


async def write(options: argparse.Namespace) -> dict[str, Any]:
    """Enqueue back to back through the store; by two callers the next transaction lines up while one runs."""
    store = await open_store(options.file, profile=Profile("delete", gate=options.turns != "retry"))
    log = Waits(options)

    async def caller() -> None:
        while not log.is_over():
            started = log.begin()
            try:
                await store.write(partial(_enqueue, NewJob(f"{options.name}-{log.calls}", 1)), inline=True)
            except StoreBusy:
                log.busy += 1
            log.end("enqueue", started)

    try:
        await asyncio.gather(*(caller() for _ in range(2 if options.turns == "gate2" else 1)))
    finally:
        await store.close()
    return log.report()


async def _enqueue(job: NewJob, transaction: Transaction) -> None:
    await transaction.enqueue((job,))


def write_plain(options: argparse.Namespace) -> dict[str, Any]:
    """Do the same by plain sqlite3, with the same durability and SQLite's busy wait of 5 s."""
    with contextlib.closing(sqlite3.connect(options.file, isolation_level=None, timeout=5)) as connection:
        for pragma in statements.PRAGMAS["delete"]:
            connection.execute(pragma)
        log = Waits(options)
        while not log.is_over():
            started = log.begin()
            row = json.dumps([[f"{options.name}-{log.calls}", 1, 5, 0, 10**9, "default", "job", None, 0]])
            try:
                connection.execute(statements.BEGIN)
                connection.execute(statements.ENQUEUE, {"jobs": row, "now": 0}).fetchall()
                connection.execute(statements.COMMIT)
            except sqlite3.OperationalError:
                connection.rollback()
                log.busy += 1
            log.end("enqueue", started)
    return log.report()


def together(turns: str, processes: int, seconds: float) -> list[dict[str, Any]]:
    """Start the processes together on a fresh file and return what each reports."""

    async def make(path: Path) -> None:
        async with Queue.open(path):
            pass

    with folder() as place:
        path = place / "jobs.db"
        run_async(make(path))
        command = ["-m", "benchmarks.bench_contention", "--seconds", str(seconds)]
        command += ["--file", str(path), "--turns", turns]
        command += ["--start-at", str(time.time() + HEAD_START_S + processes * 0.2)]
        with ExitStack() as stack:
            writers = [
                stack.enter_context(child(*command, "--name", f"w{n}", stdout=subprocess.PIPE))
                for n in range(processes)
            ]
            return [json.loads(writer.communicate()[0]) for writer in writers]


def verbs(processes: int, seconds: float) -> Figures:
    """Return calls per second and the worst process's waits for each verb."""
    reports = together("verbs", processes, seconds)
    figures = {"calls/s": sum(report["count"] for report in reports) / seconds}
    for verb in VERBS:
        found = [report["waits"][verb] for report in reports if verb in report["waits"]] or [[0.0, 0.0, 0.0]]
        figures[f"{verb} p50 ms"] = max(one[0] for one in found)
        figures[f"{verb} p99 ms"] = max(one[1] for one in found)
    return figures


def turns(kind: str, seconds: float) -> Figures:
    """Return commits per second, fairness and the worst waits of one way to take turns."""
    reports = together(kind, WRITERS, seconds)
    counts = [report["count"] for report in reports]
    waits = [report["waits"].get("enqueue", [0.0, 0.0, 0.0]) for report in reports]
    return {
        "commits/s": sum(counts) / seconds,
        "slowest/fastest": min(counts) / max(1, *counts),
        "p50 ms": max(one[0] for one in waits),
        "p99 ms": max(one[1] for one in waits),
        "longest ms": max(one[2] for one in waits),
    }


def measure(run: Run) -> None:
    """Measure the verbs, or the ways to take turns."""
    if run.part == "turns":
        seconds = run.pick(0.3, 2.0, 6.0)
        ways = {name: lambda kind=kind: turns(kind, seconds) for kind, name in TURNS.items()}
        run.paired(ways, repetitions=run.pick(1, 1, 7))
        return
    seconds, most = run.pick(0.3, 1.5, 3.0), run.pick((1, 2), (1, 2, 4, 8), (1, 2, 4, 8))
    many = {f"{n} process{'es' if n > 1 else ''}": lambda n=n: verbs(n, seconds) for n in most}
    run.paired(many, repetitions=run.pick(1, 2, 7))


BENCH = Bench(
    "contention",
    "Do processes that work back to back on one file get fair turns, and what does each verb cost them?",
    measure,
    parts=("verbs", "turns"),
)


def main() -> None:
    """Be one of the processes."""
    parser = argparse.ArgumentParser()
    for name in ("--file", "--name", "--turns"):
        parser.add_argument(name, required=True)
    for name in ("--seconds", "--start-at"):
        parser.add_argument(name, type=float, required=True)
    options = parser.parse_args()
    if options.turns == "plain":
        print(json.dumps(write_plain(options)))
    else:
        print(json.dumps(asyncio.run((work if options.turns == "verbs" else write)(options))))


if __name__ == "__main__":
    main()
