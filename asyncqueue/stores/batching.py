"""Group commit: whoever waits at the same moment shares one transaction.

No wait is ever added to gather a batch: while one transaction runs, the next callers gather by themselves. Each
caller still gets its own answer or its own error, and a cancelled one is withdrawn if its batch has
not begun.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from asyncqueue.errors import BadEffect, Conflict, ForkedProcess, NotDead, QueueFull, StoreClosed, StoreError
from asyncqueue.job import EffectWork, LeasedJob, NewJob, Note, Redrive, Release, Renew, Report
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim, Store, Transaction
from asyncqueue.stores.inside import is_inside, marked

__all__ = ["Batch", "BatchedStore", "Batcher"]

T = TypeVar("T")
Request = TypeVar("Request")
Answer = TypeVar("Answer")

_LANES = 2  # one batch runs, one lines up
# A claim that may be of so many jobs goes in a transaction of its own where transactions run side by side: it need
# not wait for the reports before it. Smaller ones cost more by one commit more than they win.
_CLAIM_APART: Final = 256
# Turns of the event loop that a batch lets pass before it asks for a transaction. What has arrived already is
# handled in them and comes along; an idle loop makes them in microseconds.
_TURNS = 3
_AT_ONCE: Final = {"finish", "claim"}  # the verbs of what a busy dispatcher asks for


@dataclass(eq=False, slots=True)
class _Waiting(Generic[Request, Answer]):
    request: Request
    weight: int
    answer: "asyncio.Future[Answer]"
    undelivered: Callable[[Answer], None] | None = None


class Batch(Generic[Request, Answer]):
    """The requests of one transaction, chosen at the last moment: when the transaction asks for them.

    So a batch that had to wait for its turn takes along whoever came meanwhile.
    """

    def __init__(self, waiting: deque[_Waiting[Request, Answer]], weight_max: int) -> None:
        self._waiting = waiting
        self._weight_max = weight_max
        self._founders = 0
        self._entries: list[_Waiting[Request, Answer]] = []
        self._closing = threading.Lock()
        self.is_closed = False

    @property
    def waiting(self) -> list[Request]:
        """The requests that would be taken now, cancelled ones among them; before it is closed."""
        waiting = tuple(self._waiting)  # at one moment: another batch may be taking some in a thread
        return [entry.request for entry in waiting]

    def close(self) -> list[Request]:
        """Take what waits and return it, from then on the same; may be called in the transaction's own thread.

        A caller that is cancelled later than this cannot be withdrawn any more.
        """
        self._close_with(None)
        return [entry.request for entry in self._entries]

    def form(self) -> bool:
        """Take note of who is there as the transaction is asked for; False (and closed) if everybody has left."""
        self._founders = len(self._waiting)
        if all(entry.answer.cancelled() for entry in tuple(self._waiting)):
            self._close_with(None)
        return not self.is_closed

    def _close_with(self, most: int | None) -> None:
        with self._closing:
            if not self.is_closed:
                # before anything is taken: whoever comes and still sees False is taken along
                self.is_closed = True
                self._take(len(self._waiting) if most is None else most)

    def _take(self, most: int) -> None:
        weight = 0
        while most > 0 and self._waiting:  # fewer, if a batch before it was still taking some as they were counted
            entry = self._waiting[0]
            if self._entries and weight + entry.weight > self._weight_max:
                break
            self._waiting.popleft()
            most -= 1
            if not entry.answer.cancelled():
                self._entries.append(entry)
                weight += entry.weight

    def deliver(self, answers: Sequence[Answer | Exception]) -> None:
        """Give each caller its answer or its error."""
        for entry, answer in zip(self._entries, answers, strict=True):
            if entry.answer.done():
                if entry.undelivered and not isinstance(answer, Exception):
                    entry.undelivered(answer)
            elif isinstance(answer, Exception):
                entry.answer.set_exception(answer)
            else:
                entry.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give every caller this error; of a batch whose transaction never began, those who were there first."""
        self._close_with(self._founders)
        self.deliver([error] * len(self._entries))

    def cancel(self) -> None:
        """Cancel every caller."""
        self._close_with(None)
        for entry in self._entries:
            entry.answer.cancel()


class Batcher(Generic[Request, Answer]):
    """Runs requests in batches through `run`, in order of arrival.

    `run` gets a batch, closes it once its transaction has begun, and returns an answer or an exception for each of
    its requests, in the same order; if it raises, every request of the batch gets that error. A batch takes what
    waits, up to `weight_max` (the sum of the requests' weights; a single heavier request still runs, alone). While
    one batch runs another one lines up behind it, so that the database never waits for the event loop.
    """

    def __init__(
        self,
        run: Callable[[Batch[Request, Answer]], Awaitable[Sequence[Answer | Exception]]],
        weight_max: int = 1024,
    ) -> None:
        self._run = run
        self._weight_max = weight_max
        self._waiting: deque[_Waiting[Request, Answer]] = deque()
        self._forming: Batch[Request, Answer] | None = None  # the youngest; it may be closed
        self._lanes: set[asyncio.Task[None]] = set()

    async def submit(
        self, request: Request, weight: int = 1, undelivered: Callable[[Answer], None] | None = None
    ) -> Answer:
        """Return the answer to `request` from the batch that takes it, or raise its error.

        `undelivered` gets the answer if the caller was cancelled when its batch had begun.
        """
        entry = self._add(request, weight, undelivered)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            if (
                undelivered
                and entry.answer.done()
                and not entry.answer.cancelled()
                and not entry.answer.exception()
            ):
                undelivered(entry.answer.result())
            raise

    def post(self, request: Request, weight: int = 1) -> None:
        """Let `request` run in a batch without waiting for its answer; `settle` waits for it."""
        self._add(request, weight, None).answer.add_done_callback(_seen)

    def _add(
        self, request: Request, weight: int, undelivered: Callable[[Answer], None] | None
    ) -> _Waiting[Request, Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        entry = _Waiting(request, weight, answer, undelivered)
        self._waiting.append(entry)
        if self._needs_batch() and len(self._lanes) < _LANES:
            batch = self._new_batch()
            lane = asyncio.create_task(self._work(batch), name="asyncqueue-batches")
            self._lanes.add(lane)
            lane.add_done_callback(partial(self._ended, batch))
        return entry

    def _ended(self, first: Batch[Request, Answer], lane: "asyncio.Task[None]") -> None:
        """Clear away what a lane leaves that was cancelled before it began, as by a closing event loop."""
        self._lanes.discard(lane)
        if lane.cancelled():
            first.cancel()

    def _needs_batch(self) -> bool:
        """Whether somebody waits and no batch is going to take them."""
        return bool(self._waiting) and (self._forming is None or self._forming.is_closed)

    def _new_batch(self) -> Batch[Request, Answer]:
        self._forming = Batch(self._waiting, self._weight_max)
        return self._forming

    async def settle(self) -> None:
        """Wait until nothing is under way or waiting."""
        while self._lanes:
            await asyncio.wait(tuple(self._lanes))

    async def _work(self, batch: Batch[Request, Answer]) -> None:
        try:
            await self._run_batch(batch)
            while self._needs_batch():
                batch = self._new_batch()
                await self._run_batch(batch)
        except asyncio.CancelledError:  # this task itself, as by a closing event loop
            batch.cancel()
            raise
        finally:
            # at once: whoever comes before the event loop notices that this task is over must find the lane free
            self._lanes.difference_update((asyncio.current_task(),))

    async def _run_batch(self, batch: Batch[Request, Answer]) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not batch.form():
            return
        try:
            batch.deliver(await self._run(batch))
        except Exception as error:  # noqa: BLE001 - handed to every caller of the batch
            batch.fail(error)


def _seen(answer: "asyncio.Future[Any]") -> None:
    """Take note of an error that nobody waits for, so that asyncio does not report it."""
    if not answer.cancelled():
        answer.exception()


@dataclass(slots=True)
class _Call:
    """One caller's request: a verb and its items, or what names them once the transaction has begun.

    `claims` is how many jobs a claim may be of, as far as it is known.
    """

    verb: str
    offered: Sequence[Any] | Callable[[], Sequence[Any]]
    claims: int = 0
    items: Sequence[Any] = ()

    def close(self) -> None:
        """Ask for the items, once."""
        if callable(self.offered):
            self.offered = self.offered()
        self.items = self.offered

    @property
    def has_effect(self) -> bool:
        """Whether it runs code of its caller, which may wait for anything. Late reports have no effects."""
        return (
            self.verb == "finish"
            and not callable(self.offered)
            and any(report.effect is not None for report in self.offered)
        )


class BatchedStore:
    """The verbs of a store, where whoever waits at the same moment shares one transaction, whatever the verb.

    Reports go before claims, so a finish and the claim that refills its slot cost one commit together. But a store
    that runs transactions side by side has a large claim beside the reports, not behind them.

    A call from inside an effect would wait for the transaction that the effect runs in: it is `BadEffect`.
    """

    _ORDER = ("enqueue", "finish", "note", "cancel", "renew", "release", "redrive", "claim")

    def __init__(self, store: Store) -> None:
        self.store = store
        self._batcher: Batcher[_Call, list[Any]] = Batcher(partial(self._run, inline=True))
        self._effects: Batcher[_Call, list[Any]] = Batcher(partial(self._run, inline=False))
        self.claim_apart = _CLAIM_APART if store.is_concurrent else None
        self._claims = Batcher(partial(self._run, inline=True)) if store.is_concurrent else self._batcher
        self._is_closed = False
        self._pid = os.getpid()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict | QueueFull]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("enqueue", jobs), len(jobs))

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """See `stores.base.Transaction`. A caller cancelled too late to be withdrawn has its leases released."""
        return await self._submit(_Call("claim", (claim,), claim.limit), claim.limit, self._give_back)

    async def claim_late(self, claim: Callable[[], Claim | None], likely: int = 0) -> list[LeasedJob]:
        """Do as `claim` does, with what `claim` returns once the transaction has begun; None asks for nothing.

        It is called in the transaction's own thread and may not wait; once only, also if that is repeated.
        `likely` is the limit that is expected.
        """

        def items() -> Sequence[Claim]:
            wanted = claim()
            return () if wanted is None else (wanted,)

        return await self._submit(_Call("claim", items, likely), 1, self._give_back)

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """See `stores.base.Transaction`."""
        marks = [
            report if report.effect is None else replace(report, effect=self._marked(report.effect))
            for report in reports
        ]
        return await self._submit(_Call("finish", marks), len(marks))

    async def finish_late(self, reports: Callable[[], Sequence[Report]]) -> list[Status | None]:
        """Settle the leases that `reports` names once the transaction has begun; no effects. See `claim_late`."""
        return await self._submit(_Call("finish", reports), 1)

    async def note(self, notes: Sequence[Note]) -> None:
        """See `stores.base.Transaction`."""
        await self._submit(_Call("note", notes), len(notes))

    async def cancel(self, ids: Sequence[str]) -> list[Status | None]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("cancel", ids), len(ids))

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("renew", renewals), len(renewals))

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("release", releases), len(releases))

    async def redrive(self, redrives: Sequence[Redrive]) -> list[bool | NotDead]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("redrive", redrives), len(redrives))

    async def write(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction of its own; see `stores.base.Store`."""
        self.check_outside()
        return await self.store.write(work)

    async def close(self) -> None:
        """Refuse new calls, wait until nothing is under way, close the store; may be called again.

        A caller that is cancelled meanwhile still closes the store: what waits then gets `StoreClosed`.
        """
        self._check_process()
        if is_inside(self):  # another object on the same database waits for no more than its own calls
            raise BadEffect("an effect must not close its own queue: the close would wait for the effect")
        self._is_closed = True
        try:
            await self._effects.settle()
            await self._claims.settle()  # before the last: what nobody waits for any more is given back there
            await self._batcher.settle()
        finally:
            await self.store.close()

    async def _submit(
        self, call: _Call, weight: int, undelivered: Callable[[list[Any]], None] | None = None
    ) -> list[Any]:
        self._check_process()
        if self._is_closed:
            raise StoreClosed("the queue is closed")
        self.check_outside()
        return await self._batcher_of(call).submit(call, weight, undelivered)

    def _batcher_of(self, call: _Call) -> Batcher[_Call, list[Any]]:
        if call.has_effect:
            return self._effects
        return self._claims if call.claims >= _CLAIM_APART else self._batcher

    def check_outside(self) -> None:
        """Raise `BadEffect` if an effect of this queue, or of another object on its database, is what calls."""
        if is_inside(self, self._place):
            raise BadEffect(
                "an effect must not call its own queue, which may wait for the effect to end: "
                "`outbox.enqueue_async(connection, ...)` enqueues in the effect's own transaction"
            )

    def _marked(self, effect: EffectWork) -> EffectWork:
        return marked(effect, self, self._place())

    def _place(self) -> object:
        """Return what is the same for all objects on one database."""
        terms = self.store.terms
        return None if terms.place is None else (terms.place, terms.schema)

    def _check_process(self) -> None:
        # Before anything is waited for: a batch under way at the fork never ends in the child.
        if os.getpid() != self._pid:
            raise ForkedProcess("the queue was opened before a fork; open it again in the child process")

    def _give_back(self, leased: list[LeasedJob]) -> None:
        if leased:
            self._batcher.post(_Call("release", [Release(job) for job in leased]), len(leased))

    async def _run(self, batch: Batch[_Call, list[Any]], *, inline: bool) -> Sequence[list[Any] | Exception]:
        at_once = self.store.is_concurrent and inline and {call.verb for call in batch.waiting} == _AT_ONCE
        try:
            return await self._together(batch.close, inline=inline, at_once=at_once)
        except StoreError:  # the database's own trouble: every call of the batch has it
            raise
        except Exception:  # a bad item: it must not fail the others, so each call gets a transaction of its own
            calls = batch.close()
            if len(calls) == 1:
                raise
            return [await self._alone(call, inline=inline) for call in calls]

    async def _together(
        self, take: Callable[[], Sequence[_Call]], *, inline: bool, at_once: bool = False
    ) -> list[list[Any]]:
        """Run the calls that `take` names once the transaction has begun; it may be asked again."""

        async def work(transaction: Transaction) -> list[list[Any]]:
            calls = take()
            for call in calls:
                call.close()
            return await self._carry_out(transaction, calls)

        return await self.store.write(work, inline=inline, at_once=at_once)

    async def _carry_out(self, transaction: Transaction, calls: Sequence[_Call]) -> list[list[Any]]:
        """Ask for each verb once, with what all its calls bring; return an answer for each call."""
        answers: list[list[Any]] = [[]] * len(calls)
        places = {
            verb: [n for n, call in enumerate(calls) if call.verb == verb and call.items] for verb in self._ORDER
        }
        asked = [verb for verb in self._ORDER if places[verb]]

        def items(verb: str) -> list[Any]:
            return [item for n in places[verb] for item in calls[n].items]

        def hand_out(verb: str, together: Sequence[Any]) -> None:
            rest = iter(together)
            for n in places[verb]:
                answers[n] = list(islice(rest, len(calls[n].items)))

        if asked == ["finish", "claim"] and len(items("claim")) == 1:  # what a busy dispatcher asks for
            place = places["claim"][0]
            statuses, answers[place] = await transaction.finish_and_claim(items("finish"), *calls[place].items)
            hand_out("finish", statuses)
            return answers
        for verb in asked:
            if verb == "claim":
                for n in places[verb]:
                    for claim in calls[n].items:
                        answers[n] = await transaction.claim(claim)
            else:
                hand_out(verb, await getattr(transaction, verb)(items(verb)))
        return answers

    async def _alone(self, call: _Call, *, inline: bool) -> list[Any] | Exception:
        try:
            return (await self._together(lambda: (call,), inline=inline))[0]
        except Exception as error:  # noqa: BLE001 - handed to the caller of this call
            return error
