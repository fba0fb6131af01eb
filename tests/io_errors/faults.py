"""Faults of disks and locks: which calls each can hit, and what SQLite is told."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import apsw

from tests.vfs.shim import Call

__all__ = ["Fault", "Faulty"]

_EIO = {
    "access": apsw.SQLITE_IOERR_ACCESS,
    "checkreservedlock": apsw.SQLITE_IOERR_CHECKRESERVEDLOCK,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "filesize": apsw.SQLITE_IOERR_FSTAT,
    "lock": apsw.SQLITE_IOERR_LOCK,
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "write": apsw.SQLITE_IOERR_WRITE,
}
_GARBAGE = b"\xde"
_HEADER = 100
_TREE_PAGES = (2, 5, 10, 13)


class Fault(StrEnum):
    """What goes wrong."""

    EIO = "EIO"  # the device does not answer
    ENOSPC = "ENOSPC"  # no room for a write
    BUSY = "SQLITE_BUSY"  # another connection holds a lock on the file
    LOCKED = "SQLITE_LOCKED"  # a statement meets a lock inside SQLite
    CORRUPT = "corrupt page"  # a read gives garbage, once


@dataclass
class Faulty:
    """A listener that lets one call fail (`lasting`: that and all later ones) among those that `fault` can hit."""

    fault: Fault
    lasting: bool = False
    left: int | None = None  # the fault comes when so many calls have passed; None: no fault
    hits: int = 0

    def arm(self, number: int) -> None:
        """Let the `number`-th call from now, counted from 0, be the one that fails."""
        self.left, self.hits = number, 0

    def repair(self) -> bool:
        """Stop failing; tell whether anything had failed."""
        self.left = None
        return self.hits > 0

    def before(self, call: Call) -> None:
        """See `tests.vfs.shim.Listener`."""
        if code := self._code_for(call):
            self._strike(lambda: _raise(code))

    def read(self, call: Call, data: bytes) -> bytes:
        """See `tests.vfs.shim.Listener`."""
        struck: list[bytes] = []
        if self.fault is Fault.CORRUPT and not call.is_journal and _is_tree(call.offset, data):
            self._strike(lambda: struck.append(_GARBAGE * len(data)))
        return struck[0] if struck else data

    def statement(self, sql: str) -> None:
        """Be told of a statement before it runs. A ROLLBACK asks for no lock."""
        if self.fault is Fault.LOCKED and not sql.startswith("ROLLBACK"):
            self._strike(lambda: _raise(apsw.SQLITE_LOCKED))

    def _code_for(self, call: Call) -> int | None:
        if self.fault is Fault.EIO:
            return _EIO[call.what]
        if self.fault is Fault.ENOSPC and call.what == "write":
            return apsw.SQLITE_FULL
        if self.fault is Fault.BUSY and call.what == "lock":
            return apsw.SQLITE_BUSY
        return None

    def _strike(self, hit: Callable[[], None]) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.hits += 1
            self.left = 0 if self.lasting else None
            hit()
        else:
            self.left -= 1


def _is_tree(offset: int, data: bytes) -> bool:
    """Tell a page whose garbage SQLite can notice; what a cell holds has no checksum."""
    kind = data[_HEADER if offset == 0 else 0] if len(data) > _HEADER else 0
    return kind in _TREE_PAGES


def _raise(code: int) -> None:
    error = apsw.exception_for(code)
    error.args = ("injected",)
    raise error
