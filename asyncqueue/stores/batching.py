"""Group commit: whoever waits at the same moment shares one transaction.

No wait is ever added to gather a batch: while one transaction runs, the next callers gather by themselves.
Each caller still gets its own answer or its own error, and a cancelled one is withdrawn if its batch has
not begun.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Batcher"]

Request = TypeVar("Request")
Answer = TypeVar("Answer")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[Request, Answer]):
    request: Request
    weight: int
    answer: "asyncio.Future[Answer]" = field(repr=False)


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

    async def submit(self, request: Request, weight: int = 1) -> Answer:
        """Return the answer to `request` from the batch that takes it, or raise its error."""
        entry: _Waiting[Request, Answer] = _Waiting(request, weight, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="asyncqueue-batches")
        return await entry.answer

    async def settle(self) -> None:
        """Wait until nothing is under way or waiting."""
        while self._worker is not None and not self._worker.done():
            await asyncio.wait((self._worker,))

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                await self._run_batch(batch)
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
                continue
            if isinstance(answer, Exception):
                entry.answer.set_exception(answer)
            else:
                entry.answer.set_result(answer)
