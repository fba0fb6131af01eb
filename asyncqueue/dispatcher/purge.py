"""The purge chore: forgets ended jobs once they are old enough, in small sets between everybody else's work."""

import asyncio
import warnings
from dataclasses import dataclass

from asyncqueue.errors import ConfigError
from asyncqueue.job import PRODUCT
from asyncqueue.lifecycle import Status
from asyncqueue.queue import PURGE_SET, DedupHorizonWarning, Queue

__all__ = ["PurgeChore", "Retention", "warn_below_horizon"]

_EVERY_S = 60.0
_SHARE = 5  # of the time, one part at most is spent on purging
_PAUSE_MIN_S = 0.01


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept, in milliseconds since their end; None keeps them for ever.

    A purged id is forgotten: enqueued again, it is a new job. Keep both ages above the time in which a producer
    may still repeat an id (the queue's `dedup_ms`). Raises `ConfigError`.
    """

    done_ms: int | None = None
    dead_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse an age outside its range, and a retention that keeps everything."""
        for name in ("done_ms", "dead_ms"):
            value = getattr(self, name)
            if value is not None and value not in PRODUCT.delay_ms:
                raise ConfigError(
                    f"retention: {name} must be None or an integer from 0 to {PRODUCT.delay_ms.high}"
                )
        if not self.ages:
            raise ConfigError("retention: done_ms or dead_ms must be given")

    @property
    def ages(self) -> tuple[tuple[Status, int], ...]:
        """What is purged, and from which age on."""
        both = ((Status.DONE, self.done_ms), (Status.DEAD, self.dead_ms))
        return tuple((status, age_ms) for status, age_ms in both if age_ms is not None)


def warn_below_horizon(retention: Retention, queue: Queue) -> None:
    """Warn once of ages below the queue's dedup horizon; the passes then do not."""
    for status, age_ms in retention.ages:
        if age_ms < queue.dedup_ms:
            text = f"retention forgets {status} ids below the dedup horizon ({age_ms} < {queue.dedup_ms} ms)"
            warnings.warn(text, DedupHorizonWarning, stacklevel=3)


class PurgeChore:
    """One set, one short transaction, then a rest of several times its length."""

    name = "purge"

    def __init__(self, queue: Queue, retention: Retention) -> None:
        self._queue = queue
        self._ages = retention.ages

    async def run_once(self) -> float:
        """Purge one set of each status; come again soon while sets are full."""
        loop = asyncio.get_running_loop()
        began_at, is_full = loop.time(), False
        for status, age_ms in self._ages:
            is_full |= await self._queue.purge_set(status, age_ms, PURGE_SET) == PURGE_SET
        return max(_PAUSE_MIN_S, (_SHARE - 1) * (loop.time() - began_at)) if is_full else _EVERY_S
