"""How far does one server carry? Real runs with 1, 2 and 4 dispatchers, and a simulation of many hosts.

Two runs of one dispatcher give the service times: processor time of the dispatcher and of the server, each a part
a transaction and a part a job, and the wait for a commit. A discrete-event simulation of the same dispatchers
(slots, one transaction at a time that finishes what is ready and claims for what is free) then says what 1, 2 and
4 of them do on this machine's cores; real runs say whether it is right. After that it says what hosts of their own
would do.
Handlers do nothing but wait for --think-ms. The server runs with fsync and synchronous_commit on.
"""

import argparse
import asyncio
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil

from asyncqueue import Dispatcher, Queue
from asyncqueue.job import NewJob
from benchmarks import harness
from benchmarks.results import machine
from tests.postgres_server import Server

ENQUEUE_SET = 1_000


@dataclass(frozen=True)
class Services:
    """Measured service times in seconds: processor time a transaction and a job, and the wait for a commit."""

    dispatcher_tx: float
    dispatcher_job: float
    server_tx: float
    server_job: float
    commit: float


@dataclass(frozen=True)
class Outcome:
    """What a run did: jobs a second, jobs a transaction, milliseconds from a delivery's begin to its finish."""

    rate: float
    batch: float
    p50_ms: float
    p99_ms: float
    dispatcher_cpu: float = 0.0  # seconds a job
    server_cpu: float = 0.0
    seconds: float = 0.0


# --- the simulation ------------------------------------------------------------------------------------


class Processors:
    """A number of equal processors with one queue in order of arrival."""

    def __init__(self, world: "World", count: int) -> None:
        self._world, self._free, self._waiting = world, count, deque[tuple[float, Callable[[], None]]]()

    def work(self, seconds: float, then: Callable[[], None]) -> None:
        """Occupy one processor for so long, then go on."""
        if not self._free:
            self._waiting.append((seconds, then))
            return
        self._free -= 1
        self._world.after(seconds, lambda: self._done(then))

    def _done(self, then: Callable[[], None]) -> None:
        self._free += 1
        if self._waiting:
            self.work(*self._waiting.popleft())
        then()


class World:
    """Time, and what will happen in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Let something happen later."""
        self._number += 1
        heapq.heappush(self._agenda, (self.now + seconds, self._number, then))

    def run(self, jobs: int) -> None:
        """Let things happen until so many jobs are done."""
        while self._agenda and self.done < jobs:
            self.now, _number, then = heapq.heappop(self._agenda)
            then()


class Simulated:
    """One dispatcher: free slots, deliveries under way, deliveries to report, at most one transaction."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a dispatcher is made of
        self, world: World, own: Processors, server: Processors, services: Services, slots: int, think_s: float
    ) -> None:
        self._world, self._own, self._server, self._services = world, own, server, services
        self._free, self._think_s = slots, think_s
        self._ready: list[float] = []
        self._is_busy = False
        self.finished: list[float] = []  # from the begin of a delivery to the begin of its finish
        self.transactions = 0

    def look(self) -> None:
        """Begin a transaction if there is something to finish or a slot to fill."""
        if self._is_busy or not (self._ready or self._free):
            return
        self._is_busy = True
        ended, self._ready = self._ready, []
        self.finished += [self._world.now - began for began in ended]
        self._world.done += len(ended)
        claims = self._free + len(ended)
        self._free = 0
        times = self._services
        jobs = (len(ended) + claims) / 2  # a job is claimed once and finished once
        own = times.dispatcher_tx + times.dispatcher_job * jobs
        server = times.server_tx + times.server_job * jobs
        wait = random.expovariate(1 / times.commit) if times.commit > 0 else 0.0
        self._own.work(
            own,
            lambda: self._server.work(server, lambda: self._world.after(wait, lambda: self._committed(claims))),
        )

    def _committed(self, claims: int) -> None:
        self.transactions += 1
        self._is_busy = False
        for _ in range(claims):
            began = self._world.now
            self._world.after(self._think_s, lambda began=began: self._delivered(began))  # type: ignore[misc]
        self.look()

    def _delivered(self, began: float) -> None:
        self._ready.append(began)
        self.look()


def simulate(
    services: Services, dispatchers: int, args: argparse.Namespace, cores: int, *, shared: bool
) -> Outcome:
    """Simulate; `shared` puts all dispatchers and the server on the same cores, else each host has its own."""
    random.seed(1)
    world = World()
    server = Processors(world, cores)
    all_: list[Simulated] = []
    for _ in range(dispatchers):
        own = server if shared else Processors(world, 1)
        all_.append(Simulated(world, own, server, services, args.concurrency, args.think_ms / 1000))
        all_[-1].look()
    world.run(args.jobs)
    done = [seconds for one in all_ for seconds in one.finished]
    transactions = sum(one.transactions for one in all_)
    return _outcome(len(done), world.now, transactions, [1000 * seconds for seconds in done])


def _outcome(jobs: int, seconds: float, transactions: int, spans_ms: list[float], **more: float) -> Outcome:
    cut = statistics.quantiles(spans_ms, n=100)
    return Outcome(jobs / seconds, jobs / max(1, transactions), cut[49], cut[98], seconds=seconds, **more)


# --- real runs -----------------------------------------------------------------------------------------


async def child(url: str, concurrency: int, think_ms: float) -> None:
    """Drain, when told by a line on standard input; print what it took."""
    began: dict[str, float] = {}

    async def deliver(job: Any) -> bool:
        began[job.id] = time.time() * 1000
        await asyncio.sleep(think_ms / 1000)
        return True

    async with Queue.open(url) as queue:
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        cpu = time.process_time()
        async with Dispatcher(queue, deliver, concurrency=concurrency) as dispatcher:
            await dispatcher.drain()
        cpu = time.process_time() - cpu
        spans = []
        for job_id, start in list(began.items())[:: max(1, len(began) // 500)]:
            job = await queue.get(job_id)
            spans.append(max(0.0, ((job and job.finished_at) or 0) - start))
        print(json.dumps({"began": [*began.values()], "cpu": cpu, "spans": spans}), flush=True)


async def fill(url: str, jobs: int) -> None:
    async with Queue.open(url) as queue:
        for first in range(0, jobs, ENQUEUE_SET):
            await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(first, min(jobs, first + ENQUEUE_SET))])


def server_state(server: Server | None) -> tuple[float, int]:
    """Return the processor time of the server's processes so far, and its commits."""
    if server is None:
        return 0.0, 0
    import psycopg  # noqa: PLC0415 - only for PostgreSQL

    with psycopg.connect(server.url, autocommit=True) as plain:
        plain.execute("SELECT pg_stat_force_next_flush()")
        commits = plain.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchone()
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
    cpu = sum(sum(process.cpu_times()[:4]) for process in processes if process.is_running())
    return cpu, int(commits[0]) if commits else 0


def real(server: Server | None, url: str, dispatchers: int, jobs: int, args: argparse.Namespace) -> Outcome:
    """Let so many processes drain a fresh queue; the rate is that of the middle eight tenths."""
    asyncio.run(fill(url, jobs))
    with ExitStack() as stack:
        processes = []
        for _ in range(dispatchers):
            command = ["-m", "benchmarks.scaling_model", "--child", url]
            command += ["--concurrency", str(args.concurrency), "--think-ms", str(args.think_ms)]
            started = harness.child(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(stack.enter_context(started))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        cpu, commits = server_state(server)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        told = [json.loads(process.stdout.readline()) for process in processes if process.stdout is not None]
        cpu_after, commits_after = server_state(server)
    began = sorted(moment for one in told for moment in one["began"])
    done = len(began)
    # the middle of the run: dispatchers that start, and the last jobs, are no service time
    middle_s = (began[done * 9 // 10] - began[done // 10]) / 1000
    seconds = middle_s / 0.8
    spans = [span for one in told for span in one["spans"]]
    own = sum(one["cpu"] for one in told) / done
    sampled = sum(len(one["spans"]) for one in told)  # each of them was one more transaction
    transactions = commits_after - commits - sampled
    return _outcome(done, seconds, transactions, spans, dispatcher_cpu=own, server_cpu=(cpu_after - cpu) / done)


def calibrated(few: Outcome, many: Outcome) -> Services:
    """Work the service times out of two runs of one dispatcher with few and many jobs a transaction."""

    def parts(one: float, other: float) -> tuple[float, float]:
        per_tx = max(0.0, (one - other) / (1 / few.batch - 1 / many.batch))
        return per_tx, max(0.0, other - per_tx / many.batch)

    dispatcher = parts(few.dispatcher_cpu, many.dispatcher_cpu)
    server = parts(few.server_cpu, many.server_cpu)
    # a transaction of the run with few slots is alone: what is neither processor time nor a handler is the commit
    cycle = few.seconds * few.batch / (few.rate * few.seconds)
    busy = dispatcher[0] + server[0] + (dispatcher[1] + server[1]) * few.batch
    return Services(*dispatcher, *server, max(0.0, cycle - busy))


# --- the report ----------------------------------------------------------------------------------------


def report(args: argparse.Namespace) -> None:
    print(f"{machine()}\n{args.jobs} jobs, {args.concurrency} slots a dispatcher, {args.think_ms} ms a handler\n")
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = Server.made(settings={"fsync": "on", "synchronous_commit": "on"}).start()
        stack.callback(server.remove)
        few_args = argparse.Namespace(concurrency=args.few, think_ms=0.0)
        few = real(server, f"{server.url}?schema=few", 1, args.jobs // 4, few_args)
        runs = {n: real(server, f"{server.url}?schema=run{n}", n, args.jobs, args) for n in args.processes}
        files = {n: real(None, f"{folder}/file{n}.db", n, args.jobs, args) for n in args.processes}
    services = calibrated(few, runs[args.processes[0]])
    print("Service times, measured (microseconds):\n")
    print(
        harness.table(
            ["", "a transaction", "a job"],
            [
                ["dispatcher, processor", _us(services.dispatcher_tx), _us(services.dispatcher_job)],
                ["server, processor", _us(services.server_tx), _us(services.server_job)],
                ["wait for a commit", _us(services.commit), ""],
            ],
        )
    )
    print(f"\nSimulation against real runs, everything on these {cores} cores:\n")
    rows = []
    for number, seen in runs.items():
        said = simulate(services, number, args, cores, shared=True)
        rows.append(
            [
                number,
                *(f"{said.rate:,.0f}", f"{seen.rate:,.0f}", f"{said.rate / seen.rate:.2f}"),
                *(f"{said.p50_ms:.0f} / {said.p99_ms:.0f}", f"{seen.p50_ms:.0f} / {seen.p99_ms:.0f}"),
                f"{said.batch:.0f} / {seen.batch:.0f}",
                f"{_bound(services, seen.batch, cores):,.0f}",
                f"{1e6 * (seen.dispatcher_cpu + seen.server_cpu):.0f}",
                f"{files[number].rate:,.0f}",
            ]
        )
    print(
        harness.table(
            [
                *("dispatchers", "jobs/s, simulated", "jobs/s, real", "ratio"),
                *("p50 / p99 ms, simulated", "p50 / p99 ms, real", "jobs a transaction, simulated / real"),
                "jobs/s that full cores would do with such real sets",
                *("processor µs a job, real", "jobs/s of one SQLite file, real"),
            ],
            rows,
        )
    )
    print("\nHosts of their own (one dispatcher each), simulated; the server has so many cores to itself:\n")
    header = ["hosts", *(f"jobs/s, {count} cores" for count in args.server_cores)]
    header += [f"p99 ms, {count} cores" for count in args.server_cores]
    rows = []
    for hosts in args.hosts:
        found = [simulate(services, hosts, args, count, shared=False) for count in args.server_cores]
        rows.append([hosts, *(f"{one.rate:,.0f}" for one in found), *(f"{one.p99_ms:.0f}" for one in found)])
    print(harness.table(header, rows))


def _bound(services: Services, batch: float, cores: int) -> float:
    """Return the jobs a second at which `cores` are full, by the service times, with so many jobs a transaction.

    If a real run is far below that, it is not the size of its sets that the simulation missed.
    """
    tx, job = services.dispatcher_tx + services.server_tx, services.dispatcher_job + services.server_job
    return cores / (tx / batch + job)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64, help="slots of a dispatcher")
    parser.add_argument("--few", type=int, default=4, help="slots in the calibration with few jobs a transaction")
    parser.add_argument("--think-ms", type=float, default=20.0, help="what a handler waits")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="dispatchers in the real runs")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="simulated hosts")
    parser.add_argument("--server-cores", type=int, nargs="+", default=[2, 4, 8], help="of the simulated server")
    parser.add_argument("--child", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        asyncio.run(child(args.child, args.concurrency, args.think_ms))
    else:
        report(args)


if __name__ == "__main__":
    main()
