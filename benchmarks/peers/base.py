"""What a peer must do to be measured."""

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from benchmarks.harness import Skipped

__all__ = ["PAYLOAD", "PostgresPeer", "SqlitePeer", "needed"]

PAYLOAD = '{"sku":7}'


class SqlitePeer(Protocol):
    """A queue in a file of `folder`, every commit of it synced (synchronous=FULL)."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        """Open it; raises `Skipped` if the library is not installed."""

    def fill(self, count: int) -> None:
        """Put `count` jobs in, by whatever is fastest."""

    def enqueue(self, count: int) -> None:
        """Put `count` jobs in one by one, each with its own commit."""

    def drain(self) -> int:
        """Take, run and acknowledge until nothing is left; return how many jobs were run."""

    def close(self) -> None:
        """Close it."""


class PostgresPeer(Protocol):
    """A queue in a database of its own on a server with default durability."""

    name: ClassVar[str]

    def __init__(self, url: str, batch: int = 64) -> None:
        """Remember where, and how many jobs to drain at a time; raises `Skipped` if it is not installed."""

    async def prepare(self, count: int) -> None:
        """Make the tables and put `count` jobs in, in bulk."""

    async def bulk(self, count: int) -> None:
        """Put `count` jobs in by the fastest way that it offers, in sets."""

    async def one_by_one(self, count: int) -> None:
        """Put `count` jobs in, each with its own commit."""

    async def drain(self, count: int) -> float:
        """Run all jobs and close; return the seconds until the last one was over."""

    async def close(self) -> None:
        """Close it without a drain."""


def needed(module: str) -> Any:
    """Return the module of a peer's library, or raise `Skipped`."""
    try:
        return import_module(module)
    except ImportError:
        raise Skipped(f"{module} is not installed: pip install 'asyncqueue[peers]'") from None
