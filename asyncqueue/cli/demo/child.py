"""A child process of the demo: started, listened to, and gone when the demo is."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Any, BinaryIO

import anyio
from anyio.abc import Process

from asyncqueue.cli.failure import Failed
from asyncqueue.cli.supervise import read_records
from asyncqueue.cli.view import Tally

__all__ = ["Child", "receiver_command", "started"]


class Child:
    """A running process called `name`; its event lines are summed up in `tally`."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.tally = Tally()
        self._process = process

    @property
    def code(self) -> int | None:
        """Return the exit code, negative for a signal, None while it runs."""
        return self._process.returncode

    @property
    def owner(self) -> str:
        """Return the owner id that it claims under; empty until it has said so."""
        return self.tally.owners.get(self.name, "")

    async def first_record(self) -> dict[str, Any]:
        """Return the first line of its output, which must be JSON. Raises `Failed`."""
        line = b""
        try:
            while b"\n" not in line and self._process.stdout is not None:
                line += await self._process.stdout.receive()
            record = json.loads(line.split(b"\n", 1)[0])
        except (anyio.EndOfStream, ValueError):
            raise Failed(f"the {self.name} did not start: it said {line[:200]!r}") from None
        if type(record) is not dict:
            raise Failed(f"the {self.name} did not start: it said {line[:200]!r}")
        return record

    async def listen(self, log: BinaryIO) -> None:
        """Sum up its events until it ends, and keep them in `log`."""
        if self._process.stdout is not None:
            await read_records(self._process.stdout, self.tally, self.name, log.write)

    async def kill(self) -> int:
        """Send SIGKILL and return the exit code once the process is gone."""
        self._process.kill()
        return await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.code is None:
            self._process.terminate()
        return await self._process.wait()

    async def wait(self) -> int:
        """Return the exit code when it ends."""
        return await self._process.wait()


@asynccontextmanager
async def started(name: str, command: list[str]) -> AsyncIterator[Child]:
    """Run `command`; whatever happens, the process is gone after the block. Its stderr is ours.

    Its stdin is a pipe that ends when this process does, however that ends.
    """
    process = await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None, start_new_session=True)
    try:
        yield Child(name, process)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


def receiver_command(inbox: str) -> list[str]:
    """Return the command of a receiver on a free port of this host; it stops when its stdin ends."""
    return [sys.executable, "-m", "receiver", inbox, "--port", "0", "--stop-with-stdin"]
