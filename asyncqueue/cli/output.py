"""Lines to a file descriptor from a thread of its own: a slow reader never holds up a delivery.

Several processes may share the descriptor: whole lines are written with one call, and no more of them than a
pipe takes in one piece, so lines of different processes do not mix.
"""

import contextlib
import os
import select
import threading
from collections import deque
from types import TracebackType
from typing import Final, Self

__all__ = ["LineWriter"]

_WAITING_MAX: Final = 20_000  # lines in memory
_PIECE_BYTES: Final = 4_096  # PIPE_BUF on Linux: such a write to a pipe is not split
_CLOSE_S: Final = 2.0


class LineWriter:
    """Writes lines in order. Beyond 20,000 waiting lines new ones are dropped, and their number is told once.

    `put` never blocks. When the reader has gone, lines are silently thrown away. `close` waits up to two seconds
    for what is waiting.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        self._closing = False
        self._gone = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="asyncqueue-output", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Hand over one line without its end."""
        with self._changed:
            if self._gone:
                return
            if len(self._waiting) >= _WAITING_MAX:
                self._dropped += 1
                return
            if self._dropped:
                self._waiting.append(b'{"event": "events_dropped", "count": %d}\n' % self._dropped)
                self._dropped = 0
            self._waiting.append(line.encode("ascii", "backslashreplace") + b"\n")
            self._changed.notify()

    def close(self) -> None:
        """Write what is waiting, for two seconds at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_all(self) -> None:
        while (piece := self._next_piece()) is not None:
            try:
                _write(self._fd, piece)
            except OSError:
                with self._changed:
                    self._gone = True
                    self._waiting.clear()
                return

    def _next_piece(self) -> bytes | None:
        """Wait for lines; return as many as make up one piece, at least one, or None at the end."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            piece = self._waiting.popleft()
            while self._waiting and len(piece) + len(self._waiting[0]) <= _PIECE_BYTES:
                piece += self._waiting.popleft()
            return piece


def _write(fd: int, piece: bytes) -> None:
    while piece:
        with contextlib.suppress(BlockingIOError):
            piece = piece[os.write(fd, piece) :]
            continue
        select.select((), (fd,), ())
