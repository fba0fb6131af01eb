"""When an endpoint as a whole must be left alone: it refuses everybody, or it asked for time."""

import asyncio
from collections.abc import Callable

from asyncqueue.retry import Outcome, Verdict

__all__ = ["EndpointRest"]

_FIRST_PAUSE_S = 1.0
_PAUSE_MAX_S = 30.0
_WISH_MAX_MS = 60_000
_WRONG_ACKS_MAX = 3


class EndpointRest:
    """Counts endpoint faults in a row; after a rest one probe at a time goes out until one succeeds."""

    def __init__(self) -> None:
        self._faults = 0
        self._wrong_acks = 0
        self._until = 0.0
        self._now: Callable[[], float] = _before_any_rest  # the event loop's clock, also for other threads

    def note(self, outcome: Outcome) -> float | None:
        """Take note of an outcome; the seconds of the rest that it starts or prolongs, or None."""
        if outcome.verdict is Verdict.OK:
            self._faults = self._wrong_acks = 0
            return None
        self._wrong_acks = self._wrong_acks + 1 if outcome.verdict is Verdict.LEAVE else 0
        resting_s = self.remaining_s()
        pause_s = 0.0
        if not resting_s and (outcome.verdict is Verdict.HOLD or self._wrong_acks >= _WRONG_ACKS_MAX):
            # those in flight when a rest began do not prolong it by their faults, only by what they ask for
            pause_s = min(_PAUSE_MAX_S, _FIRST_PAUSE_S * 2 ** min(self._faults, 8))
        if outcome.verdict in (Verdict.HOLD, Verdict.RETRY) and outcome.retry_after_ms:
            pause_s = max(pause_s, max(0, min(outcome.retry_after_ms, _WISH_MAX_MS)) / 1000)
        if pause_s <= resting_s:
            return None
        if not resting_s:
            self._faults += 1
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + pause_s
        return pause_s

    def remaining_s(self) -> float:
        """Return how long the endpoint still rests, in seconds; for any thread."""
        return max(0.0, self._until - self._now())

    def limit(self, free: int, sending: int) -> int:
        """Return how many of `free` slots may be used: while the last word was a fault, one probe at a time."""
        return min(free, max(0, 1 - sending)) if self._faults else free


def _before_any_rest() -> float:
    return 0.0
