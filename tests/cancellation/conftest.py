"""No test here waits for the disk."""

import time

import pytest

from asyncqueue.stores.sqlite import statements
from tests.roles import NOW_MS


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """Do not wait for the disk."""
    fast = {name: (journal, "PRAGMA synchronous=OFF") for name, (journal, _) in statements.PRAGMAS.items()}
    monkeypatch.setattr(statements, "PRAGMAS", fast)
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
