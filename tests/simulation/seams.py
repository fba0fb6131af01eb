"""Where the simulation takes the place of the machine: clock, threads, locks, network, randomness.

Names are replaced in the modules that use them, once per process of the machine; the code under test is not
changed. Sets whose order of iteration would depend on addresses keep the order of insertion instead.
"""

import builtins
import queue
import random
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator, MutableSet
from typing import Any

_PACKAGES = ("asyncqueue", "receiver", "aiosqlite", "aiohttp")
_ORDERED = (
    "anyio._backends._asyncio",
    "asyncqueue.dispatcher.flight",
    "asyncqueue.dispatcher.claim",
    "asyncqueue.queue",
    "aiohttp.connector",
)
_world: Any = None


def world() -> Any:
    """The world that runs now."""
    return _world


def enter(new: Any) -> None:
    """Let everything that is simulated belong to this world from now on."""
    global _world  # noqa: PLW0603 - there is one at a time
    _world = new


class OrderedSet(MutableSet):
    """A set that is iterated in the order of insertion, whatever the addresses of its members are."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Any) -> None:
        self._items[item] = None

    def discard(self, item: Any) -> None:
        self._items.pop(item, None)

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            self._items.update(dict.fromkeys(other))

    def difference_update(self, *others: Iterable[Any]) -> None:
        for other in others:
            for item in tuple(other):
                self.discard(item)

    def copy(self) -> "OrderedSet":
        return OrderedSet(self)


class _Shim:
    """A module of which some names are replaced."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Random:
    def __getattr__(self, name: str) -> Any:
        return getattr(_world.product_rng, name)


def _token_hex(count: int = 16) -> str:
    return f"{_world.product_rng.getrandbits(8 * count):0{2 * count}x}"


def install() -> None:
    """Replace the machine by the simulation, in every module that is loaded by now."""
    import aiohappyeyeballs  # noqa: PLC0415 - only here

    from asyncqueue.stores.sqlite import connection  # noqa: PLC0415 - after what it replaces is known
    from tests.simulation import disk, network, threads  # noqa: PLC0415 - they need this module

    def monotonic() -> float:
        return _world.now_s

    clock = _Shim(
        time,
        monotonic=monotonic,
        monotonic_ns=lambda: _world.now_ns,
        perf_counter=monotonic,
        time=lambda: _world.wall_ns() / 1e9,
        time_ns=lambda: int(_world.wall_ns()),
        sleep=lambda _seconds: None,  # in a thread, which takes no time here
    )
    replaced = {
        id(time): clock,
        id(time.monotonic): monotonic,
        id(random): _Random(),
        id(secrets): _Shim(secrets, token_hex=_token_hex),
        id(threading): _Shim(threading, Thread=threads.SimThread),
        id(threading.Thread): threads.SimThread,
        id(queue.SimpleQueue): threads.SimQueue,
        id(aiohappyeyeballs): _Shim(aiohappyeyeballs, start_connection=network.start_connection),
        id(disk.real_fcntl): disk.SimFcntl,
    }
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES:
            for key, value in tuple(vars(module).items()):
                if id(value) in replaced:
                    setattr(module, key, replaced[id(value)])
        if name in _ORDERED:
            vars(module)["set"] = OrderedSet
    sqlite3.connect = disk.connect
    connection.Gate = disk.TrackedGate
    assert builtins.set is set  # only the named modules iterate differently
