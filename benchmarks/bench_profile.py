"""Where does the time of a job go?

`dispatch`: the dispatcher process end to end, 64 in flight, beside the raw client loop: CPU microseconds of each
job in the event loop's thread, by the package whose code was running, and in the driver's threads. `drain`: the
same with a handler that does nothing, without HTTP. `statements`: the SQL of a claim and a finish in sets of 64
on plain sqlite3, statement by statement.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from asyncqueue import Queue
from benchmarks.bench_dispatch import PRODUCT, RAW, product, raw
from benchmarks.bench_drain import DISPATCHER, SETS, by_dispatcher
from benchmarks.harness import Bench, Figures, Run, folder, python_process, run_async
from benchmarks.jobs import fill
from benchmarks.plain import PlainQueue
from benchmarks.sampler import Sampler

__all__ = ["BENCH"]

OTHERS = "driver's threads"
TOTAL = "total"


def sampled(work: Callable[[], Coroutine[Any, Any, Any]], count: int) -> dict[str, float]:
    """Return the microseconds of each part per job; filling the file beforehand counts, too, but little."""
    with Sampler() as sampler:
        run_async(work())
    found = sampler.us(count)
    found[OTHERS] = sampler.others_s / count * 1e6
    found[TOTAL] = (sampler.main_s + sampler.others_s) / count * 1e6
    return found


def raw_parts(jobs: int) -> dict[str, float]:
    with python_process("-m", "benchmarks.raw_server") as (_process, ready):
        return sampled(lambda: raw(str(ready["url"]), jobs), jobs)


def product_parts(jobs: int) -> dict[str, float]:
    with (
        folder() as place,
        python_process("-m", "receiver", str(place / "inbox.db"), "--port", "0") as (_p, ready),
    ):
        return sampled(lambda: product(str(ready["url"]), place / "jobs.db", jobs, "delete"), jobs)


def drain_parts(jobs: int) -> dict[str, float]:
    with folder() as place:
        return sampled(lambda: by_dispatcher(place / "jobs.db", jobs, "delete"), jobs)


class TimedQueue(PlainQueue):
    """Takes the CPU time of each statement."""

    def __init__(self, path: Path, now_ms: int) -> None:
        super().__init__(path, now_ms)
        self.seconds: dict[str, float] = defaultdict(float)

    def _run(self, name: str, values: dict[str, Any]) -> list[Any]:
        started = time.thread_time()
        rows = super()._run(name, values)
        self.seconds[name] += time.thread_time() - started
        return rows


def statement_parts(jobs: int) -> dict[str, float]:
    with folder() as place:

        async def make() -> None:
            async with Queue.open(place / "jobs.db") as queue:
                await fill(queue, jobs)

        run_async(make())
        queue = TimedQueue(place / "jobs.db", time.time_ns() // 1_000_000)
        started = time.thread_time()
        queue.drain(SETS)
        found = {name: seconds / jobs * 1e6 for name, seconds in queue.seconds.items()}
        found[TOTAL] = (time.thread_time() - started) / jobs * 1e6
        return found


def measure(run: Run) -> None:
    """Measure one subject; the parts are the rows, what was run gives the columns."""
    jobs = run.pick(200, 5_000, 10_000)
    subjects = {
        "dispatch": {RAW: raw_parts, PRODUCT: product_parts},
        "drain": {DISPATCHER: drain_parts},
        "statements": {"plain sqlite3, sets of 64": statement_parts},
    }[run.part]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}

    def one(name: str, measured: Callable[[int], dict[str, float]]) -> Figures:
        parts = measured(jobs)
        found[name].append(parts)
        return {"us a job": parts[TOTAL]}

    run.paired({name: partial(one, name, measured) for name, measured in subjects.items()})
    run.samples.clear()
    for name, repetitions in found.items():
        for parts in repetitions[run.warm_ups :]:
            for part, us in parts.items():
                run.add(part, {f"us a job, {name}": us})
    run.note("CPU time of one process, in microseconds a job; what a sampler costs is in it.")


BENCH = Bench("profile", "Where does the time of a job go?", measure, parts=("dispatch", "drain", "statements"))
