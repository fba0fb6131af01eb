"""Many dispatcher processes on one PostgreSQL server; some are SIGKILLed at random, and the server crashes twice.

`python -m tests.system.postgres_chaos --jobs 50000`, or `make soak`. Every job books itself into a ledger by an
effect. In the end every job is done, every effect is there once, and no token was ever repeated or lowered: a
trigger of the server looks at each change, and the workers write down the token of each start. Exit status 1 names
what does not add up.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from asyncqueue import Dispatcher, NewJob, Queue
from asyncqueue.errors import StoreUnreachable
from asyncqueue.job import Effect
from tests.postgres_server import Server
from tests.store.raw import PostgresRaw

ROOT = Path(__file__).parents[2]
LEASE_MS = 3_000
KILL_EVERY_S = 0.4
RESTARTS = 2
AWAY = (
    75  # the exit status of a worker that met no server when it started: it is started again, as a supervisor does
)

# No uniqueness in the ledger: an effect that was applied twice must be seen, not refused.
SET_UP = """
CREATE TABLE ledger (id text NOT NULL);
CREATE TABLE violations (id text, status text, was bigint, became bigint);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO violations VALUES (NEW.id, NEW.status, OLD.token, NEW.token);
  RETURN NULL;
END $$;
CREATE TRIGGER tokens_only_grow AFTER UPDATE ON jobs FOR EACH ROW WHEN (
  NEW.token < OLD.token OR NEW.token > OLD.token + 1
  OR (NEW.status = 'leased' AND NEW.attempts > OLD.attempts AND NEW.token = OLD.token)
  OR (NEW.status <> 'leased' AND NEW.token <> OLD.token))
EXECUTE FUNCTION look();
"""


@dataclass
class Chaos:
    """What one run did and what does not add up."""

    jobs: int
    workers: int
    seed: int
    kills: int = 0
    restarts: int = 0
    lost_leases: int = 0
    starts: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "; ".join(self.faults[:10]) or "every job done, every effect once, no token repeated or lowered"
        return (
            f"seed {self.seed}: {self.jobs} jobs, {self.workers} processes, {self.kills} of them killed, server "
            f"crashed {self.restarts} times; {self.starts} starts, {self.lost_leases} leases lost; "
            f"{self.seconds:.1f} s; {'FAILED: ' if self.faults else ''}{verdict}"
        )


async def work(url: str, log: Path) -> None:
    """Be a worker: until no live job is left, whoever has it."""
    with log.open("a", buffering=1) as starts:

        async def handle(job):
            starts.write(f"{job.id} {job.token}\n")
            await asyncio.sleep(0.001)  # pretended work, so that a kill finds some under way

            async def book(connection):
                await connection.execute("INSERT INTO ledger VALUES ($1)", job.id)

            return Effect(book)

        async with (
            Queue.open(url, create=False, patience_ms=60_000) as queue,
            Dispatcher(queue, handle, concurrency=32, lease_ms=LEASE_MS) as dispatcher,
        ):
            await dispatcher.drain()


class _Worker:
    """One place for a worker process; whoever dies is followed by another one until the queue is drained."""

    def __init__(self, number: int, url: str, folder: Path) -> None:
        self._log = folder / f"starts-{number}"
        self._log.touch()
        self._arguments = ["--work", url, "--log", str(self._log)]
        self._was = 0  # the size of the log when this process began
        self.process: asyncio.subprocess.Process | None = None

    async def run(self, result: Chaos) -> None:
        while True:
            command = ["-m", "tests.system.postgres_chaos", *self._arguments]
            self._was = self._log.stat().st_size
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=ROOT, stderr=asyncio.subprocess.PIPE
            )
            try:
                _out, errors = await self.process.communicate()
            finally:
                if self.process.returncode is None:
                    self.process.kill()
                    await self.process.wait()
            if self.process.returncode == 0:
                return
            if self.process.returncode > 0 and self.process.returncode != AWAY:
                result.faults.append(f"a worker ended with {self.process.returncode}: {errors.decode()[-400:]}")
                return

    @property
    def is_at_work(self) -> bool:
        """Whether this process has begun a job: on a slow machine all would die before they do otherwise."""
        return self._log.stat().st_size > self._was

    def kill(self) -> bool:
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        return True


async def run_chaos(
    folder: Path, seed: int, *, jobs: int, workers: int = 8, settings: dict[str, str] | None = None, kills: int = 0
) -> Chaos:
    """Run it once in `folder`, on a server of its own; `kills` bounds the killed processes, 0 for no bound."""
    result, started = Chaos(jobs, workers, seed), time.monotonic()
    server = Server.made(settings=settings).start()
    try:
        url = f"{server.url}?schema=chaos&search_path=chaos"
        async with Queue.open(url) as queue:
            for first in range(0, jobs, 5_000):
                numbers = range(first, min(first + 5_000, jobs))
                await queue.enqueue_many([NewJob(f"job-{n}", 1, max_attempts=1_000) for n in numbers])
        PostgresRaw(url).execute(SET_UP)
        crew = [_Worker(number, url, folder) for number in range(workers)]
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(worker.run(result)) for worker in crew]
            trouble = group.create_task(_trouble(result, crew, server, url, kills=kills))
            await asyncio.wait(running)
            trouble.cancel()
        result.seconds = time.monotonic() - started
        _reconcile(result, PostgresRaw(url), folder)
    finally:
        server.remove()
    return result


async def _trouble(result: Chaos, crew: list[_Worker], server: Server, url: str, *, kills: int) -> None:
    """Kill processes as long as there is work, and crash the server each time another third of it is done."""
    rng = random.Random(result.seed)
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * KILL_EVERY_S)  # a kill at any moment is the point
        at_work = [worker for worker in crew if worker.is_at_work]
        if at_work and (not kills or result.kills < kills):
            result.kills += rng.choice(at_work).kill()
        if result.restarts < RESTARTS and _done(url) >= result.jobs * (result.restarts + 1) / (RESTARTS + 1):
            await asyncio.to_thread(server.restart, "immediate")
            result.restarts += 1


def _done(url: str) -> int:
    try:
        rows = PostgresRaw(url).select("SELECT coalesce(sum(jobs), 0) FROM counts WHERE status = 'done'")
    except psycopg.Error:
        return 0
    return int(rows[0][0])


def _reconcile(result: Chaos, raw: PostgresRaw, folder: Path) -> None:
    statuses = dict(raw.select("SELECT status, count(*) FROM jobs GROUP BY status"))
    if statuses != {"done": result.jobs}:
        result.faults.append(f"{result.jobs} jobs went in, and came to {statuses}")
    ((rows, ids),) = raw.select("SELECT count(*), count(DISTINCT id) FROM ledger")
    if (rows, ids) != (result.jobs, result.jobs):
        result.faults.append(f"{rows} rows of {ids} jobs in the ledger, not {result.jobs}")
    if violations := raw.select("SELECT * FROM violations LIMIT 5"):
        result.faults.append(f"tokens went wrong: {violations}")
    starts = Counter(
        line for log in folder.glob("starts-*") for line in log.read_text().splitlines() if line.count(" ") == 1
    )
    if repeated := [line for line, count in starts.items() if count > 1]:
        result.faults.append(f"started twice under one token: {repeated[:5]}")
    ((result.lost_leases,),) = raw.select("SELECT count(*) FROM attempts WHERE outcome = 'lost'")
    result.starts = sum(starts.values())
    if result.restarts < RESTARTS:
        result.faults.append(f"the server was restarted {result.restarts} times only: nothing was shown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        try:
            asyncio.run(work(options.work, options.log))
        except StoreUnreachable as error:
            print(error, file=sys.stderr)
            sys.exit(AWAY)
        return
    with tempfile.TemporaryDirectory() as name:
        settings = {"max_connections": "200"}  # and everything else as shipped: fsync and synchronous_commit on
        sizes = {"jobs": options.jobs, "workers": options.workers}
        result = asyncio.run(run_chaos(Path(name), options.seed, settings=settings, **sizes))
    print(result)
    sys.exit(1 if result.faults else 0)


if __name__ == "__main__":
    main()
