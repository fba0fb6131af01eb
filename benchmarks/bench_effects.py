"""What do the effects of a thousand handlers cost in one commit, and does a failing one harm the others?

1,000 leased jobs are finished with an effect each, which writes a row; every tenth raises after its row is
written. Once by callers that wait at the same moment, who share a commit; then by one caller after the other,
each with a transaction of its own; both fully durable, in turns, on one file. Checked each time: exactly the rows
of the failing ones are absent, each caller got its own error, and their jobs are still leased.
"""

import asyncio
import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import aiosqlite

from asyncqueue import LeasedJob, NewJob, Queue
from asyncqueue.job import EffectWork
from asyncqueue.lifecycle import Status
from benchmarks.harness import Bench, Figures, Run, folder, run_async

__all__ = ["BENCH"]

TURN = 10  # every tenth effect fails
LEASE_MS = 3_600_000
LEDGER = "CREATE TABLE ledger (id TEXT NOT NULL)"
BOOK = "INSERT INTO ledger VALUES (?)"

Finish = Callable[[], Awaitable[Status | None]]
Answers = list[Status | BaseException | None]
Way = Callable[[Sequence[Finish]], Awaitable[Answers]]


class RefusedError(Exception):
    """What every tenth effect raises; it names its job."""


def fails(job_id: str) -> bool:
    return int(job_id.rpartition("-")[2]) % TURN == TURN - 1


def effect_of(job: LeasedJob) -> EffectWork:
    async def book(connection: aiosqlite.Connection) -> None:
        await connection.execute_fetchall(BOOK, (job.id,))
        if fails(job.id):
            raise RefusedError(job.id)

    return book


async def at_once(finishes: Sequence[Finish]) -> Answers:
    return [*await asyncio.gather(*(finish() for finish in finishes), return_exceptions=True)]


async def one_by_one(finishes: Sequence[Finish]) -> Answers:
    answers: Answers = []
    for finish in finishes:
        answers += await asyncio.gather(finish(), return_exceptions=True)
    return answers


WAYS = {"one commit together": at_once, "a transaction each": one_by_one}


async def make(path: Path) -> None:
    """Make the queue and, once it is closed again, the application's table beside it."""
    async with Queue.open(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(LEDGER)


async def finish_all(path: Path, way: Way, prefix: str, count: int) -> tuple[float, dict[str, object]]:
    """Return the effects per second of one way, and what each job's caller was told."""
    async with Queue.open(path) as queue:
        await queue.enqueue_many(NewJob(f"{prefix}-{i}", 1) for i in range(count))
        leased = await queue.claim("bench", limit=count, lease_ms=LEASE_MS)
        finishes = [partial(queue.finish, job, "ok", effect=effect_of(job)) for job in leased]
        started = time.perf_counter()
        answers = await way(finishes)
        rate = count / (time.perf_counter() - started)
    return rate, {job.id: answer for job, answer in zip(leased, answers, strict=True)}


def wrong(path: Path, told: dict[str, object]) -> list[str]:
    """Return the ids for which the caller's answer, the ledger and the job's status are not as they must be."""
    with closing(sqlite3.connect(path)) as connection:
        booked = Counter(row[0] for row in connection.execute("SELECT id FROM ledger"))
        statuses = dict(connection.execute("SELECT id, status FROM jobs").fetchall())
    found = set(statuses) ^ set(told)
    for job_id, answer in told.items():
        if fails(job_id):
            good = isinstance(answer, RefusedError) and str(answer) == job_id
            good = good and (booked[job_id], statuses[job_id]) == (0, "leased")
        else:
            good = answer is Status.DONE and (booked[job_id], statuses[job_id]) == (1, "done")
        if not good:
            found.add(job_id)
    return sorted(found)


def measure(run: Run) -> None:
    """Measure both ways in turns on one file, then look at every row."""
    count, serial, told = run.pick(40, 500, 1_000), itertools.count(), {}
    with folder() as place:
        path = place / "jobs.db"
        run_async(make(path))

        def one(way: Way) -> Figures:
            rate, answers = run_async(finish_all(path, way, f"r{next(serial)}", count))
            told.update(answers)
            return {"effects/s": rate}

        run.paired({name: partial(one, way) for name, way in WAYS.items()})
        misfits = wrong(path, told)
    if misfits:
        raise SystemExit(f"not as they must be: {len(misfits)} of {len(told)} effects, {misfits[:3]}")
    run.note(f"{len(told):,} effects were checked, {sum(map(fails, told)):,} of them failed: all as it must be.")


BENCH = Bench(
    "effects",
    "What do the effects of a thousand handlers cost in one commit, and does a failing one harm the others?",
    measure,
)
