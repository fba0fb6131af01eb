"""What does a second dispatcher process on the same file bring?

`asyncqueue dispatch --drain` with `--processes 1` and with `--processes 2` against one receiver process, all on
the same cores, from the first event to the last, as the receiver counts them.
"""

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil

from asyncqueue import Queue
from asyncqueue.stores.sqlite.connection import Journal
from benchmarks.harness import ROOT, Bench, Figures, Run, folder, python_process, run_async
from benchmarks.jobs import fill

__all__ = ["BENCH", "ONE", "TWO"]

ONE, TWO = "--processes 1", "--processes 2"


async def prepare(path: Path, jobs: int, journal: Journal) -> None:
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        await fill(queue, jobs)


async def done_rate(path: Path, jobs: int, dispatch: "asyncio.subprocess.Process") -> float:
    """Return jobs per second between the first tenth and the last tenth: starts and stops do not count."""
    seen: list[tuple[float, int]] = []
    async with Queue.open(path, create=False, journal="keep") as queue:
        while dispatch.returncode is None:
            done = (await queue.stats()).done
            seen.append((time.perf_counter(), done))
            if done >= jobs:
                break
            await asyncio.sleep(0.02)
        await dispatch.wait()
        seen.append((time.perf_counter(), (await queue.stats()).done))  # it may have ended since the last look
    if dispatch.returncode or seen[-1][1] != jobs:
        raise SystemExit(f"dispatch ended with {dispatch.returncode}, {seen[-1][1]} of {jobs} jobs done")
    middle = [(at, done) for at, done in seen if jobs * 0.1 <= done <= jobs * 0.9]
    if len(middle) < 2:
        middle = [seen[0], seen[-1]]
    (began, first), (ended, last) = middle[0], middle[-1]
    return (last - first) / (ended - began)


def drain(processes: int, jobs: int, journal: Journal) -> Figures:
    """Drain one file by so many processes."""
    flags = ["--journal", journal, *(["--force-wal"] if journal == "wal" else [])]
    with folder() as place:
        path = place / "jobs.db"
        run_async(prepare(path, jobs, journal))
        command = ("-m", "receiver", str(place / "inbox.db"), "--port", "0", *flags)
        with python_process(*command) as (receiver, ready):
            before = psutil.Process(receiver.pid).cpu_times()

            async def watched() -> float:
                dispatch = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "asyncqueue", "dispatch", str(path), str(ready["url"]), "--drain"),
                    *("--json", "--processes", str(processes), *flags),
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, "ASYNCQUEUE_LOOP": "asyncio"},
                )
                return await done_rate(path, jobs, dispatch)

            rate = run_async(watched())
            after = psutil.Process(receiver.pid).cpu_times()
        used = after.user + after.system - before.user - before.system
        return {"jobs/s": rate, "us CPU of the receiver": used / jobs * 1e6}


def measure(run: Run) -> None:
    """Measure one and two processes, on both journals."""
    jobs = run.pick(300, 4_000, 10_000)
    run.paired(
        {
            ONE: partial(drain, 1, jobs, "delete"),
            TWO: partial(drain, 2, jobs, "delete"),
            f"{ONE}, WAL": partial(drain, 1, jobs, "wal"),
            f"{TWO}, WAL": partial(drain, 2, jobs, "wal"),
        },
        repetitions=run.pick(1, 3, 7),
    )


BENCH = Bench("processes", "What does a second dispatcher process on the same file bring?", measure)
