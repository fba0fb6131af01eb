"""Threads of the simulated processes, as greenlets: they wait in virtual time and die with their process."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import greenlet

from tests.simulation import seams


class SimThread:
    """Stands in for `threading.Thread`; runs until it waits for something."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self._will_wake = False
        self._world = seams.world()
        self._process = self._world.current
        self._greenlet: greenlet.greenlet | None = None

    def start(self) -> None:
        self._process.threads.append(self)
        self._greenlet = greenlet.greenlet(self._run, parent=self._world.hub)
        self.wake(self._world.rng.uniform(10e-6, 100e-6))

    def is_alive(self) -> bool:
        return self._greenlet is not None and not self._greenlet.dead

    def wake(self, delay_s: float) -> None:
        """Go on after `delay_s`, if it is not going to already."""
        if not self._will_wake:
            self._will_wake = True
            self._world.at(delay_s, self._resume)

    def park(self) -> None:
        """Wait until somebody wakes it; called by the thread itself."""
        self._world.hub.switch()

    def release(self) -> None:
        """End it when the run is over, whatever its cleanup still tries."""
        for _ in range(20):
            if self._greenlet is None or self._greenlet.dead:
                return
            with contextlib.suppress(BaseException):  # its world is gone
                self._greenlet.throw(greenlet.GreenletExit)

    def _run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _resume(self) -> None:
        process, world = self._process, self._world
        if not process.is_alive or self._greenlet is None:
            return
        if process.stalled_until_ns > world.now_ns:
            world.at((process.stalled_until_ns - world.now_ns) / 1e9, self._resume)
            return
        self._will_wake = False
        world.current, world.thread = process, self
        try:
            self._greenlet.switch()
        finally:
            world.current = world.thread = None


class SimQueue:
    """Stands in for `queue.SimpleQueue`: what a thread waits for."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._getter: SimThread | None = None
        self._world = seams.world()

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)
        getter, self._getter = self._getter, None
        if getter is not None:
            getter.wake(self._world.disk.hop_s())

    put = put_nowait

    def get(self) -> Any:
        while not self._items:
            self._getter = self._world.thread
            self._world.thread.park()
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items
