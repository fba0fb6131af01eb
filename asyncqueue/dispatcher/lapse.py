"""The lapse chore: a send must not go on when its lease is over by this process's own clock."""

import asyncio

from asyncqueue.dispatcher.flight import Flight
from asyncqueue.dispatcher.lane import Ended

__all__ = ["LapseChore"]


class LapseChore:
    """Cuts sends short at the end of their leases, also while the store cannot be asked."""

    name = "lapse"

    def __init__(self, flight: Flight) -> None:
        self._flight = flight

    async def run_once(self) -> float | None:
        """End what has lapsed; look again when the next lease would."""
        now = asyncio.get_running_loop().time()
        under_way = [d for d in self._flight.held if d.ended is None and d.outcome is None]
        for delivery in under_way:
            if now >= delivery.lease_ends:
                delivery.end(Ended.LAPSED)
        left = [delivery.lease_ends for delivery in under_way if delivery.ended is None]
        self._flight.lapse_at = min(left, default=float("inf"))
        return max(0.001, self._flight.lapse_at - now) if left else None
