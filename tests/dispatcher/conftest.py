"""A queue on every store for every test."""

from collections.abc import AsyncIterator

import pytest

from asyncqueue.queue import Queue


@pytest.fixture(params=["sqlite", "postgres"])
def path(request, tmp_path):
    """Where the queue is: a file, or a URL."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "jobs.db"


@pytest.fixture
async def queue(path) -> AsyncIterator[Queue]:
    async with Queue.open(path) as queue:
        yield queue
