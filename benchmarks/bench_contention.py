"""Do processes that write back to back on one file get fair turns?

N processes enqueue single jobs, each waiting for its commit before the next, for a number of seconds: through the
store with its gate, through the store without it, and by plain sqlite3 with SQLite's own busy wait. With its gate
also as a busy queue does it: the next transaction lines up while one runs, so each process always has one that
could begin at once. Printed: the commits of each process, the ratio of the slowest to the fastest, and how long
single calls waited.
"""

import argparse
import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from asyncqueue.errors import StoreBusy
from asyncqueue.job import NewJob
from asyncqueue.stores import open_store
from asyncqueue.stores.sqlite import statements
from asyncqueue.stores.sqlite.connection import Profile
from benchmarks.harness import ROOT, machine, table


async def write(options: argparse.Namespace) -> dict[str, Any]:
    """Enqueue back to back through the store until the time is over."""
    profile = Profile(options.journal, force_wal=True, gate=options.turns != "retry")
    store = await open_store(options.file, profile=profile)
    log = Waits()

    async def caller() -> None:
        while (started := log.begin(options)) is not None:
            job = NewJob(f"{options.name}-{log.calls}", 1)
            try:
                await store.write(lambda transaction, job=job: transaction.enqueue((job,)), inline=True)
            except StoreBusy:
                log.busy += 1
            log.end(started)

    try:
        await asyncio.gather(*(caller() for _ in range(2 if options.turns == "gate2" else 1)))
    finally:
        await store.close()
    return log.report()


def write_plain(options: argparse.Namespace) -> dict[str, Any]:
    """Do the same by plain sqlite3, with the same durability and SQLite's busy wait of 5 s."""
    log = Waits()
    with contextlib.closing(sqlite3.connect(options.file, isolation_level=None, timeout=5)) as connection:
        for pragma in statements.PRAGMAS[options.journal]:
            connection.execute(pragma)
        while (started := log.begin(options)) is not None:
            row = json.dumps([[f"{options.name}-{log.calls}", 1, 5, 0, 10**9, "default", "job", None, 0]])
            try:
                connection.execute(statements.BEGIN)
                connection.execute(statements.ENQUEUE, {"jobs": row, "now": 0}).fetchall()
                connection.execute(statements.COMMIT)
            except sqlite3.OperationalError:
                connection.rollback()
                log.busy += 1
            log.end(started)
    return log.report()


class Waits:
    """The duration of each call, in milliseconds."""

    def __init__(self) -> None:
        self.busy = 0
        self.calls = 0
        self._waits_ms: list[float] = []

    def begin(self, options: argparse.Namespace) -> float | None:
        """Return the start of a call; None when the time is over. The first call waits for the common start."""
        if not self.calls:
            time.sleep(max(0.0, options.start_at - time.time()))
        started = time.time()
        self.calls += 1
        return started if started < options.start_at + options.seconds else None

    def end(self, started: float) -> None:
        """Note the end of a call."""
        self._waits_ms.append((time.time() - started) * 1000)

    def report(self) -> dict[str, Any]:
        """Return counts and percentiles."""
        waits = sorted(self._waits_ms) or [0.0]
        return {
            "count": len(self._waits_ms) - self.busy,
            "busy": self.busy,
            "p50": waits[len(waits) // 2],
            "p99": waits[int(len(waits) * 0.99)],
            "max": waits[-1],
        }


def run(options: argparse.Namespace, turns: str) -> list[dict[str, Any]]:
    """Start the writers together and return what each reports."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "jobs.db")
        asyncio.run(make(path))
        command = [sys.executable, "-m", "benchmarks.bench_contention", "--seconds", str(options.seconds)]
        command += ["--journal", options.journal, "--file", path, "--turns", turns]
        command += ["--start-at", str(time.time() + 2.0)]
        writers = [
            subprocess.Popen([*command, "--name", f"w{n}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for n in range(options.writers)
        ]
        return [json.loads(writer.communicate()[0]) for writer in writers]


async def make(path: str) -> None:
    await (await open_store(path)).close()


def row(turns: str, reports: list[dict[str, Any]], seconds: float) -> tuple[object, ...]:
    counts = sorted(report["count"] for report in reports)
    return (
        turns,
        f"{sum(counts) / seconds:,.0f}",
        " : ".join(f"{count:,}" for count in counts),
        f"{counts[0] / max(1, counts[-1]):.2f}",
        f"{max(report['p50'] for report in reports):.1f}",
        f"{max(report['p99'] for report in reports):.1f}",
        f"{max(report['max'] for report in reports):,.0f}",
        sum(report["busy"] for report in reports),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--journal", choices=("delete", "wal"), default="delete")
    for hidden in ("--file", "--name", "--turns"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--start-at", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        report = write_plain(options) if options.turns == "plain" else asyncio.run(write(options))
        print(json.dumps(report))
        return
    print(f"{machine()}\n{options.writers} writers, {options.seconds:g} s, journal {options.journal}\n")
    kinds = {
        "gate": "store, gate",
        "gate2": "store, gate, two at once",
        "retry": "store, no gate",
        "plain": "plain sqlite3, busy wait",
    }
    rows = [row(name, run(options, turns), options.seconds) for turns, name in kinds.items()]
    header = ("turns by", "commits/s", "each", "slowest/fastest", "p50 ms", "p99 ms", "longest ms", "gave up")
    print(table(header, rows))


if __name__ == "__main__":
    main()
