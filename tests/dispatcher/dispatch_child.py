"""A dispatcher in a process of its own: `python dispatch_child.py DB LOG [name=value ...]`.

What happens to a job is its kind. Every start is appended to LOG as one line: `<pid> <id>`; LOG.stopping is made
when a stop begins.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import anyio

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.events import Event, Events, Stopping
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy


async def deliver(job):
    with open(sys.argv[2], "a") as log:  # noqa: ASYNC230, PTH123 - one small append
        log.write(f"{os.getpid()} {job.id}\n")
    if job.kind == "poison":
        os._exit(9)
    if job.kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.kind == "exit":
        raise SystemExit(3)
    if job.kind == "interrupt":
        raise KeyboardInterrupt
    if job.kind == "hang":
        await anyio.sleep_forever()
    if job.kind == "stubborn":
        for _ in range(20):
            try:
                await asyncio.sleep(0.05)  # pretended work that no cancellation ends
            except asyncio.CancelledError:
                continue
    if job.kind == "slow":
        await asyncio.sleep(0.2)  # pretended work, so that a signal finds some under way
    return True


def tell_of_stop(event: Event) -> None:
    if isinstance(event, Stopping):
        Path(f"{sys.argv[2]}.stopping").touch()


async def main() -> None:
    settings = dict(word.split("=") for word in sys.argv[3:])
    drain = settings.pop("drain", None)
    patience_ms = int(settings.pop("patience_ms", 10_000))
    prefix = settings.pop("owner_prefix", "")
    numbers = {name: int(value) for name, value in settings.items()}
    async with Queue.open(sys.argv[1], patience_ms=patience_ms) as queue:
        policy = RetryPolicy(base_ms=1, cap_ms=20)
        settings = {"policy": policy, "owner_prefix": prefix, "events": Events(tell_of_stop), **numbers}
        async with Dispatcher(queue, deliver, **settings) as dispatcher:
            await (dispatcher.drain if drain else dispatcher.run)(handle_signals=True)


if __name__ == "__main__":
    asyncio.run(main())
