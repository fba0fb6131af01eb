"""A process that has imported everything and forks one that is to be killed whenever it is asked to.

It reads one JSON object a line, `{"role", "path", "first", "last", "boundary" or "delay_s"}`, and answers with
one, `{"killed", "failed", "acknowledged"}`. The child takes the steps from `first` to before `last` and tells of
each that was answered. It dies by SIGKILL: between two statements of its last step (`boundary` statements have
ended by then), or after `delay_s` seconds.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.roles import NOW_MS, ROLES, Role


class Failpoints:
    """Counts the statements that ended; kills this process at the chosen one."""

    def __init__(self, boundary: int | None) -> None:
        self._boundary = boundary
        self._ended = -1  # the boundary before the first statement is one, too
        self.is_armed = False

    def arm(self) -> None:
        """Count from now on."""
        self.is_armed = True
        self.reach()

    def reach(self) -> None:
        """Be at a boundary between statements."""
        if self.is_armed:
            self._ended += 1
            if self._ended == self._boundary:
                os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def watched(points: Failpoints) -> Iterator[None]:
    """Let every connection that is opened meanwhile tell `points` of each statement that it has run."""
    connect = sqlite3.connect

    def watched_connect(*arguments: Any, factory: Any = sqlite3.Connection, **settings: Any) -> Any:
        class Watched(factory):  # type: ignore[misc]
            def execute(self, sql: str, parameters: Any = (), /) -> Any:
                result = super().execute(sql, parameters)
                if not hasattr(parameters, "run"):  # else its statements came by here, one by one
                    points.reach()
                return result

            def rollback(self) -> None:
                super().rollback()
                points.reach()

        return connect(*arguments, factory=Watched, **settings)

    with mock.patch("sqlite3.connect", watched_connect):
        yield


async def take_steps(role: Role, path: Path, steps: range, points: Failpoints, tell: int) -> None:
    """Take the steps, each on a file opened for it, and write a byte to `tell` for each answer."""
    for step in steps:
        name, take = role.steps[step]
        if step == steps[-1] and name == "open":
            points.arm()
        async with role.open(path, step) as opened:
            if step == steps[-1]:
                points.arm()
            await take(opened)
            points.is_armed = False
            os.write(tell, b".")


def child(asked: dict[str, Any], tell: int) -> None:
    """Do what was asked for; end by its own only if it was not killed."""
    points = Failpoints(asked.get("boundary"))
    with watched(points), mock.patch("time.time_ns", return_value=NOW_MS * 1_000_000):
        role, path = ROLES[asked["role"]], Path(asked["path"])
        asyncio.run(take_steps(role, path, range(asked["first"], asked["last"]), points, tell))


def serve(asked: dict[str, Any]) -> dict[str, Any]:
    """Fork one child and see it die."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            child(asked, writer)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    os.close(writer)
    if "delay_s" in asked:
        time.sleep(asked["delay_s"])  # a kill at any moment is the point
        os.kill(pid, signal.SIGKILL)
    acknowledged = 0
    while more := os.read(reader, 4096):
        acknowledged += len(more)
    os.close(reader)
    _pid, status = os.waitpid(pid, 0)
    return {"killed": os.WIFSIGNALED(status), "failed": status == 256, "acknowledged": acknowledged}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
