"""The gate: whose turn it is to write, handed over fairly between processes.

SQLite's own busy wait polls with growing sleeps, so a writer that works back to back starves the others
for seconds. An exclusive `flock` on a side file is held around each write transaction instead; the kernel
wakes whoever waits for it and releases it when its holder dies. It is advice only: writers that do not know
the gate still meet SQLite's locks, and where `flock` is missing or refused there is no gate.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - not on POSIX
    fcntl = None  # type: ignore[assignment]

__all__ = ["Gate"]

_HAS_FLOCK = fcntl is not None


class Gate:
    """One process's handle on the side file `<database>-gate`; one waiter at a time (its store has one turn)."""

    def __init__(self, database: Path) -> None:
        self._guard = threading.Lock()
        self._waiter: asyncio.Future[None] | None = None  # who is told when the waiting thread gets the lock
        self._thread_waits = False
        self._fd = _open_side_file(database)
        if self._fd is not None:
            _opened.add(self)

    @property
    def works(self) -> bool:
        """Whether this file system gives us the gate."""
        return self._fd is not None

    async def enter(self) -> None:
        """Wait for the turn: at once if it is free, else in a thread. Cancelling the wait gives the turn away."""
        if self.try_enter():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._wait_in_thread(waiter)
        try:
            await waiter
        except BaseException:
            self._give_up(waiter)
            raise

    def leave(self) -> None:
        """Hand the turn over. For any thread."""
        with self._guard:
            if self._fd is not None:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the side file; a thread that still waits closes it when its wait ends."""
        with self._guard:
            fd, self._fd = self._fd, None
            if fd is not None and not self._thread_waits:
                os.close(fd)

    def try_enter(self) -> bool:
        """Take the turn if it is free (or there is no gate); never waits. For any thread."""
        with self._guard:
            if self._fd is None:
                return True
            if self._thread_waits:
                return False  # that thread shares our descriptor: joining its wait keeps one owner
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # the file system refuses locks
                os.close(self._fd)
                self._fd = None
            return True

    def _wait_in_thread(self, waiter: "asyncio.Future[None]") -> None:
        with self._guard:
            self._waiter = waiter
            if not self._thread_waits and self._fd is not None:
                self._thread_waits = True
                # a daemon: a process may exit while another one holds the gate
                threading.Thread(target=self._wait, args=(self._fd,), name="asyncqueue-gate", daemon=True).start()

    def _wait(self, fd: int) -> None:
        with contextlib.suppress(OSError):  # refused: SQLite's own locks are still there
            fcntl.flock(fd, fcntl.LOCK_EX)
        with self._guard:
            self._thread_waits = False
            waiter, self._waiter = self._waiter, None
            if self._fd is None:
                os.close(fd)
            elif waiter is None:
                fcntl.flock(fd, fcntl.LOCK_UN)
            if waiter is not None:
                try:
                    waiter.get_loop().call_soon_threadsafe(_tell, waiter)
                except RuntimeError:  # its loop is closed: nobody is left to hand the turn on
                    fcntl.flock(fd, fcntl.LOCK_UN)

    def _give_up(self, waiter: "asyncio.Future[None]") -> None:
        with self._guard:
            if self._waiter is waiter:
                self._waiter = None  # the thread will release the lock as soon as it gets it
                return
        self.leave()  # the lock was ours already


def _tell(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def _open_side_file(database: Path) -> int | None:
    if not _HAS_FLOCK:
        return None
    try:
        return os.open(f"{database}-gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None


_opened: "weakref.WeakSet[Gate]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Let go of the parent's lock in a forked child, which would keep it after the parent's death."""
    for gate in list(_opened):
        if gate._fd is not None:  # noqa: SLF001 - same module
            os.close(gate._fd)  # noqa: SLF001 - same module
            gate._fd = None  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork
    os.register_at_fork(after_in_child=_close_in_child)
