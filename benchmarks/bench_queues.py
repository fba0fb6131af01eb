"""What does a claim cost over many queues, and what does one of a kind cost among many jobs of others?

For each shape: the processor time of a claim of 64 jobs, and of asking when the next job falls due; median, in
milliseconds. The goals: over a thousand queues what over sixty-four, since a claim of 64 asks no more than these;
of a kind the same behind many jobs of another as behind none.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from asyncqueue import Queue
from asyncqueue.job import NewJob
from benchmarks.harness import table
from benchmarks.results import machine

LIMIT = 64


async def measure(jobs: list[NewJob], kinds: list[str] | None, claims: int) -> tuple[float, float]:
    """Return the median milliseconds of a claim and of a look for the next due time, in a file of `jobs`."""
    claimed_ms, looked_ms = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with Queue.open(Path(folder) / "jobs.db") as queue:
            for start in range(0, len(jobs), 10_000):
                await queue.enqueue_many(jobs[start : start + 10_000])
            for _ in range(claims):
                started = time.process_time()
                leased = await queue.claim("bench", limit=LIMIT, kinds=kinds)
                claimed_ms.append((time.process_time() - started) * 1000)
                if len(leased) != LIMIT:
                    raise SystemExit(f"claimed {len(leased)} jobs, not {LIMIT}")
                started = time.process_time()
                await queue.next_due_ms(kinds=kinds)
                looked_ms.append((time.process_time() - started) * 1000)
    return statistics.median(claimed_ms), statistics.median(looked_ms)


def spread(queues: int, jobs: int, kind: str = "job") -> list[NewJob]:
    """Return `jobs` jobs, dealt out to `queues` queues."""
    return [NewJob(f"{kind}-{n}", 1, queue=f"q{n % queues}", kind=kind) for n in range(jobs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs in the file")
    parser.add_argument("--others", type=int, default=100_000, help="live jobs of another kind")
    parser.add_argument("--claims", type=int, default=21)
    options = parser.parse_args()
    print(f"{machine()}\n")
    mine = options.claims * LIMIT
    shapes: dict[str, tuple[list[NewJob], list[str] | None]] = {
        f"{n:,} queues": (spread(n, options.jobs), None) for n in (1, 8, 64, 1_000)
    }
    shapes["one kind, no other"] = (spread(1, mine, "mail"), ["mail"])
    shapes["one kind behind others"] = (spread(1, options.others, "fax") + spread(1, mine, "mail"), ["mail"])
    rows, claim_ms = [], {}
    for name, (jobs, kinds) in shapes.items():
        claim_ms[name], look_ms = asyncio.run(measure(jobs, kinds, options.claims))
        rows.append((name, f"{claim_ms[name]:.2f}", f"{look_ms:.2f}"))
    print(table(("shape", f"claim of {LIMIT}, ms", "next due, ms"), rows))
    many = claim_ms["1,000 queues"] / claim_ms["64 queues"]
    behind = claim_ms["one kind behind others"] / claim_ms["one kind, no other"]
    print(f"\n1,000 queues cost {many:.1f} times 64")
    print(f"one kind behind {options.others:,} jobs of another costs {behind:.1f} times none")


if __name__ == "__main__":
    main()
