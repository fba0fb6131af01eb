"""What the tests of the SQLite store share: child processes, conditions to wait for, and hooks on the driver."""

import contextlib
import sqlite3
import threading
import time

import aiosqlite
import psutil
import pytest

from asyncqueue.stores.sqlite import statements
from tests.spawning import spawn  # noqa: F401 - a fixture


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def no_sync(monkeypatch):
    """Do not wait for the disk: for tests of anything but durability."""
    fast = {name: (journal, "PRAGMA synchronous=OFF") for name, (journal, _) in statements.PRAGMAS.items()}
    monkeypatch.setattr(statements, "PRAGMAS", fast)


@pytest.fixture
def plain():
    """A plain connection of the standard library, closed after the test; it waits for nobody."""
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(
            contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None))
        )


@pytest.fixture
def writes_at_once():
    """Prove that nobody holds a lock: a plain connection writes without waiting, and the file is whole."""

    def check(path):
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("INSERT INTO queues (name) VALUES ('probe')")
            connection.execute("ROLLBACK")

    return check


@pytest.fixture
def hop_hook(monkeypatch):
    """Call a function before and after each hop to the driver's thread, with the number of the hop."""
    original = aiosqlite.Connection._execute
    state = {"hook": None, "hops": 0}

    async def execute(self, *arguments, **keywords):
        number, state["hops"] = state["hops"], state["hops"] + 1
        if state["hook"] is not None:
            state["hook"](number, "before")
        result = await original(self, *arguments, **keywords)
        if state["hook"] is not None:
            state["hook"](number, "after")
        return result

    monkeypatch.setattr(aiosqlite.Connection, "_execute", execute)

    def install(hook):
        state.update(hook=hook, hops=0)

    return install


@pytest.fixture
def resources():
    """Count the threads and descriptors of this process, once those that are ending have ended."""

    def count(expected=None):
        if expected is None:  # what earlier work left ending must not count as there
            for thread in threading.enumerate():
                if "_connection_worker_thread" in thread.name:
                    thread.join(timeout=5)
        end = time.monotonic() + 10
        while True:
            now = (threading.active_count(), psutil.Process().num_fds())
            if expected is None or time.monotonic() > end:
                return now
            if now[0] <= expected[0] and now[1] <= expected[1]:
                return expected
            time.sleep(0.001)

    return count
