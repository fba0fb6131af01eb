"""Telling cheaply that nobody has written: by the times and sizes of the database's files.

A `stat` costs a few microseconds, where asking the driver costs a hop to its thread. So an idle process may look
often.
"""

import os
import time
from pathlib import Path
from typing import Final

__all__ = ["Mark", "mark_of", "number_of"]

Mark = tuple[tuple[int, int], ...]
"""Time of the last write (ns) and size (bytes) of the database and of its log."""

# A commit that leaves no trace may follow a write: the log is written and flushed, and only then does the shared
# memory beside it say so. A disk under load takes its time to flush; besides, file systems take their times from a
# clock that ticks every 1 to 16 ms.
_SETTLED_NS: Final = 1_000_000_000


def mark_of(path: Path) -> Mark | None:
    """Return what any later commit will change; None while that is not certain, since a write was just now."""
    files = tuple(_of(name) for name in (os.fspath(path), f"{path}-wal"))
    newest_ns = max(written_ns for written_ns, _size in files)
    return files if abs(time.time_ns() - newest_ns) > _SETTLED_NS else None


def number_of(path: Path) -> int:
    """Return the number (inode) of the file that is at `path` now, 0 if there is none."""
    found = _stat(os.fspath(path))
    return 0 if found is None else found.st_ino


def _of(name: str) -> tuple[int, int]:
    found = _stat(name)
    return (0, 0) if found is None else (found.st_mtime_ns, found.st_size)


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - never opened and closed: that would drop this process's locks on it
    except OSError:
        return None
