"""Where the event loop's thread spends its CPU time: a sampler that costs little and needs no tool (Linux)."""

import ctypes
import signal
import time
from collections import Counter
from types import FrameType, TracebackType
from typing import Final, Self

__all__ = ["PARTS", "Sampler"]

_EVERY_NS: Final = 1_000_000  # of CPU time of the thread; the kernel may round it up to its tick
_CLOCK_THREAD_CPUTIME_ID: Final = 3
_OWNERS: Final = (  # whose a frame is, by what its file's path holds; the first that fits
    ("/asyncqueue/dispatcher/send.py", "HttpSender and the wire"),
    ("/asyncqueue/wire.py", "HttpSender and the wire"),
    ("/asyncqueue/dispatcher/", "dispatcher"),
    ("/asyncqueue/", "queue and store"),
    ("/aiosqlite/", "aiosqlite"),
    ("/aiohttp/", "HTTP client"),
    ("/multidict/", "HTTP client"),
    ("/yarl/", "HTTP client"),
    ("/json/", "JSON"),
    ("/anyio/", "anyio"),
    ("/asyncio/", "asyncio and sockets"),
    ("/selectors.py", "asyncio and sockets"),
)
_OTHER: Final = "other"
PARTS: Final = (*dict.fromkeys(part for _path, part in _OWNERS), _OTHER)


class _Event(ctypes.Structure):
    """C's `struct sigevent`: which signal a timer sends."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Span(ctypes.Structure):
    """C's `struct itimerspec`."""

    _fields_ = (
        ("every_s", ctypes.c_long),
        ("every_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Sampler:
    """A context manager for the main thread; `us(count)` then has the CPU microseconds of each part.

    A timer on the CPU clock of this thread alone looks at the innermost frame that has an owner, so that neither
    time in other threads nor time spent waiting counts anywhere.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._library = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        self._main = self._process = 0.0
        self.main_s = self.others_s = 0.0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._sample)
        event = _Event(None, signal.SIGPROF, 0, b"")
        clock = ctypes.c_int(_CLOCK_THREAD_CPUTIME_ID)
        if self._library.timer_create(clock, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")
        self._main, self._process = time.thread_time(), time.process_time()
        span = _Span(0, _EVERY_NS, 0, _EVERY_NS)
        self._library.timer_settime(self._timer, 0, ctypes.byref(span), None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.timer_delete(self._timer)
        self.main_s = time.thread_time() - self._main
        self.others_s = time.process_time() - self._process - self.main_s
        signal.signal(signal.SIGPROF, self._before)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        self._seen[_owner(frame)] += 1

    def us(self, count: int) -> dict[str, float]:
        """Return the microseconds of each part per job: the thread's time, shared out by the samples."""
        seen = sum(self._seen.values()) or 1
        return {part: self._seen[part] / seen * self.main_s / count * 1e6 for part in PARTS}


def _owner(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        for piece, owner in _OWNERS:
            if piece in path:
                return owner
        frame = frame.f_back
    return _OTHER
