"""Is memory flat while a million jobs stream in and while they drain?

`enqueue`: a million lines into the command line; its peak. `drain`: a dispatcher process, 64 in flight, on a file
with a million pending jobs, against a receiver; the resident memory of both is looked at again and again, and the
slope of a straight line through what was seen after the first fifth is reported, in MB per 100,000 jobs done.
"""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from asyncqueue import Queue
from benchmarks.harness import Bench, Figures, Run, child, folder, python_process, run_async, say
from benchmarks.jobs import fill_fast

__all__ = ["BENCH", "DISPATCHER", "SLOPE"]

DISPATCHER = "dispatcher"
SLOPE = "MB per 100,000 jobs"
PAUSE_S = 0.25
MB = 2**20


def enqueue_peak(count: int) -> Figures:
    """Stream `count` lines into `python -m asyncqueue enqueue`; return its peak."""
    with folder() as place:
        command = ("-m", "asyncqueue", "enqueue", str(place / "jobs.db"), "--file", "-", "--json")
        with child(*command, stdin=subprocess.PIPE) as enqueue:
            assert enqueue.stdin is not None
            for number in range(count):
                enqueue.stdin.write(f'{{"id":"m{number}","qty":1,"payload":{{"sku":{number}}}}}\n')
            enqueue.stdin.close()
            _pid, status, usage = os.wait4(enqueue.pid, 0)
            enqueue.returncode = os.waitstatus_to_exitcode(status)
    if enqueue.returncode:
        raise SystemExit(f"enqueue ended with {enqueue.returncode}")
    return {"peak MB": usage.ru_maxrss * 1024 / MB}


def slope(done: Sequence[float], mb: Sequence[float]) -> float:
    """Return the slope of the least-squares line, in MB per 100,000 jobs."""
    middle, height = sum(done) / len(done), sum(mb) / len(mb)
    spread = sum((x - middle) ** 2 for x in done)
    return sum((x - middle) * (y - height) for x, y in zip(done, mb, strict=True)) / spread * 100_000


async def watched(path: Path, jobs: int, processes: dict[str, psutil.Process]) -> dict[str, Figures]:
    """Look at the processes until `jobs` jobs are done."""
    done: list[float] = []
    mb: dict[str, list[float]] = {name: [] for name in processes}
    async with Queue.open(path, create=False, journal="keep") as queue:
        while not done or done[-1] < jobs:
            await asyncio.sleep(PAUSE_S)
            done.append((await queue.stats()).done)
            for name, process in processes.items():
                mb[name].append(process.memory_info().rss / MB)
            if len(done) % 40 == 0:
                say(f"    {done[-1]:,.0f} of {jobs:,} done, {mb[DISPATCHER][-1]:.0f} MB")
    start = next(place for place, count in enumerate(done) if count >= done[-1] / 5)
    start = min(start, len(done) - 2)
    return {
        name: {SLOPE: slope(done[start:], seen[start:]), "peak MB": max(seen), "MB at the end": seen[-1]}
        for name, seen in mb.items()
    }


def drain(pending: int, jobs: int) -> dict[str, Figures]:
    """Drain `jobs` of `pending` jobs; return the memory of dispatcher and receiver."""
    with folder() as place:
        path = place / "jobs.db"
        fill_fast(path, [("pending", 0, pending)])
        with (
            python_process("-m", "receiver", str(place / "inbox.db"), "--port", "0") as (receiver, ready),
            child("-m", "asyncqueue", "dispatch", str(path), str(ready["url"]), "--json") as dispatch,
        ):
            names = {DISPATCHER: psutil.Process(dispatch.pid), "receiver": psutil.Process(receiver.pid)}
            return run_async(watched(path, jobs, names))


def measure(run: Run) -> None:
    """One run each: the slope is a fit over many looks, and the peak is a peak."""
    million = run.pick(2_000, 300_000, 1_000_000)
    run.add("enqueue from a stream", enqueue_peak(million))
    jobs = run.pick(200, 40_000, 250_000)
    for name, figures in drain(million, jobs).items():
        run.add(name, figures)
    run.note(f"{million:,} jobs streamed in; {jobs:,} of {million:,} pending jobs drained, 64 in flight.")


BENCH = Bench("memory", "Is memory flat while a million jobs stream in and while they drain?", measure)
