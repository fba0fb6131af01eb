"""`asyncqueue migrate-store` that is killed after so many pages: `move_child.py N ARGUMENTS`.

Or a dispatcher: `move_child.py dispatch URL LOG`, which logs `<id> <token>` at the begin of each delivery, and
ends with 4 if its queue has moved.
"""

import asyncio
import os
import signal
import sys

from asyncqueue.__main__ import main as command
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import StoreMoved
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy
from asyncqueue.stores import move
from asyncqueue.stores.postgres.moving import PostgresSide
from asyncqueue.stores.sqlite.moving import SqliteSide

STEPS = ("fill", "seal", "put", "number", "done")


def killed_after(steps):
    """Let every step that changes a store count; die when it is the one, half of the times before it."""
    count = 0

    def wrap(plain):
        async def step(self, *arguments, **options):
            nonlocal count
            count += 1
            if count == steps:
                os.kill(os.getpid(), signal.SIGKILL)
            return await plain(self, *arguments, **options)

        return step

    for side in (PostgresSide, SqliteSide):
        for name in STEPS:
            setattr(side, name, wrap(getattr(side, name)))
    move._ROWS_MAX = move._ROWS_MIN = 16


async def dispatch(url, log):
    async def deliver(job):
        with open(log, "a") as file:  # noqa: ASYNC230, PTH123 - one small append
            file.write(f"{job.id} {job.token}\n")
        await asyncio.sleep(0.01)  # pretended work, so that the signal comes before the end
        return True

    async with Queue.open(url) as queue:
        settings = {"lease_ms": 2_000, "concurrency": 4, "policy": RetryPolicy(base_ms=1, cap_ms=20)}
        async with Dispatcher(queue, deliver, **settings) as dispatcher:
            await dispatcher.run(handle_signals=True)


if __name__ == "__main__":
    if sys.argv[1] == "dispatch":
        try:
            asyncio.run(dispatch(sys.argv[2], sys.argv[3]))
        except StoreMoved:
            sys.exit(4)
    else:
        killed_after(int(sys.argv[1]))
        sys.argv = ["asyncqueue", *sys.argv[2:]]
        command()
