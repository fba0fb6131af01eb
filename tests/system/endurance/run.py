"""One run: two dispatchers and a receiver as processes, killed by a plan, under traffic, watched every second."""

import asyncio
import random
import socket
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import aiosqlite

from asyncqueue import Queue
from asyncqueue.errors import StoreError
from tests.system.endurance.books import Books, Reader, reconcile
from tests.system.endurance.orders import BODY_BYTES_MAX
from tests.system.endurance.plan import OTHER, RECEIVER, ROLES, STEADY, Plan
from tests.system.endurance.traffic import KINDS, MAKE_ORDERS, Producer
from tests.system.endurance.watch import Life, Sizes, longest, out_of_bounds, sample, sizes, steep
from tests.system.soak import ROOT

LEASE_MS = 3_000
SAMPLE_S = 1.0
DRAIN_S_MAX = 120.0  # I7: with no more faults, everything has ended by then
LATE_S_MAX = 120.0  # how much longer a run may take until each thing has happened once
STOP_S_MAX = 30.0
PORTS = range(15_000, 32_000)  # below those that systems give to connections by themselves


@dataclass
class Result:
    """What a run did, what was seen, and what does not add up."""

    seed: int
    plan: Plan
    seconds: float = 0.0
    drained_s: float = 0.0
    kills: list[tuple[float, str]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    lives: list[Life] = field(default_factory=list)
    files: list[Sizes] = field(default_factory=list)
    books: Books = field(default_factory=Books)

    @property
    def faults(self) -> list[str]:
        return self.books.faults

    @property
    def judged(self) -> list[Life]:
        """The lives whose memory is judged: the longest of those that were left alone for long."""
        return [life for life in longest(self.lives) if life.role != OTHER]


class Member:
    """A process of the system, which is started again whenever it is killed."""

    def __init__(self, role: str, arguments: list[str], folder: Path) -> None:
        self.role = role
        self._command = [sys.executable, *arguments, "--json", "--stop-with-stdin"]
        self._log = folder / f"{role.replace(' ', '-')}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._is_being_killed = False

    async def start(self) -> None:
        with self._log.open("ab") as log:  # a file takes any number of lines, a pipe that nobody reads does not
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )
        self._is_being_killed = False

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._is_being_killed

    @property
    def ended(self) -> str | None:
        """Tell how it ended, if it did by itself."""
        if self._process is None or self._process.returncode is None or self._is_being_killed:
            return None
        return f"the {self.role} ended with {self._process.returncode}: {self._log.read_text()[-500:]}"

    async def kill(self) -> None:
        if self._process is not None:
            self._is_being_killed = True
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> str | None:
        """Stop it gracefully; what is wrong about its end.

        By the end of its input: one that is still starting has no handler for a signal yet.
        """
        if wrong := self.ended:
            return wrong
        if self._process is None or self._process.stdin is None:
            return None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S_MAX):
                status = await self._process.wait()
        except TimeoutError:
            return f"the {self.role} did not stop within {STOP_S_MAX:g} s"
        return self.ended if status else None


def quiet_port() -> int:
    """Return a free port that no connection is given as its own.

    Such a one could be taken while the receiver is dead, even by a dispatcher that is connected to itself then.
    """
    for port in random.SystemRandom().sample(PORTS, 100):
        try:
            with closing(socket.create_server(("127.0.0.1", port))):
                return port
        except OSError:
            continue
    raise RuntimeError(f"no free port among 100 of {PORTS}")


async def run(seed: int, folder: Path, seconds: float) -> Result:
    """Run for `seconds` in `folder`, then stop the faults, drain and reconcile; random is what `seed` decides."""
    plan, rng = Plan(seconds), random.Random(seed)
    result = Result(seed, plan)
    jobs, inbox, port = folder / "jobs.db", folder / "inbox.db", quiet_port()
    url = f"http://127.0.0.1:{port}/inbox"
    dispatch = ["-m", "asyncqueue", "dispatch", str(jobs), url, "--lease-ms", str(LEASE_MS), "--timeout-ms", "900"]
    dispatch += ["--concurrency", "16", "--retry-base-ms", "50", "--retry-cap-ms", "500"]
    receive = ["-m", "receiver", str(inbox), "--port", str(port), "--body-bytes-max", str(BODY_BYTES_MAX)]
    members = {role: Member(role, dispatch, folder) for role in (STEADY, OTHER)}
    members[RECEIVER] = Member(RECEIVER, receive, folder)
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(Queue.open(jobs, dedup_ms=plan.retention_ms, patience_ms=60_000))
        orders = await stack.enter_async_context(aiosqlite.connect(jobs, isolation_level=None, timeout=60))
        await orders.execute_fetchall(MAKE_ORDERS)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for member in members.values():
            stack.push_async_callback(member.kill)  # whatever happens, none is left behind
            await member.start()
        producer = Producer(queue, orders, session, url, result.books, random.Random(rng.random()))
        reader = Reader(jobs)
        stack.callback(reader.close)
        await _Run(result, rng, members, producer, queue, reader, (jobs, inbox)).go()
        for role in (STEADY, OTHER, RECEIVER):
            if wrong := await members[role].stop():
                result.books.fault(wrong)
    reconcile(result.books, jobs, inbox)
    grown = out_of_bounds(result.judged, result.files) if plan.is_long else []
    for fault in grown + (steep(result.judged) if plan.tells_slopes else []):
        result.books.fault(fault)
    return result


class _Run:
    """The tasks of a run."""

    def __init__(  # noqa: PLR0917 - the parts of a run, each of another type
        self,
        result: Result,
        rng: random.Random,
        members: dict[str, Member],
        producer: Producer,
        queue: Queue,
        reader: Reader,
        files: tuple[Path, Path],
    ) -> None:
        self._result = result
        self._rng = rng
        self._members = members
        self._producer = producer
        self._queue = queue
        self._reader = reader
        self._files = files
        self._began = time.monotonic()
        self._ended = asyncio.Event()  # of traffic and faults
        self._drained = asyncio.Event()  # and of everything
        self._alive: dict[str, Life] = {}

    async def go(self) -> None:
        for role in ROLES:
            self._is_born(role)
        result = self._result
        try:
            async with asyncio.timeout(result.plan.seconds + LATE_S_MAX + DRAIN_S_MAX):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._watch())
                    group.create_task(self._look())
                    traffic = group.create_task(self._producer.run(self._ended))
                    await self._kill()
                    self._ended.set()
                    result.seconds = self._now()
                    await traffic
                    await self._drain()
                    self._drained.set()
        except TimeoutError:
            result.books.fault(f"I7: not drained, or not each thing done once: {dict(self._producer.done)}")
        result.done = self._producer.done
        if missing := [kind for kind in KINDS if not result.done[kind]]:
            result.books.fault(f"this run had no {missing}: nothing was shown")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _is_born(self, role: str) -> None:
        self._alive[role] = Life(role, self._now())
        self._result.lives.append(self._alive[role])

    async def _kill(self) -> None:
        """Kill by the plan until its time is over, every role was killed, and each kind of traffic was seen."""
        plan, bag = self._result.plan, list[str]()
        while not self._is_enough():
            at_s = self._now()
            await asyncio.sleep(min(plan.pause_s(at_s, self._rng), max(0.2, plan.seconds - at_s)))
            if self._now() >= plan.seconds and self._were_all_killed():
                continue
            victims = plan.victims(self._now()) if self._were_all_killed() else ROLES
            # each of those who may be killed once, in random order, and so on
            bag = [role for role in bag if role in victims] or self._rng.sample(victims, len(victims))
            await self._kill_one(bag.pop())

    async def _kill_one(self, role: str) -> None:
        member = self._members[role]
        await member.kill()
        self._result.kills.append((self._now(), role))
        await member.start()
        self._is_born(role)

    def _were_all_killed(self) -> bool:
        return {role for _at, role in self._result.kills} == set(ROLES)

    def _is_enough(self) -> bool:
        done = self._producer.done
        return self._now() >= self._result.plan.seconds and self._were_all_killed() and all(done[k] for k in KINDS)

    async def _watch(self) -> None:
        """Note memory, descriptors, threads and sizes every second, and that nobody ended by itself."""
        while not self._drained.is_set():
            for role, member in self._members.items():
                if wrong := member.ended:
                    self._result.books.fault(wrong)
                seen = sample(member.pid, self._now()) if member.is_running else None
                if seen is not None:
                    self._alive[role].samples.append(seen)
            self._result.files.append(sizes(self._now(), *self._files))
            await asyncio.sleep(SAMPLE_S)

    async def _look(self) -> None:
        """Compare all jobs with the last look, and purge those that ended some time ago, every second."""
        books, age_ms = self._result.books, self._result.plan.retention_ms
        while not self._drained.is_set():
            async with books.lock:
                await self._reader.look(books)
                try:
                    for status in ("done", "dead"):
                        await self._queue.purge(status=status, older_than_ms=age_ms)
                except StoreError:
                    self._producer.done["purges refused by the store"] += 1
                await self._reader.look(books)
            await asyncio.sleep(SAMPLE_S)

    async def _drain(self) -> None:
        """Wait until no job is live any more, as nothing is killed any more."""
        began = self._now()
        while (await self._queue.stats()).live and self._now() - began < DRAIN_S_MAX:
            await asyncio.sleep(0.1)
        self._result.drained_s = self._now() - began
