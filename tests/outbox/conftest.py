"""A queue on a file that also has a table of the service, and a service with its own connection to it."""

from collections.abc import AsyncIterator

import pytest

from asyncqueue import Queue
from asyncqueue.clock import ManualClock
from tests.outbox.outbox_callers import KINDS, POSTGRES
from tests.store.raw import raw_of


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    """A kind of connection."""
    return request.param


@pytest.fixture
def path(request, tmp_path):
    """Where the database is: a file, unless the test's kind of connection is one of PostgreSQL."""
    if "kind" in request.fixturenames and request.getfixturevalue("kind") in POSTGRES:
        return request.getfixturevalue("postgres_url")
    return tmp_path / "app.db"


@pytest.fixture
async def queue(path, clock) -> AsyncIterator[Queue]:
    async with Queue.open(path, clock=clock) as opened:
        raw_of(str(path)).execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
        yield opened


@pytest.fixture
def orders(path):
    """The ids of the business rows that are committed."""

    return lambda: [row[0] for row in raw_of(str(path)).select("SELECT id FROM orders ORDER BY id")]


@pytest.fixture
async def caller(kind, queue, path):
    """A service with its own connection to the database."""
    opened = await kind().open(path)
    yield opened
    await opened.close()
