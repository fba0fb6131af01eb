"""The claim chore: fill free slots, never more; when nothing is eligible, wait for a reason to look again."""

import asyncio

from asyncqueue.dispatcher.flight import Ended, Flight
from asyncqueue.dispatcher.rest import EndpointRest
from asyncqueue.events import Claimed, Events
from asyncqueue.queue import CLAIM_MAX, Queue

__all__ = ["ClaimChore"]


class ClaimChore:
    """Claims when there is a reason to look.

    The reasons: a slot fell free while more was there, an enqueue in this process, another connection's commit
    (polled by its version number, which takes no lock), or the next job falling due.
    """

    name = "claim"

    def __init__(  # noqa: PLR0913 - wired once, by the dispatcher
        self,
        queue: Queue,
        flight: Flight,
        rest: EndpointRest,
        events: Events,
        *,
        owner: str,
        lease_ms: int,
        queues: tuple[str, ...] | None,
        poll_s: float,
    ) -> None:
        self._queue = queue
        self._flight = flight
        self._rest = rest
        self._events = events
        self._owner = owner
        self._lease_ms = lease_ms
        self._queues = queues
        self._poll_s = poll_s
        self._nudged = True  # something in this process changed since the last look
        self._more = False  # the last claim got all it asked for
        self._seen_version = -1
        self._due_at = 0.0
        self.idle = False  # the last look found nothing more to claim
        self.waits_for_slot = False  # a slot that falls free is a reason to pass at once
        self.under_way = False
        self.stopped = False

    def nudge(self) -> None:
        """Look again at the next pass, whatever the poll says."""
        self._nudged = True

    async def run_once(self) -> float | None:
        """Claim as many jobs as there are free slots, if there is a reason to."""
        if self.stopped:
            return None
        if resting_s := self._rest.remaining_s():
            return resting_s
        limit = min(self._rest.limit(self._flight.free), CLAIM_MAX)
        self.waits_for_slot = limit <= 0
        if self.waits_for_slot:
            return None
        if not (self._more or self._nudged) and not await self._worth_a_look():
            return self._poll_s
        return await self._claim(limit)

    async def _worth_a_look(self) -> bool:
        if asyncio.get_running_loop().time() >= self._due_at:
            return True
        return await self._queue.version() != self._seen_version

    async def _claim(self, limit: int) -> float | None:
        loop = asyncio.get_running_loop()
        if not self._more:  # under load nobody asks for the version: the claims follow each other
            self._seen_version = await self._queue.version()
        self._nudged = False
        asked_at = loop.time()
        self.under_way = True
        try:
            jobs = await self._queue.claim(self._owner, limit=limit, lease_ms=self._lease_ms, queues=self._queues)
            deliveries = self._flight.take(jobs, asked_at)
        finally:
            self.under_way = False
        if self.stopped:  # too late to be used: given back
            for delivery in deliveries:
                delivery.end(Ended.STOPPED)
            return None
        self._more = self.waits_for_slot = len(jobs) == limit
        if jobs and self._events:
            self._events.emit(Claimed(len(jobs), self._flight.sending))
        if self._more:
            self.idle = False
            return 0
        due_ms = await self._queue.next_due_ms()
        self.idle = due_ms is None or due_ms > 0
        self._due_at = loop.time() + (self._poll_s if due_ms is None else due_ms / 1000)
        if due_ms is None:
            self._due_at = float("inf")
        return self._poll_s
