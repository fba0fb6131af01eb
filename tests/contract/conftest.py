"""Every test of a database function runs on two files: one of `open_queue`, one made by plain sqlite3."""

import sqlite3
from contextlib import closing

import aiosqlite
import contract_tools as tools
import pytest

from asyncqueue.worker import open_queue


@pytest.fixture(params=["open_queue", "plain sqlite3"])
async def path(request, tmp_path):
    """Return the path of an empty queue file."""
    where = tmp_path / "queue.db"
    if request.param == "open_queue":
        await (await open_queue(where)).close()
    else:
        with closing(sqlite3.connect(where)) as plain:
            plain.executescript(tools.SCHEMA)
    return where


@pytest.fixture
async def con(path):
    """Yield a borrowed connection that does not wait for locks."""
    async with aiosqlite.connect(path, isolation_level=None, timeout=0) as borrowed:
        yield borrowed


@pytest.fixture
def points():
    """Return a list that is also a fault hook: calling it appends."""

    class Points(list):
        def __call__(self, point):
            self.append(point)

    return Points()
