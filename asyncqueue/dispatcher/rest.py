"""When an endpoint as a whole must be left alone: it refuses everybody, or it asked for time."""

import asyncio

from asyncqueue.retry import Outcome, Verdict

__all__ = ["EndpointRest"]

_FIRST_PAUSE_S = 1.0
_PAUSE_MAX_S = 30.0
_WISH_MAX_S = 60.0
_WRONG_ACKS_MAX = 3


class EndpointRest:
    """Counts endpoint faults in a row; between rests, one probe at a time goes out until one succeeds."""

    def __init__(self) -> None:
        self._faults = 0
        self._wrong_acks = 0
        self._until = 0.0

    def note(self, outcome: Outcome) -> float | None:
        """Take note of an outcome; the seconds of the rest that it starts, or None."""
        if outcome.verdict is Verdict.OK:
            self._faults = self._wrong_acks = 0
            return None
        self._wrong_acks = self._wrong_acks + 1 if outcome.verdict is Verdict.LEAVE else 0
        pause_s = 0.0
        if outcome.verdict is Verdict.HOLD or self._wrong_acks >= _WRONG_ACKS_MAX:
            pause_s = min(_PAUSE_MAX_S, _FIRST_PAUSE_S * 2 ** min(self._faults, 8))
        if outcome.verdict in (Verdict.HOLD, Verdict.RETRY) and outcome.retry_after_ms:
            pause_s = max(pause_s, min(outcome.retry_after_ms / 1000, _WISH_MAX_S))
        if not pause_s or self.remaining_s():
            return None  # those in flight when the rest began do not prolong it
        self._faults += 1
        self._until = asyncio.get_running_loop().time() + pause_s
        return pause_s

    def remaining_s(self) -> float:
        """Return how long the endpoint still rests, in seconds."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def limit(self, free: int) -> int:
        """Return how many of `free` slots may be used: one probe while the last word was a fault."""
        return min(free, 1) if self._faults else free
