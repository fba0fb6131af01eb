"""The story of a delivery: send it, decide what that means, report it under the ticket.

Sends run in slots, one task each; reports are made in sets by the report chore, so that all sends that ended at
about the same time, and the claim that refills their slots, share one commit.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from asyncqueue.dispatcher.flight import Flight
from asyncqueue.dispatcher.lane import Delivery, Ended, Lane, Seated
from asyncqueue.events import Events, Held, LeaseLost, Released, Settled
from asyncqueue.job import LeasedJob, Note, Release, Report, printable
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.retry import Certainty, Outcome, RetryPolicy, Verdict, decide

__all__ = ["ReportChore", "Sender", "board", "serve_slot"]

log = logging.getLogger("asyncqueue")

_STOPPED = Outcome(Verdict.RETRY, Certainty.UNKNOWN, "the dispatcher stopped while the job was in flight")


class Sender(Protocol):
    """What carries a job to where it is done."""

    async def send(self, job: LeasedJob) -> Outcome:
        """Deliver once and say how it ended; raises nothing but a cancellation."""
        ...


async def serve_slot(flight: Flight, events: Events) -> None:
    """Be one slot: take a delivery, send it within its lease, hand in how it ended; for ever.

    One cancel scope serves delivery after delivery, since one for each would be a good part of its cost;
    cutting a delivery short ends the scope, and the slot goes on with a new one.
    """
    loop = asyncio.get_running_loop()
    while True:
        delivery: Delivery | None = None
        with anyio.CancelScope() as scope:
            while True:
                delivery = None
                delivery = await flight.handoff.get()
                if delivery.ended is None and loop.time() < delivery.lease_ends:
                    delivery.began_at = delivery.began_at or loop.time()
                    delivery.scope = scope
                    delivery.outcome = await _sent(delivery)
                _land(flight, delivery, events)
        if delivery is not None:
            _land(flight, delivery, events)


def _land(flight: Flight, delivery: Delivery, events: Events) -> None:
    delivery.scope = None
    if delivery.outcome is not None:
        # noted here, not with the report: nobody may claim for the free slot before the endpoint rests
        if pause_s := delivery.lane.rest.note(delivery.outcome):
            events.emit(Held(round(pause_s * 1000), delivery.outcome.error))
    elif delivery.ended is None:
        delivery.ended = Ended.LAPSED
    flight.landed(delivery)


def board(flight: Flight, events: Events, deliveries: list[Delivery]) -> list[Delivery]:
    """Let go in requests of many, without a slot's task for each, what can; return what must go by itself."""
    now = asyncio.get_running_loop().time()
    alone: list[Delivery] = []
    of_lane: dict[Lane, list[_Boarded]] = {}
    for delivery in deliveries:
        if delivery.lane.board is None or delivery.ended is not None or now >= delivery.lease_ends:
            alone.append(delivery)
        else:
            of_lane.setdefault(delivery.lane, []).append(_Boarded(flight, events, delivery))
    for lane, boarded in of_lane.items():
        seats = lane.board([(one.delivery.job, one.answered) for one in boarded]) if lane.board else ()
        for one, seat in zip(boarded, seats, strict=True):
            if seat is None:
                alone.append(one.delivery)
            else:
                one.seat = seat
                one.delivery.began_at = now
                one.delivery.scope = one
    return alone


class _Boarded:
    """A delivery in a request of many: what its slot's task and scope would be otherwise."""

    __slots__ = ("_events", "_flight", "delivery", "seat")

    def __init__(self, flight: Flight, events: Events, delivery: Delivery) -> None:
        self._flight = flight
        self._events = events
        self.delivery = delivery
        self.seat: Seated | None = None

    def answered(self, answer: Outcome | Exception | None) -> None:
        delivery = self.delivery
        if answer is None:
            delivery.scope = None
            delivery.is_boarded = True
            self._flight.handoff.put_nowait(delivery)
            return
        delivery.outcome = answer if isinstance(answer, Outcome) else _unknown(delivery.job, answer)
        _land(self._flight, delivery, self._events)

    def cancel(self) -> None:
        if self.seat is not None and not self.seat.leave():
            self.delivery.began_at = 0.0  # it never left: its attempt is given back
        _land(self._flight, self.delivery, self._events)


async def _sent(delivery: Delivery) -> Outcome:
    """Send, whatever the sender does: one that breaks its promise costs one attempt, not the dispatcher."""
    try:
        outcome = await delivery.lane.carry(delivery)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"the sender returned {type(outcome).__name__}, not an Outcome")  # noqa: TRY301 - one exit
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the lease is gone or the dispatcher ends; else the send was cancelled from within
        return _unknown(delivery.job, error)
    except Exception as error:  # noqa: BLE001 - an unknown failure is never hidden as a success
        return _unknown(delivery.job, error)
    return outcome


def _unknown(job: LeasedJob, error: BaseException) -> Outcome:
    log.error("send failed: job %s, token %d", job.id, job.token, exc_info=error)
    return Outcome(Verdict.LEAVE, Certainty.UNKNOWN, _described(error))


def _described(error: BaseException) -> str:
    try:
        return printable(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - an error whose own text fails
        return type(error).__name__


class ReportChore:
    """Reports every ended delivery. If the store cannot take a set, the set is kept and tried again."""

    name = "report"

    def __init__(
        self, queue: Queue, flight: Flight, policy: RetryPolicy, events: Events, note: Callable[[Note], None]
    ) -> None:
        self._queue = queue
        self._note = note
        self._flight = flight
        self._policy = policy
        self._events = events
        self._reports: deque[tuple[Delivery, Report]] = deque()
        self._effects: list[tuple[Delivery, Report]] = []
        self._releases: list[tuple[Delivery, Release]] = []

    async def run_once(self) -> float | None:
        """Decide and report what has ended since the last pass."""
        if self._reports:
            await self._report()
        if self._effects:
            await self._report_effects()
        if self._releases:
            await self._give_back()
        return 0 if self._reports or self._effects or self._releases else None

    async def _report(self) -> None:
        """Report the plain outcomes: all that there are when the transaction begins."""
        taken: list[tuple[Delivery, Report]] = []

        def reports() -> list[Report]:
            while self._reports:
                taken.append(self._reports.popleft())
            return [report for _delivery, report in taken]

        try:
            answers = await self._queue.finish_late(reports)
        except BaseException:
            self._reports.extendleft(reversed(taken))
            raise
        for (delivery, _report), answer in zip(taken, answers, strict=True):
            self._settled(delivery, answer)
        self._flight.drop(delivery for delivery, _report in taken)

    async def _report_effects(self) -> None:
        reports, self._effects = self._effects, []
        try:
            answers = await self._queue.finish_many([report for _delivery, report in reports])
        except BaseException:
            self._effects = reports + self._effects  # others have ended meanwhile
            raise
        for (delivery, _report), answer in zip(reports, answers, strict=True):
            if isinstance(answer, Exception):  # its effect failed and was undone: an honest retry
                text = printable(f"effect failed: {_described(answer)}")
                delivery.outcome = Outcome(Verdict.RETRY, Certainty.REFUSED, text)
                self.sort(delivery)
            else:
                self._settled(delivery, answer)
                self._flight.drop((delivery,))

    def sort(self, delivery: Delivery) -> None:
        """Take note of a delivery that has ended: it becomes a report, a release, or nothing."""
        outcome = delivery.outcome
        if outcome is None and delivery.ended is Ended.STOPPED:
            if not delivery.began_at:
                self._releases.append((delivery, Release(delivery.job)))
                return
            outcome = delivery.outcome = _STOPPED
        if outcome is None:
            self._lost(delivery)
            return
        try:
            decision = decide(delivery.job, outcome, self._policy, random.random)
        except Exception as error:  # noqa: BLE001 - one outcome that nobody can weigh must not hold up the others
            outcome = delivery.outcome = _unknown(delivery.job, error)
            decision = None
        if isinstance(decision, Report):
            (self._reports if decision.effect is None else self._effects).append((delivery, decision))
        elif isinstance(decision, Release):
            self._releases.append((delivery, decision))
        else:
            self._left(delivery, outcome)

    async def _give_back(self) -> None:
        releases, self._releases = self._releases, []
        try:
            answers = await self._queue.release_many([release for _delivery, release in releases])
        except BaseException:
            self._releases = releases + self._releases
            raise
        self._flight.counts.released += sum(answers)
        self._flight.drop(delivery for delivery, _release in releases)
        for delivery, _release in releases:
            self._tell(delivery, None)
        self._events.emit(Released(sum(answers)))

    def _settled(self, delivery: Delivery, status: Status | None) -> None:
        counts = self._flight.counts
        if status is None:
            counts.stale += 1
        elif status is Status.DONE:
            counts.done += 1
        elif status is Status.DEAD:
            counts.dead += 1
        else:
            counts.retried += 1
        self._tell(delivery, status)

    def _left(self, delivery: Delivery, outcome: Outcome) -> None:
        """Leave the lease to run out; the history learns of it when it can."""
        self._flight.counts.left += 1
        self._note(Note(delivery.job, outcome.failure()))
        self._tell(delivery, None)
        self._flight.drop((delivery,))

    def _lost(self, delivery: Delivery) -> None:
        self._flight.counts.lost += 1
        self._flight.drop((delivery,))
        why = "taken over by another dispatcher" if delivery.ended is Ended.TAKEN else "ran out without a renewal"
        self._events.emit(LeaseLost(delivery.job.id, delivery.job.token, why))

    def _tell(self, delivery: Delivery, status: Status | None) -> None:
        """Tell who listens how a send ended; of one that never began there is nothing to tell."""
        outcome = delivery.outcome
        if outcome is None or not self._events:
            return
        job = delivery.job
        elapsed_ms = (asyncio.get_running_loop().time() - delivery.began_at) * 1000
        self._events.emit(
            Settled(
                job.id,
                job.token,
                job.attempt,
                outcome.verdict,
                status,
                outcome.certainty,
                outcome.error,
                outcome.http_status,
                round(elapsed_ms, 1),
            )
        )
