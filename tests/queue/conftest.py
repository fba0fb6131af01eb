"""The queue on every store of the store suite, and what the tests of its verbs share."""

import asyncio
import contextlib

import pytest

from tests.spawning import spawn  # noqa: F401 - a fixture
from tests.store.conftest import clock, new_url, opening, queue, raw, refusal, rows_of, url  # noqa: F401 - fixtures


@pytest.fixture
def ledger(queue, raw):  # noqa: F811 - the fixture above
    """A table of the application beside the queue; returns its rows."""
    raw.execute("CREATE TABLE ledger (id TEXT PRIMARY KEY, attempt INTEGER)")
    return lambda: raw.select("SELECT id, attempt FROM ledger ORDER BY id")


@pytest.fixture
def pays():
    """Return an effect that books a job in the ledger, then raises `error` if there is one."""

    def effect(leased, error=None):
        async def work(connection):
            attempt = getattr(leased, "attempt", 0)
            await connection.execute(f"INSERT INTO ledger VALUES ('{leased.id}', {attempt})")
            if error is not None:
                raise error

        return work

    return effect


@pytest.fixture
def commits(queue, monkeypatch):  # noqa: F811 - the fixture above
    """Count the transactions of the queue's store."""
    count = []
    original = queue._store.write

    async def write(work, **options):
        count.append(1)
        return await original(work, **options)

    monkeypatch.setattr(queue._store, "write", write)
    return count


@pytest.fixture
def naps(monkeypatch):
    """Record every sleep instead of taking it."""
    taken = []
    original = asyncio.sleep

    async def sleep(delay, result=None):
        taken.append(delay)
        return await original(0, result)

    @contextlib.contextmanager
    def recording():
        monkeypatch.setattr(asyncio, "sleep", sleep)
        try:
            yield taken
        finally:
            monkeypatch.setattr(asyncio, "sleep", original)

    return recording
