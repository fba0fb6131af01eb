"""The queue as an async service embeds it: every verb checks its arguments, then asks the batched store."""

import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from asyncqueue.clock import Clock
from asyncqueue.errors import ConfigError, Conflict, InvalidJob, NotDead
from asyncqueue.job import (
    DEFAULT_KIND,
    DEFAULT_LEASE_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
    DEFAULT_TTL_MS,
    PRODUCT,
    FailedAttempt,
    Job,
    LeasedJob,
    NewJob,
    Range,
    Redrive,
    Release,
    Renew,
    Report,
    Ticket,
    check_id,
    check_int,
    decode_payload,
    encode_payload,
)
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Claim, JobFilter, Stats, Store
from asyncqueue.stores.batching import BatchedStore
from asyncqueue.stores.sqlite.connection import Journal, Profile

__all__ = ["Queue", "new_owner"]

ENQUEUE_MAX = 10_000  # jobs in one call
CLAIM_MAX = 1_024
LIST_MAX = 10_000
SWEEP_MAX = 10_000
SEQ_MAX = 2**63 - 1


def new_owner(prefix: str = "") -> str:
    """Return a fresh owner id: random per call, so a restarted process is never mistaken for the dead one."""
    return f"{prefix[:40]}-{secrets.token_hex(8)}" if prefix else secrets.token_hex(8)


class Queue:
    """An open queue. `await Queue.open(url)` or `async with Queue.open(url) as queue`.

    All verbs may be called by any number of tasks at once; those that wait at the same moment share a commit.
    Each raises `InvalidJob` for an argument outside its documented range before anything is changed, and
    `StoreError` (busy, full, closed, forked) if the database cannot; then nothing of the call is visible.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._batches = BatchedStore(store)
        self._listeners: set[Callable[[], None]] = set()

    @staticmethod
    def open(  # noqa: PLR0913 - settings, all by name
        url: str | os.PathLike[str],
        *,
        late: Literal["strict", "accept"] = "strict",
        journal: Journal = "delete",
        force_wal: bool = False,
        patience_ms: int = 10_000,
        clock: Clock | None = None,
        create: bool = True,
    ) -> "_Opening":
        """Open the queue at `url`, a path of a SQLite file (made if missing, unless `create=False`).

        `late="accept"` takes a report after its lease ran out, as long as nobody took the job over; the default
        refuses it. `journal` is `delete` (synchronous=EXTRA) or `wal` (FULL). `patience_ms` bounds the wait
        for other writers. Raises `ConfigError`, `NotAQueue`, `NewerSchema`, `StoreBusy`.
        """
        if late not in ("strict", "accept"):
            raise ConfigError(f"late must be 'strict' or 'accept', not {late!r}")
        return _Opening(
            lambda: open_store(
                url,
                clock=clock,
                profile=Profile(journal, patience_ms, force_wal),
                accept_late=late == "accept",
                create=create,
            )
        )

    async def enqueue(  # noqa: PLR0913 - the job's own fields, all but two by name
        self,
        id: str,
        qty: int,
        *,
        payload: Any = None,
        queue: str = DEFAULT_QUEUE,
        kind: str = DEFAULT_KIND,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int = DEFAULT_TTL_MS,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    ) -> bool:
        """Put one job in, durably. True: new; False: the same job is there already, unchanged.

        The job is due after `delay_ms` and dies if it is not delivered within `ttl_ms` (both from now) or
        `max_attempts` tries. Raises `Conflict`, naming the fields, if the id is taken by a different job.
        """
        job = NewJob(id, qty, encode_payload(payload), queue, kind, priority, delay_ms, ttl_ms, max_attempts)
        job.check()
        answer = (await self._batches.enqueue((job,)))[0]
        if isinstance(answer, Conflict):
            raise answer
        if answer:
            self._wake()
        return answer

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[bool | InvalidJob | Conflict]:
        """Put up to 10,000 jobs in with one commit; a result per item, in order: one bad item fails no other.

        True and False as for `enqueue`; a `Conflict` or `InvalidJob` is returned, not raised. Build the items
        with `NewJob`; its `payload` is the text of `encode_payload`.
        """
        items = list(jobs)
        if len(items) > ENQUEUE_MAX:
            raise InvalidJob(f"enqueue_many takes at most {ENQUEUE_MAX} jobs a call, not {len(items)}")
        answers: list[bool | InvalidJob | Conflict | None] = [_refusal(job) for job in items]
        good = [job for job, refusal in zip(items, answers, strict=True) if refusal is None]
        stored = iter(await self._batches.enqueue(good) if good else ())
        results = [next(stored) if refusal is None else refusal for refusal in answers]
        if any(result is True for result in results):
            self._wake()
        return results

    async def claim(
        self,
        owner: str,
        *,
        limit: int = 1,
        lease_ms: int = DEFAULT_LEASE_MS,
        queues: Sequence[str] | None = None,
    ) -> list[LeasedJob]:
        """Lease up to `limit` (1-1024) eligible jobs, best first; an empty list if there are none.

        A caller that is cancelled while the claim commits has its leases released again.
        """
        check_id("owner", owner)
        check_int("limit", limit, Range(1, CLAIM_MAX))
        check_int("lease_ms", lease_ms, PRODUCT.lease_ms)
        return await self._batches.claim(Claim(owner, limit, lease_ms, _names(queues)))

    async def finish(
        self,
        ticket: Ticket,
        outcome: Literal["ok", "retry", "permanent"],
        *,
        error: str | None = None,
        delay_ms: int = 0,
    ) -> Status | None:
        """Report the end of an attempt; the job's new status, or None if the ticket is stale (nothing changed)."""
        failure = None if error is None else FailedAttempt(error)
        return (await self.finish_many([_report(ticket, outcome, delay_ms, failure)]))[0]

    async def finish_many(self, reports: Sequence[Report]) -> list[Status | None]:
        """Settle several leases with one commit; see `finish`."""
        for report in reports:
            _check_outcome(report.outcome)
            check_int("delay_ms", report.delay_ms, PRODUCT.delay_ms)
        answers = await self._batches.finish(reports) if reports else []
        if Status.PENDING in answers:
            self._wake()
        return answers

    async def renew(self, ticket: Ticket, lease_ms: int = DEFAULT_LEASE_MS) -> int | None:
        """Push the lease out to `lease_ms` from now, never past the deadline; None if the ticket is stale."""
        return (await self.renew_many([Renew(ticket, lease_ms)]))[0]

    async def renew_many(self, renewals: Sequence[Renew]) -> list[int | None]:
        """Push several leases out with one commit; see `renew`."""
        for renewal in renewals:
            check_int("lease_ms", renewal.lease_ms, PRODUCT.lease_ms)
        return await self._batches.renew(renewals) if renewals else []

    async def release(self, ticket: Ticket, *, delay_ms: int = 0) -> bool:
        """Give an unused lease back: the attempt is refunded. False if the ticket is stale."""
        return (await self.release_many([Release(ticket, delay_ms)]))[0]

    async def release_many(self, releases: Sequence[Release]) -> list[bool]:
        """Give several leases back with one commit; see `release`."""
        for release in releases:
            check_int("delay_ms", release.delay_ms, PRODUCT.delay_ms)
        answers = await self._batches.release(releases) if releases else []
        if any(answers):
            self._wake()
        return answers

    async def redrive(
        self,
        id: str,
        *,
        note: str,
        ttl_ms: int = DEFAULT_TTL_MS,
        actor: str | None = None,
    ) -> bool:
        """Put a dead job back with fresh attempts and `ttl_ms` to live; audited in the same transaction.

        `note` and `actor` are identifiers (1-64 of A-Z a-z 0-9 _ -). Raises `NotDead` for any other job.
        """
        redrive = Redrive(id, ttl_ms, note, actor)
        redrive.check()
        answer = (await self._batches.redrive((redrive,)))[0]
        if isinstance(answer, NotDead):
            raise answer
        self._wake()
        return answer

    async def get(self, id: str) -> Job | None:
        """Return the job's row, or None."""
        check_id("id", id)
        return (await self._store.get((id,)))[0]

    async def list(  # noqa: PLR0913 - one filter a column, all by name
        self,
        *,
        status: Status | str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        reason: Reason | str | None = None,
        after_seq: int = 0,
        limit: int = 100,
    ) -> "list[Job]":
        """Return one page of jobs in ascending seq; continue with `after_seq` = the last job's seq."""
        check_int("limit", limit, Range(1, LIST_MAX))
        check_int("after_seq", after_seq, Range(0, SEQ_MAX))
        try:
            wanted = JobFilter(
                None if status is None else Status(status),
                queue,
                kind,
                None if reason is None else Reason(reason),
                after_seq,
                limit,
            )
        except ValueError as error:
            raise InvalidJob(str(error)) from None
        return await self._store.list_jobs(wanted)

    async def stats(self) -> Stats:
        """Count the jobs by status and queue, in one consistent moment."""
        return await self._store.stats()

    async def next_due_ms(self, queues: Sequence[str] | None = None) -> int | None:
        """Return how long until the next live job (of `queues`) falls due (0: now), None if no job is live."""
        return await self._store.next_due_ms(queues)

    async def version(self) -> int:
        """Return a number that changes when another connection has committed; cheap."""
        return await self._store.version()

    async def sweep(self, limit: int = 1_000) -> int:
        """Move up to `limit` (1-10,000) jobs without time or attempts left to dead; return how many."""
        check_int("limit", limit, Range(1, SWEEP_MAX))
        return await self._store.write(lambda transaction: transaction.sweep(limit))

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each commit of this object that made jobs due; returns the way to stop it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def close(self) -> None:
        """Refuse new calls and close the queue once nothing is under way; may be called again."""
        await self._batches.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _wake(self) -> None:
        for listener in tuple(self._listeners):
            listener()


class _Opening:
    """A queue about to be opened: awaitable, and an async context manager."""

    def __init__(self, opener: Callable[[], Awaitable[Store]]) -> None:
        self._opener = opener
        self._queue: Queue | None = None

    async def _open(self) -> Queue:
        return Queue(await self._opener())

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._open().__await__()

    async def __aenter__(self) -> Queue:
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queue is not None:
            await self._queue.close()


def _refusal(job: NewJob) -> InvalidJob | None:
    try:
        job.check()
        _check_payload(job.payload)
    except InvalidJob as error:
        return error
    return None


def _check_payload(text: object) -> None:
    """Raise `InvalidJob` unless `text` is None or a text of `encode_payload`: only such texts can be compared."""
    if text is None:
        return
    if type(text) is not str:
        raise InvalidJob(f"payload must be the text of encode_payload, not {type(text).__name__}")
    try:
        canonical = encode_payload(decode_payload(text))
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"payload is not JSON text: {error}") from None
    if canonical != text:
        raise InvalidJob("payload must be the text of encode_payload: sorted keys, no spaces, None for null")


def _names(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str):  # else it would be taken for a sequence of one-letter names, and find nothing
        raise InvalidJob(f"queues must be a sequence of names, not the text {queues!r}")
    for name in queues:
        check_id("queue", name)
    return tuple(queues)


def _check_outcome(outcome: str) -> None:
    if outcome not in ("ok", "retry", "permanent"):
        raise InvalidJob(f"outcome must be 'ok', 'retry' or 'permanent', not {outcome!r}")


def _report(ticket: Ticket, outcome: str, delay_ms: int, failure: FailedAttempt | None) -> Report:
    _check_outcome(outcome)
    if outcome == "ok":
        return Report.ok(ticket)
    if outcome == "retry":
        return Report.retry(ticket, delay_ms, failure)
    return Report.permanent(ticket, failure)
