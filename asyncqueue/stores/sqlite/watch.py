"""Telling cheaply that nobody has written: by the times and sizes of the database's files.

A `stat` costs a few microseconds, where asking the driver costs a hop to its thread. So an idle process may look
often.
"""

import os
import time
from pathlib import Path
from typing import Final

__all__ = ["Mark", "mark_of"]

Mark = tuple[tuple[int, int], ...]
"""Time of the last write (ns) and size (bytes) of the database and of its log."""

# File systems take their times from a clock that ticks every 1 to 16 ms: of two writes within one tick, the second
# leaves no trace.
_TICK_NS: Final = 20_000_000


def mark_of(path: Path) -> Mark | None:
    """Return what any later commit will change; None while that is not certain, since a write was just now."""
    files = tuple(_of(name) for name in (os.fspath(path), f"{path}-wal"))
    newest_ns = max(written_ns for written_ns, _size in files)
    return files if abs(time.time_ns() - newest_ns) > _TICK_NS else None


def _of(name: str) -> tuple[int, int]:
    try:
        found = os.stat(name)  # noqa: PTH116 - never opened and closed: that would drop this process's locks on it
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
