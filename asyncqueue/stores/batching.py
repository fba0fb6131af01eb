"""Group commit: whoever waits at the same moment shares one transaction.

No wait is ever added to gather a batch: while one transaction runs, the next callers gather by themselves.
Each caller still gets its own answer or its own error, and a cancelled one is withdrawn if its batch has
not begun.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from asyncqueue.errors import Conflict, ForkedProcess, NotDead, QueueFull, StoreClosed, StoreError
from asyncqueue.job import LeasedJob, NewJob, Note, Redrive, Release, Renew, Report
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim, Store, Transaction

__all__ = ["BatchedStore", "Batcher"]

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[Request, Answer]):
    request: Request
    weight: int
    answer: "asyncio.Future[Answer]"
    undelivered: Callable[[Answer], None] | None = None


class Batcher(Generic[Request, Answer]):
    """Runs requests in batches through `run`, one batch at a time, in order of arrival.

    `run` gets the requests of a batch and returns an answer or an exception for each, in the same order; if
    it raises, every request of the batch gets that error. A batch takes what waits, up to `weight_max` (the
    sum of the requests' weights; a single heavier request still runs, alone).
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Awaitable[Sequence[Answer | Exception]]],
        weight_max: int = 1024,
    ) -> None:
        self._run = run
        self._weight_max = weight_max
        self._waiting: deque[_Waiting[Request, Answer]] = deque()
        self._worker: asyncio.Task[None] | None = None

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
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="asyncqueue-batches")
        return entry

    async def settle(self) -> None:
        """Wait until nothing is under way or waiting."""
        while self._worker is not None and not self._worker.done():
            await asyncio.wait((self._worker,))

    async def _work(self) -> None:
        try:
            while self._waiting:
                if batch := self._next_batch():
                    await self._run_batch(batch)
                # Those who were just answered run before this task does: they may be back with their next request.
                await asyncio.sleep(0)
        finally:  # only if this task itself was cancelled, as a closing event loop does
            self._waiting, left = deque(), self._waiting
            for entry in left:
                entry.answer.cancel()

    def _next_batch(self) -> list[_Waiting[Request, Answer]]:
        batch: list[_Waiting[Request, Answer]] = []
        weight = 0
        while self._waiting:
            entry = self._waiting[0]
            if batch and weight + entry.weight > self._weight_max:
                break
            self._waiting.popleft()
            if entry.answer.cancelled():
                continue
            batch.append(entry)
            weight += entry.weight
        return batch

    async def _run_batch(self, batch: list[_Waiting[Request, Answer]]) -> None:
        try:
            answers = await self._run([entry.request for entry in batch])
        except asyncio.CancelledError:
            for entry in batch:
                entry.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to every caller of the batch
            answers = [error] * len(batch)
        for entry, answer in zip(batch, answers, strict=True):
            if entry.answer.done():
                if entry.undelivered and not isinstance(answer, Exception):
                    entry.undelivered(answer)
                continue
            if isinstance(answer, Exception):
                entry.answer.set_exception(answer)
            else:
                entry.answer.set_result(answer)


def _seen(answer: "asyncio.Future[Any]") -> None:
    """Take note of an error that nobody waits for, so that asyncio does not report it."""
    if not answer.cancelled():
        answer.exception()


@dataclass(frozen=True, slots=True)
class _Call:
    """One caller's request: a verb and its items."""

    verb: str
    items: Sequence[Any]

    @property
    def has_effect(self) -> bool:
        """Whether it runs code of its caller, which may wait for anything."""
        return self.verb == "finish" and any(report.effect is not None for report in self.items)


class BatchedStore:
    """The verbs of a store, where whoever waits at the same moment shares one transaction, whatever the verb.

    Reports go before claims, so a finish and the claim that refills its slot cost one commit together.
    """

    _ORDER = ("enqueue", "finish", "note", "cancel", "renew", "release", "redrive", "claim")

    def __init__(self, store: Store) -> None:
        self.store = store
        self._batcher: Batcher[_Call, list[Any]] = Batcher(self._run)
        self._is_closed = False
        self._pid = os.getpid()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict | QueueFull]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("enqueue", jobs), len(jobs))

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """See `stores.base.Transaction`. A caller cancelled too late to be withdrawn has its leases released."""
        return await self._submit(_Call("claim", (claim,)), claim.limit, self._give_back)

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """See `stores.base.Transaction`."""
        return await self._submit(_Call("finish", reports), len(reports))

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

    async def close(self) -> None:
        """Refuse new calls, wait until nothing is under way, close the store; may be called again.

        A caller that is cancelled meanwhile still closes the store: what waits then gets `StoreClosed`.
        """
        self._check_process()
        self._is_closed = True
        try:
            await self._batcher.settle()
        finally:
            await self.store.close()

    async def _submit(
        self, call: _Call, weight: int, undelivered: Callable[[list[Any]], None] | None = None
    ) -> list[Any]:
        self._check_process()
        if self._is_closed:
            raise StoreClosed("the queue is closed")
        return await self._batcher.submit(call, weight, undelivered)

    def _check_process(self) -> None:
        # Before anything is waited for: a batch under way at the fork never ends in the child.
        if os.getpid() != self._pid:
            raise ForkedProcess("the queue was opened before a fork; open it again in the child process")

    def _give_back(self, leased: list[LeasedJob]) -> None:
        if leased:
            self._batcher.post(_Call("release", [Release(job) for job in leased]), len(leased))

    async def _run(self, calls: Sequence[_Call]) -> Sequence[list[Any] | Exception]:
        try:
            return await self._together(calls)
        except StoreError:  # the database's own trouble: every call of the batch has it
            raise
        except Exception:  # a bad item: it must not fail the others, so each call gets a transaction of its own
            if len(calls) == 1:
                raise
            return [await self._alone(call) for call in calls]

    async def _together(self, calls: Sequence[_Call]) -> list[list[Any]]:
        answers: dict[int, list[Any]] = {}

        async def work(transaction: Transaction) -> None:
            answers.clear()
            for verb in self._ORDER:
                mine = [(place, call) for place, call in enumerate(calls) if call.verb == verb]
                if verb == "claim":
                    for place, call in mine:
                        answers[place] = await transaction.claim(call.items[0])
                elif mine:
                    merged = [item for _place, call in mine for item in call.items]
                    rest = iter(await getattr(transaction, verb)(merged))
                    for place, call in mine:
                        answers[place] = list(islice(rest, len(call.items)))

        await self.store.write(work, inline=not any(call.has_effect for call in calls))
        return [answers[place] for place in range(len(calls))]

    async def _alone(self, call: _Call) -> list[Any] | Exception:
        try:
            return (await self._together((call,)))[0]
        except Exception as error:  # noqa: BLE001 - handed to the caller of this call
            return error
