"""One run: producer, dispatchers, operator and receiver as processes, faults for a while, then peace and quiet."""

import asyncio
import contextlib
import logging
import random
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from asyncqueue.clock import SystemClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import AsyncQueueError, Conflict, NotDead, StoreError, UnknownJob
from asyncqueue.events import ChoreFailed, Claimed, Event, Events
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.retry import ACCEPTED, RetryPolicy
from asyncqueue.stores.sqlite.connection import Database
from receiver.app import DOOR, create_app
from receiver.server import BoundedSite
from tests.simulation import law as laws
from tests.simulation import seams
from tests.simulation.disk import Disk
from tests.simulation.law import Law
from tests.simulation.network import FATES, HOST, PORT, Network, SimSocket
from tests.simulation.world import Process, World

URL = f"http://{HOST}:{PORT}/inbox"
QUIET_S_MAX = 90.0  # from the last fault to the end of the last job, beyond what the clock was set back
STOP_S_MAX = 30.0
FAULTS = ("network", "refuse", "kill dispatcher", "kill receiver", "kill producer", "stop", "stall", "clock",
          "disk", "commit", "preempt", "slow disk", "operator", "cancel")  # fmt: skip
SHARE_STRUCK = 0.12  # of requests and commits, by a fault that the plan has


@dataclass
class Plan:
    """What a seed decides before the run."""

    jobs: list[NewJob]
    dispatchers: int
    concurrency: int
    timeout_ms: int
    lease_ms: int
    poll_ms: int
    grace_ms: int
    policy: RetryPolicy
    late: str
    history: str
    faults: set[str]
    fault_s: float
    redrives: int
    body_timeout_s: float
    rng: random.Random = field(repr=False)

    @classmethod
    def of(cls, seed: int) -> "Plan":
        rng = random.Random(f"plan {seed}")
        base_ms = rng.randint(1, 300)
        timeout_ms = rng.choice((300, 600, 1_000))
        names = (*FAULTS, "network")  # twice: more often than the others
        return cls(
            jobs=[_new_job(rng, number) for number in range(rng.randint(3, 12))],
            dispatchers=rng.choice((1, 2, 2, 3)),
            concurrency=rng.randint(1, 4),
            timeout_ms=timeout_ms,
            lease_ms=timeout_ms + rng.choice((2_001, 2_500, 4_000)),
            poll_ms=rng.choice((200, 500, 1_000)),
            grace_ms=rng.choice((0, 300, 2_000)),
            policy=RetryPolicy(base_ms, base_ms * rng.randint(1, 8), rng.choice((0, 1_500))),
            late=rng.choice(("strict", "strict", "accept")),
            history=rng.choice(("failures", "all")),
            faults={name for name in names if rng.random() < 0.45},  # a few at a time find more than all at once
            fault_s=rng.uniform(1.5, 6.0),
            redrives=rng.randint(0, 6),
            body_timeout_s=rng.choice((0.5, 5.0)),
            rng=rng,
        )


def _new_job(rng: random.Random, number: int) -> NewJob:
    return NewJob(
        f"job-{number}",
        rng.randint(1, 1_000),
        rng.choice((None, None, '{"sku":7}', '"\u00e9"')),
        queue=rng.choice(("default", "default", "other")),
        priority=rng.choice((0, 0, 5)),
        delay_ms=rng.choice((0, 0, 0, 700)),
        ttl_ms=rng.choice((1_500, 8_000, 60_000, 60_000, 10**9)),
        max_attempts=rng.choice((1, 2, 4, 50)),
    )


class Sender(HttpSender):
    """The shipped sender, watched."""

    def __init__(self, law: Law, limit: int, on_sent: Callable[[Process], None], **settings: Any) -> None:
        super().__init__(URL, **settings)
        self._law, self._limit, self._on_sent = law, limit, on_sent

    async def send(self, job: Any) -> Any:
        process = seams.world().current
        self._law.send_begins(process, job, self._limit)
        outcome = None
        try:
            outcome = await super().send(job)
        finally:
            if process.is_alive:
                self._law.send_ended(process, job, is_acked=outcome is ACCEPTED)
                self._on_sent(process)
        return outcome


class Scenario:
    """Plays the plan of one seed in `folder`, from files that `template` has made."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.plan = Plan.of(seed)
        self.world = world = World(seed, f"{folder}/")
        world.network, world.disk = Network(world), Disk(world)
        self.rng = self.plan.rng
        self.queue_path, self.inbox_path = folder / "queue.db", folder / "inbox.db"
        self.law = Law(world, self.queue_path, self.inbox_path, accepts_late=self.plan.late == "accept")
        world.network.on_request = self._on_request
        world.disk.observers = {"queue": self._on_queue_commit, "inbox": self._on_inbox_commit}
        self.is_faulty = True
        self.is_over = False
        self.left_to_enqueue = self._enqueues()
        self.redrives_left = self.plan.redrives
        self.set_back_ms = 0
        self.running: dict[str, Process] = {}

    def _enqueues(self) -> list[list[NewJob]]:
        """The calls of the producer: each job once or more, alone or with others."""
        jobs = [*self.plan.jobs, *self.rng.choices(self.plan.jobs, k=self.rng.randint(0, 3))]
        self.rng.shuffle(jobs)
        calls = []
        while jobs:
            size = self.rng.choice((1, 1, 2, 5))
            calls.append(jobs[:size])
            jobs = jobs[size:]
        return calls

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play it; raises `Violation`."""
        seams.enter(self.world)
        world, plan = self.world, self.plan
        try:
            for name in sorted(plan.faults):
                world.tell(f"may happen: {name}")
            self._arrange_faults()
            roles = {"receiver": self._receiver, "producer": self._producer}
            roles |= {f"dispatcher-{n}": self._dispatcher for n in range(plan.dispatchers)}
            if "operator" in plan.faults or plan.redrives:
                roles["operator"] = self._operator
            for name, main in roles.items():
                self._start(name, main)
            world.run(lambda: False, plan.fault_s)
            self._make_peace()
            bound_s = world.now_s + QUIET_S_MAX + self.set_back_ms / 1000
            if not world.run(self._has_ended, bound_s):
                world.fail(f"I7: {QUIET_S_MAX:g} s after the last fault live: {self.law.live()}, "
                           f"not enqueued: {self.left_to_enqueue}")  # fmt: skip
                raise world.violation
            self._stop_all()
            self.law.check_end()
            if world.violation is not None:
                raise world.violation
        finally:
            world.release()
            self.law.close()

    def _has_ended(self) -> bool:
        """Tell whether all work is done and nobody is left who could make more."""
        has_operator = any(process.name == "operator" for process in self.world.processes)
        return not self.left_to_enqueue and not has_operator and not self.law.live()

    def _start(self, name: str, main: Callable[[], Awaitable[None]]) -> None:
        if not self.is_over:
            process = self.running[name] = self.world.spawn(name, main)
            process.on_exit = lambda process, error: self._exited(process, main, error)

    def _exited(self, process: Process, main: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, AsyncQueueError):
            self.world.fail(f"{process} ends by {type(error).__name__}: {error}")
        if error is not None or process.facts.get("comes back"):
            self.world.at(self.rng.uniform(0.05, 1.0), self._start, process.name, main)

    def _make_peace(self) -> None:
        world = self.world
        world.tell("the faults are over")
        self.is_faulty = False
        world.network.calm()
        world.disk.calm()
        for process in world.processes:
            process.stalled_until_ns = 0

    def _stop_all(self) -> None:
        """Ask everybody to stop: each does, in time, and leaves nothing behind that it should have cleaned up."""
        world = self.world
        self.is_over = True
        for process in tuple(world.processes):
            stop = process.facts.get("stop")
            if stop is not None:
                process.facts["comes back"] = False
                process.loop.call_soon(stop)
        if not world.run(lambda: not world.processes, world.now_s + STOP_S_MAX):
            world.fail(f"I7: {world.processes} did not stop within {STOP_S_MAX:g} s")

    # --- the roles ---------------------------------------------------------------------------------------------

    async def _receiver(self) -> None:
        """Serve as `python -m receiver` does."""
        app = create_app(self.inbox_path, patience_ms=3_000, body_timeout_s=self.plan.body_timeout_s)
        stopping = self._stoppable()
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        try:
            await runner.setup()
            site = BoundedSite(runner, SimSocket(), connections_max=500, idle_s=20.0)
            await site.start()
            self.world.tell("listens")
            await stopping.wait()
            app[DOOR].is_stopping = True
            await site.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await app[DOOR].emptied()
        finally:
            await runner.cleanup()

    async def _dispatcher(self) -> None:
        plan = self.plan
        timeouts = {"timeout_ms": plan.timeout_ms, "connect_timeout_ms": plan.timeout_ms}
        sender = Sender(self.law, plan.concurrency, self._on_sent, **timeouts)
        async with (
            Queue.open(self.queue_path, late=plan.late, history=plan.history, patience_ms=3_000) as queue,
            Dispatcher(
                queue, sender, concurrency=plan.concurrency, lease_ms=plan.lease_ms, policy=plan.policy,
                poll_ms=plan.poll_ms, grace_ms=plan.grace_ms, events=Events(self._on_event),
            ) as dispatcher,
        ):  # fmt: skip
            process = self.world.current
            process.facts |= {"stop": dispatcher.stop, "abort": dispatcher.abort, "owner": dispatcher.owner}
            if self.is_over:  # asked to stop while it was still opening its files
                dispatcher.stop()
            await dispatcher.run()

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Claimed):
            self.world.tell(str(event))
        if isinstance(event, ChoreFailed) and not event.error.startswith("Store"):
            self.world.fail(f"a chore fails: {event.error}")

    async def _producer(self) -> None:
        async with Queue.open(self.queue_path, patience_ms=3_000) as queue:
            while self.left_to_enqueue:
                await asyncio.sleep(self.rng.uniform(0.0, 0.6) if self.is_faulty else 0.05)
                jobs = self.left_to_enqueue[0]
                try:
                    async with asyncio.timeout(self._impatience()):
                        answers = await queue.enqueue_many(jobs)
                except (StoreError, TimeoutError) as error:
                    self.world.tell(f"enqueue of {[job.id for job in jobs]}: {type(error).__name__}: unknown")
                    continue
                self.left_to_enqueue.pop(0)
                for job, answer in zip(jobs, answers, strict=True):
                    self.world.tell(f"enqueue of {job.id}: {answer}")
                    if not isinstance(answer, bool):
                        self.world.fail(f"I1: the enqueue of {job.id} was answered {answer}")
                        return
                    self.law.enqueue_answered(job.id, job.qty, is_new=answer)
                await self._look_back(queue, jobs[0])

    async def _look_back(self, queue: Queue, job: NewJob) -> None:
        """Another quantity under a known id is refused; what was acknowledged can be read."""
        with contextlib.suppress(StoreError):
            try:
                await queue.enqueue(job.id, job.qty + 1)
            except Conflict:
                self.world.tell(f"another {job.id} is refused")
            else:
                self.world.fail(f"I1: {job.id} was taken with another quantity")
        with contextlib.suppress(StoreError):
            found = await queue.get(job.id)
            if found is None or found.qty != job.qty:
                self.world.fail(f"I1: {job.id} reads as {found}")

    async def _operator(self) -> None:
        """Redrive, cancel, pause, look; while the faults last, and redrives until they are used up."""
        async with Queue.open(self.queue_path, patience_ms=3_000) as queue:
            while self.is_faulty:
                await asyncio.sleep(self.rng.uniform(0.05, 0.8))
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(self._impatience()):
                        await self._operate(queue)
            for name in ("default", "other"):
                await queue.resume(name)
                self.world.tell(f"resumed {name}")

    async def _operate(self, queue: Queue) -> None:
        rng = self.rng
        what = rng.choice(("redrive", "redrive many", "look", "sweep", *self._meddling()))
        job_id = f"job-{rng.randrange(len(self.plan.jobs))}"
        if what in ("redrive", "redrive many") and self.redrives_left <= 0:
            return
        self.world.tell(f"{what} {job_id}")
        if what == "redrive":
            with contextlib.suppress(NotDead):
                self.redrives_left -= 1
                await queue.redrive(job_id, note="again", ttl_ms=rng.choice((1_000, 60_000)))
        elif what == "redrive many":
            self.redrives_left -= 1
            await queue.redrive_many(note="all", ttl_ms=rng.choice((1_000, 60_000)))
        elif what == "cancel":
            with contextlib.suppress(UnknownJob):
                await queue.cancel(job_id)
        elif what == "pause":
            await queue.pause(rng.choice(("default", "other")))
        elif what == "resume":
            await queue.resume(rng.choice(("default", "other")))
        elif what == "sweep":
            await queue.sweep(rng.choice((1, 100)))
        else:
            await self._look(queue)

    def _meddling(self) -> tuple[str, ...]:
        return ("cancel", "pause", "resume", "resume") if "operator" in self.plan.faults else ()

    async def _look(self, queue: Queue) -> None:
        stats = await queue.stats(detail=True)
        if stats.total != sum(sum(each.values()) for each in stats.queues.values()) or stats.redrives < 0:
            self.world.fail(f"I4: stats do not add up: {stats}")
        for job in await queue.list(limit=100):
            history = await queue.history(job.id)
            tokens = [row.token for row in history]
            if tokens != sorted(tokens) or (tokens and tokens[-1] > job.token and job.status == "done"):
                self.world.fail(f"I3: the history of {job.id} runs back: {history}")

    def _stoppable(self) -> asyncio.Event:
        stopping = asyncio.Event()
        self.world.current.facts["stop"] = stopping.set
        if self.is_over:
            stopping.set()
        return stopping

    def _impatience(self) -> float | None:
        if self.is_faulty and "cancel" in self.plan.faults and self.rng.random() < 0.4:
            return self.rng.choice((0.0, 0.0005, 0.002, 0.01, 0.1)) * self.rng.random()
        return None

    # --- the faults --------------------------------------------------------------------------------------------

    def _arrange_faults(self) -> None:
        plan, rng, world = self.plan, self.rng, self.world
        network, disk = world.network, world.disk
        if "network" in plan.faults:
            chosen = [fate for fate in FATES if rng.random() < 0.5] or [*FATES]
            network.fates = {fate: rng.uniform(0.1, 0.9) / len(chosen) for fate in chosen}
        if "refuse" in plan.faults:
            network.refuse_rate, network.hang_rate = rng.uniform(0, 0.3), rng.uniform(0, 0.1)
        network.latency_s = rng.choice(((0.0002, 0.004), (0.0002, 0.004), (0.001, 0.05), (0.001, 0.2)))
        disk.pace = rng.choice((1.0, 1.0, 10.0, 60.0))
        disk.error_rate = rng.uniform(0, 0.02) if "disk" in plan.faults else 0.0
        disk.commit_error_rate = rng.uniform(0, 0.15) if "commit" in plan.faults else 0.0
        disk.preempt_rate = rng.uniform(0, 0.1) if "preempt" in plan.faults else 0.0
        disk.slow_rate = rng.uniform(0, 0.2) if "slow disk" in plan.faults else 0.0
        for fault in ("kill dispatcher", "kill receiver", "kill producer", "stop", "stall", "clock"):
            if fault in plan.faults:
                for _ in range(rng.randint(1, 4)):
                    world.at(rng.uniform(0.0, plan.fault_s), self._strike, fault)

    def _on_request(self, process: Process, job_id: str, token: int) -> None:
        self.law.requested(process, job_id, token)
        self._strike_soon(process, 0.005, "stall", "kill dispatcher", "stop")

    def _on_sent(self, process: Process) -> None:
        self._strike_soon(process, 0.002, "stall", "stall", "kill dispatcher")

    def _on_queue_commit(self, process: Process) -> None:
        self.law.queue_committed(process)
        if process.name.startswith("dispatcher"):
            self._strike_soon(process, 0.001, "kill dispatcher")

    def _on_inbox_commit(self, process: Process) -> None:
        self.law.inbox_committed(process)
        self._strike_soon(process, 0.001, "kill receiver", "stall")

    def _strike_soon(self, process: Process, within_s: float, *faults: str) -> None:
        """Let a fault hit where it hurts: just after something was sent or committed."""
        if self.is_faulty and self.rng.random() < SHARE_STRUCK:
            chosen = [fault for fault in faults if fault in self.plan.faults]
            if chosen:
                self.world.at(self.rng.uniform(0.0, within_s), self._strike, self.rng.choice(chosen), process)

    def _strike(self, fault: str, victim: Process | None = None) -> None:
        if not self.is_faulty or (victim is not None and not victim.is_alive):
            return
        world, rng = self.world, self.rng
        role = fault.removeprefix("kill ")
        living = [p for p in world.processes if p.name.startswith(role) or not fault.startswith("kill")]
        if victim is not None:
            living = [victim]
        if fault == "clock":
            step_ms = rng.choice((-30_000, -2_000, -500, 500, 2_000, 30_000))
            self.set_back_ms += max(0, -step_ms)
            world.wall_step_ms += step_ms
            world.tell(f"the wall clock is set by {step_ms} ms")
        elif not living:
            return
        elif fault == "stall":
            process, span_s = rng.choice(living), rng.choice((0.1, 1.0, 8.0)) * rng.random()
            if victim is not None and rng.random() < 0.7:  # until its lease has just been taken over
                span_s = self.plan.lease_ms / 1000 + rng.uniform(0.0, 0.15)
            process.stalled_until_ns = world.now_ns + int(span_s * 1e9)
            world.tell(f"{process} stalls for {span_s:.3f} s")
        elif fault == "stop":
            self._ask_to_stop(rng.choice(living))
        else:
            process = rng.choice(living)
            world.kill(process)
            main = {"receiver": self._receiver, "producer": self._producer}.get(role, self._dispatcher)
            world.at(rng.uniform(0.01, 2.0), self._start, process.name, main)

    def _ask_to_stop(self, process: Process) -> None:
        how = "abort" if self.rng.random() < 0.3 and "abort" in process.facts else "stop"
        if process.facts.get(how) is not None:
            self.world.tell(f"{process} is asked to {how}")
            process.facts["comes back"] = True
            process.loop.call_soon(process.facts[how])


def watch_transactions() -> None:
    """Let each send know whether it began inside a write transaction."""
    for name in ("write", "write_inline"):
        real = getattr(Database, name)

        def watched(self: Any, work: Any, real: Any = real) -> Any:
            async def inside(connection: Any) -> Any:
                token = laws.in_transaction.set(True)
                try:
                    return await work(connection)
                finally:
                    laws.in_transaction.reset(token)

            return real(self, inside)

        setattr(Database, name, watched)


def watch_clock() -> None:
    """Let each process know when its clock told it what: the law asks."""
    real = SystemClock.now_ms

    def watched(self: SystemClock) -> int:
        now_ms = real(self)
        world = seams.world()
        if world is not None and world.current is not None:
            world.current.told_ns[now_ms] = world.now_ns
        return now_ms

    SystemClock.now_ms = watched


class Complaints(logging.Handler):
    """What the code under test logs as an error about itself is a violation."""

    def emit(self, record: logging.LogRecord) -> None:
        world = seams.world()
        if world is None:
            return
        text = record.getMessage()
        if record.exc_info and isinstance(record.exc_info[1], StoreError | sqlite3.Error):
            return
        if record.levelno >= logging.ERROR:
            world.fail(f"{record.name} logs: {text} {record.exc_info[1] if record.exc_info else ''!r}")
