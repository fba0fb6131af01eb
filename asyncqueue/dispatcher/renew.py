"""The renew chore: push held leases out in time, and end the sends whose lease was taken away."""

import asyncio

from asyncqueue.dispatcher.flight import Flight
from asyncqueue.dispatcher.lane import Ended
from asyncqueue.job import Renew
from asyncqueue.queue import Queue

__all__ = ["RenewChore"]

_BEATS = 3  # renewals per lease: one may fail and the lease still holds


class RenewChore:
    """Renews each lease every third of its length, all that are due in one commit."""

    name = "renew"

    def __init__(self, queue: Queue, flight: Flight, lease_ms: int) -> None:
        self._queue = queue
        self._flight = flight
        self._lease_ms = lease_ms
        self._beat_s = lease_ms / 1000 / _BEATS

    async def run_once(self) -> float | None:
        """Renew what is due; a delivery whose lease is not ours any more is ended at once."""
        now = asyncio.get_running_loop().time()
        due = [d for d in self._flight.held if now >= d.renewed_at + self._beat_s and d.ended is None]
        if due:
            answers = await self._queue.renew_many([Renew(d.job, self._lease_ms) for d in due])
            for delivery, lease_until in zip(due, answers, strict=True):
                if lease_until is None:
                    delivery.end(Ended.TAKEN)
                    delivery.renewed_at = now  # one whose report waits is asked for again, but not at once
                else:
                    delivery.renewed(lease_until, now, self._lease_ms / 1000)
        beats = [d.renewed_at + self._beat_s for d in self._flight.held if d.ended is None]
        now = asyncio.get_running_loop().time()
        return max(0.001, min(beats) - now) if beats else self._beat_s
