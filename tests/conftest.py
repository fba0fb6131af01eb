"""What every test gets: a check that no database thread outlives it."""

import threading
from collections.abc import Iterator

import pytest


def _database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name]


@pytest.fixture(autouse=True)
def no_database_thread_survives() -> Iterator[None]:
    """Fail a test that leaves an aiosqlite connection open."""
    before = set(_database_threads())
    yield
    for thread in (left := set(_database_threads()) - before):
        thread.join(timeout=5)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"connections left open: {alive}"
