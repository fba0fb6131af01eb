"""Scripted handlers and senders, broken stores and real child processes for the dispatcher's tests."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.events import Event, Events
from asyncqueue.job import LeasedJob, NewJob
from asyncqueue.queue import Queue
from asyncqueue.retry import Certainty, Outcome, Verdict
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("dispatch_child.py")
Kind = TypeVar("Kind", bound=Event)
OK = Outcome(Verdict.OK, Certainty.ACCEPTED)


async def fill(queue: Queue, count: int, prefix: str = "job", /, **settings) -> list[str]:
    ids = [f"{prefix}-{number:05}" for number in range(count)]
    await queue.enqueue_many([NewJob(job_id, 1, **settings) for job_id in ids])
    return ids


class Hands:
    """A handler whose sends end when told; remembers every start and how many were under way at once."""

    def __init__(self, *, held: bool = True) -> None:
        self.started: list[LeasedJob] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.most = 0
        self.open = asyncio.Event()
        if not held:
            self.open.set()

    async def __call__(self, job: LeasedJob) -> bool:
        self.started.append(job)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        finally:
            self.running -= 1
        self.ended.append(job.id)
        return True

    @property
    def starts(self) -> Counter[str]:
        return Counter(job.id for job in self.started)


class Scripted:
    """A sender that answers with the given outcomes, in order, then with OK."""

    def __init__(self, *outcomes: object) -> None:
        self.left = list(outcomes)
        self.sent: list[tuple[str, float]] = []

    async def send(self, job: LeasedJob):
        self.sent.append((job.id, asyncio.get_running_loop().time()))
        await asyncio.sleep(0)
        return self.left.pop(0) if self.left else OK


class Log:
    """Every event of a dispatcher, by type."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.events = Events(self.all.append)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.all if isinstance(event, kind)]


class Verbs:
    """Counts the calls of some verbs of one queue, and makes them raise while told to."""

    def __init__(self, queue: Queue, *names: str) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: dict[str, Callable[[], Exception | None]] = {}
        for name in names:
            self._wrap(queue, name)

    def _wrap(self, queue: Queue, name: str) -> None:
        verb = getattr(queue, name)

        async def wrapped(*args, **named):
            self.calls[name] += 1
            error = self.errors.get(name, lambda: None)()
            if error is not None:
                raise error
            return await verb(*args, **named)

        setattr(queue, name, wrapped)

    def fail(self, name: str, error: Exception, times: int = 1_000_000) -> None:
        left = iter([error] * times) if times < 1_000_000 else None
        self.errors[name] = (lambda: error) if left is None else (lambda: next(left, None))

    def heal(self) -> None:
        self.errors.clear()


class Outage:
    """A store that cannot write (nor be read) while `error` is set."""

    def __init__(self, queue: Queue, *, reads: bool = False) -> None:
        self.error: Exception | None = None
        self.writes = 0
        store = queue._store
        names = ("write", "version", "next_due_ms") if reads else ("write",)
        for name in names:
            setattr(store, name, self._wrap(getattr(store, name), counted=name == "write"))

    def _wrap(self, verb, *, counted: bool):
        async def wrapped(*args, **named):
            self.writes += counted
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            return await verb(*args, **named)

        return wrapped


@contextlib.asynccontextmanager
async def running(dispatcher: Dispatcher, *, seconds: float = PATIENCE_S) -> AsyncIterator[None]:
    """Run a dispatcher around a block, then stop it and wait for its end."""
    task = asyncio.create_task(dispatcher.run())
    try:
        with anyio.fail_after(seconds):
            yield
            dispatcher.stop()
            await task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def passes(dispatcher: Dispatcher, chore: str, count: int = 3) -> None:
    """Let a chore of a running dispatcher pass that often, each time with every reason to look.

    For what must not happen: after so many passes it would have.
    """
    loop = dispatcher._loops[chore]
    plain, asked, passed = loop.chore.run_once, 0, 0

    async def counted() -> float | None:
        nonlocal passed
        number = asked  # a pass that was under way when it was asked for is not the one
        pause_s = await plain()
        passed = number
        return pause_s

    loop.chore.run_once = counted
    try:
        while passed < count:
            asked = passed + 1
            dispatcher._nudge()
            loop.wake()
            await until(lambda number=asked: passed == number)
    finally:
        loop.chore.run_once = plain


async def drained(dispatcher: Dispatcher, *, seconds: float = PATIENCE_S) -> None:
    with anyio.fail_after(seconds):
        await dispatcher.drain()


@contextlib.contextmanager
def child(path: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run `dispatch_child.py` in a real process; killed at the latest when the block ends."""
    command = [sys.executable, str(CHILD), str(path), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def ended(process: subprocess.Popen[str], seconds: float = PATIENCE_S) -> int:
    await until(lambda: process.poll() is not None, seconds)
    assert process.returncode is not None
    return process.returncode


def lines(path: Path) -> list[str]:
    """What the children wrote down, complete lines only."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
