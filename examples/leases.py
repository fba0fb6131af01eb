"""A lease belongs to one worker at a time, and a stale worker cannot acknowledge the newer claim.

Run it: `python examples/leases.py`. Two queues on one file stand for two processes; time is moved by hand.
"""

import asyncio
import tempfile
from pathlib import Path

from asyncqueue import LeasedJob, Queue
from asyncqueue.clock import ManualClock

LEASE_MS = 10


async def claim(queue: Queue, owner: str) -> LeasedJob | None:
    """Take the lease of the next eligible job, if there is one."""
    jobs = await queue.claim(owner, lease_ms=LEASE_MS)
    return jobs[0] if jobs else None


async def acknowledge(queue: Queue, ticket: LeasedJob | None) -> bool:
    """Report success; False for a ticket that is stale."""
    return ticket is not None and await queue.finish(ticket, "ok") is not None


def shown(job: LeasedJob | None) -> str | None:
    """Return the id, or None."""
    return None if job is None else job.id


async def show(first: Queue, second: Queue, clock: ManualClock) -> None:
    """Print who holds the job, and whose acknowledgement counts."""
    await first.enqueue("41", 1)
    mine = await claim(first, "claimA")
    print("first claim:", shown(mine))
    clock.advance(LEASE_MS - 1)
    print("active lease:", shown(await claim(second, "claimB")))
    clock.advance(1)  # at the very moment the lease ends, it is gone
    theirs = await claim(second, "claimB")
    print("reclaimed:", shown(theirs))
    print("stale ack:", await acknowledge(first, mine))
    print("current ack:", await acknowledge(second, theirs))
    clock.advance(LEASE_MS)
    print("after ack:", shown(await claim(first, "claimC")))


async def main() -> None:
    """Open the file twice and show."""
    clock = ManualClock(100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "leases.db"
        async with Queue.open(path, clock=clock) as first, Queue.open(path, clock=clock) as second:
            await show(first, second, clock)


if __name__ == "__main__":
    asyncio.run(main())
