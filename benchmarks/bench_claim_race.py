"""Do processes that race for the same jobs ever get one twice?

Four processes start together on 20,000 jobs and claim until none is left, in three ways: through the queue, fully
durable; by plain sqlite3 with one UPDATE that picks and marks its row; and by plain sqlite3 that looks first and
marks second, with no transaction around the two. The plain ones do not sync, since only their collisions count.
Counted: how many claims each way made, and how many of them were of a job that was claimed before. One through the
queue ends the benchmark with an error.
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

from asyncqueue import NewJob, Queue
from asyncqueue.queue import ENQUEUE_MAX, new_owner
from benchmarks.harness import Bench, Figures, Run, child, folder, run_async

__all__ = ["BENCH"]

HEAD_START_S = 2.5
PLAIN = "CREATE TABLE tasks (number INTEGER PRIMARY KEY, taken_by TEXT)"
PLAIN_INDEX = "CREATE INDEX tasks_free ON tasks(number) WHERE taken_by IS NULL"
PLAIN_FILL = """
WITH RECURSIVE s(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM s WHERE i < ?)
INSERT INTO tasks(number) SELECT i FROM s
"""
LOOK = "SELECT number FROM tasks WHERE taken_by IS NULL ORDER BY number LIMIT 1"
MARK = "UPDATE tasks SET taken_by = ? WHERE number = ?"
LOOK_AND_MARK = f"UPDATE tasks SET taken_by = ? WHERE number = ({LOOK}) RETURNING number"
WAYS = {
    "queue": "the queue, 16 at a time",
    "statement": "plain sqlite3, one statement",
    "look": "plain sqlite3, look then claim",
}


def id_of(number: int) -> str:
    return f"job-{number}"


async def make_queue(path: Path, jobs: int) -> None:
    async with Queue.open(path) as queue:
        for first in range(0, jobs, ENQUEUE_MAX):
            ids = map(id_of, range(first, min(jobs, first + ENQUEUE_MAX)))
            await queue.enqueue_many(NewJob(job_id, 1) for job_id in ids)


def make_plain(path: Path, jobs: int) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(PLAIN)
        connection.execute(PLAIN_INDEX)
        connection.execute(PLAIN_FILL, (jobs,))


async def claim_queue(options: argparse.Namespace) -> list[str]:
    """Claim through the queue until nothing is left."""
    mine: list[str] = []
    async with Queue.open(options.file, create=False, patience_ms=60_000) as queue:
        owner = new_owner()
        wait_for_start(options)
        while leased := await queue.claim(owner, limit=options.limit, lease_ms=3_600_000):
            mine += [job.id for job in leased]
    return mine


def claim_plain(options: argparse.Namespace) -> list[int]:
    """Claim one by one by plain sqlite3 until nothing is left."""
    mine: list[int] = []
    owner = new_owner()
    with contextlib.closing(sqlite3.connect(options.file, isolation_level=None, timeout=60)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        wait_for_start(options)
        while True:
            if options.way == "statement":
                found = connection.execute(LOOK_AND_MARK, (owner,)).fetchall()
            else:
                found = connection.execute(LOOK).fetchall()
                for row in found:
                    connection.execute(MARK, (owner, *row))
            if not found:
                return mine
            mine += [row[0] for row in found]


def wait_for_start(options: argparse.Namespace) -> None:
    time.sleep(max(0.0, options.start_at - time.time()))


def race(way: str, jobs: int, processes: int, limit: int) -> Figures:
    """Let the processes race; return how many claims there were and how many of a job that was claimed before."""
    with folder() as place:
        path = place / "jobs.db"
        if way == "queue":
            run_async(make_queue(path, jobs))
        else:
            make_plain(path, jobs)
        start_at = time.time() + HEAD_START_S
        command = ["-m", "benchmarks.bench_claim_race", "--file", str(path), "--way", way]
        command += ["--limit", str(limit), "--start-at", str(start_at)]
        with ExitStack() as stack:
            racers = [stack.enter_context(child(*command, stdout=subprocess.PIPE)) for _ in range(processes)]
            reports: list[dict[str, Any]] = [json.loads(racer.communicate()[0]) for racer in racers]
    claims = [claimed for report in reports for claimed in report["claimed"]]
    seconds = max(report["ended_at"] for report in reports) - start_at
    if len(set(claims)) != jobs:
        raise SystemExit(f"{way}: {len(set(claims))} different jobs were claimed, not {jobs}")
    if way == "queue" and len(claims) != jobs:
        raise SystemExit(f"the queue let {len(claims) - jobs} jobs be claimed twice")
    return {"claims": len(claims), "duplicates": len(claims) - jobs, "claims/s": len(claims) / seconds}


def measure(run: Run) -> None:
    """Let all ways race in turns."""
    jobs = run.pick(500, 10_000, 20_000)
    ways = {name: partial(race, way, jobs, 4, 16) for way, name in WAYS.items()}
    run.note("The plain ways do not sync: only their collisions count.")
    run.paired(ways, repetitions=run.pick(1, 1, 7))


BENCH = Bench("claim_race", "Do processes that race for the same jobs ever get one twice?", measure)


def main() -> None:
    """Be one of the racing processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--file", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--start-at", type=float, required=True)
    options = parser.parse_args()
    claimed = asyncio.run(claim_queue(options)) if options.way == "queue" else claim_plain(options)
    print(json.dumps({"claimed": claimed, "ended_at": time.time()}))


if __name__ == "__main__":
    main()
