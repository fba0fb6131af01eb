"""Being told by the kernel that somebody wrote to the files: inotify, by three calls of libc.

It saves an idle process nearly all of its looks. Where there is no alarm (another system, no instance left, an
event loop that watches no descriptors) the looks go on as often as the caller wishes.
"""

import asyncio
import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["Alarm"]

# From <sys/inotify.h>; the flags of inotify_init1 are those of open(2).
_MODIFY: Final = 0x0000_0002
_ONESHOT: Final = 0x8000_0000
_READ_BYTES: Final = 4096


class Alarm:
    """Rings once when the database or its log is written to; belongs to the event loop that arms it first.

    The bell is the write, which comes before the end of the commit: whoever hears it looks, and looks again soon.
    """

    def __init__(self, path: Path) -> None:
        self._files = (os.fsencode(path), os.fsencode(path) + b"-wal")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1
        self._is_refused = sys.platform != "linux"
        self._rings: set[Callable[[], None]] = set()

    def arm(self, ring: Callable[[], None]) -> bool:
        """Have `ring` called once, in this event loop, after the next write to the files; False if it never will.

        Arm it, then look: a commit in between is seen by the look or rings.
        """
        if self._fd < 0 and not self._is_refused:
            self._open(asyncio.get_running_loop())
        if self._loop is not asyncio.get_running_loop():
            return False
        database, log = self._files
        if not self._watch(database):
            return False
        if not self._watch(log) and os.path.exists(log):  # noqa: PTH110 - bytes; the other journals have none
            return False
        self._rings.add(ring)
        return True

    def close(self) -> None:
        """Let go of the descriptor; nothing rings any more. May be called again."""
        self._is_refused = True
        self._rings.clear()
        loop, self._loop = self._loop, None
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if loop is not None and not loop.is_closed():
                loop.remove_reader(fd)
            os.close(fd)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_refused = True
        try:
            self._fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd >= 0:
                loop.add_reader(self._fd, self._heard)
                self._loop = loop
        except (AttributeError, OSError, NotImplementedError):  # no such call in this libc, no such loop
            self.close()

    def _watch(self, file: bytes) -> bool:
        return bool(_libc().inotify_add_watch(self._fd, file, _MODIFY | _ONESHOT) >= 0)

    def _heard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._fd, _READ_BYTES):
                pass
        rings, self._rings = self._rings, set()
        for ring in rings:
            ring()


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
