"""The world: virtual time, what happens next, the simulated processes, and the history of a run."""

import asyncio
import hashlib
import heapq
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any

import greenlet

from tests.simulation.loop import SimLoop

EPOCH_MS = 1_700_000_000_000
NS = 1_000_000_000
STEPS_MAX = 400_000
NEVER_NS = 1 << 62


class Violation(Exception):
    """An invariant does not hold; the text says which and how."""


class Process:
    """One simulated process: an event loop of its own, threads, descriptors, and a death that runs no cleanup."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.loop = SimLoop(world, self)
        self.main: asyncio.Task[Any] | None = None
        self.is_alive = True
        self.stalled_until_ns = 0
        self.wall_high_ms = 0  # the latest wall-clock time that it has seen
        self.told_ns: dict[int, int] = {}  # when, in virtual time, the product's clock last told it this time (ms)
        self.threads: list[Any] = []
        self.connections: list[Any] = []
        self.gates: list[Any] = []
        self.endpoints: list[Any] = []
        self.on_exit: Callable[[Process, BaseException | None], None] = lambda _process, _error: None
        self.facts: dict[str, Any] = {}

    def __repr__(self) -> str:
        return self.name


class World:
    """Runs everything in one thread of the machine, in an order that its seed decides."""

    def __init__(self, seed: int, folder: str) -> None:
        self.seed = seed
        self._is_left = False
        self._folder = folder  # of this run alone: it is no part of the trace
        self.rng = random.Random(f"world {seed}")  # the scheduler, the network, the disk
        self.product_rng = random.Random(f"product {seed}")  # what the code under test draws
        self.now_ns = 0
        self.wall_step_ms = 0
        self.current: Process | None = None
        self.thread: Any = None  # the simulated thread that runs now, if one does
        self.processes: list[Process] = []
        self.steps = 0
        self.history: list[str] = []
        self.hub = greenlet.getcurrent()
        self._digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._graveyard: list[Any] = []
        self.violation: Violation | None = None

    # --- time --------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.now_ns / NS

    def wall_ns(self) -> int:
        """What the host's clock says; remembered per process, whose own clock never runs backwards."""
        wall_ms = EPOCH_MS + self.wall_step_ms + self.now_ns // 1_000_000
        if self.current is not None:
            self.current.wall_high_ms = max(self.current.wall_high_ms, wall_ms)
        return wall_ms * 1_000_000

    def at(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen after `delay_s` of virtual time."""
        self._serial += 1
        when_ns = self.now_ns + max(0, int(delay_s * NS))
        heapq.heappush(self._events, (when_ns, self._serial, action, args))

    # --- history -----------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Add a line to the history; it is part of the trace."""
        if self._is_left:
            return
        who = self.current.name if self.current is not None else "world"
        line = f"{self.now_ns / NS:12.6f} {who:<14} {text}".replace(self._folder, "")
        self.history.append(line)
        self._digest.update(line.encode())

    def fail(self, text: str) -> None:
        """Note a violation, once, and stop the run at its next step.

        It is not raised here: the code under test would take it for an error of its own.
        """
        if self.violation is None:
            self.tell(f"VIOLATION {text}")
            self.violation = Violation(text)

    @property
    def trace(self) -> str:
        """A digest of everything that happened, in order."""
        return self._digest.hexdigest()

    # --- processes ---------------------------------------------------------------------------------------

    def spawn(self, name: str, main: Callable[[], Coroutine[Any, Any, Any]]) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        before, self.current = self.current, process
        self.tell("starts")
        process.main = process.loop.create_task(main(), name="main")
        self.current = before
        return process

    def kill(self, process: Process, why: str = "KILLED") -> None:
        """End a process as SIGKILL does: nothing of it runs any more, the kernel lets go of what it held."""
        if not process.is_alive:
            return
        process.is_alive = False
        before, self.current = self.current, process
        self.tell(why)
        self.current = before
        # kept until the run is over: collecting a coroutine would run its cleanup
        self._graveyard += [*process.loop.left(), *process.threads, process]
        for endpoint in process.endpoints:
            endpoint.owner_died()
        for connection in process.connections:
            connection.die()
        for gate in process.gates:
            if gate._fd is not None:
                os.close(gate._fd)
                gate._fd = None
        process.loop.die()
        self.processes.remove(process)

    def _exit(self, process: Process) -> None:
        main = process.main
        if main is None:
            return
        error = asyncio.CancelledError() if main.cancelled() else main.exception()
        self.kill(process, "exits" if error is None else f"exits by {type(error).__name__}: {error}")
        process.on_exit(process, error)

    # --- the scheduler -----------------------------------------------------------------------------------

    def run(self, is_over: Callable[[], bool], until_s: float) -> bool:
        """Let things happen until `is_over()` or the time is up; tell which."""
        until_ns = int(until_s * NS)
        while not is_over():
            if self.violation is not None:
                raise self.violation
            self._fire_due()
            runnable, next_ns = self._look()
            if runnable:
                self._step(runnable[0] if len(runnable) == 1 else self.rng.choice(runnable))
            elif next_ns > until_ns:
                return False
            else:
                self.now_ns = next_ns
        if self.violation is not None:
            raise self.violation
        return True

    def _fire_due(self) -> None:
        events = self._events
        while events and events[0][0] <= self.now_ns:
            _when, _serial, action, args = heapq.heappop(events)
            action(*args)

    def _step(self, process: Process) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation(f"I7: still busy after {STEPS_MAX} steps: something spins")
        self._digest.update(b"%d %s;" % (self.now_ns, process.name.encode()))
        self.current = process
        asyncio._set_running_loop(process.loop)
        try:
            process.loop.run_one()
        finally:
            asyncio._set_running_loop(None)
            self.current = None
        self.now_ns += self.rng.randrange(1_000, 30_000)
        if process.main is not None and process.main.done() and process.is_alive:
            self._exit(process)

    def _look(self) -> tuple[list[Process], int]:
        """Return who can run now, and when the next thing happens if nobody can."""
        runnable, now_ns = [], self.now_ns
        next_ns = self._events[0][0] if self._events else NEVER_NS
        for process in self.processes:
            when_ns = process.loop.next_ns()
            if when_ns is None:
                continue
            when_ns = max(when_ns, process.stalled_until_ns)
            if when_ns <= now_ns:
                runnable.append(process)
            elif when_ns < next_ns:
                next_ns = when_ns
        return runnable, next_ns

    def release(self) -> None:
        """Let go of the dead, whatever their cleanup still tries to do."""
        for process in tuple(self.processes):
            self.kill(process, "is left behind")
        self._is_left = True  # what the dead do in their cleanup comes in no certain order
        for task in self._graveyard:
            if isinstance(task, asyncio.Task):
                _close(task.get_coro())
            elif hasattr(task, "release"):
                task.release()
        self._graveyard.clear()


def _close(coroutine: Any) -> None:
    for _ in range(20):
        try:
            coroutine.close()
        except RuntimeError:  # it awaited something in its cleanup: again
            continue
        except BaseException:  # noqa: BLE001 - its world is gone, so anything may fail
            pass
        return
