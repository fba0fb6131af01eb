"""The one source of time: integer milliseconds since the Unix epoch, whatever the host's time zone is."""

import time
from datetime import UTC, datetime
from typing import Final, Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "time_text"]

_NS_PER_MS: Final = 1_000_000
_MS_MAX: Final = 253_402_300_799_000  # the last second of the year 9999


class Clock(Protocol):
    """What a store asks for the time."""

    def now_ms(self) -> int:
        """Return the time in milliseconds; never smaller than what the same clock returned before."""
        ...


class SystemClock:
    """The wall clock, held still while the host's clock is set back.

    A step back of one hour delays what is due by at most that hour; a step forward may end leases early,
    which the fence makes harmless. Nothing monotonic is ever stored: it would not survive a reboot.
    """

    def __init__(self) -> None:
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return wall-clock milliseconds, never less than before in this process."""
        self._last_ms = max(self._last_ms, time.time_ns() // _NS_PER_MS)
        return self._last_ms


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """Return the time that was last set."""
        return self._now_ms

    def advance(self, delta_ms: int) -> None:
        """Move the clock forward by `delta_ms` >= 0 milliseconds."""
        if delta_ms < 0:
            raise ValueError("a clock does not run backwards: delta_ms must be >= 0")
        self._now_ms += delta_ms


def time_text(at_ms: int | None) -> str | None:
    """Return a time (milliseconds since the epoch) as ISO 8601 in UTC, or the number if no calendar has it."""
    if at_ms is None:
        return None
    if not 0 <= at_ms <= _MS_MAX:
        return str(at_ms)
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
