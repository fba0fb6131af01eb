"""Telling cheaply that nobody has written: by the times and sizes of the database's files.

A `stat` costs a few microseconds, where asking the driver costs a hop to its thread. So an idle process may look
often.
"""

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Look", "Mark", "look_at", "number_of"]

Mark = tuple[tuple[int, int], ...]
"""Time of the last write (ns) and size (bytes) of the database and of its log."""

# A commit that leaves no trace may follow a write: the log is written and flushed, and only then does the shared
# memory beside it say so. A disk under load takes its time to flush; besides, file systems take their times from a
# clock that ticks every 1 to 16 ms.
_SETTLED_NS: Final = 1_000_000_000


class Look(NamedTuple):
    """What the files tell: the database's number (inode), 0 if there is none, and its mark.

    The mark is what any later commit will change; None while that is not certain, since a write was just now.
    """

    number: int
    mark: Mark | None


def look_at(path: Path) -> Look:
    """Look at the database at `path` and its log: one `stat` each."""
    files = tuple(_of(name) for name in (os.fspath(path), f"{path}-wal"))
    mark = tuple((written_ns, size) for _number, written_ns, size in files)
    newest_ns = max(written_ns for written_ns, _size in mark)
    return Look(files[0][0], mark if abs(time.time_ns() - newest_ns) > _SETTLED_NS else None)


def number_of(path: Path) -> int:
    """Return the database's number (inode), 0 if there is none."""
    return _of(os.fspath(path))[0]


def _of(name: str) -> tuple[int, int, int]:
    try:
        found = os.stat(name)  # noqa: PTH116 - never opened and closed: that would drop this process's locks on it
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_mtime_ns, found.st_size
