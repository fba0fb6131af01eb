"""Where the event loop's thread spends its CPU time: a sampler that costs little and needs no other tool."""

import signal
import time
from collections import defaultdict
from types import FrameType, TracebackType
from typing import Self

__all__ = ["PARTS", "Sampler"]

_EVERY_S = 0.001  # of CPU time of the process
_OWNERS = (  # whose a frame is, by what its file's path holds; the first that fits
    ("/asyncqueue/dispatcher/send.py", "HttpSender and the wire"),
    ("/asyncqueue/wire.py", "HttpSender and the wire"),
    ("/asyncqueue/dispatcher/", "dispatcher"),
    ("/asyncqueue/", "queue and store"),
    ("/aiosqlite/", "aiosqlite"),
    ("/aiohttp/", "HTTP client"),
    ("/httpx/", "HTTP client"),
    ("/multidict/", "HTTP client"),
    ("/yarl/", "HTTP client"),
    ("/json/", "JSON"),
    ("/anyio/", "anyio"),
    ("/asyncio/", "asyncio and sockets"),
    ("/selectors.py", "asyncio and sockets"),
)
_OTHER = "other"
PARTS = (*dict.fromkeys(part for _path, part in _OWNERS), _OTHER)


class Sampler:
    """A context manager for the main thread; `us(count)` then has the CPU microseconds of each part.

    Each sample puts the CPU time that the thread has used since the last one to the account of the innermost frame
    that has an owner, so that time in other threads and time spent waiting count nowhere.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._last = 0.0
        self._began = self._process = 0.0
        self.main_s = self.others_s = 0.0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._sample)
        self._began = self._last = time.thread_time()
        self._process = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.main_s = time.thread_time() - self._began
        self.others_s = time.process_time() - self._process - self.main_s
        signal.signal(signal.SIGPROF, self._before)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        now = time.thread_time()
        self._seconds[_owner(frame)] += now - self._last
        self._last = now

    def us(self, count: int) -> dict[str, float]:
        """Return the microseconds of each part per job, scaled to all that the thread has used."""
        seen = sum(self._seconds.values()) or 1.0
        return {part: self._seconds[part] / seen * self.main_s / count * 1e6 for part in PARTS}


def _owner(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        for piece, owner in _OWNERS:
            if piece in path:
                return owner
        frame = frame.f_back
    return _OTHER
