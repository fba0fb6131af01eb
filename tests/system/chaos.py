"""300 jobs, eight worker processes on one file, and everything that a handler can do to them.

`python -m tests.system.chaos`, or `make soak`. Handlers that crash the process, before their effect and in the
middle of it, that stall past the lease, and that always fail; a worker that dies is started again. In the end
every job is done with its effect in the ledger exactly once, or dead with none. Exit status 1 names what does
not add up.
"""

import argparse
import asyncio
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from asyncqueue import Dispatcher, NewJob, Queue, Retryable, RetryPolicy
from asyncqueue.job import Effect

ROOT = Path(__file__).parents[2]
LEASE_MS = 1_000
STALL_S = 2.5
CRASHED = 70  # the exit status of a worker that its handler killed
RUN_SECONDS_MAX = 240


@dataclass(frozen=True)
class Kind:
    """What the jobs of one kind do, and how they must end."""

    share: int  # of 300 jobs
    status: str
    attempts_min: int  # before the effect, or before the end of a job that never has one
    what: str
    max_attempts: int = 500  # a crash burns an attempt of each job beside it


DOOMED_ATTEMPTS = 3
KINDS = {
    "plain": Kind(240, "done", 1, "acknowledges with an effect"),
    "flaky": Kind(14, "done", 2, "asks for a retry on its first attempt"),
    "stall": Kind(6, "done", 2, "blocks its whole process past the lease on its first attempt"),
    "torn": Kind(6, "done", 2, "crashes inside its effect on its first attempt, after the row is written"),
    "crash": Kind(10, "dead", DOOMED_ATTEMPTS, "crashes in the handler, always", DOOMED_ATTEMPTS),
    "fails": Kind(12, "dead", DOOMED_ATTEMPTS, "asks for a retry, always", DOOMED_ATTEMPTS),
    "raises": Kind(12, "dead", DOOMED_ATTEMPTS, "raises an error of its own, always", DOOMED_ATTEMPTS),
}
# No uniqueness here: an effect that was applied twice must be seen, not refused.
LEDGER = "CREATE TABLE ledger (id TEXT NOT NULL, attempt INTEGER NOT NULL)"
BOOK = "INSERT INTO ledger VALUES (?, ?)"


def kind_of(job_id: str) -> str:
    return job_id.partition("-")[0]


async def handle(job):
    """Do to the worker what the job's kind says; runs in the worker process."""
    kind, is_first = kind_of(job.id), job.attempt == 1
    if kind == "crash":
        os._exit(CRASHED)
    if kind == "fails" or (kind == "flaky" and is_first):
        raise Retryable("not now")
    if kind == "raises":
        raise ValueError("no recipient")
    if kind == "stall" and is_first:
        time.sleep(STALL_S)  # noqa: ASYNC251 - blocking is the point: no renewal can go out
    await asyncio.sleep(0.02)  # pretended work, so that a crash finds some under way

    async def book(connection):
        await connection.execute_fetchall(BOOK, (job.id, job.attempt))
        if kind == "torn" and is_first:
            os._exit(CRASHED)

    return Effect(book)


async def work(path: Path, concurrency: int) -> None:
    """Be a worker: until no live job is left, whoever has it."""
    policy = RetryPolicy(base_ms=50, cap_ms=200)
    async with (
        Queue.open(path, create=False, patience_ms=60_000) as queue,
        Dispatcher(queue, handle, concurrency=concurrency, lease_ms=LEASE_MS, policy=policy) as dispatcher,
    ):
        await dispatcher.drain()


@dataclass
class Chaos:
    """What one run did and what does not add up."""

    seed: int
    workers: int
    concurrency: int
    jobs: dict[str, int]
    started: int = 0
    crashed: int = 0
    seconds: float = 0.0
    statuses: Counter = field(default_factory=Counter)
    outcomes: Counter = field(default_factory=Counter)
    attempts: Counter = field(default_factory=Counter)
    ledger_rows: int = 0
    ledger_doubles: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        total = sum(self.jobs.values())
        what = ", ".join(f"{count} {kind}" for kind, count in self.jobs.items())
        dead = ", ".join(f"{count} {kind} after {n}" for (kind, n), count in sorted(self.attempts.items()))
        verdict = "; ".join(self.faults[:10]) or "every job done with its effect once, or dead without one"
        return f"""\
seed {self.seed}: {total} jobs ({what})
{self.workers} workers of {self.concurrency} slots, lease {LEASE_MS} ms; {self.seconds:.1f} s
{self.started} worker processes started, {self.crashed} of them crashed
jobs: {_counted(self.statuses)}; dead by kind and attempts: {dead}
attempts that were no plain success: {_counted(self.outcomes)}
ledger: {self.ledger_rows} rows, {self.ledger_doubles} jobs with more than one
{"FAILED: " if self.faults else ""}{verdict}"""


def _counted(counter: Counter) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


async def run_chaos(seed: int, folder: Path, *, jobs: int = 300, workers: int = 8, concurrency: int = 4) -> Chaos:
    """Run it once in `folder`; the order of the jobs comes from `seed`."""
    mix = {name: max(1, kind.share * jobs // 300) for name, kind in KINDS.items()}
    mix["plain"] += jobs - sum(mix.values())
    result = Chaos(seed, workers, concurrency, mix)
    path, started = folder / "jobs.db", time.monotonic()
    ids = [f"{kind}-{number}" for kind, count in mix.items() for number in range(count)]
    random.Random(seed).shuffle(ids)
    async with Queue.open(path) as queue:
        await queue.enqueue_many([NewJob(i, 1, max_attempts=KINDS[kind_of(i)].max_attempts) for i in ids])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(LEDGER)
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX), asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(_keep_working(path, result))
    except TimeoutError:
        result.faults.append(f"not drained within {RUN_SECONDS_MAX} s")
    result.seconds = time.monotonic() - started
    _reconcile(result, path, ids)
    return result


async def _keep_working(path: Path, result: Chaos) -> None:
    """Keep one worker alive until one ends by itself: the queue is drained then."""
    command = ["-m", "tests.system.chaos", "--work", str(path), "--concurrency", str(result.concurrency)]
    while True:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        result.started += 1
        try:
            _out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return
        if process.returncode == CRASHED:
            result.crashed += 1
        else:
            result.faults.append(f"a worker ended with {process.returncode}: {errors.decode()[-300:]}")
            return


def _reconcile(result: Chaos, path: Path, ids: list[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        jobs = {row[0]: row[1:] for row in connection.execute("SELECT id, status, attempts, reason FROM jobs")}
        booked = connection.execute("SELECT id, attempt FROM ledger").fetchall()
        outcomes = connection.execute("SELECT outcome, count(*) FROM attempts GROUP BY outcome").fetchall()
        counts = dict(
            connection.execute("SELECT status, sum(jobs) FROM counts GROUP BY status HAVING sum(jobs) > 0")
        )
        if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            result.faults.append("the file is damaged")
    rows, winners = Counter(job_id for job_id, _attempt in booked), dict(booked)
    result.statuses, result.outcomes = Counter(row[0] for row in jobs.values()), Counter(dict(outcomes))
    result.ledger_rows, result.ledger_doubles = len(booked), sum(count > 1 for count in rows.values())
    if jobs.keys() != set(ids) or not rows.keys() <= set(ids):
        result.faults.append(f"{len(ids)} jobs went in, {len(jobs)} are there, {len(rows)} in the ledger")
    if counts != result.statuses:
        result.faults.append(f"the queue counts {counts}, its rows say {dict(result.statuses)}")
    for job_id, (status, attempts, reason) in sorted(jobs.items()):
        kind = KINDS[kind_of(job_id)]
        if status != kind.status:
            result.faults.append(f"{job_id} is {status} ({reason}), not {kind.status}")
        if rows[job_id] != (kind.status == "done"):
            result.faults.append(f"{job_id} is {status} with {rows[job_id]} rows in the ledger")
        counted = winners.get(job_id, 0) if kind.status == "done" else attempts
        if counted < kind.attempts_min or (
            status == "dead" and (attempts, reason) != (kind.max_attempts, "exhausted")
        ):
            result.faults.append(f"{job_id} ended at attempt {counted} ({reason}), too early for its kind")
        if status == "dead":
            result.attempts[kind_of(job_id), attempts] += 1
    if not result.crashed:
        result.faults.append("no worker crashed: nothing was shown")


def main() -> None:
    kinds = "\n".join(f"  {name:7} {kind.what}" for name, kind in KINDS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nkinds of jobs:\n{kinds}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=4, help="handlers at a time in each worker")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(work(options.work, options.concurrency))
        return
    sizes = {"jobs": options.jobs, "workers": options.workers, "concurrency": options.concurrency}
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(run_chaos(options.seed, Path(folder), **sizes))
    print(result)
    sys.exit(1 if result.faults else 0)


if __name__ == "__main__":
    main()
