"""Handlers in this process: what they see of their job and its lease, and what their answers mean."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from dataclasses import fields
from operator import attrgetter
from typing import Final

import anyio
import anyio.to_thread

from asyncqueue.dispatcher.lane import Delivery, Ended, Lane
from asyncqueue.errors import ConfigError, Permanent, Retryable
from asyncqueue.job import Effect, LeasedJob, printable
from asyncqueue.queue import Queue
from asyncqueue.retry import Certainty, Outcome, Verdict

__all__ = ["Context", "Handler", "HandlerCarrier", "attempt", "in_thread"]

_ACKNOWLEDGED = Outcome(Verdict.OK, Certainty.ACCEPTED)
_MAKING: Final = threading.Lock()
_FIELDS: Final = attrgetter(*(field.name for field in fields(LeasedJob)))


class Lease:
    """The hold on a job while its handler runs."""

    __slots__ = ("_delivery", "_lease_ms", "_loop", "_queue", "threads")

    def __init__(self, delivery: Delivery, queue: Queue, lease_ms: int, threads: anyio.CapacityLimiter) -> None:
        self._delivery = delivery
        self._queue = queue
        self._lease_ms = lease_ms
        self._loop = asyncio.get_running_loop()
        self.threads = threads

    @property
    def lost(self) -> asyncio.Event:
        """Made when it is first asked for, maybe by a thread: few handlers ask."""
        delivery = self._delivery
        with _MAKING:
            lost = delivery.lost = delivery.lost or asyncio.Event()
        if delivery.ended is not None:
            lost.set()
        return lost

    def remaining_ms(self, deadline: int) -> int:
        """Return the time from now to `deadline`, by this process's own monotonic clock."""
        delivery = self._delivery
        lease_left_ms = (delivery.lease_ends - self._loop.time()) * 1000
        return max(0, deadline - delivery.lease_until + round(lease_left_ms))

    async def renew(self) -> bool:
        """Push the lease out now; False if it is lost."""
        delivery = self._delivery
        if delivery.ended is not None or delivery.outcome is not None:
            return False
        asked_at = self._loop.time()
        lease_until = await self._queue.renew(delivery.job, self._lease_ms)
        if lease_until is None:
            delivery.end(Ended.TAKEN)
            return False
        delivery.renewed(lease_until, asked_at, self._lease_ms / 1000)
        return True


class Context(LeasedJob):
    """A leased job as its handler sees it: all fields and `json()` of `LeasedJob`, and the hold on its lease."""

    __slots__ = ("_lease",)
    _lease: Lease

    @classmethod
    def of(cls, job: LeasedJob, lease: Lease) -> "Context":
        """Return the context of `job`, held by `lease`."""
        context = cls(*_FIELDS(job))
        object.__setattr__(context, "_lease", lease)  # frozen, as a leased job is
        return context

    @property
    def lost(self) -> asyncio.Event:
        """Set once the lease is lost, or given up at the end of a stop's grace; a thread may ask `is_set()`."""
        return self._lease.lost

    @property
    def remaining_ms(self) -> int:
        """How long until the job's deadline, whatever the wall clock does meanwhile. Threads may ask, too."""
        return self._lease.remaining_ms(self.deadline)

    async def renew(self) -> bool:
        """Push the lease out now, as the dispatcher does by itself at every third of it.

        False if the lease is lost: the handler is being cancelled. Raises `StoreError` if the store cannot be
        asked; the lease then runs on as it was.
        """
        return await self._lease.renew()


Handler = Callable[[Context], Awaitable[object]]


class HandlerCarrier:
    """Carries deliveries to an `async def handler(job)` in this process.

    Only an exact `True` or an `Effect` acknowledges. `Retryable` and `Permanent` classify; any other result or
    error is logged, recorded and left to the lease.
    """

    def __init__(self, handler: Handler, queue: Queue, lease_ms: int, threads: anyio.CapacityLimiter) -> None:
        self._handler = handler
        self._queue = queue
        self._lease_ms = lease_ms
        self._threads = threads

    async def __call__(self, delivery: Delivery) -> Outcome:
        """Run the handler once."""
        lease = Lease(delivery, self._queue, self._lease_ms, self._threads)
        try:
            answer: object = self._handler(Context.of(delivery.job, lease))
            if not inspect.isawaitable(answer):
                return _unclear("the handler is not async: make it so, or wrap it in in_thread()")
            answer = await answer
        except Retryable as error:
            return Outcome(Verdict.RETRY, Certainty.UNKNOWN, printable(str(error)))
        except Permanent as error:
            return Outcome(Verdict.PERMANENT, Certainty.REFUSED, printable(str(error)))
        return _meaning(answer)


async def attempt(handler: Handler, queue: Queue, job: LeasedJob) -> Outcome:
    """Run a handler once for a leased job, outside a dispatcher: it sees what it would see there. For tests."""
    carrier = HandlerCarrier(handler, queue, job.lease_ms, anyio.CapacityLimiter(1))
    now = asyncio.get_running_loop().time()
    lane = Lane(None, carrier, 1)
    return await carrier(Delivery(job, lane, job.lease_until, now, now + job.lease_ms / 1000))


def _meaning(answer: object) -> Outcome:
    if answer is True:
        return _ACKNOWLEDGED
    if isinstance(answer, Effect) and callable(answer.work):  # without work it would pass for a plain success
        return Outcome(Verdict.OK, Certainty.ACCEPTED, effect=answer.work)
    return _unclear(f"the handler returned {answer!r}, not True")


def _unclear(text: str) -> Outcome:
    return Outcome(Verdict.LEAVE, Certainty.UNKNOWN, printable(text))


def in_thread(function: Callable[[Context], object]) -> Handler:
    """Return a handler that runs a plain function in a worker thread.

    A dispatcher runs at most `concurrency` of them at once. A thread cannot be stopped: when the lease is lost its
    outcome is discarded, but it runs on and keeps its place among the threads until it returns; a long function
    asks `job.lost.is_set()` now and then. A `SystemExit` in it is an error like any other. Raises `ConfigError`
    for an async function.
    """
    if inspect.iscoroutinefunction(function) or not callable(function):
        raise ConfigError("in_thread takes a plain function; an async one is a handler as it is")

    async def handler(job: Context) -> object:
        call = _ThreadCall(function, job)
        await call.threads.acquire_on_behalf_of(call)
        try:
            # anyio's own limiter would count an abandoned thread as ended: this one is never the bound
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        finally:
            call.forgo()

    return handler


class _ThreadCall:
    """One call in a thread; it holds its place among the threads until the function has really returned."""

    def __init__(self, function: Callable[[Context], object], job: Context) -> None:
        self._function = function
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._is_taken = False  # begun by the thread, or forgone before that
        self.threads = job._lease.threads  # noqa: SLF001 - the other half of Context

    def __call__(self) -> object:
        if not self._take():
            return None
        try:
            return self._function(self._job)
        except SystemExit as error:  # no signal's: these are handled in the main thread alone
            raise RuntimeError(
                f"the handler called sys.exit({error.code!r}), which ends no process here"
            ) from error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for a place any more
                self._loop.call_soon_threadsafe(self._release)

    def forgo(self) -> None:
        """Let the function not begin any more: a lease that is lost starts no work."""
        if self._take():
            self._release()

    def _take(self) -> bool:
        with self._lock:
            is_mine, self._is_taken = not self._is_taken, True
        return is_mine

    def _release(self) -> None:
        self.threads.release_on_behalf_of(self)
