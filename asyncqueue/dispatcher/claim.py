"""The claim chore: fill free slots, never more; when nothing is eligible, wait for a reason to look again."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from asyncqueue.dispatcher.flight import Ended, Flight
from asyncqueue.dispatcher.lane import Lane
from asyncqueue.events import Claimed, Events
from asyncqueue.queue import CLAIM_MAX, Queue

__all__ = ["ClaimChore", "kinds_of"]


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
        events: Events,
        *,
        owner: str,
        lease_ms: int,
        queues: tuple[str, ...] | None,
        poll_s: float,
    ) -> None:
        self._queue = queue
        self._flight = flight
        self._events = events
        self._owner = owner
        self._lease_ms = lease_ms
        self._queues = queues
        self._poll_s = poll_s
        self._nudged = True  # something in this process changed since the last look
        self._short: set[Lane] = set()  # had no room at the last look, or got all that was asked for
        self._turn = 0  # which lanes are asked first
        self._misses = 0  # looks in a row that the timer asked for and that found nothing
        self._seen_version = -1
        self._due_at = 0.0
        self.idle = False  # the last look found nothing more to claim
        self.waits = False  # every lane does: for a slot, for a probe's answer or for the end of a rest
        self.under_way = False
        self.stopped = False
        self.on_looked: Callable[[], None] = _nothing

    def nudge(self) -> None:
        """Look again at the next pass, whatever the poll says."""
        self._nudged = True

    @property
    def wants_slots(self) -> bool:
        """Whether a slot that falls free is a reason to look."""
        return self.waits or any(lane.room(self._flight.free) > 0 for lane in self._short)

    async def run_once(self) -> float | None:
        """Claim as many jobs as there are free slots, if there is a reason to."""
        if self.stopped:
            return None
        rooms = self._rooms()
        self.waits = not rooms
        if self.waits:
            return self._rest_ends_s()
        try:
            # under load nobody asks for the version: the claims follow each other
            if self._short.isdisjoint(rooms) and not await self._worth_a_look():
                return self._pause_s()
            return await self._fill(rooms)
        except Exception:
            self._nudged = True  # whatever was the reason to look, it still is
            raise

    def _rooms(self) -> dict[Lane, int]:
        free = self._flight.free
        rooms = {lane: min(lane.room(free), CLAIM_MAX) for lane in self._flight.lanes}
        return {lane: room for lane, room in rooms.items() if room > 0}

    async def _worth_a_look(self) -> bool:
        version = await self._queue.version()
        if self._nudged or version != self._seen_version:
            self._seen_version = version
            self._misses = 0
            return True
        return asyncio.get_running_loop().time() >= self._due_at

    async def _fill(self, rooms: Mapping[Lane, int]) -> float | None:
        """Ask for jobs of all lanes that have room."""
        if self.stopped:
            return None
        self._nudged = False
        self._short = {lane for lane in self._flight.lanes if lane not in rooms}
        found = is_full = False
        for lanes, room in self._asks(rooms):
            limit = min(room, self._flight.free)
            count = await self._claim(lanes, limit) if limit > 0 else 0
            if self.stopped:
                return None
            found = found or count > 0
            if count == limit:
                self._short.update(lanes)
                is_full = True
        if is_full:
            self.idle = False
            return 0
        await self._note_due(rooms, found=found)
        return self._pause_s()

    def _asks(self, rooms: Mapping[Lane, int]) -> list[tuple[list[Lane], int]]:
        """Return what to ask for: lanes that may fill every slot together, the others each by itself, in turns."""
        most = min(self._flight.free, CLAIM_MAX)
        bounded = [([lane], room) for lane, room in rooms.items() if room < most]
        together = [lane for lane, room in rooms.items() if room >= most]
        asks = [(together, most), *bounded] if together else bounded
        self._turn = (self._turn + 1) % len(asks)
        return asks[self._turn :] + asks[: self._turn]

    async def _claim(self, lanes: Iterable[Lane], limit: int) -> int:
        """Claim up to `limit` jobs and hand them to the slots; return how many."""
        self.under_way = True
        asked_at = asyncio.get_running_loop().time()
        try:
            jobs = await self._queue.claim(
                self._owner,
                limit=limit,
                lease_ms=self._lease_ms,
                queues=self._queues,
                kinds=kinds_of(lanes),
            )
            deliveries = self._flight.take(jobs, asked_at)
        finally:
            self.under_way = False
            self.on_looked()
        if self.stopped:  # too late to be used: given back
            for delivery in deliveries:
                delivery.end(Ended.STOPPED)
        elif jobs and self._events:
            self._events.emit(Claimed(len(jobs), self._flight.sending))
        return len(jobs)

    async def _note_due(self, lanes: Iterable[Lane], *, found: bool) -> None:
        """Set the timer for the next job that falls due.

        What is due and yet was not claimed (a paused queue; a store whose clock stands still) is looked for
        with growing pauses.
        """
        due_ms = await self._queue.next_due_ms(self._queues, kinds_of(lanes))
        self.idle = due_ms is None or due_ms > 0
        pause_s = min(_MISS_PAUSE_MAX_S, _MISS_PAUSE_S * 2 ** min(self._misses, 16))
        self._misses = 0 if found else self._misses + 1
        now = asyncio.get_running_loop().time()
        self._due_at = float("inf") if due_ms is None else now + max(due_ms / 1000, pause_s)
        self.on_looked()

    def _pause_s(self) -> float:
        remaining_s = self._due_at - asyncio.get_running_loop().time()
        return min(self._poll_s, max(0.001, remaining_s), self._rest_ends_s() or self._poll_s)

    def _rest_ends_s(self) -> float | None:
        """Return how long until the first rest of a lane ends, None if no lane rests."""
        return min((left for lane in self._flight.lanes if (left := lane.rest.remaining_s()) > 0), default=None)


def kinds_of(lanes: Iterable[Lane]) -> tuple[str, ...] | None:
    """Return the kinds of all these lanes, None for every kind."""
    kinds: list[str] = []
    for lane in lanes:
        if lane.kinds is None:
            return None
        kinds += lane.kinds
    return tuple(kinds)


def _nothing() -> None:
    """Stand in until somebody subscribes."""
