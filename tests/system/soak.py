"""The whole system under SIGKILL: two dispatchers, one receiver, real orders, random deaths, round after round.

`python -m tests.system.soak --rounds 20`, or `make soak ROUNDS=20`. Each round ends reconciled: every job
done, the ledger equal to the input, each effect once. Exit status 1 names what does not add up.
"""

import argparse
import asyncio
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from asyncqueue import NewJob, Queue
from asyncqueue.job import encode_payload
from tests.postgres_server import free_port

ROOT = Path(__file__).parents[2]
ORDERS = ROOT / "examples" / "orders.jsonl"
LEASE_MS = 3_000
ROUND_SECONDS_MAX = 120


@dataclass
class Child:
    """One process of the system, started again whenever it is killed."""

    name: str
    arguments: list[str]
    process: asyncio.subprocess.Process | None = None
    kills: int = 0

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.arguments,
            cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )

    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def kill(self) -> bool:
        """Kill it with SIGKILL; False if it had ended by itself."""
        if self.process is None or self.process.returncode is not None:
            return False
        self.process.kill()
        await self.process.communicate()
        self.kills += 1
        return True

    async def end(self) -> None:
        if self.is_running() and self.process is not None:
            self.process.send_signal(signal.SIGTERM)
        if self.process is not None:
            await self.process.communicate()


@dataclass
class Round:
    """What one round did and what does not add up."""

    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        verdict = "; ".join(self.faults) or "every job done, every effect once"
        return f"seed {self.seed}: killed {killed}; {self.requests} requests; {self.seconds:.1f} s; {verdict}"


def read_orders(limit: int | None = None) -> list[NewJob]:
    lines = ORDERS.read_text("utf-8").splitlines()[:limit]
    return [
        NewJob(order["id"], order["qty"], encode_payload(order["payload"]), max_attempts=1_000)
        for order in map(json.loads, lines)
    ]


async def run_round(seed: int, folder: Path, orders: list[NewJob], kills: int) -> Round:
    """Run one round in `folder`; everything random comes from `seed`."""
    rng = random.Random(seed)
    result, started = Round(seed), time.monotonic()
    jobs, inbox, port = folder / "jobs.db", folder / "inbox.db", free_port()
    async with Queue.open(jobs) as queue:
        for first in range(0, len(orders), 5_000):
            await queue.enqueue_many(orders[first : first + 5_000])
    dispatch = ["-m", "asyncqueue", "dispatch", str(jobs), f"http://127.0.0.1:{port}/inbox", "--drain", "--json"]
    dispatch += ["--lease-ms", str(LEASE_MS), "--timeout-ms", "900", "--concurrency", "16"]
    dispatch += ["--retry-base-ms", "50", "--retry-cap-ms", "500"]
    receiver = Child("receiver", ["-m", "receiver", str(inbox), "--port", str(port), "--json"])
    dispatchers = [Child(f"dispatcher {n}", dispatch) for n in (1, 2)]
    children = [receiver, *dispatchers]
    try:
        async with asyncio.timeout(ROUND_SECONDS_MAX):
            for child in children:
                await child.start()
            await _kill_at_random(rng, jobs, children, kills)
            for child in dispatchers:
                await _wait_drained(child, result)
    except TimeoutError:
        result.faults.append(f"not drained within {ROUND_SECONDS_MAX} s")
    finally:
        for child in children:
            await (child.end() if child is receiver else child.kill())
    result.kills = {child.name: child.kills for child in children}
    result.seconds = time.monotonic() - started
    _reconcile(result, jobs, inbox, orders)
    return result


async def _kill_at_random(rng: random.Random, jobs: Path, children: list[Child], kills: int) -> None:
    """Kill a random child each time a random number of further jobs is done, and start it again."""
    with closing(sqlite3.connect(f"file:{jobs}?mode=ro", uri=True, timeout=10)) as connection:
        total = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
        marks = sorted(rng.randrange(total) for _ in range(kills))
        for mark in marks:
            done = "SELECT count(*) FROM jobs WHERE status = 'done'"
            while connection.execute(done).fetchone()[0] < mark:
                await asyncio.sleep(0.01)  # for as long as it takes: the run as a whole has the bound
            victim = rng.choice(children)
            if await victim.kill():
                await victim.start()


async def _wait_drained(child: Child, result: Round) -> None:
    process = child.process
    if process is None:
        return
    _out, errors = await process.communicate()
    if process.returncode != 0:
        result.faults.append(f"{child.name} ended with {process.returncode}: {errors.decode()[-300:]}")


def _reconcile(result: Round, jobs: Path, inbox: Path, orders: list[NewJob]) -> None:
    expected = {order.id: order.qty for order in orders}
    with closing(sqlite3.connect(jobs)) as connection:
        statuses = dict(connection.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall())
        if statuses != {"done": len(orders)}:
            result.faults.append(f"jobs are {statuses}, not all done")
        _check_file(result, connection, "queue")
    with closing(sqlite3.connect(inbox)) as connection:
        ledger = dict(connection.execute("SELECT id, qty FROM ledger").fetchall())
        if ledger != expected:
            wrong = [
                job_id for job_id in expected.keys() | ledger.keys() if expected.get(job_id) != ledger.get(job_id)
            ]
            result.faults.append(f"the ledger differs for {len(wrong)} ids, as {sorted(wrong)[:3]}")
        result.requests = connection.execute("SELECT sum(times) FROM inbox").fetchone()[0] or 0
        _check_file(result, connection, "inbox")


def _check_file(result: Round, connection: sqlite3.Connection, name: str) -> None:
    if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
        result.faults.append(f"the {name} file is damaged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=8, help="kills per round")
    parser.add_argument("--orders", type=int, help="use only the first orders")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    orders = read_orders(options.orders)
    print(f"{options.rounds} rounds of {len(orders)} orders, {sum(order.qty for order in orders)} pieces")
    failed = 0
    for seed in range(options.seed, options.seed + options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            result = asyncio.run(run_round(seed, Path(folder), orders, options.kills))
        print(result, flush=True)
        failed += bool(result.faults)
    print(f"{options.rounds - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
