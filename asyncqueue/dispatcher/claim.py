"""The claim chore: fill free slots, never more; when nothing is eligible, wait for a reason to look again."""

import asyncio
from collections.abc import Callable

from asyncqueue.dispatcher.flight import Ended, Flight
from asyncqueue.dispatcher.rest import EndpointRest
from asyncqueue.events import Claimed, Events
from asyncqueue.queue import CLAIM_MAX, Queue

__all__ = ["ClaimChore"]


_MISS_PAUSE_S = 0.005
_MISS_PAUSE_MAX_S = 1.0


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
        self._misses = 0  # looks in a row that the timer asked for and that found nothing
        self._seen_version = -1
        self._due_at = 0.0
        self.idle = False  # the last look found nothing more to claim
        self.waits = False  # for a slot, for a probe's answer or for the end of the endpoint's rest
        self.under_way = False
        self.stopped = False
        self.on_looked: Callable[[], None] = _nothing

    def nudge(self) -> None:
        """Look again at the next pass, whatever the poll says."""
        self._nudged = True

    async def run_once(self) -> float | None:
        """Claim as many jobs as there are free slots, if there is a reason to."""
        if self.stopped:
            return None
        resting_s = self._rest.remaining_s()
        limit = min(self._rest.limit(self._flight.free, self._flight.sending), CLAIM_MAX)
        self.waits = limit <= 0 or resting_s > 0
        if self.waits:
            return resting_s or None
        try:
            # under load nobody asks for the version: the claims follow each other
            if not self._more and not await self._worth_a_look():
                return self._pause_s()
            return await self._claim(limit)
        except Exception:
            self._nudged = True  # whatever was the reason to look, it still is
            raise

    async def _worth_a_look(self) -> bool:
        version = await self._queue.version()
        if self._nudged or version != self._seen_version:
            self._seen_version = version
            self._misses = 0
            return True
        return asyncio.get_running_loop().time() >= self._due_at

    async def _claim(self, limit: int) -> float | None:
        if self.stopped:
            return None
        self._nudged = False
        self.under_way = True
        asked_at = asyncio.get_running_loop().time()
        try:
            jobs = await self._queue.claim(self._owner, limit=limit, lease_ms=self._lease_ms, queues=self._queues)
            deliveries = self._flight.take(jobs, asked_at)
        finally:
            self.under_way = False
            self.on_looked()
        if self.stopped:  # too late to be used: given back
            for delivery in deliveries:
                delivery.end(Ended.STOPPED)
            return None
        if jobs and self._events:
            self._events.emit(Claimed(len(jobs), self._flight.sending))
        self._more = len(jobs) == limit
        if self._more:
            self.idle = False
            return 0
        await self._note_due(found=bool(jobs))
        return self._pause_s()

    async def _note_due(self, *, found: bool) -> None:
        """Set the timer for the next job that falls due.

        What is due and yet was not claimed (a paused queue; a store whose clock stands still) is looked for
        with growing pauses.
        """
        due_ms = await self._queue.next_due_ms(self._queues)
        self.idle = due_ms is None or due_ms > 0
        pause_s = min(_MISS_PAUSE_MAX_S, _MISS_PAUSE_S * 2 ** min(self._misses, 16))
        self._misses = 0 if found else self._misses + 1
        now = asyncio.get_running_loop().time()
        self._due_at = float("inf") if due_ms is None else now + max(due_ms / 1000, pause_s)
        self.on_looked()

    def _pause_s(self) -> float:
        remaining_s = self._due_at - asyncio.get_running_loop().time()
        return min(self._poll_s, max(0.001, remaining_s))


def _nothing() -> None:
    """Stand in until somebody subscribes."""
