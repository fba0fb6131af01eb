"""The stores that the suite runs on: a new store is one more fixture id."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncqueue import queue as queue_module
from asyncqueue.clock import ManualClock
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Rules
from asyncqueue.stores.sqlite import statements
from tests.store.raw import raw_of


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request, tmp_path, monkeypatch):
    """A function that names one fresh, empty database after the other.

    None of them waits for the disk, since nothing here cuts the power.
    """
    if request.param == "postgres":
        return request.getfixturevalue("new_postgres_url")
    fast = {name: (journal, "PRAGMA synchronous=OFF") for name, (journal, _) in statements.PRAGMAS.items()}
    monkeypatch.setattr(statements, "PRAGMAS", fast)
    numbers = itertools.count()
    return lambda: str(tmp_path / f"jobs-{next(numbers)}.db")


@pytest.fixture
def url(new_url):
    """The address of a fresh, empty database."""
    return new_url()


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


@pytest.fixture
def raw(url):
    return raw_of(url)


@pytest.fixture
def rows_of(raw):
    """Ask for rows on a connection that an effect was given, in the words of its driver."""

    async def ask(connection, sql):
        return [tuple(row) for row in await getattr(connection, raw.ask)(sql)]

    return ask


@pytest.fixture
def refusal(raw):
    """What an effect meets that tries to end its transaction."""
    return raw.refusal


class Harness:
    """A store for tests that bring their own event loop, as Hypothesis needs; `fresh` empties it."""

    def __init__(self, url):
        self.url = url
        self.clock = ManualClock()
        self.raw = raw_of(url)
        self._runner = asyncio.Runner()
        self.store = self.run(open_store(url, clock=self.clock))

    def run(self, awaitable):
        return self._runner.run(awaitable)

    def fresh(self):
        self.raw.empty("jobs", "redrives", "attempts", "queues")

    def close(self):
        self.run(self.store.close())
        self._runner.close()


@pytest.fixture
def harness(url):
    opened = Harness(url)
    yield opened
    opened.close()
