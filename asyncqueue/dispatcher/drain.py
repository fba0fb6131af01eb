"""The drain chore: notices that no live job is left."""

from collections.abc import Callable, Sequence

from asyncqueue.dispatcher.claim import ClaimChore
from asyncqueue.dispatcher.flight import Flight
from asyncqueue.queue import Queue

__all__ = ["DrainChore"]


class DrainChore:
    """Woken when a look found nothing to claim and when the last report was answered."""

    name = "drain"

    def __init__(
        self,
        queue: Queue,
        flight: Flight,
        claim: ClaimChore,
        *,
        queues: Sequence[str] | None,
        drained: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._flight = flight
        self._claim = claim
        self._queues = queues
        self._drained = drained

    async def run_once(self) -> None:
        """Tell once nothing is held here and no live job is left, be it delayed or leased to others."""
        if self._claim.idle and not self._flight.held and await self._queue.next_due_ms(self._queues) is None:
            self._drained()
