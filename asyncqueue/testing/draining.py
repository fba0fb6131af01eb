"""Run what is due in the test's own task: no dispatcher, no waiting, one job after the other."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from asyncqueue.dispatcher.settle import HandlerSender, Sender
from asyncqueue.errors import AsyncQueueError
from asyncqueue.job import FailedAttempt, LeasedJob, NewJob, Note, Release, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue, new_owner
from asyncqueue.retry import Certainty, Outcome, RetryPolicy, Verdict, decide

__all__ = ["Drained", "drain", "inline"]

AnyHandler = Callable[[LeasedJob], Awaitable[object] | object]
Deliver = Sender | AnyHandler | Mapping[str, AnyHandler]

_RUNS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Drained:
    """What came of the attempts of one drain; `errors` are what handlers and effects raised, in order.

    `left` counts attempts without a report (a handler that returned no `True`, or raised an error of its own):
    their leases run out by themselves.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    left: int = 0
    stale: int = 0
    errors: tuple[Exception, ...] = ()

    @property
    def ran(self) -> int:
        """Return how many attempts were made."""
        return self.done + self.retried + self.dead + self.released + self.left + self.stale


async def drain(  # noqa: PLR0913 - settings, all by name
    queue: Queue,
    deliver: Deliver,
    *,
    queues: Sequence[str] | None = None,
    policy: RetryPolicy | None = None,
    limit: int = _RUNS_MAX,
    raises: bool = False,
) -> Drained:
    """Deliver everything that is due now, in order, in this task; return what came of it.

    `deliver` is a sender (`HttpSender`), a handler, or a mapping from kind to handler, which leaves jobs of other
    kinds alone. A handler may be async or not, and acknowledges as in a dispatcher: by an exact `True` or an
    `Effect`. What a handler enqueues is run too; what must wait (a delay, a retry, a lease that runs out) is not:
    move the clock and drain again. Retries wait for the whole backoff of `policy`, without jitter. With `raises`,
    the first error of a handler or effect is raised once its job was settled. More than `limit` attempts are an
    error: a handler that enqueues its own successor would never end.
    """
    sender, kinds = _carrier(deliver)
    owner, made = new_owner("test"), _Made(policy or RetryPolicy())
    async with AsyncExitStack() as resources:
        if isinstance(sender, AbstractAsyncContextManager):
            await resources.enter_async_context(sender)
        while leased := await queue.claim(owner, queues=queues, kinds=kinds):
            if made.drained.ran >= limit:
                await queue.release_many([Release(leased[0])])
                raise AsyncQueueError(f"drain made {limit} attempts and more is due: does a handler feed itself?")
            outcome = await sender.send(leased[0])
            await made.settle(queue, leased[0], outcome, sender)
            if raises and made.drained.errors:
                raise made.drained.errors[0]
    return made.drained


@contextmanager
def inline(queue: Queue, deliver: Deliver, *, raises: bool = True) -> Iterator[Queue]:
    """Within the block, each `enqueue` and `enqueue_many` of this `queue` object drains it before it returns.

    For tests of code that enqueues and then expects the effect. It is not how the queue behaves: the job runs in
    the caller's task, before the caller goes on, and with `raises` the handler's error reaches the caller. Jobs
    enqueued past this object (another process, an outbox) are run by its next enqueue.
    """

    async def enqueue(*arguments: Any, **fields: Any) -> bool:
        answer = await Queue.enqueue(queue, *arguments, **fields)
        await drain(queue, deliver, raises=raises)
        return answer

    async def enqueue_many(jobs: Sequence[NewJob]) -> list[Any]:
        answers = await Queue.enqueue_many(queue, jobs)
        await drain(queue, deliver, raises=raises)
        return answers

    vars(queue).update(enqueue=enqueue, enqueue_many=enqueue_many)
    try:
        yield queue
    finally:
        del vars(queue)["enqueue"], vars(queue)["enqueue_many"]


class _Handlers:
    """Carries jobs to handlers by kind, and remembers what those raised."""

    def __init__(self, of_kind: Callable[[str], AnyHandler]) -> None:
        self._of_kind = of_kind
        self.error: Exception | None = None

    async def send(self, job: LeasedJob) -> Outcome:
        self.error = None
        try:
            return await HandlerSender(self._run).send(job)
        except Exception as error:  # noqa: BLE001 - left to the lease, as a dispatcher does
            return Outcome(Verdict.LEAVE, Certainty.UNKNOWN, f"{type(error).__name__}: {error}")

    async def _run(self, job: LeasedJob) -> object:
        try:
            answer = self._of_kind(job.kind)(job)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            self.error = error
            raise


class _Made:
    """Settles attempts and counts what came of them."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.drained = Drained()

    async def settle(self, queue: Queue, job: LeasedJob, outcome: Outcome, sender: Sender) -> None:
        if isinstance(sender, _Handlers) and sender.error:
            self._note_error(sender.error)
        decision = decide(job, outcome, self._policy, lambda: 1.0)
        if isinstance(decision, Report):
            self._count(await self._reported(queue, job, decision))
        elif isinstance(decision, Release):
            self._count("released" if (await queue.release_many([decision]))[0] else "stale")
        else:
            await queue.note_many([Note(job, outcome.failure())])
            self._count("left")

    async def _reported(self, queue: Queue, job: LeasedJob, report: Report) -> str:
        (answer,) = await queue.finish_many([report])
        if isinstance(answer, Exception):  # its effect failed and was undone: an honest retry
            self._note_error(answer)
            failure = FailedAttempt(f"effect failed: {type(answer).__name__}: {answer}", Certainty.REFUSED)
            again = Report.retry(job, self._policy.delay_ms(job.attempt, 1.0), failure)
            return await self._reported(queue, job, again)
        if answer is None:
            return "stale"
        return {Status.DONE: "done", Status.DEAD: "dead"}.get(answer, "retried")

    def _note_error(self, error: Exception) -> None:
        self.drained = replace(self.drained, errors=(*self.drained.errors, error))

    def _count(self, what: str) -> None:
        self.drained = replace(self.drained, **{what: getattr(self.drained, what) + 1})


def _carrier(deliver: Deliver) -> tuple[Sender, tuple[str, ...] | None]:
    """Return what carries the jobs, and the kinds that it takes (None for all)."""
    if isinstance(deliver, Mapping):
        return _Handlers(deliver.__getitem__), tuple(deliver)
    if hasattr(deliver, "send"):
        return deliver, None
    return _Handlers(lambda _kind: deliver), None
