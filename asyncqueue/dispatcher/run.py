"""The dispatcher: the only task group, the signals, and the way to stop.

Stopping: claim no more, let deliveries in flight end within the grace period, cut the rest short, give unused
leases back, report, leave. A second signal leaves at once; its leases run out by themselves. A store that refuses
for good is a reason to stop, too, and its error is what the run ends with.
"""

import asyncio
import contextvars
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup

from asyncqueue.dispatcher.claim import ClaimChore, kinds_of
from asyncqueue.dispatcher.drain import DrainChore
from asyncqueue.dispatcher.flight import Counts, Flight
from asyncqueue.dispatcher.lane import Delivery, Ended, Lane
from asyncqueue.dispatcher.lapse import LapseChore
from asyncqueue.dispatcher.loop import Chore, Loop
from asyncqueue.dispatcher.note import NoteChore
from asyncqueue.dispatcher.purge import PurgeChore, Retention, warn_below_horizon
from asyncqueue.dispatcher.renew import RenewChore
from asyncqueue.dispatcher.route import Deliver, Route
from asyncqueue.dispatcher.settle import ReportChore, board, serve_slot
from asyncqueue.dispatcher.sweep import SweepChore
from asyncqueue.errors import AsyncQueueError, ConfigError
from asyncqueue.events import Events, Started, Stopped, Stopping
from asyncqueue.job import DEFAULT_LEASE_MS, PRODUCT, Note, Range, check_id, check_int, printable
from asyncqueue.queue import Queue, new_owner
from asyncqueue.retry import RetryPolicy

__all__ = ["Dispatcher", "Health"]

_CONCURRENCY: Final = Range(1, 10_000)
_LEASE_MIN_MS: Final = 100  # a third of it must hold a renewal: one commit, of a disk that syncs
_REPORT_GRACE_S: Final = 5.0  # for the last reports, after the last send was cut short
_NOTE_GRACE_S: Final = 0.5  # for the last notes
_TIMEOUT_MARGIN_MS: Final = 1_000  # between the end of an attempt and the end of its lease
_RAW_TIMEOUT_MS: Final = 1_000  # the client's own rounding of timeouts
_PASSES_MISSED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the dispatcher does its work: `ok` needs every chore to pass and the last claim pass to be fresh."""

    ok: bool
    claim_pass_age_s: float
    failing: tuple[str, ...]


class Dispatcher:
    """Claims leases, sends, reports. An async context manager; then `run()` or `drain()`.

    `deliver` is a sender (`HttpSender`), any `async def deliver(job)` that returns `True` or an `Effect` to
    acknowledge, or a mapping of kinds to these: then jobs of other kinds are left for others, each kind rests by
    itself when it fails, some slots are kept for each, so that none shuts out the others, and `limits` may bound
    how many of a kind are under way at once. `concurrency` (1-10000) bounds the sends at one moment; claims never
    exceed free slots. `lease_ms` (100 or more, since leases are renewed at each third) must exceed the sender's
    `timeout_ms` by more than two seconds. `poll_ms` is how often an idle dispatcher looks for commits of other
    processes at most, and, where nothing tells it of them (PostgreSQL and Linux do), at least; `grace_ms` how long
    a stop waits for sends in flight; `retention` lets ended jobs be forgotten. The owner id is random per
    dispatcher, with an optional readable prefix. Raises `ConfigError`.
    """

    def __init__(  # noqa: PLR0913 - settings, all by name
        self,
        queue: Queue,
        deliver: Deliver,
        *,
        concurrency: int = 64,
        lease_ms: int = DEFAULT_LEASE_MS,
        queues: Sequence[str] | None = None,
        owner_prefix: str = "",
        policy: RetryPolicy | None = None,
        poll_ms: int = 5,
        grace_ms: int = 10_000,
        events: Events | None = None,
        limits: Mapping[str, int] | None = None,
        retention: Retention | None = None,
    ) -> None:
        _check(concurrency, lease_ms, poll_ms, grace_ms)
        self._lanes = Route(queue, concurrency, lease_ms).lanes(deliver, limits)
        _check_timeouts(self._lanes, lease_ms)
        _check_names(queues, owner_prefix)
        if retention is not None:
            warn_below_horizon(retention, queue)
        self._retention = retention
        self.owner = new_owner(owner_prefix)
        self._queue = queue
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._poll_s = poll_ms / 1000
        self._grace_s = grace_ms / 1000
        self._queues = None if queues is None else tuple(queues)
        self._policy = policy or RetryPolicy()
        self._events = Events() if events is None else events
        self._counts = Counts()
        self._group: TaskGroup | None = None
        self._resources = AsyncExitStack()
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Be ready to run, whatever the last run left behind."""
        self._flight = Flight(self._concurrency, self._counts, self._lanes)
        self._claim = ClaimChore(
            self._queue,
            self._flight,
            self._events,
            owner=self.owner,
            lease_ms=self._lease_ms,
            queues=self._queues,
            poll_s=self._poll_s,
        )
        self._loops: dict[str, Loop] = {}
        self._stop_asked = asyncio.Event()
        self._stop_why = ""
        self._refusal: AsyncQueueError | None = None
        self._quiet = asyncio.Event()

    @property
    def counts(self) -> Counts:
        """What was done so far, in all runs."""
        return self._counts

    @property
    def in_flight(self) -> int:
        """How many sends are under way now."""
        return self._flight.sending

    def health(self) -> Health:
        """Tell whether jobs are really being looked for; a dead or failing chore is not hidden by the others."""
        failing = tuple(name for name, loop in self._loops.items() if loop.failures)
        claim = self._loops.get("claim")
        if claim is None or claim.passed_at is None:
            return Health(ok=False, claim_pass_age_s=0.0, failing=failing)
        age_s = asyncio.get_running_loop().time() - claim.passed_at
        waits = self._claim.waits or self._claim.stopped
        fresh = waits or age_s <= max(_PASSES_MISSED_MAX * self._poll_s, 1.0)
        return Health(ok=fresh and not failing, claim_pass_age_s=age_s, failing=failing)

    async def __aenter__(self) -> Self:
        try:
            for resource in dict.fromkeys(lane.resource for lane in self._lanes):
                if isinstance(resource, AbstractAsyncContextManager):
                    await self._resources.enter_async_context(resource)
        except BaseException:
            await self._resources.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()

    def stop(self, why: str = "asked to stop") -> None:
        """Begin a graceful stop; `run` and `drain` return when it is complete. May be called again."""
        if not self._stop_asked.is_set():
            self._stop_why = why
            self._stop_asked.set()

    def abort(self) -> None:
        """Leave at once: sends are cancelled and nothing more is written; leases run out by themselves."""
        self.stop("aborted")
        if self._group is not None:
            self._group.cancel_scope.cancel()

    async def run(self, *, handle_signals: bool = False) -> None:
        """Dispatch until `stop()`, or with `handle_signals` until SIGTERM or SIGINT. May be run again after it.

        A store that is busy, full, away or cannot be written for now is waited for. One that refuses for good ends
        the run as `stop()` does, and its error is raised: `StoreMoved`, `NewerSchema` and `ForkedProcess` at once;
        `StoreDenied`, `NotAQueue` (the schema is gone, say), `StoreDamaged`, `StoreClosed` and `ConfigError` when
        they have stood for ten seconds. Leases whose reports it refused run out by themselves.
        """
        await self._run(handle_signals=handle_signals, drain=False)

    async def drain(self, *, handle_signals: bool = False) -> None:
        """Dispatch until no live job (of its queues and kinds) is left or `stop()`.

        Waits for delayed jobs and other holders' leases. Raises as `run` does.
        """
        await self._run(handle_signals=handle_signals, drain=True)

    async def _run(self, *, handle_signals: bool, drain: bool) -> None:
        if self._group is not None:
            raise RuntimeError("this dispatcher is running already")
        self._make_loops(drain=drain)
        unsubscribe = self._queue.subscribe(self._nudge)
        self._events.emit(Started(self.owner, self._flight.concurrency, self._lease_ms))
        try:
            async with anyio.create_task_group() as self._group:
                for loop in self._loops.values():
                    self._group.start_soon(loop.run, name=f"asyncqueue-{loop.chore.name}")
                self._flight.handoff.on_short = partial(self._make_slot, contextvars.copy_context())
                if handle_signals:
                    self._group.start_soon(self._watch_signals)
                await self._stop_asked.wait()
                await self._wind_down()
                self._group.cancel_scope.cancel()
            if self._refusal is not None:
                raise self._refusal
        finally:
            self._group = None
            for delivery in tuple(self._flight.held):  # after an abort: nothing goes on in shared requests either
                delivery.end(Ended.STOPPED)
            unsubscribe()
            self._counts.left += len(self._flight.held)  # cut off, or not reported in time: their leases run out
            self._begin_afresh()
            c = self.counts
            self._events.emit(Stopped(c.claimed, c.done, c.retried, c.dead, c.stale, c.lost, c.released, c.left))

    def _make_loops(self, *, drain: bool) -> None:
        """Make a loop for each chore, and let what happens wake who must act on it."""
        flight, queue = self._flight, self._queue
        self._claim.watches_ends = drain
        self._notes = NoteChore(queue)
        reports = ReportChore(queue, flight, self._policy, self._events, self._note)
        sweep = SweepChore(queue, self._quietened)
        chores: list[tuple[Chore, float]] = [
            (self._claim, 5.0),
            (reports, 1.0),
            (self._notes, 1.0),
            (RenewChore(queue, flight, self._lease_ms), self._lease_ms / 1000 / 12),
            (LapseChore(flight), 0.1),
            (sweep, 30.0),
        ]
        if self._retention is not None:
            chores.append((PurgeChore(queue, self._retention), 60.0))
        if drain:
            drained = partial(self.stop, "drained")
            whose = {"queues": self._queues, "kinds": kinds_of(self._lanes)}
            chores.append((DrainChore(queue, flight, self._claim, sweep, drained=drained, **whose), 5.0))
        self._loops = {
            chore.name: Loop(chore, self._events, pause_max_s=pause_max_s, on_refused=self._refused)
            for chore, pause_max_s in chores
        }
        flight.board = partial(board, flight, self._events)
        flight.on_free = self._freed
        flight.on_ended = partial(self._ended, reports)
        flight.on_sooner_lapse = self._loops["lapse"].wake
        self._claim.on_rung = self._loops["claim"].wake
        flight.on_empty = self._claim.on_looked = self._quietened

    def _make_slot(self, context: contextvars.Context) -> None:
        """Make one in the context that `run` had, whatever task needs it: handlers see its variables."""
        if self._group is not None:
            context.run(self._group.start_soon, serve_slot, self._flight, self._events)

    def _freed(self) -> None:
        claim = self._loops["claim"]
        if not claim.is_woken and self._claim.wants_slots:
            claim.wake()

    def _ended(self, reports: ReportChore, delivery: Delivery) -> None:
        reports.sort(delivery)
        self._loops["report"].wake()
        if self._refusal is not None:
            self._quiet.set()  # whoever waits for the reports looks whether that is in vain

    def _refused(self, error: AsyncQueueError | None) -> None:
        """Stop for an error that no waiting mends; the first one is told."""
        if self._refusal is None and error is not None:
            self._refusal = error
            self.stop(printable(f"{type(error).__name__}: {error}"))
        self._quiet.set()

    def _quietened(self) -> None:
        self._quiet.set()
        if "drain" in self._loops:
            self._loops["drain"].wake()

    def _note(self, note: Note) -> None:
        self._notes.add(note)
        self._loops["note"].wake()

    def _nudge(self) -> None:
        self._claim.nudge()
        self._loops["claim"].wake()

    async def _wind_down(self) -> None:
        self._claim.stopped = True
        self._events.emit(Stopping(self._stop_why, self._flight.sending))
        for delivery in tuple(self._flight.held):
            if not delivery.began_at:
                delivery.end(Ended.STOPPED)
        with anyio.move_on_after(self._grace_s):
            await self._landed()
        for delivery in tuple(self._flight.held):
            delivery.end(Ended.STOPPED)
        with anyio.move_on_after(_REPORT_GRACE_S):
            await self._landed()
        with anyio.move_on_after(_NOTE_GRACE_S):
            await self._notes.run_once()

    async def _landed(self) -> None:
        """Wait until every lease that is held, or being claimed just now, was reported, or cannot be."""
        while (self._flight.held or self._claim.under_way) and not self._is_in_vain():
            self._quiet.clear()
            await self._quiet.wait()

    def _is_in_vain(self) -> bool:
        """Tell whether reports are all that is left to do, and the store refuses them for good."""
        is_refused = self._refusal is not None and self._loops["report"].is_refused
        return is_refused and not self._flight.sending and not self._claim.under_way

    async def _watch_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._stop_asked.is_set():
                    self.abort()
                    return
                self.stop(signal.Signals(number).name)


def _check(concurrency: int, lease_ms: int, poll_ms: int, grace_ms: int) -> None:
    check_int("concurrency", concurrency, _CONCURRENCY)
    check_int("lease_ms", lease_ms, PRODUCT.lease_ms)
    if lease_ms < _LEASE_MIN_MS:
        raise ConfigError(f"lease_ms {lease_ms} is too short to be renewed in time: give at least {_LEASE_MIN_MS}")
    check_int("poll_ms", poll_ms, Range(1, 60_000))
    check_int("grace_ms", grace_ms, Range(0, 24 * 3600 * 1000))


def _check_timeouts(lanes: Sequence[Lane], lease_ms: int) -> None:
    needed = max((lane.timeout_ms or 0) for lane in lanes) + _RAW_TIMEOUT_MS + _TIMEOUT_MARGIN_MS
    if any(lane.timeout_ms is not None for lane in lanes) and needed >= lease_ms:
        raise ConfigError(f"lease_ms {lease_ms} must be above {needed}: the attempt timeout and 2 s of margin")


def _check_names(queues: Sequence[str] | None, owner_prefix: str) -> None:
    if queues is not None:
        if isinstance(queues, str) or not queues:
            raise ConfigError("queues must be a sequence of at least one queue name, or None for all queues")
        for name in queues:
            check_id("queue", name)
    if owner_prefix != "":
        check_id("owner_prefix", owner_prefix)
