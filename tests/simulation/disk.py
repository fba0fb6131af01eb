"""SQLite as the simulated processes see it: real files, virtual waits, errors and preemption where a seed says so.

A process that dies leaves its transaction to SQLite, which rolls it back. Nothing is synced: what a power cut
leaves behind is not simulated here.
"""

import errno
import fcntl as real_fcntl
import sqlite3
from pathlib import Path
from typing import Any

from asyncqueue.stores.sqlite.gate import Gate
from tests.simulation import seams

_connect = sqlite3.connect
_COMMIT_FAULTS = ("refused", "undone", "done but reported as failed")
_ERRORS = {
    "I/O error": (sqlite3.SQLITE_IOERR, "disk I/O error"),
    "full": (sqlite3.SQLITE_FULL, "database or disk is full"),
    "busy": (sqlite3.SQLITE_BUSY, "database is locked"),
}


class Disk:
    """What the disk does wrong, and how long it takes; rates are per statement."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.error_rate = 0.0
        self.commit_error_rate = 0.0
        self.preempt_rate = 0.0
        self.slow_rate = 0.0
        self.pace = 1.0
        self.observers: dict[str, Any] = {}

    def calm(self) -> None:
        """No more faults."""
        self.error_rate = self.commit_error_rate = self.preempt_rate = self.slow_rate = 0.0

    def hop_s(self) -> float:
        """How long a thread takes to begin with what it was given."""
        rng = self._world.rng
        if rng.random() < self.slow_rate:
            return rng.uniform(0.001, 0.08)
        return self.pace * rng.uniform(20e-6, 300e-6)

    def before(self, connection: Any, sql: str) -> str:
        """Maybe let others run first, maybe fail; return what shall go wrong with this COMMIT."""
        rng = self._world.rng
        if self.preempt_rate and self._world.thread is not None and rng.random() < self.preempt_rate:
            self._world.thread.wake(rng.uniform(20e-6, 0.02))
            self._world.thread.park()
        if sql == "COMMIT":
            return rng.choice(_COMMIT_FAULTS) if rng.random() < self.commit_error_rate else ""
        if self.error_rate and rng.random() < self.error_rate:
            self._raise(connection, sql, rolls_back=rng.random() < 0.5)
        return ""

    def commit_failed(self, connection: Any, how: str) -> None:
        """Raise what COMMIT raises when it was refused (still open), undone, or done all the same."""
        self._world.tell(f"{connection.label}: COMMIT fails, {how}")
        raise _error("busy" if how == "refused" else "I/O error")

    def _raise(self, connection: Any, sql: str, *, rolls_back: bool) -> None:
        kind = self._world.rng.choice([*_ERRORS])
        if rolls_back and kind != "busy" and connection.in_transaction:
            connection.rollback()
        self._world.tell(f"{connection.label}: {kind} at {' '.join(sql.split())[:40]}")
        raise _error(kind)


def _error(kind: str) -> sqlite3.OperationalError:
    code, text = _ERRORS[kind]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


class _Simulated:
    """Mixed into whatever connection class the code under test asks for."""

    def bind(self, path: Any) -> None:
        self.world = seams.world()
        self.process = self.world.current
        self.process.connections.append(self)
        self.label = Path(path).stem
        self._observe = self.world.disk.observers.get(self.label)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        if not isinstance(parameters, tuple | list | dict):  # a whole transaction: its statements come one by one
            return super().execute(sql, parameters)
        sql = sql.strip()
        fault = self.world.disk.before(self, sql)
        if fault in ("refused", "undone"):
            if fault == "undone":
                super().rollback()
            self.world.disk.commit_failed(self, fault)
        cursor = super().execute(sql, parameters)
        if sql.startswith("PRAGMA synchronous"):
            super().execute("PRAGMA synchronous=OFF")
        if sql == "COMMIT":
            self.world.tell(f"{self.label}: committed")
            if self._observe is not None:
                self._observe(self.process)
            if fault:
                self.world.disk.commit_failed(self, fault)
        return cursor

    def die(self) -> None:
        """Be let go of by the kernel: an open transaction is rolled back."""
        super().close()


_classes: dict[type, type] = {}


def connect(path: Any, *_args: Any, factory: Any = sqlite3.Connection, **settings: Any) -> Any:
    """Stand in for `sqlite3.connect`; waiting for a lock is left to the caller, in virtual time."""
    settings |= {"timeout": 0, "check_same_thread": False}
    if factory not in _classes:
        _classes[factory] = type("Simulated", (_Simulated, factory), {})
    connection = _connect(path, factory=_classes[factory], **settings)
    connection.bind(path)
    return connection


class TrackedGate(Gate):
    """A gate whose descriptor the world closes when its process dies."""

    def __init__(self, database: Path) -> None:
        super().__init__(database)
        seams.world().current.gates.append(self)


class SimFcntl:
    """Stands in for the module `fcntl`: a blocking `flock` waits in virtual time."""

    LOCK_EX, LOCK_UN, LOCK_NB, LOCK_SH = (getattr(real_fcntl, f"LOCK_{how}") for how in ("EX", "UN", "NB", "SH"))

    @staticmethod
    def flock(fd: int, how: int) -> None:
        world = seams.world()
        while True:
            try:
                real_fcntl.flock(fd, how | (0 if how & real_fcntl.LOCK_UN else real_fcntl.LOCK_NB))
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK or how & real_fcntl.LOCK_NB:
                    raise
            else:
                return
            world.thread.wake(world.rng.uniform(50e-6, 2e-3))
            world.thread.park()
