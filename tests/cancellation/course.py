"""What a cancellation must leave: a file that is before or after, and the resources of before."""

import contextlib
import shutil
import sqlite3
import threading

import psutil

from tests.power.images import read
from tests.waiting import until

__all__ = ["Course", "at_rest", "every_await", "resources", "writes_at_once"]

AWAITS_MAX = 200


class Course:
    """A role whose first steps were taken; each trial begins with a copy of what they left."""

    def __init__(self, role, steps, folder):
        self.role = role
        self.steps = steps
        self.path = folder / "work" / "base.db"
        self._start = folder / "start.db"

    async def prepare(self):
        self.path.parent.mkdir()
        for step in range(self.steps):
            async with self.role.open(self.path, step) as opened:
                await self.role.steps[step][1](opened)
        shutil.copy(self.path, self._start)

    def afresh(self):
        shutil.rmtree(self.path.parent)
        self.path.parent.mkdir()
        shutil.copy(self._start, self.path)

    def open(self):
        return self.role.open(self.path, self.steps)

    async def ends(self, call):
        """Return what the file holds before `call`, and after it."""
        self.afresh()
        before = read(self.path)
        async with self.open() as opened:
            await call(opened)
        return [before, read(self.path)]


def resources():
    return threading.active_count(), psutil.Process().num_fds()


async def at_rest(before):
    """Wait until there are no more threads and descriptors than before; the driver's threads end by themselves."""
    await until(lambda: all(now <= then for now, then in zip(resources(), before, strict=True)))


def writes_at_once(path, patience_s=0.0):
    """A read that was cancelled may go on for a moment in the driver's thread; it needs patience, a write none."""
    with contextlib.closing(sqlite3.connect(path, timeout=patience_s, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


async def every_await(trial):
    """Try `trial(number)` for 0, 1, 2 … until there is no such await."""
    for number in range(AWAITS_MAX):
        if not await trial(number):
            assert number > 0, "it never waited"
            return
    raise AssertionError("it never ran to its end")
