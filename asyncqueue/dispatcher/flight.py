"""What is under way in this process: every lease that it holds, and how many sends it may have at once."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from asyncqueue.dispatcher.lane import Delivery, Lane
from asyncqueue.job import LeasedJob

__all__ = ["Counts", "Flight", "Handoff"]


@dataclass(slots=True)
class Counts:
    """What a dispatcher has done since it was made."""

    claimed: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    stale: int = 0
    lost: int = 0
    released: int = 0
    left: int = 0


class Handoff:
    """Gives deliveries to slots, in order, and makes slots as they are needed, `most` of them.

    As an `asyncio.Queue` would, at less cost a job.
    """

    def __init__(self, most: int) -> None:
        self.on_short: Callable[[], None] = _nothing  # makes one more slot
        self._to_make = most
        self._waiting: deque[Delivery] = deque()
        self._idle: deque[asyncio.Future[Delivery]] = deque()

    def put_nowait(self, delivery: Delivery) -> None:
        """Give it to the slot that is idle for longest, or keep it for the next one that asks."""
        while self._idle:
            slot = self._idle.popleft()
            if not slot.done():
                slot.set_result(delivery)
                return
        self._waiting.append(delivery)
        if self._to_make:
            self._to_make -= 1
            self.on_short()

    async def get(self) -> Delivery:
        """Wait for a delivery; one that is given to a slot which is cancelled is given to another."""
        if self._waiting:
            return self._waiting.popleft()
        slot: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._idle.append(slot)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.put_nowait(slot.result())
            raise


class Flight:
    """The deliveries of one dispatcher. `free` slots are rights to send; a slot is free again when its send ends.

    Reports that are not yet answered do not hold a slot (they share a commit with the claim that refills it)
    until there are as many of them as slots, as in a store outage; then nothing more is claimed.
    """

    def __init__(self, concurrency: int, counts: Counts, lanes: Sequence[Lane]) -> None:
        self.concurrency = concurrency
        self.lanes = lanes
        self._lane_of = {kind: lane for lane in lanes for kind in lane.kinds or ()}
        for lane in lanes:  # whatever an earlier flight left behind
            lane.sending = 0
        self.counts = counts
        self.held: set[Delivery] = set()
        self.handoff = Handoff(concurrency)
        self.sending = 0  # handed over and not ended
        self.asked = 0  # asked for and not yet handed over
        self.lapse_at = float("inf")  # when the lapse chore looks next, in loop seconds
        self.on_sooner_lapse: Callable[[], None] = _nothing
        self.board: Callable[[list[Delivery]], Iterable[Delivery]] = _all  # those that need a slot's task
        self.on_free: Callable[[], None] = _nothing
        self.on_ended: Callable[[Delivery], None] = _ignored
        self.on_empty: Callable[[], None] = _nothing

    @property
    def free(self) -> int:
        """Return how many more jobs may be claimed now."""
        sending = self.sending  # once: it may change meanwhile, as the store's thread asks, too
        reporting = len(self.held) - sending
        return max(0, self.concurrency - sending - self.asked - max(0, reporting - self.concurrency))

    def rooms(self) -> dict[Lane, int]:
        """Return how many jobs of each lane may be claimed now, lanes without room left out.

        Free slots that are kept for the others do not count: a lane whose jobs hang or fail cannot fill them all.
        """
        free = self.free
        if len(self.lanes) == 1:  # nothing is kept for others
            room = self.lanes[0].room(free)
            return {self.lanes[0]: room} if room > 0 else {}
        unused = {lane: lane.unused for lane in self.lanes}  # once: see `free`
        kept = sum(unused.values())
        rooms = {lane: lane.room(max(0, free - kept + unused[lane])) for lane in self.lanes}
        return {lane: room for lane, room in rooms.items() if room > 0}

    def take(self, jobs: Iterable[LeasedJob], asked_at: float) -> list[Delivery]:
        """Note freshly claimed jobs, for `hand_out`; their leases run since `asked_at` (loop seconds)."""
        deliveries = [self._delivery(job, asked_at) for job in jobs]
        self.held.update(deliveries)
        self.sending += len(deliveries)
        self.counts.claimed += len(deliveries)
        if deliveries and min(delivery.lease_ends for delivery in deliveries) < self.lapse_at:
            self.on_sooner_lapse()
        return deliveries

    def hand_out(self, deliveries: list[Delivery]) -> None:
        """Hand them to the slots."""
        for delivery in self.board(deliveries):
            self.handoff.put_nowait(delivery)

    def _delivery(self, job: LeasedJob, asked_at: float) -> Delivery:
        lane = self._lane_of.get(job.kind, self.lanes[0])
        lane.sending += 1
        return Delivery(job, lane, job.lease_until, asked_at, asked_at + job.lease_ms / 1000)

    def landed(self, delivery: Delivery) -> None:
        """Take note that a send has ended: its slot is free and its report is due."""
        self.sending -= 1
        delivery.lane.sending -= 1
        self.on_ended(delivery)
        self.on_free()

    def drop(self, deliveries: Iterable[Delivery]) -> None:
        """Forget deliveries whose reports are answered."""
        self.held.difference_update(deliveries)
        self.on_free()  # unanswered reports may have held slots back
        if not self.held:
            self.on_empty()


def _all(deliveries: list[Delivery]) -> Iterable[Delivery]:
    """Stand in until somebody subscribes."""
    return deliveries


def _ignored(_delivery: Delivery) -> None:
    """Stand in until somebody subscribes."""


def _nothing() -> None:
    """Stand in until somebody subscribes."""
