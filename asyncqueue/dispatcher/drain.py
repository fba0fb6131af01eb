"""The drain chore: notices that no live job is left."""

from collections.abc import Callable, Sequence

from asyncqueue.dispatcher.claim import ClaimChore
from asyncqueue.dispatcher.flight import Flight
from asyncqueue.dispatcher.sweep import SweepChore
from asyncqueue.queue import Queue

__all__ = ["DrainChore"]


class DrainChore:
    """Woken when a look found nothing to claim, when the last report was answered and by the first sweep."""

    name = "drain"

    def __init__(  # noqa: PLR0913 - wired once, by the dispatcher
        self,
        queue: Queue,
        flight: Flight,
        claim: ClaimChore,
        sweep: SweepChore,
        *,
        queues: Sequence[str] | None,
        kinds: Sequence[str] | None,
        drained: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._flight = flight
        self._claim = claim
        self._sweep = sweep
        self._queues = queues
        self._kinds = kinds
        self._drained = drained

    async def run_once(self) -> None:
        """Tell once nothing is held here and no live job of ours is left, be it delayed or leased to others.

        Not before the first sweep: it is what shows, where nothing waits, that the queue can be written at all.
        """
        if not self._claim.idle or self._flight.held or not self._sweep.has_swept:
            return
        if await self._queue.next_due_ms(self._queues, self._kinds) is None:
            self._drained()
