"""The stores that the suite runs on: a new store is one more fixture id."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncqueue import queue as queue_module
from asyncqueue.clock import ManualClock
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Rules
from asyncqueue.stores.sqlite import statements


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["sqlite"])
def url(request, tmp_path, monkeypatch):
    """The address of a fresh, empty database; it does not wait for the disk, since nothing here cuts the power."""
    fast = {name: (journal, "PRAGMA synchronous=OFF") for name, (journal, _) in statements.PRAGMAS.items()}
    monkeypatch.setattr(statements, "PRAGMAS", fast)
    return str(tmp_path / "jobs.db")


@pytest.fixture
async def store(url, clock):
    opened = await open_store(url, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def late_store(url, clock):
    """The same store, opened so that it takes late reports."""
    opened = await open_store(url, clock=clock, rules=Rules(accept_late=True))
    yield opened
    await opened.close()


@pytest.fixture
async def queue(url, clock) -> AsyncIterator[queue_module.Queue]:
    async with queue_module.Queue.open(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def opening(url, clock):
    """How to open one more queue on the same database."""

    @asynccontextmanager
    async def open_another(**settings):
        async with queue_module.Queue.open(url, clock=clock, **settings) as opened:
            yield opened

    return open_another


class Raw:
    """A look at the tables beside the store, and the faults that only the database itself can have."""

    def __init__(self, path):
        self._path = path

    def select(self, sql):
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, sql):
        self.select(sql)

    def insert_jobs(self, rows):
        """Write whole rows (dicts) past the store."""
        names = list(rows[0])
        statement = f"INSERT INTO jobs ({','.join(names)}) VALUES ({','.join('?' * len(names))})"
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.executemany(statement, [tuple(row.values()) for row in rows])

    def break_history(self):
        self.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON attempts BEGIN SELECT raise(ABORT, 'history is broken'); END"
        )


@pytest.fixture
def raw(url):
    return Raw(url)


class Harness:
    """A store for tests that bring their own event loop, as Hypothesis needs; `fresh` empties it."""

    def __init__(self, url):
        self.url = url
        self.clock = ManualClock()
        self.raw = Raw(url)
        self._runner = asyncio.Runner()
        self.store = self.run(open_store(url, clock=self.clock))

    def run(self, awaitable):
        return self._runner.run(awaitable)

    def fresh(self):
        for table in ("jobs", "redrives", "attempts", "queues"):
            self.raw.execute(f"DELETE FROM {table}")

    def close(self):
        self.run(self.store.close())
        self._runner.close()


@pytest.fixture
def harness(url):
    opened = Harness(url)
    yield opened
    opened.close()


@pytest.fixture
def new_url(url):
    """A function that names one fresh database after the other."""
    numbers = itertools.count()
    return lambda: f"{url}-{next(numbers)}"
