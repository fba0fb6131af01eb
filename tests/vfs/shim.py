"""A VFS that passes every call on to the real files and tells a listener of it first.

The listener may raise: then SQLite is told that the call failed, and nothing was done.
"""

# ruff: noqa: N802 - the names are SQLite's

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import apsw

__all__ = ["Call", "Listener", "Opened", "shim"]

_numbers = count(1)
_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL


@dataclass(frozen=True, slots=True)
class Call:
    """One call of SQLite to its files; `what` is the VFS method's name without its x, in lower case."""

    what: str
    path: str
    offset: int = 0
    data: bytes = b""
    is_journal: bool = False
    is_new: bool = False
    syncs_folder: bool = False


class Listener(Protocol):
    """Who is told of the calls."""

    def before(self, call: Call) -> None:
        """Take note; raise an `apsw.Error` to let the call fail."""

    def read(self, call: Call, data: bytes) -> bytes:
        """Return what the read of `call` is to give instead of `data`."""


@contextmanager
def shim(listener: Listener) -> Iterator[str]:
    """Register a VFS that tells `listener`, and yield its name."""
    name = f"shim{next(_numbers)}"
    vfs = _Vfs(name, listener)
    try:
        yield name
    finally:
        vfs.unregister()


class _Vfs(apsw.VFS):
    def __init__(self, name: str, listener: Listener) -> None:
        self._listener = listener
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:  # a temporary file: nobody misses it
            return apsw.VFSFile("", None, flags)
        is_new = not Path(path).exists()
        call = Call("open", path, is_journal=bool(flags[0] & _JOURNALS), is_new=is_new)
        self._listener.before(call)
        return Opened(name, flags, call, self._listener)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._listener.before(Call("delete", filename, syncs_folder=bool(syncdir)))
        super().xDelete(filename, syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:
        self._listener.before(Call("access", pathname))
        return super().xAccess(pathname, flags)


class Opened(apsw.VFSFile):
    """An open file."""

    def __init__(self, name: Any, flags: list[int], opened: Call, listener: Listener) -> None:
        self._opened = opened
        self._listener = listener
        super().__init__("", name, flags)

    def _tell(self, what: str, offset: int = 0, data: bytes = b"") -> Call:
        opened = self._opened
        call = Call(what, opened.path, offset, data, opened.is_journal, opened.is_new)
        self._listener.before(call)
        return call

    def xRead(self, amount: int, offset: int) -> bytes:
        call = self._tell("read", offset)
        return self._listener.read(call, super().xRead(amount, offset))

    def xWrite(self, data: bytes, offset: int) -> None:
        self._tell("write", offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._tell("truncate", newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._tell("sync")
        super().xSync(flags)

    def xFileSize(self) -> int:
        self._tell("filesize")
        return super().xFileSize()

    def xLock(self, level: int) -> None:
        self._tell("lock", level)
        super().xLock(level)

    def xCheckReservedLock(self) -> bool:
        self._tell("checkreservedlock")
        return super().xCheckReservedLock()
