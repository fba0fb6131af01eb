"""The sweep chore: jobs without time or attempts left become dead although nobody claims."""

from collections.abc import Callable

from asyncqueue.queue import Queue

__all__ = ["SweepChore"]

_SET = 500
_EVERY_S = 5.0


class SweepChore:
    """Claims sweep too; this is for queues that are paused, held or idle. Bounded sets, one short commit each."""

    name = "sweep"

    def __init__(self, queue: Queue, swept: Callable[[], None]) -> None:
        self._queue = queue
        self._swept = swept
        self.has_swept = False

    async def run_once(self) -> float:
        """Sweep one set; come again at once while sets are full."""
        is_full = await self._queue.sweep(_SET) == _SET
        if not self.has_swept:
            self.has_swept = True
            self._swept()
        return 0.0 if is_full else _EVERY_S
