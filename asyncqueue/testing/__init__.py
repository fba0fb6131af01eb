"""For the tests of services that embed asyncqueue: a pytest plugin (fixtures named `asyncqueue_…`) and helpers.

Importing this costs next to nothing, since pytest does it at every start: the rest is imported when it is used,
and aiohttp only for the scripted receiver. See docs/testing.md.
"""

from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from asyncqueue.clock import ManualClock
    from asyncqueue.queue import Queue
    from asyncqueue.testing.draining import Drained, drain, inline
    from asyncqueue.testing.enqueued import assert_enqueued
    from asyncqueue.testing.receiver import ScriptedReceiver, Seen

try:
    from pytest_asyncio import fixture as _async_fixture
except ImportError:  # then the plugin of anyio runs async fixtures
    _async_fixture = pytest.fixture  # type: ignore[assignment]

__all__ = ["Drained", "ScriptedReceiver", "Seen", "assert_enqueued", "drain", "inline"]

_HOME: Final = {
    "Drained": "asyncqueue.testing.draining",
    "ScriptedReceiver": "asyncqueue.testing.receiver",
    "Seen": "asyncqueue.testing.receiver",
    "assert_enqueued": "asyncqueue.testing.enqueued",
    "drain": "asyncqueue.testing.draining",
    "inline": "asyncqueue.testing.draining",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'asyncqueue.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


@pytest.fixture
def asyncqueue_clock() -> "ManualClock":
    """Give the clock of `asyncqueue_queue`: it stands still, at the start of the test, until `advance(ms)`.

    Give it to an `HttpSender` too (`clock=`): a sender measures deadlines by its own.
    """
    from asyncqueue.clock import ManualClock, SystemClock  # noqa: PLC0415 - not at every start of pytest

    return ManualClock(SystemClock().now_ms())


@_async_fixture
async def asyncqueue_queue(tmp_path: Path, asyncqueue_clock: "ManualClock") -> "AsyncIterator[Queue]":
    """Give an empty queue in a temporary file, on `asyncqueue_clock`; closed after the test."""
    from asyncqueue.queue import Queue  # noqa: PLC0415 - not at every start of pytest

    async with Queue.open(tmp_path / "asyncqueue.db", clock=asyncqueue_clock) as queue:
        yield queue


@_async_fixture
async def asyncqueue_receiver() -> "AsyncIterator[ScriptedReceiver]":
    """Give a receiver on the loopback interface that does what the test tells it and remembers what it saw."""
    from asyncqueue.testing.receiver import ScriptedReceiver  # noqa: PLC0415 - imports aiohttp

    async with ScriptedReceiver() as receiver:
        yield receiver
