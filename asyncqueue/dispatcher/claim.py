"""The claim chore: fill free slots, never more; when nothing is eligible, wait for a reason to look again."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from asyncqueue.dispatcher.flight import Flight
from asyncqueue.dispatcher.lane import Delivery, Ended, Lane
from asyncqueue.events import Claimed, Events
from asyncqueue.queue import CLAIM_MAX, Queue

__all__ = ["ClaimChore", "kinds_of"]


_DRY_S = 0.05  # how soon a lane that had nothing is asked again while other lanes are busy
_ALARMED_S = 0.25  # how often it is looked though there is an alarm
_MISS_PAUSE_S = 0.005
_MISS_PAUSE_MAX_S = 1.0
_HELD_BACK_S = 0.01  # jobs wait for the next claim's statement no longer than this


class ClaimChore:
    """Claims when there is a reason to look.

    The reasons: a slot fell free while more was there, an enqueue in this process, another connection's commit
    (told by its version number, which takes no lock), or the next job falling due. The version is polled, at most
    once in `poll_s`; where the store has an alarm, that is left to ring, and the poll is rare.

    Where the store runs large claims beside reports, a claim is of half the slots: while those jobs are carried
    out, the server looks for the next ones. So they are held back until it has been asked for these.
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
        self._apart = queue.claim_apart
        share = CLAIM_MAX if self._apart is None else max(self._apart, flight.concurrency // 2)
        self._most = min(CLAIM_MAX, share)
        self._held_back: list[Delivery] = []
        self._nudged = True  # something in this process changed since the last look
        self._short: set[Lane] = set()  # had no room at the last look, or got all that was asked for
        self._dry: dict[Lane, float] = {}  # had nothing more when they were last asked, and when that was
        self._turn = 0  # which lanes are asked first
        self._misses = 0  # looks in a row that the timer asked for and that found nothing
        self._seen_version = -1
        self._due_at = 0.0
        self._looked_at = self._rung_at = float("-inf")
        self._is_alarmed = False
        self.idle = False  # the last look found nothing more to claim
        self.waits = False  # every lane does: for a slot, for a probe's answer or for the end of a rest
        self.under_way = False
        self.stopped = False
        self.watches_ends = False  # whoever waits for the last job to end must look when others' jobs have ended
        self.on_looked: Callable[[], None] = _nothing
        self.on_rung: Callable[[], None] = _nothing

    def nudge(self) -> None:
        """Look again at the next pass, whatever the poll says."""
        self._nudged = True

    @property
    def wants_slots(self) -> bool:
        """Whether a slot that falls free is a reason to look."""
        return self.waits or (bool(self._short) and not self._short.isdisjoint(self._flight.rooms()))

    async def run_once(self) -> float | None:
        """Claim as many jobs as there are free slots, if there is a reason to."""
        if self.stopped:
            return None
        rooms = self._flight.rooms()
        self.waits = not rooms
        if self.waits:
            return self._rest_ends_s()
        try:
            # under load nobody asks for the version: the claims follow each other
            if self._short.isdisjoint(rooms) and (self._are_dry(rooms) or not await self._worth_a_look()):
                return self._pause_s()
            return await self._fill(rooms)
        except Exception:
            self._nudged = True  # whatever was the reason to look, it still is
            raise

    def _are_dry(self, rooms: Mapping[Lane, int]) -> bool:
        """Tell whether room is left only in lanes that had nothing just now.

        The version cannot tell: it changes with our own commits, too, and those of a busy lane never end.
        """
        is_due = asyncio.get_running_loop().time() >= self._due_at
        is_busy = len(rooms) < len(self._flight.lanes) and not self._nudged and not is_due
        return is_busy and all(map(self._is_dry, rooms))

    def _is_dry(self, lane: Lane) -> bool:
        asked_at = self._dry.get(lane)
        return asked_at is not None and asyncio.get_running_loop().time() < asked_at + max(_DRY_S, self._poll_s)

    async def _worth_a_look(self) -> bool:
        self._looked_at = asyncio.get_running_loop().time()
        self._is_alarmed = not self.watches_ends and self._queue.alarm(self._rung)
        version = await self._queue.version(of_ends=self.watches_ends)
        if self._nudged or version != self._seen_version:
            self._seen_version = version
            self._misses = 0
            self._dry.clear()
            return True
        if asyncio.get_running_loop().time() < self._due_at:
            return False
        self._dry.clear()
        return True

    async def _fill(self, rooms: Mapping[Lane, int]) -> float | None:
        """Ask for jobs of all lanes that have room."""
        if self.stopped:
            return None
        if self._nudged:
            self._nudged = False
            self._dry.clear()
        self._short = {lane for lane in self._flight.lanes if lane not in rooms}
        found = is_full = False
        asks = deque(self._asks(rooms))
        while asks:
            lanes, most = asks.popleft()
            count, limit = await self._claim(lanes, most)
            if self.stopped:
                return None
            found = found or count > 0
            if count == limit:
                self._short.update(lane for lane in lanes if lane not in self._dry)
                is_full = True
                # older jobs of the others must not shut a lane out of the slots that are kept for it
                passed_over = [lane for lane in lanes if lane.unused and not self._is_dry(lane)]
                if len(passed_over) < len(lanes) and passed_over:
                    asks.append((passed_over, min(lane.unused for lane in passed_over)))
            else:
                self._dry.update(dict.fromkeys(lanes, asyncio.get_running_loop().time()))
        if is_full:
            self.idle = False
            return 0
        await self._note_due(rooms, found=found)
        return self._pause_s()

    def _asks(self, rooms: Mapping[Lane, int]) -> list[tuple[list[Lane], int]]:
        """Return whom to ask for and how many at most: unbounded lanes together, others each by itself, in turns.

        Together they are asked for what each of them has room for, so whatever comes fits.
        """
        free = self._flight.free
        together = [lane for lane in rooms if lane.room(free) == free]
        groups = ([together] if together else []) + [[lane] for lane in rooms if lane not in together]
        asks = [(lanes, self._most) for lanes in groups]
        self._turn = (self._turn + 1) % len(asks)
        return asks[self._turn :] + asks[: self._turn]

    async def _claim(self, lanes: Sequence[Lane], most: int) -> tuple[int, int]:
        """Claim jobs and hand them to the slots; return how many, and how many there was room for in the end."""
        flight, loop = self._flight, asyncio.get_running_loop()
        limit = 0
        asked_at = 0.0

        def room() -> int:
            nonlocal limit, asked_at
            if self.under_way and not self.stopped:
                flight.asked = limit = self._room(lanes, most)
                asked_at = loop.time()
            if self._held_back:
                loop.call_soon(self._hand_out)  # the statement is on its way before that
            return limit

        likely = self._room(lanes, most)
        if not likely:
            return 0, 0
        self.under_way = True
        try:
            jobs = await self._queue.claim_late(
                self._owner,
                room,
                lease_ms=self._lease_ms,
                queues=self._queues,
                kinds=kinds_of(lanes),
                likely=likely,
            )
            deliveries = flight.take(jobs, asked_at)
        finally:
            self.under_way = False  # first: a claim that was cancelled before it began asks for nothing any more
            flight.asked = 0
            self.on_looked()
        self._hand_out()
        if self._is_large(len(jobs)) and self._is_large(self._room(lanes, most)):
            self._held_back = deliveries
            loop.call_later(_HELD_BACK_S, self._hand_out)
        else:
            flight.hand_out(deliveries)
        if self.stopped:  # too late to be used: given back
            for delivery in deliveries:
                delivery.end(Ended.STOPPED)
        elif jobs and self._events:
            self._events.emit(Claimed(len(jobs), flight.sending))
        return len(jobs), limit

    def _is_large(self, jobs: int) -> bool:
        return self._apart is not None and jobs >= self._apart

    def _hand_out(self) -> None:
        """Give the slots what is held back; whatever has ended meanwhile is reported by them, not carried out."""
        deliveries, self._held_back = self._held_back, []
        self._flight.hand_out(deliveries)

    def _room(self, lanes: Iterable[Lane], most: int) -> int:
        """Return how many jobs these lanes may ask for together now, `most` at most; for any thread."""
        rooms = self._flight.rooms()
        return min(most, *(rooms.get(lane, 0) for lane in lanes))

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
        poll_s = self._poll_pause_s()
        remaining_s = self._due_at - asyncio.get_running_loop().time()
        return min(poll_s, max(0.001, remaining_s), self._rest_ends_s() or poll_s)

    def _poll_pause_s(self) -> float:
        """Return how long the version need not be asked for: an alarm may come before its commit can be seen."""
        if not self._is_alarmed:
            return self._poll_s
        since_s = asyncio.get_running_loop().time() - self._rung_at
        return max(self._poll_s, min(since_s, _ALARMED_S))

    def _rung(self) -> None:
        """Look, but not sooner than the poll would."""
        loop = asyncio.get_running_loop()
        self._rung_at = loop.time()
        self._is_alarmed = False
        loop.call_at(self._looked_at + self._poll_s, self.on_rung)

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
