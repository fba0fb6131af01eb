"""A queue in a temporary file for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncqueue.queue import Queue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def queue(path: Path) -> AsyncIterator[Queue]:
    async with Queue.open(path) as queue:
        yield queue
