"""A queue on a file that also has a table of the service, and a service with its own connection to it."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator

import pytest

from asyncqueue import Queue
from asyncqueue.clock import ManualClock
from tests.outbox.outbox_callers import KINDS


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "app.db"


@pytest.fixture
async def queue(path, clock) -> AsyncIterator[Queue]:
    async with Queue.open(path, clock=clock) as opened:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        yield opened


@pytest.fixture
def orders(path):
    """The ids of the business rows that are committed."""

    def select():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]

    return select


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
async def caller(request, queue, path):
    """A service with its own connection to the database."""
    opened = await request.param().open(path)
    yield opened
    await opened.close()
