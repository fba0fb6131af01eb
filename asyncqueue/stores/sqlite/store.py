"""The SQLite store: the verbs of `stores.base` as a few set-based statements in one transaction each."""

import asyncio
import contextlib
import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import aiosqlite

from asyncqueue.clock import Clock, SystemClock
from asyncqueue.errors import BadEffect, ConfigError, Conflict, NotDead, QueueFull, StoreError
from asyncqueue.job import (
    DEFAULT_KIND,
    EffectWork,
    FailedAttempt,
    HistoryRow,
    Job,
    LeasedJob,
    NewJob,
    Note,
    Redrive,
    Release,
    Renew,
    Report,
    Ticket,
    printable,
)
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim, JobFilter, QueueDetail, Rules, Stats, Terms, Transaction
from asyncqueue.stores.inside import failure_of
from asyncqueue.stores.sets import (
    STATUSES,
    by_rounds,
    compared,
    counts_of,
    detail_of,
    full,
    job_of,
    new_row,
    parts,
    stats_of,
    ticket_row,
)
from asyncqueue.stores.sqlite import fence, schema, statements
from asyncqueue.stores.sqlite.alarm import Alarm
from asyncqueue.stores.sqlite.backup import back_up
from asyncqueue.stores.sqlite.connection import Database, Profile, Unwritable
from asyncqueue.stores.sqlite.offers import array
from asyncqueue.stores.sqlite.turns import Picked, Turns
from asyncqueue.stores.sqlite.watch import Mark, look_at

__all__ = ["SqliteStore", "SqliteTransaction"]

T = TypeVar("T")

_SQLITE_MIN: Final = (3, 38, 0)  # the operator ->> on JSON
# Jobs that one claim may move to dead: bounds the transaction (about 30 ms). Not fewer: until they are moved, each
# claim passes over all of them (130 ms for 300,000), so a backlog that died overnight must go in few claims.
_SWEEP_MAX: Final = 4_096
_BIRTH_S: Final = 1.0  # how long an empty file may be one that another process is making just now
_BIRTH_POLL_S: Final = 0.01
_DETAIL_MAX: Final = 10_000
_VERSION_S: Final = 0.25  # how long the times of the files are believed: some file systems keep none
_UNEXPLAINED: Final = FailedAttempt("")


class _EffectGuard:
    """Keeps an effect from ending the transaction that it runs in, by SQLite's own authorizer."""

    _SAVEPOINT: Final = "asyncqueue_effect"

    def __init__(self) -> None:
        self._is_running = False
        self._refused = False

    def __call__(self, action: int, _what: str | None, name: str | None, *_where: str | None) -> int:
        """Answer SQLite whether it may run this, as it prepares a statement."""
        is_ending = action == sqlite3.SQLITE_TRANSACTION or (
            action == sqlite3.SQLITE_SAVEPOINT and (name or "").lower() == self._SAVEPOINT
        )
        if not self._is_running or not is_ending:
            return sqlite3.SQLITE_OK
        self._refused = True
        return sqlite3.SQLITE_DENY

    async def failure_of(self, effect: EffectWork, connection: aiosqlite.Connection) -> Exception | None:
        """Run `effect` and return what it failed with, None if it did not."""
        self._is_running, self._refused = True, False
        try:
            failure = await failure_of(effect, connection)
        finally:
            self._is_running = False
        if self._refused:
            failure = BadEffect("an effect must not begin, commit or roll back; it and the finish were undone")
        return failure


class SqliteTransaction:
    """The verbs on a connection whose write transaction is open; commits and rolls back nothing itself."""

    def __init__(
        self, connection: aiosqlite.Connection, now_ms: int, rules: Rules, turns: Turns | None = None
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._rules = rules
        self._turns = turns or Turns()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict | QueueFull]:
        """See `stores.base.Transaction`."""
        if self._rules.max_pending is None:
            return [*await self._enqueue(jobs)]
        refused = await self._beyond(jobs, self._rules.max_pending)
        stored = iter(await self._enqueue([job for job in jobs if job.id not in refused]))
        bound = self._rules.max_pending
        return [full(bound) if job.id in refused else next(stored) for job in jobs]

    async def _beyond(self, jobs: Sequence[NewJob], max_pending: int) -> set[str]:
        """Return the ids that are new and for which there is no room."""
        room = max_pending - (await self._rows(statements.PENDING))[0][0]
        if len(jobs) <= room:
            return set()
        there = await self._existing(jobs)
        new = [job_id for job_id in dict.fromkeys(job.id for job in jobs) if job_id not in there]
        return set(new[max(0, room) :])

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict]:
        there = await self._existing(jobs)
        await self._rows(statements.ENQUEUE, jobs=array(map(new_row, jobs)))
        answers: list[bool | Conflict] = []
        for job in jobs:
            known = there.get(job.id)
            answers.append(True if known is None else compared(job, known[1:]))
            if known is None:  # the same id again in this set finds it
                there[job.id] = (job.id, job.qty, job.queue, job.kind, job.payload)
        return answers

    async def _existing(self, jobs: Sequence[NewJob]) -> dict[str, Sequence[Any]]:
        """Return what is there already of these ids, by id."""
        ids = array(dict.fromkeys(job.id for job in jobs))
        return {row[0]: row for row in await self._rows_as_json(statements.EXISTING, ids=ids)}

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """See `stores.base.Transaction`."""
        names, doomed = [], []
        queues = None if claim.queues is None else array(claim.queues)
        for name, seq in await self._rows(statements.LOOK, sweep=_SWEEP_MAX, queues=queues):
            names.append(name) if seq is None else doomed.append(seq)
        if doomed:
            await self._bury(doomed)
        try:
            picked = await self._pick(names, claim)
        except (sqlite3.OperationalError, ValueError, TypeError) as error:
            _raise_trouble(error)
            await self._rows(statements.CONDEMN_UNORDERED)
            picked = await self._pick(names, claim)
        if not picked:
            return []
        seqs = array(seq for seq, _priority, _status in picked)
        if any(status == Status.LEASED for _seq, _priority, status in picked):
            await self._history(statements.LOST, seqs=seqs)
        await self._rows(statements.CLAIM, seqs=seqs, owner=claim.owner, lease_ms=claim.lease_ms)
        try:
            return await self._claimed(seqs)
        except (sqlite3.OperationalError, ValueError) as error:
            _raise_trouble(error)
        return await self._claimed_without_damaged([seq for seq, _priority, _status in picked])

    async def _claimed(self, seqs: str) -> list[LeasedJob]:
        return [LeasedJob(*row) for row in await self._rows_as_json(statements.CLAIMED, seqs=seqs)]

    async def _claimed_without_damaged(self, seqs: list[int]) -> list[LeasedJob]:
        """Return the jobs that can be read; the others die here, so that they never hold up the rest again.

        Only rows written by somebody else are damaged: a blob or an infinity where a verb writes text or integers.
        """
        jobs: list[LeasedJob] = []
        damaged = []
        for seq in seqs:
            try:
                jobs += await self._claimed(array([seq]))
            except (sqlite3.OperationalError, ValueError) as error:
                _raise_trouble(error)
                damaged.append(seq)
        await self._rows(statements.CONDEMN, seqs=array(damaged))
        return jobs

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """See `stores.base.Transaction`."""
        if all(report.effect is None for report in reports):
            return [*await self._finish(reports)]
        answers: list[Status | Exception | None] = []
        guard = _EffectGuard()
        await self._connection.set_authorizer(guard)
        try:
            for part in parts(reports):
                if len(part) == 1 and part[0].effect is not None:
                    answers.append(await self._with_effect(part[0], part[0].effect, guard))
                else:
                    answers += await self._finish(part)
        finally:
            with contextlib.suppress(ValueError):  # closed by the effect: told above
                await self._connection.set_authorizer(None)
        return answers

    async def _with_effect(
        self, report: Report, effect: EffectWork, guard: "_EffectGuard"
    ) -> Status | Exception | None:
        """Settle one report and run its effect in one savepoint; undo both if the effect fails."""
        await self._rows(statements.EFFECT_BEGIN)
        status = (await self._finish([report]))[0]
        failure = None if status is None else await guard.failure_of(effect, self._connection)
        try:
            is_open = self._connection.in_transaction
        except ValueError:
            raise BadEffect("an effect must not close the connection") from None
        if not is_open:  # SQLite gave the whole transaction up, as on a full disk
            raise failure if isinstance(failure, sqlite3.Error) else StoreError("an effect ended the transaction")
        if failure is not None:
            await self._rows(statements.EFFECT_UNDO)
        await self._rows(statements.EFFECT_END)
        return status if failure is None else failure

    async def _finish(self, reports: Sequence[Report]) -> list[Status | None]:
        if not self._rules.keep_all and all(report.outcome == "ok" for report in reports):
            return await self._finish_ok(reports)
        items = [
            (*ticket_row(r.ticket), r.outcome, r.delay_ms, printable(r.failure.error) if r.failure else None)
            for r in reports
        ]
        answers = await self._settled(statements.FINISH, items, late=self._rules.accept_late)
        await self._remember(
            (r.ticket, r.outcome, r.failure)
            for r, status in zip(reports, answers, strict=True)
            if status and (r.outcome != "ok" or self._rules.keep_all)
        )
        return [None if status is None else STATUSES[status] for status in answers]

    async def _finish_ok(self, reports: Sequence[Report]) -> list[Status | None]:
        """Settle plain successes: the same law as `FINISH`, for the case that must be fast."""
        answers: list[Status | None] = [None] * len(reports)
        for a_round in by_rounds([ticket_row(report.ticket) for report in reports]):
            items = array(item for _place, item in a_round)
            valid = await self._rows_as_json(statements.VALID, items=items, late=self._rules.accept_late)
            if valid:
                done = [a_round[place] for place in valid]
                await self._rows(statements.FINISH_OK, ids=array(item[0] for _place, item in done))
                for place, _item in done:
                    answers[place] = Status.DONE
        return answers

    async def finish_and_claim(
        self, reports: Sequence[Report], claim: Claim
    ) -> tuple[list[Status | Exception | None], list[LeasedJob]]:
        """See `stores.base.Transaction`."""
        return await self.finish(reports), await self.claim(claim)

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """See `stores.base.Transaction`."""
        items = [(*ticket_row(r.ticket), r.lease_ms) for r in renewals]
        return await self._settled(statements.RENEW, items)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """See `stores.base.Transaction`."""
        items = [
            (*ticket_row(r.ticket), r.delay_ms, printable(r.failure.error) if r.failure else None)
            for r in releases
        ]
        answers = await self._settled(statements.RELEASE, items)
        await self._remember(
            (r.ticket, "release", r.failure)
            for r, status in zip(releases, answers, strict=True)
            if status and r.failure
        )
        return [status is not None for status in answers]

    async def note(self, notes: Sequence[Note]) -> list[None]:
        """See `stores.base.Transaction`."""
        rows = await self._remember((note.ticket, "left", note.failure) for note in notes)
        await self._history(statements.NOTE, rows=array(rows))
        return [None] * len(notes)

    async def cancel(self, ids: Sequence[str]) -> list[Status | None]:
        """See `stores.base.Transaction`."""
        wanted = array(set(ids))
        found = await self._rows(statements.STATUS_OF, ids=wanted)
        before = {job_id: Status(status) for job_id, status in found}
        if Status.LEASED in before.values():
            await self._history(statements.CANCELLED, ids=wanted)
        await self._rows(statements.CANCEL, ids=wanted)
        answers: list[Status | None] = []
        for job_id in ids:
            answers.append(before.get(job_id))
            if job_id in before and before[job_id] is not Status.DONE:
                before[job_id] = Status.DEAD  # a second cancel in the same set finds it dead
        return answers

    async def redrive(self, redrives: Sequence[Redrive]) -> list[bool | NotDead]:
        """See `stores.base.Transaction`."""
        first: dict[str, Redrive] = {}
        for redrive in redrives:
            first.setdefault(redrive.id, redrive)
        items = array((r.id, r.ttl_ms, r.note, r.actor) for r in first.values())
        await self._rows(statements.REDRIVE_AUDIT, items=items)
        done = {row[0] for row in await self._rows(statements.REDRIVE, items=items)}
        if len(done) == len(redrives):
            return [True] * len(redrives)
        statuses = dict(await self._rows(statements.STATUS_OF, ids=array({r.id for r in redrives})))
        answers: list[bool | NotDead] = []
        for redrive in redrives:
            if redrive.id in done:
                done.discard(redrive.id)
                answers.append(True)
            else:
                answers.append(NotDead.of(redrive.id, statuses.get(redrive.id)))
        return answers

    async def sweep(self, limit: int) -> int:
        """See `stores.base.Transaction`."""
        doomed = [
            seq for _name, seq in await self._rows(statements.LOOK, sweep=limit, queues=None) if seq is not None
        ]
        if not doomed:
            await self._rows(statements.MOVE_ASK)
        return await self._bury(doomed) if doomed else 0

    async def pause(self, names: Sequence[str], *, paused: bool) -> None:
        """See `stores.base.Transaction`."""
        await self._rows(statements.PAUSE, names=array(names), paused=paused)

    async def raise_tokens(self) -> int:
        """See `stores.base.Transaction`."""
        return await fence.raise_tokens(self._connection.execute_fetchall, self._now_ms, "this queue")

    async def purge(self, status: Status, older_than_ms: int, limit: int) -> int:
        """See `stores.base.Transaction`."""
        before = self._now_ms - older_than_ms
        ids = [row[0] for row in await self._rows(statements.PURGEABLE, status=status, before=before, limit=limit)]
        if not ids:
            return 0
        await self._rows(statements.PURGE_HISTORY, ids=array(ids))
        return len(await self._rows(statements.PURGE, ids=array(ids)))

    async def _bury(self, seqs: list[int]) -> int:
        doomed = array(seqs)
        await self._history(statements.LOST, seqs=doomed)
        return len(await self._rows(statements.SWEEP, seqs=doomed))

    async def _pick(self, names: list[str], claim: Claim) -> list[Picked]:
        if claim.kinds is not None or len(names) > 1:
            return await self._turns.pick(claim, self._rows, self._rows_as_json, self._now_ms)
        if not names:
            return []
        asked = {"queue": names[0], "limit": claim.limit, "kinds": None}
        picked = await self._rows_as_json(statements.PICK_JSON, **asked)
        if any(type(priority) is not int for _seq, priority, _status in picked):
            raise TypeError("a priority is not an integer")  # somebody else wrote it: the caller sees to it
        return picked

    async def _settled(self, statement: str, items: list[tuple[Any, ...]], **extra: Any) -> list[Any]:
        """Run a report statement over `items`; return what it answered to each, None for a stale ticket.

        Reports on one job are taken one after the other, as if they had come alone: a stale ticket must not
        hide the holder's own, which shares its set by group commit.
        """
        answers: list[Any] = []
        for a_round in by_rounds(items):
            by_id = dict(await self._rows(statement, items=array(item for _place, item in a_round), **extra))
            answers += [(place, by_id.get(item[0])) for place, item in a_round]
        return [answer for _place, answer in sorted(answers, key=itemgetter(0))]

    async def _remember(self, ended: Iterable[tuple[Ticket, str, FailedAttempt | None]]) -> list[tuple[Any, ...]]:
        """Append these attempts to the history; return the rows."""
        rows = [
            (t.id, t.token, t.attempt, t.owner, outcome, f.certainty, printable(f.error), f.http_status)
            for t, outcome, f in ((t, outcome, f or _UNEXPLAINED) for t, outcome, f in ended)
        ]
        if rows:
            await self._history(statements.HISTORY_APPEND, rows=array(rows))
        return rows

    async def _history(self, statement: str, **parameters: Any) -> None:
        """Append history rows; a history that cannot be written never undoes the change that it tells of."""
        try:
            await self._rows(statement, **parameters)
        except sqlite3.Error:
            if not self._connection.in_transaction:  # SQLite gave the whole transaction up: nothing to keep
                raise

    async def _rows_as_json(self, statement: str, **parameters: Any) -> list[Any]:
        """Return what a statement puts into one JSON array.

        The driver lets go of Python's lock for each row that it fetches; under load each of these costs more than
        the row, so hot statements answer with one.
        """
        ((text,),) = await self._rows(statement, **parameters)
        return cast("list[Any]", json.loads(text))

    async def _rows(self, statement: str, **parameters: Any) -> list[Any]:
        parameters["now"] = self._now_ms
        return list(await self._connection.execute_fetchall(statement, parameters))


class SqliteStore:
    """A queue in one SQLite file; made by `SqliteStore.open`."""

    def __init__(self, database: Database, clock: Clock, rules: Rules) -> None:
        self._database = database
        self._clock = clock
        self._rules = rules
        self._turns = Turns()
        self._alarm = Alarm(database.path)
        self._version = 0
        self._version_mark: Mark | None = None  # of the files when the version was asked for
        self._version_until = 0.0  # monotonic seconds

    @classmethod
    async def open(  # noqa: PLR0913 - settings, all by name
        cls,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        profile: Profile | None = None,
        rules: Rules | None = None,
        create: bool = True,
        adopt: bool = False,
        only_reads: bool = False,
    ) -> "SqliteStore":
        """Open (and with `create` make) the file and migrate it; a contract file is taken over without loss.

        With `adopt`, a database with other tables becomes a queue, too. With `only_reads` a file of this schema
        that cannot be written will do: it is opened for reads alone.

        Raises `NotAQueue`, `NewerSchema`, `ConfigError`, `StoreBusy`.
        """
        if sqlite3.sqlite_version_info < _SQLITE_MIN:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or newer is needed")
        where, profile = Path(path), profile or Profile()

        async def inspect(connection: aiosqlite.Connection) -> bool:
            patient_until = time.monotonic() + _BIRTH_S
            while True:
                try:
                    return await schema.inspect(connection, where, create=create, adopt=adopt)
                except schema.EmptyFile:
                    if time.monotonic() >= patient_until:
                        raise
                await asyncio.sleep(_BIRTH_POLL_S)

        if only_reads:
            create = adopt = False
        try:
            database = await Database.open(
                path,
                profile,
                lambda connection: schema.migrate(connection, where, create=create, adopt=adopt),
                inspect=inspect,
                create=create,
            )
        except Unwritable:
            if not only_reads:
                raise
            database = await Database.open_read_only(path, profile, inspect)
        return cls(database, clock or SystemClock(), rules or Rules())

    @property
    def database(self) -> Database:
        """The database itself, for work that is no verb."""
        return self._database

    @property
    def terms(self) -> Terms:
        """See `stores.base.Store`."""
        return Terms(self._clock, self._rules.max_pending, place=str(self._database.path))

    @property
    def is_concurrent(self) -> bool:
        """See `stores.base.Store`: a file has one writer at a time."""
        return False

    @property
    def busy_retries(self) -> int:
        """How often a statement met a busy database and was tried again."""
        return self._database.busy_retries

    async def write(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        inline: bool = False,
        at_once: bool = False,  # noqa: ARG002 - one file is as near as can be
    ) -> T:
        """See `stores.base.Store`."""

        async def run(connection: aiosqlite.Connection) -> T:
            return await work(SqliteTransaction(connection, self._clock.now_ms(), self._rules, self._turns))

        return await (self._database.write_inline(run) if inline else self._database.write(run))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See `stores.base.Store`."""
        found = {row[1]: job_of(row) for row in await self._database.read(statements.GET, {"ids": array(ids)})}
        return [found.get(job_id) for job_id in ids]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See `stores.base.Store`."""
        statement = statements.LIST_DEAD if wanted.status is Status.DEAD else statements.LIST
        return [job_of(row) for row in await self._database.read(statement, self._filter(wanted))]

    async def count(self, wanted: JobFilter) -> int:
        """See `stores.base.Store`."""
        statement = statements.COUNT_DEAD if wanted.status is Status.DEAD else statements.COUNT
        return int((await self._database.read(statement, self._filter(wanted)))[0][0])

    async def history(self, job_id: str, limit: int) -> list[HistoryRow]:
        """See `stores.base.Store`."""
        rows = await self._database.read(statements.HISTORY, {"id": job_id, "limit": limit})
        return [HistoryRow(*row) for row in rows]

    async def queues(self) -> dict[str, bool]:
        """See `stores.base.Store`."""
        return {name: bool(paused) for name, paused in await self._database.read(statements.QUEUES)}

    async def stats(self, *, detail: bool = False) -> Stats:
        """See `stores.base.Store`."""
        now_ms = self._clock.now_ms()
        queues = counts_of(await self._database.read(statements.STATS))
        ((due_at_ms,),) = await self._database.read(statements.NEXT_DUE, {"queues": None})
        ((redrives,),) = await self._database.read(statements.REDRIVES)
        return stats_of(
            queues,
            due_at_ms=due_at_ms,
            now_ms=now_ms,
            redrives=redrives,
            names=await self.queues(),
            details=await self._details(queues, now_ms) if detail else None,
        )

    async def _details(self, queues: Iterable[str], now_ms: int) -> dict[str, QueueDetail]:
        """Return the detail of each queue; its eligible jobs, pending and leased, are counted up to a bound."""
        due = dict(await self._database.read(statements.DUE_BY_QUEUE))
        details: dict[str, QueueDetail] = {}
        for queue in queues:
            asked = {"queue": queue, "now": now_ms, "limit": _DETAIL_MAX, "kinds": None}
            found = Counter(row[2] for row in await self._database.read(statements.PICK, asked))
            details[queue] = detail_of(found, due.get(queue), now_ms)
        return details

    def _filter(self, wanted: JobFilter) -> dict[str, Any]:
        age_ms = wanted.older_than_ms
        return {
            "status": wanted.status,
            "queue": wanted.queue,
            "kind": wanted.kind,
            "reason": wanted.reason,
            "prefix": wanted.id_prefix,
            "before": None if age_ms is None else self._clock.now_ms() - age_ms,
            "after_seq": wanted.after_seq,
            "limit": wanted.limit,
        }

    async def next_due_ms(
        self, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> int | None:
        """See `stores.base.Store`."""
        asked = {"queues": None if queues is None else array(queues)}
        wanted = []
        if kinds is None:
            wanted.append(statements.NEXT_DUE)
        else:
            wanted.append(statements.NEXT_DUE_OF_KINDS)
            asked["kinds"] = array(set(kinds))
            if DEFAULT_KIND in kinds:
                wanted.append(statements.NEXT_DUE_OF_DEFAULT)
        dues = [(await self._database.read(statement, asked))[0][0] for statement in wanted]
        due = min((due for due in dues if due is not None), default=None)
        return None if due is None else max(0, due - self._clock.now_ms())

    async def version(self, *, of_ends: bool = False) -> int:  # noqa: ARG002
        """See `stores.base.Store`; asks SQLite only if the files have changed, or some milliseconds ago.

        `of_ends` makes no difference here.
        """
        self._database.check_usable()
        path = self._database.path
        number, mark = look_at(path)
        self._database.check_in_place(number)
        if mark is None or mark != self._version_mark or time.monotonic() >= self._version_until:
            self._version_mark = None
            self._version = await self._database.data_version()
            self._version_mark = mark
            self._version_until = time.monotonic() + _VERSION_S
        return self._version

    def alarm(self, ring: Callable[[], None]) -> bool:
        """See `stores.base.Store`."""
        self._database.check_usable()
        return self._alarm.arm(ring)

    async def backup(self, target: Path, told: Callable[[int, int], None] | None = None) -> None:
        """See `stores.base.Store`; raises as `stores.sqlite.backup.back_up` does."""
        self._database.check_usable()
        await back_up(self._database.path, target, patience_ms=self._database.profile.patience_ms, told=told)

    async def close(self) -> None:
        """See `stores.base.Store`."""
        self._alarm.close()
        await self._database.close()


def _raise_trouble(error: Exception) -> None:
    """Raise `error` if it is the database's own trouble, rather than that of a row that somebody else wrote."""
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
        raise error
