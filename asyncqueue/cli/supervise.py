"""Several dispatcher processes on one file: started, signalled, and started again if they die."""

import contextlib
import json
import signal
import time
from collections.abc import Callable
from subprocess import PIPE
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from asyncqueue.cli.failure import BAD_INPUT, REFUSED, Failed, say
from asyncqueue.cli.settings import DispatchSettings, child_command
from asyncqueue.cli.view import Tally

__all__ = ["Supervisor", "read_records"]

_RESTARTS_MAX: Final = 8  # in a row
_PAUSE_S: Final = 0.5  # before the first restart; doubled for each further one
_PAUSE_MAX_S: Final = 30.0
_LONG_LIFE_S: Final = 60.0  # who lived that long starts again with a clean record
_LINE_BYTES_MAX: Final = 64 * 1024


class Supervisor:
    """Runs `settings.processes` children and ends when all have ended.

    Signals go on to all children, which run in sessions of their own: a terminal's Ctrl-C reaches them once, by
    us. A child that dies without having been asked to is started again after a growing pause, eight times in a row
    at most; one that refuses its settings (exit code 2) is not. One whose store refuses for good (exit code 3) has
    said so, and the others are stopped: theirs is the same. Children stop by themselves when we die. Without a
    `tally` they share our stdout; with one their events go there instead.
    """

    def __init__(self, settings: DispatchSettings, tally: Tally | None) -> None:
        self._settings = settings
        self._command = child_command(settings)
        self._tally = tally
        self._children: dict[int, Process] = {}
        self._stopping = anyio.Event()
        self._failed = 0

    async def run(self) -> None:
        """Run the children to their end. Raises `Failed` if one of them failed for good."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._forward_signals)
            async with anyio.create_task_group() as children:
                for slot in range(self._settings.processes):
                    children.start_soon(self._keep, slot)
            group.cancel_scope.cancel()
        if self._failed:
            raise Failed(f"{self._failed} of {self._settings.processes} dispatcher processes failed: see above")

    async def _keep(self, slot: int) -> None:
        """Keep one child alive until it ends by itself, the stop is asked for, or it fails too often."""
        deaths = 0
        while not self._stopping.is_set():
            began_at = time.monotonic()
            code = await self._live(slot)
            if code == 0 or (self._stopping.is_set() and code < 0):
                return
            if time.monotonic() - began_at >= _LONG_LIFE_S:
                deaths = 0
            deaths += 1
            if code == REFUSED:
                self._failed += 1
                self._stop_all()
                return
            if code == BAD_INPUT or deaths > _RESTARTS_MAX or self._stopping.is_set():
                say("error", f"dispatcher process {slot + 1} {_how(code)}")
                self._failed += 1
                return
            pause_s = min(_PAUSE_S * 2 ** (deaths - 1), _PAUSE_MAX_S)
            again = f"restart {deaths} of {_RESTARTS_MAX} in {pause_s:g} s"
            say("note", f"dispatcher process {slot + 1} {_how(code)}: {again}")
            with anyio.move_on_after(pause_s):
                await self._stopping.wait()

    async def _live(self, slot: int) -> int:
        """Run one child to its end; return its exit code, negative for a signal."""
        source = str(slot)
        out = None if self._tally is None else PIPE
        async with await anyio.open_process(
            self._command, stdin=PIPE, stdout=out, stderr=None, start_new_session=True
        ) as child:
            self._children[slot] = child
            try:
                if self._stopping.is_set():  # asked for while the child was being started
                    _stop(child)
                if self._tally is not None and child.stdout is not None:
                    await read_records(child.stdout, self._tally, source)
                return await child.wait()
            finally:
                del self._children[slot]
                if self._tally is not None:
                    self._tally.gone(source)

    async def _forward_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for _number in signals:
                self._stop_all()

    def _stop_all(self) -> None:
        self._stopping.set()
        for child in tuple(self._children.values()):
            _stop(child)


async def read_records(
    stream: ByteReceiveStream, tally: Tally, source: str, keep: Callable[[bytes], object] | None = None
) -> None:
    """Feed the event lines of a child to `tally` until the stream ends; what is no event is passed over.

    `keep` gets every byte as it comes.
    """
    rest = b""
    async for chunk in stream:
        if keep is not None:
            keep(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:_LINE_BYTES_MAX]
        for line in lines:
            try:
                tally.feed(json.loads(line), source)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue


def _stop(child: Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"
