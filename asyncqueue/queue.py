"""The queue as an async service embeds it: every verb checks its arguments, then asks the batched store."""

import asyncio
import contextlib
import os
import secrets
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from asyncqueue.clock import Clock
from asyncqueue.errors import BadEffect, ConfigError, Conflict, InvalidJob, NotDead, QueueFull, UnknownJob
from asyncqueue.job import (
    DEFAULT_KIND,
    DEFAULT_LEASE_MS,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
    DEFAULT_TTL_MS,
    PRODUCT,
    EffectWork,
    FailedAttempt,
    HistoryRow,
    Job,
    LeasedJob,
    NewJob,
    Note,
    Range,
    Redrive,
    Release,
    Renew,
    Report,
    Ticket,
    brief,
    check_id,
    check_int,
    decode_payload,
    encode_payload,
)
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Claim, JobFilter, Rules, Stats, Store, Terms
from asyncqueue.stores.batching import BatchedStore
from asyncqueue.stores.sqlite.connection import Journal, Profile

__all__ = ["DedupHorizonWarning", "Queue", "new_owner"]

ENQUEUE_MAX = 10_000  # jobs in one call
CLAIM_MAX = 1_024
LIST_MAX = 10_000
SWEEP_MAX = 10_000
PURGE_SET = 50  # rows of one transaction: a claim behind it must not wait for long
SEQ_MAX = 2**63 - 1
DEFAULT_DEDUP_MS = 7 * 24 * 3600 * 1000

_WAIT_POLL_S = 0.025
_RATE_MAX = 100_000.0
_REDRIVE_SET = 500
_PURGE_PAUSE_MIN_S = 0.002


class DedupHorizonWarning(UserWarning):
    """A purge forgets ids that could still be enqueued again."""


def new_owner(prefix: str = "") -> str:
    """Return a fresh owner id: random per call, so a restarted process is never mistaken for the dead one."""
    return f"{prefix[:40]}-{secrets.token_hex(8)}" if prefix else secrets.token_hex(8)


class Queue:
    """An open queue. `await Queue.open(url)` or `async with Queue.open(url) as queue`.

    All verbs may be called by any number of tasks at once; those that wait at the same moment share a commit.
    Each raises `InvalidJob` for an argument outside its documented range before anything is changed, and
    `StoreError` (busy, full, closed, forked) if the database cannot; then nothing of the call is visible. Inside
    an effect on the same database they raise `BadEffect`, but for those that only read.
    """

    def __init__(self, store: Store, *, dedup_ms: int = DEFAULT_DEDUP_MS) -> None:
        self._store = store
        self._dedup_ms = dedup_ms
        self._batches = BatchedStore(store)
        self._listeners: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()

    @staticmethod
    def open(  # noqa: PLR0913 - settings, all by name
        url: str | os.PathLike[str],
        *,
        late: Literal["strict", "accept"] = "strict",
        history: Literal["failures", "all"] = "failures",
        max_pending: int | None = None,
        dedup_ms: int = DEFAULT_DEDUP_MS,
        journal: Journal = "delete",
        force_wal: bool = False,
        patience_ms: int = 10_000,
        clock: Clock | None = None,
        create: bool = True,
        adopt: bool = False,
        only_reads: bool = False,
    ) -> "_Opening":
        """Open the queue at `url`, a path of a SQLite file or the URL of a PostgreSQL database.

        The file, or the schema, is made if it is missing, unless `create=False`.

        `adopt=True` lets a database that has tables of its own become a queue as well: the queue's tables are
        added beside them. It is refused if one of their names is taken or the database keeps a `user_version`. On
        PostgreSQL it is the schema that has other tables; a queue is not asked for where an inbox or a queue is.

        `only_reads=True` promises that no verb which changes anything will be called, and makes no file. Then one
        that this process cannot write will do, unless it must be migrated; such a verb raises `StoreError` on it.
        On PostgreSQL it is `create=False`.

        `late="accept"` takes a report after its lease ran out, as long as nobody took the job over; the default
        refuses it. `history="all"` keeps a row for plain successes too. `max_pending` bounds the jobs that wait:
        enqueue then raises `QueueFull`. `dedup_ms` is the dedup horizon: a purge below it warns, since the id of
        a purged job is forgotten and would be taken for a new one. `journal` is `delete` (synchronous=EXTRA),
        `wal` (FULL) or `keep` to leave a file's own mode alone. `patience_ms` bounds the wait for other writers,
        and for a server that is restarted. On PostgreSQL the journal means nothing, and the server's clock decides
        unless `clock` is given. Raises `ConfigError`, `NotAQueue`, `NewerSchema`, `StoreBusy`, `StoreDamaged`,
        `StoreUnreachable`, `StoreDenied`.
        """
        if late not in ("strict", "accept"):
            raise ConfigError(f"late must be 'strict' or 'accept', not {late!r}")
        if history not in ("failures", "all"):
            raise ConfigError(f"history must be 'failures' or 'all', not {history!r}")
        if max_pending is not None:
            check_int("max_pending", max_pending, Range(1, SEQ_MAX))
        check_int("dedup_ms", dedup_ms, PRODUCT.delay_ms)
        rules = Rules(late == "accept", history == "all", max_pending)
        return _Opening(
            lambda: open_store(
                url,
                clock=clock,
                profile=Profile(journal, patience_ms, force_wal),
                rules=rules,
                create=create,
                adopt=adopt,
                only_reads=only_reads,
            ),
            dedup_ms,
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
        `max_attempts` tries. Raises `Conflict`, naming the fields, if the id is taken by a different job, and
        `QueueFull` if as many jobs wait as `max_pending` allows.
        """
        job = NewJob(id, qty, encode_payload(payload), queue, kind, priority, delay_ms, ttl_ms, max_attempts)
        job.check()
        answer = (await self._batches.enqueue((job,)))[0]
        if isinstance(answer, Conflict | QueueFull):
            raise answer
        if answer:
            self._wake()
        return answer

    async def enqueue_many(self, jobs: Iterable[NewJob]) -> list[bool | InvalidJob | Conflict | QueueFull]:
        """Put up to 10,000 jobs in with one commit; a result per item, in order: one bad item fails no other.

        True and False as for `enqueue`; a `Conflict`, `InvalidJob` or `QueueFull` is returned, not raised. Build
        the items with `NewJob`; its `payload` is the text of `encode_payload`.
        """
        if not isinstance(jobs, Iterable):
            raise InvalidJob(f"jobs must be an iterable of NewJob, not {type(jobs).__name__}")
        items = list(jobs)
        if len(items) > ENQUEUE_MAX:
            raise InvalidJob(f"enqueue_many takes at most {ENQUEUE_MAX} jobs a call, not {len(items)}")
        answers: list[InvalidJob | None] = [_refusal(job) for job in items]
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
        kinds: Sequence[str] | None = None,
    ) -> list[LeasedJob]:
        """Lease up to `limit` (1-1024) eligible jobs, best first; an empty list if there are none.

        `queues` and `kinds` name what is wanted, None for all; jobs of other kinds are left for others. A caller
        that is cancelled while the claim commits has its leases released again.
        """
        check_id("owner", owner)
        check_int("limit", limit, Range(1, CLAIM_MAX))
        check_int("lease_ms", lease_ms, PRODUCT.lease_ms)
        return await self._batches.claim(
            Claim(owner, limit, lease_ms, _names("queue", queues), _names("kind", kinds))
        )

    @property
    def claim_apart(self) -> int | None:
        """From how many jobs on a claim has a transaction of its own, beside the reports; None: it never has."""
        return self._batches.claim_apart

    async def claim_late(  # noqa: PLR0913 - settings, all but two by name
        self,
        owner: str,
        room: Callable[[], int],
        *,
        lease_ms: int = DEFAULT_LEASE_MS,
        queues: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        likely: int = 0,
    ) -> list[LeasedJob]:
        """Do as `claim` does, with as many jobs as `room` says (0-1024) when the transaction has begun.

        So whatever fell free while it waited for its turn is filled, too. `room` is called once, in the store's
        thread, and may not wait. `likely` is about what it will say: many jobs need not wait for the reports that
        are under way, where the store can do both at once.
        """
        check_id("owner", owner)
        check_int("lease_ms", lease_ms, PRODUCT.lease_ms)
        wanted = _names("queue", queues), _names("kind", kinds)

        def claim() -> Claim | None:
            limit = min(room(), CLAIM_MAX)
            return Claim(owner, limit, lease_ms, *wanted) if limit > 0 else None

        return await self._batches.claim_late(claim, likely)

    async def finish(
        self,
        ticket: Ticket,
        outcome: Literal["ok", "retry", "permanent"],
        *,
        error: str | None = None,
        delay_ms: int = 0,
        effect: EffectWork | None = None,
    ) -> Status | None:
        """Report the end of an attempt; the job's new status, or None if the ticket is stale (nothing changed).

        `effect(connection)`, only with `ok`, is database work in the very transaction of the finish, on the
        store's own connection; it must not commit or roll back. A stale ticket does not run it. If it raises,
        its work and the finish are undone, the job stays leased, and its error is raised here; others in the same
        commit are not touched. `BadEffect` tells that it tried to end the transaction, or called this queue. A
        transaction that has to be repeated runs it again, after what it did the first time was rolled back.
        """
        failure = None if error is None else FailedAttempt(error)
        answer = (await self.finish_many([_report(ticket, outcome, delay_ms, failure, effect)]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def finish_many(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """Settle several leases with one commit; see `finish`. The error of an effect is returned, not raised."""
        _check_sequence("reports", reports)
        for report in reports:
            _check_report(report)
        answers = await self._batches.finish(reports) if reports else []
        if Status.PENDING in answers:
            self._wake()
        return answers

    async def finish_late(self, reports: Callable[[], Sequence[Report]]) -> list[Status | None]:
        """Settle what `reports` names when the transaction has begun, none with an effect. See `claim_late`."""

        def checked() -> Sequence[Report]:
            named = reports()
            for report in named:
                _check_report(report)
                if report.effect is not None:
                    raise BadEffect("an effect may wait, and a late report may not: give it to finish_many")
            return named

        answers = await self._batches.finish_late(checked)
        if Status.PENDING in answers:
            self._wake()
        return answers

    async def renew(self, ticket: Ticket, lease_ms: int = DEFAULT_LEASE_MS) -> int | None:
        """Push the lease out to `lease_ms` from now, never past the deadline; None if the ticket is stale."""
        return (await self.renew_many([Renew(ticket, lease_ms)]))[0]

    async def renew_many(self, renewals: Sequence[Renew]) -> list[int | None]:
        """Push several leases out with one commit; see `renew`."""
        _check_sequence("renewals", renewals)
        for renewal in renewals:
            _check_ticket(renewal, Renew)
            check_int("lease_ms", renewal.lease_ms, PRODUCT.lease_ms)
        return await self._batches.renew(renewals) if renewals else []

    async def release(self, ticket: Ticket, *, delay_ms: int = 0) -> bool:
        """Give an unused lease back: the attempt is refunded. False if the ticket is stale."""
        return (await self.release_many([Release(ticket, delay_ms)]))[0]

    async def release_many(self, releases: Sequence[Release]) -> list[bool]:
        """Give several leases back with one commit; see `release`."""
        _check_sequence("releases", releases)
        for release in releases:
            _check_ticket(release, Release)
            if release.failure is not None:
                _check_failure(release.failure)
            check_int("delay_ms", release.delay_ms, PRODUCT.delay_ms)
        answers = await self._batches.release(releases) if releases else []
        if any(answers):
            self._wake()
        return answers

    async def snooze(self, ticket: Ticket, delay_ms: int) -> bool:
        """Put the job off for `delay_ms` >= 1 without burning the attempt. False if the ticket is stale."""
        check_int("delay_ms", delay_ms, Range(1, PRODUCT.delay_ms.high))
        return (await self.release_many([Release(ticket, delay_ms)]))[0]

    async def note_many(self, notes: Sequence[Note]) -> None:
        """Add history rows for attempts whose leases are left to run out."""
        _check_sequence("notes", notes)
        for note in notes:
            _check_ticket(note, Note)
            _check_failure(note.failure)
        if notes:
            await self._batches.note(notes)

    async def cancel(self, id: str) -> bool:
        """Make a pending or leased job dead with reason `cancelled`; False if it has ended already.

        The holder of its lease is stale at once and learns of it at its next renewal. Raises `UnknownJob`; an
        unknown id leaves no trace.
        """
        before = (await self.cancel_many((id,)))[0]
        if before is None:
            raise UnknownJob(f"there is no job {id}")
        return before in (Status.PENDING, Status.LEASED)

    async def cancel_many(self, ids: Sequence[str]) -> "list[Status | None]":
        """Cancel several jobs with one commit; the status that each had before, None for an unknown id.

        Those that were pending or leased are dead now; see `cancel`.
        """
        _check_sequence("ids", ids)
        for job_id in ids:
            check_id("id", job_id)
        return await self._batches.cancel(ids) if ids else []

    async def wait(self, id: str, timeout_ms: int | None = None) -> Job:
        """Return the job once it is done or dead, whoever ends it.

        Raises `TimeoutError` after `timeout_ms` of real time (0: look once), and `UnknownJob` if there is no such
        job (any more).
        """
        if timeout_ms is not None:
            check_int("timeout_ms", timeout_ms, PRODUCT.delay_ms)
        self._batches.check_outside()
        version = await self._store.version(of_ends=True)
        job = await self._ended(id)
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            while job is None:
                await self._changed_since(version)
                version = await self._store.version(of_ends=True)
                job = await self._ended(id)
        return job

    async def _ended(self, id: str) -> Job | None:
        job = await self.get(id)
        if job is None:
            raise UnknownJob(f"there is no job {id}")
        return job if job.status in (Status.DONE, Status.DEAD) else None

    async def _changed_since(self, version: int) -> None:
        while await self._store.version(of_ends=True) == version:  # noqa: ASYNC110 - other processes share no event
            await asyncio.sleep(_WAIT_POLL_S)

    async def pause(self, queue: str) -> None:
        """Let nobody claim from `queue` until `resume`; its jobs are kept, leases that run go on. Persistent."""
        await self._set_paused(queue, paused=True)

    async def resume(self, queue: str) -> None:
        """Let claims from `queue` go on; one that was never used or paused is left unknown."""
        await self._set_paused(queue, paused=False)
        self._wake()

    async def _set_paused(self, queue: str, *, paused: bool) -> None:
        check_id("queue", queue)
        await self._batches.write(lambda transaction: transaction.pause((queue,), paused=paused))

    async def queues(self) -> dict[str, bool]:
        """Return the names of all queues ever used, and whether each is paused."""
        return await self._store.queues()

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

    async def redrive_many(  # noqa: PLR0913 - one filter a column, all by name
        self,
        *,
        note: str,
        actor: str | None = None,
        ttl_ms: int = DEFAULT_TTL_MS,
        queue: str | None = None,
        kind: str | None = None,
        reason: Reason | str | None = None,
        id_prefix: str | None = None,
        older_than_ms: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Redrive every dead job that all given filters meet; return how many were put back.

        With `dry_run`, only count them. `older_than_ms` counts from a job's end; `rate` bounds the jobs put back
        per second. One audit row per job, in the transaction that puts it back; of two redrives at once one finds
        the job not dead any more and leaves it.
        """
        Redrive("probe", ttl_ms, note, actor).check()
        if rate is not None and not (type(rate) in (int, float) and 0 < rate <= _RATE_MAX):
            raise InvalidJob(f"rate must be above 0 and at most {_RATE_MAX:g} jobs a second, not {rate!r}")
        wanted = _job_filter(
            status=Status.DEAD,
            queue=queue,
            kind=kind,
            reason=reason,
            id_prefix=id_prefix,
            older_than_ms=older_than_ms,
            limit=_REDRIVE_SET if rate is None else max(1, min(_REDRIVE_SET, int(rate))),
        )
        return await (
            self._store.count(wanted) if dry_run else self._redrive_all(wanted, note, actor, ttl_ms, rate)
        )

    async def _redrive_all(
        self, wanted: JobFilter, note: str, actor: str | None, ttl_ms: int, rate: float | None
    ) -> int:
        count = 0
        while page := await self._store.list_jobs(wanted):
            answers = await self._batches.redrive([Redrive(job.id, ttl_ms, note, actor) for job in page])
            count += sum(answer is True for answer in answers)
            self._wake()
            if len(page) < wanted.limit:
                break
            wanted = replace(wanted, after_seq=page[-1].seq)
            if rate is not None:
                await asyncio.sleep(len(page) / rate)
        return count

    async def purge(
        self, *, status: Status | str = Status.DONE, older_than_ms: int, limit: int | None = None
    ) -> int:
        """Delete done (or dead) jobs that ended at least `older_than_ms` ago, with their history; return how many.

        In small sets, each a short transaction, with a pause after it that is as long as the set took: others
        have the database for themselves at least half of the time, however slow the disk is. `limit` bounds the
        total. The dedup horizon: a purged id is forgotten, and the same id is then a new job. A purge below the
        `dedup_ms` that the queue was opened with does it, but warns (`DedupHorizonWarning`).
        """
        if status not in (Status.DONE, Status.DEAD):
            raise InvalidJob(f"only done or dead jobs can be purged, not {status!r}")
        check_int("older_than_ms", older_than_ms, PRODUCT.delay_ms)
        if limit is not None:
            check_int("limit", limit, Range(0, SEQ_MAX))
        if older_than_ms < self._dedup_ms:
            text = (
                f"purging ids younger than the dedup horizon ({older_than_ms} < {self._dedup_ms} ms) forgets them"
            )
            warnings.warn(text, DedupHorizonWarning, stacklevel=2)
        count, left = 0, SEQ_MAX if limit is None else limit
        while left > 0:
            size = min(PURGE_SET, left)
            started = self._loop.time()
            purged = await self.purge_set(Status(status), older_than_ms, size)
            count, left = count + purged, left - purged
            if purged < size:
                break
            await asyncio.sleep(max(_PURGE_PAUSE_MIN_S, self._loop.time() - started))
        return count

    @property
    def dedup_ms(self) -> int:
        """The dedup horizon that this queue was opened with."""
        return self._dedup_ms

    async def purge_set(self, status: Status, older_than_ms: int, size: int) -> int:
        """Delete up to `size` jobs, in one short transaction and without a warning; see `purge`."""
        return await self._batches.write(lambda transaction: transaction.purge(status, older_than_ms, size))

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
        id_prefix: str | None = None,
        older_than_ms: int | None = None,
        after_seq: int = 0,
        limit: int = 100,
    ) -> "list[Job]":
        """Return one page of jobs in ascending seq; continue with `after_seq` = the last job's seq."""
        check_int("limit", limit, Range(1, LIST_MAX))
        check_int("after_seq", after_seq, Range(0, SEQ_MAX))
        wanted = _job_filter(
            status=status,
            queue=queue,
            kind=kind,
            reason=reason,
            id_prefix=id_prefix,
            older_than_ms=older_than_ms,
            after_seq=after_seq,
            limit=limit,
        )
        return await self._store.list_jobs(wanted)

    async def history(self, id: str, *, limit: int = 1_000) -> Sequence[HistoryRow]:
        """Return the job's timeline, oldest first: attempts that were not a plain success, and redrives.

        An attempt that never began has no row: a job that was cancelled, or ran out of time, while it was pending
        tells of that by its own `reason` and `finished_at`.
        """
        check_id("id", id)
        check_int("limit", limit, Range(1, LIST_MAX))
        return await self._store.history(id, limit)

    async def stats(self, *, detail: bool = False) -> Stats:
        """Count the jobs by status and queue, at a cost that does not grow with their number.

        With `detail`, also count what is ready and expired (up to 10,000 per queue).
        """
        return await self._store.stats(detail=detail)

    async def next_due_ms(
        self, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> int | None:
        """Return how long until the next live job (of `queues`, of `kinds`) falls due (0: now), None without one.

        The cost grows with the number of queues that have live jobs; with the kind `job` among `kinds`, with that
        of live jobs.
        """
        return await self._store.next_due_ms(queues, kinds)

    async def version(self, *, of_ends: bool = False) -> int:
        """Return a number that changes when another connection has committed jobs that wait; cheap.

        With `of_ends` it changes, too, when jobs have ended or are gone.
        """
        return await self._store.version(of_ends=of_ends)

    def alarm(self, ring: Callable[[], None]) -> bool:
        """Have `ring` called once when `version` may have changed; False if the caller must look by itself.

        It may ring for nothing and a moment too early. Ask for it before the look that it is to save.
        """
        return self._store.alarm(ring)

    async def sweep(self, limit: int = 1_000) -> int:
        """Move up to `limit` (1-10,000) jobs without time or attempts left to dead; return how many."""
        check_int("limit", limit, Range(1, SWEEP_MAX))
        return await self._batches.write(lambda transaction: transaction.sweep(limit))

    async def backup(
        self, target: "str | os.PathLike[str]", *, told: Callable[[int, int], None] | None = None
    ) -> None:
        """Copy the queue, as of one moment, into the new file `target`, while others go on working.

        The copy is checked page by page, synced and private (0600); it has its name once it is whole. With the
        delete journal writers wait while it is made, with WAL they do not. On PostgreSQL that is the server's own
        business: `ConfigError`, as for a `target` that is there already. `told(done, of)` is called with pages, in
        another thread.
        """
        await self._store.backup(_new_path(target), told)

    async def raise_tokens(self) -> int:
        """Raise the tokens of all jobs, and of ids to come, above any that was ever given out; return that floor.

        To be called after the database was put back to an earlier state, by whatever means, and before anybody
        claims from it: what it gave out since is known to nobody, and a holder of that time must stay stale.
        `asyncqueue restore` does it. It rewrites every job that is not done, in one transaction.
        """
        return await self._batches.write(lambda transaction: transaction.raise_tokens())

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

    @property
    def outbox_terms(self) -> Terms:
        """The terms for jobs that reach this queue by the outbox: its clock, its bound, and whom to wake."""
        return replace(self._store.terms, committed=self.wake)

    def wake(self) -> None:
        """Let the dispatchers of this process look at once, say after the commit of an outbox transaction.

        May be called from any thread and at any time, also after the queue or its loop was closed.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be woken
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for listener in tuple(self._listeners):
            listener()


class _Opening:
    """A queue about to be opened: awaitable, and an async context manager."""

    def __init__(self, opener: Callable[[], Awaitable[Store]], dedup_ms: int) -> None:
        self._opener = opener
        self._dedup_ms = dedup_ms
        self._queue: Queue | None = None

    async def _open(self) -> Queue:
        return Queue(await self._opener(), dedup_ms=self._dedup_ms)

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
    if not isinstance(job, NewJob):
        return InvalidJob(f"an item must be a NewJob, not {type(job).__name__}")
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


def _names(what: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):  # else it would be taken for a sequence of one-letter names, and find nothing
        raise InvalidJob(f"{what}s must be a sequence of names, not the text {names!r}")
    for name in names:
        check_id(what, name)
    return tuple(names)


def _job_filter(
    *, status: Status | str | None, reason: Reason | str | None, older_than_ms: int | None, **rest: Any
) -> JobFilter:
    if older_than_ms is not None:
        check_int("older_than_ms", older_than_ms, PRODUCT.delay_ms)
    for name in ("queue", "kind", "id_prefix"):
        if rest.get(name) is not None:
            check_id(name, rest[name])
    try:
        return JobFilter(
            status=None if status is None else Status(status),
            reason=None if reason is None else Reason(reason),
            older_than_ms=older_than_ms,
            **rest,
        )
    except ValueError as error:
        raise InvalidJob(str(error)) from None


def _new_path(target: object) -> Path:
    where = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    if not isinstance(where, str) or not where or where.endswith("/") or "://" in where or where.startswith(":"):
        raise ConfigError(f"target must be the path of a new file, not {brief(where or target)}")
    return Path(where)


def _check_sequence(what: str, given: object) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidJob(f"{what} must be a sequence, not {type(given).__name__}")


def _check_ticket(given: object, kind: type[Report | Renew | Release | Note]) -> None:
    """Raise `InvalidJob` unless it is a record of this kind, under a ticket."""
    if not isinstance(given, kind):
        raise InvalidJob(f"an item must be a {kind.__name__}, not {type(given).__name__}")
    if not isinstance(given.ticket, Ticket):
        raise InvalidJob(f"ticket must be what a claim returned, not {type(given.ticket).__name__}")


def _check_report(report: Report) -> None:
    _check_ticket(report, Report)
    if report.outcome == "ok" and report.delay_ms == 0:  # nearly all, and each is checked inside a transaction
        return
    _check_outcome(report.outcome)
    _check_effect(report.outcome, report.effect)
    check_int("delay_ms", report.delay_ms, PRODUCT.delay_ms)
    if report.failure is not None:
        _check_failure(report.failure)


def _check_failure(failure: object) -> None:
    if not isinstance(failure, FailedAttempt):
        raise InvalidJob(f"failure must be a FailedAttempt, not {type(failure).__name__}")
    failure.check()


def _check_outcome(outcome: str) -> None:
    if outcome not in ("ok", "retry", "permanent"):
        raise InvalidJob(f"outcome must be 'ok', 'retry' or 'permanent', not {outcome!r}")


def _check_effect(outcome: str, effect: EffectWork | None) -> None:
    if effect is not None and outcome != "ok":
        raise InvalidJob("an effect goes with outcome 'ok' alone")


def _report(
    ticket: Ticket, outcome: str, delay_ms: int, failure: FailedAttempt | None, effect: EffectWork | None
) -> Report:
    _check_outcome(outcome)
    _check_effect(outcome, effect)
    if outcome == "ok":
        return Report.ok(ticket, effect)
    if outcome == "retry":
        return Report.retry(ticket, delay_ms, failure)
    return Report.permanent(ticket, failure)
