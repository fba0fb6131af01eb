"""A queue on every store for every test."""

from collections.abc import AsyncIterator

import pytest

from asyncqueue.dispatcher import exchange
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import statements
from tests.store.raw import raw_of


@pytest.fixture(params=["sqlite", "postgres"])
def path(request, tmp_path):
    """Where the queue is: a file, or a URL."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "jobs.db"


@pytest.fixture
def raw(path):
    """A look at its tables, past the store."""
    return raw_of(str(path))


@pytest.fixture
async def file_queue(tmp_path, monkeypatch) -> AsyncIterator[Queue]:
    """A queue in a file that does not wait for the disk: for thousands of runs, whatever the store."""
    fast = {name: (journal, "PRAGMA synchronous=OFF") for name, (journal, _) in statements.PRAGMAS.items()}
    monkeypatch.setattr(statements, "PRAGMAS", fast)
    async with Queue.open(tmp_path / "fast.db") as queue:
        yield queue


@pytest.fixture
async def queue(path) -> AsyncIterator[Queue]:
    async with Queue.open(path) as queue:
        yield queue


@pytest.fixture(params=["direct", "posted"])
def way(request, monkeypatch):
    """How a sender posts: as with the tested releases of aiohttp, and as with any other."""
    monkeypatch.setattr(exchange, "fits", lambda _release: request.param == "direct")
    return request.param
