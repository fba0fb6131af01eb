"""Sleeping, waking and error backoff, for every chore alike; what a chore does is its own `run_once`."""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import anyio

from asyncqueue.dispatcher.refusal import Refusals
from asyncqueue.errors import AsyncQueueError
from asyncqueue.events import ChoreFailed, ChoreRecovered, Events
from asyncqueue.job import printable

__all__ = ["Chore", "Loop"]

_FIRST_PAUSE_S = 0.05


class Chore(Protocol):
    """One kind of work that comes again and again."""

    name: str

    async def run_once(self) -> float | None:
        """Do what is due and return the seconds until the next look: 0 at once, None when woken.

        A chore that returns 0 has waited for something, or will at its next pass.
        """
        ...


class Loop:
    """Runs a chore for ever. A chore that raises is tried again, with capped backoff; it never dies silently.

    `on_refused` is told of each pass that ended with an error which waiting hardly mends: with that error, once it
    is certain that no later pass ends otherwise, else with None. The loop goes on.
    """

    def __init__(
        self,
        chore: Chore,
        events: Events,
        *,
        pause_max_s: float = 5.0,
        on_refused: Callable[[AsyncQueueError | None], None] | None = None,
    ) -> None:
        self.chore = chore
        self.failures = 0
        self.passed_at: float | None = None  # loop seconds of the last pass without error
        self._events = events
        self._pause_max_s = pause_max_s
        self._on_refused = on_refused
        self._refusals = Refusals()
        self._woken = asyncio.Event()

    @property
    def is_woken(self) -> bool:
        """Whether the next sleep is skipped already."""
        return self._woken.is_set()

    @property
    def is_refused(self) -> bool:
        """Whether the last pass ended with an error that waiting hardly mends."""
        return self._refusals.is_last

    def wake(self) -> None:
        """End the current sleep, or skip the next one. Does not shorten an error pause."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._woken.clear()
            try:
                delay_s = await self.chore.run_once()
            except Exception as error:  # noqa: BLE001 - told, backed off and tried again
                await anyio.sleep(self._failed(error))
                continue
            self._passed()
            if delay_s == 0:
                continue
            timer = None if delay_s is None else asyncio.get_running_loop().call_later(delay_s, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def _failed(self, error: Exception) -> float:
        self.failures += 1
        ceiling = min(self._pause_max_s, _FIRST_PAUSE_S * float(1 << min(self.failures - 1, 16)))
        pause_s = ceiling * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        text = printable(f"{type(error).__name__}: {error}")
        self._events.emit(ChoreFailed(self.chore.name, text, self.failures, round(pause_s * 1000)))
        refusal = self._refusals.note(error, asyncio.get_running_loop().time())
        if self.is_refused and self._on_refused is not None:
            self._on_refused(refusal)
        return pause_s

    def _passed(self) -> None:
        if self.failures:
            self._events.emit(ChoreRecovered(self.chore.name, self.failures))
            self.failures = 0
        self.passed_at = asyncio.get_running_loop().time()
        self._refusals.note(None, self.passed_at)
