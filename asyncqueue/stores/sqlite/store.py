"""The SQLite store: the verbs of `stores.base` as a few set-based statements in one transaction each."""

import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import aiosqlite

from asyncqueue.clock import Clock, SystemClock
from asyncqueue.errors import ConfigError, Conflict, NotDead, QueueFull, StoreError
from asyncqueue.job import (
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
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores.base import Claim, JobFilter, Rules, Stats, Terms, Transaction
from asyncqueue.stores.sqlite import schema, statements
from asyncqueue.stores.sqlite.connection import Database, Profile
from asyncqueue.stores.sqlite.offers import array as _array
from asyncqueue.stores.sqlite.offers import compared as _compared
from asyncqueue.stores.sqlite.offers import full, new_row

__all__ = ["SqliteStore", "SqliteTransaction"]

T = TypeVar("T")

_SQLITE_MIN: Final = (3, 38, 0)  # the operator ->> on JSON
_SWEEP_MAX: Final = 256  # jobs that one claim may move to dead: bounds the transaction
_DETAIL_MAX: Final = 10_000
_UNEXPLAINED: Final = FailedAttempt("")


class SqliteTransaction:
    """The verbs on a connection whose write transaction is open; commits and rolls back nothing itself."""

    def __init__(self, connection: aiosqlite.Connection, now_ms: int, rules: Rules, turn: int = 0) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._rules = rules
        self._turn = turn

    @property
    def now_ms(self) -> int:
        """The time of this transaction."""
        return self._now_ms

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
        there = {row[0] for row in await self._rows(statements.EXISTING, ids=_array({job.id for job in jobs}))}
        new = [job_id for job_id in dict.fromkeys(job.id for job in jobs) if job_id not in there]
        return set(new[max(0, room) :])

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict]:
        new = {row[0] for row in await self._rows(statements.ENQUEUE, jobs=_array(map(new_row, jobs)))}
        if len(new) == len(jobs):
            return [True] * len(jobs)
        answers: list[bool | Conflict | None] = []
        for job in jobs:
            is_first = job.id in new
            new.discard(job.id)
            answers.append(True if is_first else None)
        ids = {job.id for job, answer in zip(jobs, answers, strict=True) if answer is None}
        there = {row[0]: row[1:] for row in await self._rows(statements.EXISTING, ids=_array(ids))}
        return [
            _compared(job, there[job.id]) if answer is None else answer
            for job, answer in zip(jobs, answers, strict=True)
        ]

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """See `stores.base.Transaction`."""
        names, doomed = [], []
        for name, seq in await self._rows(statements.LOOK, sweep=_SWEEP_MAX):
            names.append(name) if seq is None else doomed.append(seq)
        if doomed:
            await self._bury(doomed)
        if claim.queues is not None:
            names = [name for name in names if name in claim.queues]
        picked = await self._pick(names, claim)
        if not picked:
            return []
        seqs = _array(seq for seq, _priority, _status in picked)
        if any(status == Status.LEASED for _seq, _priority, status in picked):
            await self._history(statements.LOST, seqs=seqs)
        rows = await self._rows(statements.CLAIM, seqs=seqs, owner=claim.owner, lease_ms=claim.lease_ms)
        rank = {seq: place for place, (seq, _priority, _status) in enumerate(picked)}
        rows.sort(key=lambda row: rank[row[-1]])
        return [LeasedJob(*row[:-1]) for row in rows]

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """See `stores.base.Transaction`."""
        if all(report.effect is None for report in reports):
            return [*await self._finish(reports)]
        plain = iter(await self._finish([report for report in reports if report.effect is None]))
        return [next(plain) if r.effect is None else await self._with_effect(r, r.effect) for r in reports]

    async def _with_effect(self, report: Report, effect: EffectWork) -> Status | Exception | None:
        """Settle one report and run its effect in one savepoint; undo both if the effect fails."""
        await self._rows(statements.EFFECT_BEGIN)
        status = (await self._finish([report]))[0]
        failure: Exception | None = None
        if status is not None:
            try:
                await effect(self._connection)
            except Exception as error:  # noqa: BLE001 - handed to whoever reported
                failure = error
        if not self._connection.in_transaction:
            raise StoreError("an effect ended the transaction that it runs in: it must not commit or roll back")
        if failure is not None:
            await self._rows(statements.EFFECT_UNDO)
        await self._rows(statements.EFFECT_END)
        return status if failure is None else failure

    async def _finish(self, reports: Sequence[Report]) -> list[Status | None]:
        items = [
            (*_ticket(r.ticket), r.outcome, r.delay_ms, printable(r.failure.error) if r.failure else None)
            for r in reports
        ]
        answers = await self._settled(statements.FINISH, items, late=self._rules.accept_late)
        await self._remember(
            (r.ticket, r.outcome, r.failure)
            for r, status in zip(reports, answers, strict=True)
            if status and (r.outcome != "ok" or self._rules.keep_all)
        )
        return [None if status is None else Status(status) for status in answers]

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """See `stores.base.Transaction`."""
        items = [(*_ticket(r.ticket), r.lease_ms) for r in renewals]
        return await self._settled(statements.RENEW, items)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """See `stores.base.Transaction`."""
        items = [
            (*_ticket(r.ticket), r.delay_ms, printable(r.failure.error) if r.failure else None) for r in releases
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
        await self._remember((note.ticket, "left", note.failure) for note in notes)
        return [None] * len(notes)

    async def cancel(self, ids: Sequence[str]) -> list[Status | None]:
        """See `stores.base.Transaction`."""
        array = _array(set(ids))
        before = {job_id: Status(status) for job_id, status in await self._rows(statements.CANCEL_LOOK, ids=array)}
        await self._rows(statements.CANCEL, ids=array)
        answers: list[Status | None] = []
        for job_id in ids:
            answers.append(before.get(job_id))
            if job_id in before and before[job_id] is not Status.DONE:
                before[job_id] = Status.DEAD  # a second cancel in the same set finds it dead
        return answers

    async def redrive(self, redrives: Sequence[Redrive]) -> list[bool | NotDead]:
        """See `stores.base.Transaction`."""
        first = {r.id: r for r in reversed(redrives)}
        items = _array((r.id, r.ttl_ms, r.note, r.actor) for r in first.values())
        await self._rows(statements.REDRIVE_AUDIT, items=items)
        done = {row[0] for row in await self._rows(statements.REDRIVE, items=items)}
        answers: list[bool | NotDead] = []
        for redrive in redrives:
            if redrive.id in done:
                done.discard(redrive.id)
                answers.append(True)
            else:
                answers.append(NotDead(f"job {redrive.id} does not exist or is not dead: it cannot be redriven"))
        return answers

    async def sweep(self, limit: int) -> int:
        """See `stores.base.Transaction`."""
        doomed = [seq for _name, seq in await self._rows(statements.LOOK, sweep=limit) if seq is not None]
        return await self._bury(doomed) if doomed else 0

    async def pause(self, names: Sequence[str], *, paused: bool) -> None:
        """See `stores.base.Transaction`."""
        await self._rows(statements.PAUSE, names=_array(names), paused=paused)

    async def purge(self, status: Status, older_than_ms: int, limit: int) -> int:
        """See `stores.base.Transaction`."""
        before = self._now_ms - older_than_ms
        ids = [row[0] for row in await self._rows(statements.PURGEABLE, status=status, before=before, limit=limit)]
        if not ids:
            return 0
        await self._rows(statements.PURGE_HISTORY, ids=_array(ids))
        return len(await self._rows(statements.PURGE, ids=_array(ids)))

    async def _bury(self, seqs: list[int]) -> int:
        array = _array(seqs)
        await self._history(statements.LOST, seqs=array)
        return len(await self._rows(statements.SWEEP, seqs=array))

    async def _pick(self, names: list[str], claim: Claim) -> list[tuple[int, int, str]]:
        kinds = None if claim.kinds is None else _array(claim.kinds)
        by_queue = [
            await self._rows(statements.PICK, queue=name, limit=claim.limit, kinds=kinds) for name in names
        ]
        return by_queue[0] if len(names) == 1 else _in_turns(by_queue, self._turn)[: claim.limit]

    async def _settled(self, statement: str, items: list[tuple[Any, ...]], **extra: Any) -> list[Any]:
        """Run a report statement over `items`; return what it answered to each, None for a stale ticket.

        Reports on one job are taken one after the other, as if they had come alone: a stale ticket must not
        hide the holder's own, which shares its set by group commit.
        """
        answers: list[Any] = []
        for a_round in _rounds(items):
            by_id = dict(await self._rows(statement, items=_array(item for _place, item in a_round), **extra))
            answers += [(place, by_id.get(item[0])) for place, item in a_round]
        return [answer for _place, answer in sorted(answers, key=itemgetter(0))]

    async def _remember(self, ended: Iterable[tuple[Ticket, str, FailedAttempt | None]]) -> None:
        rows = [
            (t.id, t.token, t.attempt, t.owner, outcome, f.certainty, printable(f.error), f.http_status)
            for t, outcome, f in ((t, outcome, f or _UNEXPLAINED) for t, outcome, f in ended)
        ]
        if rows:
            await self._history(statements.HISTORY_APPEND, rows=_array(rows))

    async def _history(self, statement: str, **parameters: Any) -> None:
        """Append history rows; a history that cannot be written never undoes the change that it tells of."""
        try:
            await self._rows(statement, **parameters)
        except sqlite3.Error:
            if not self._connection.in_transaction:  # SQLite gave the whole transaction up: nothing to keep
                raise

    async def _rows(self, statement: str, **parameters: Any) -> list[Any]:
        parameters["now"] = self._now_ms
        return list(await self._connection.execute_fetchall(statement, parameters))


class SqliteStore:
    """A queue in one SQLite file; made by `SqliteStore.open`."""

    def __init__(self, database: Database, clock: Clock, rules: Rules) -> None:
        self._database = database
        self._clock = clock
        self._rules = rules
        self._turn = 0

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        profile: Profile | None = None,
        rules: Rules | None = None,
        create: bool = True,
    ) -> "SqliteStore":
        """Open (and with `create` make) the file and migrate it; a contract file is taken over without loss.

        Raises `NotAQueue`, `NewerSchema`, `ConfigError`, `StoreBusy`.
        """
        if sqlite3.sqlite_version_info < _SQLITE_MIN:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or newer is needed")
        where = Path(path)

        async def inspect(connection: aiosqlite.Connection) -> None:
            await schema.inspect(connection, where)

        database = await Database.open(
            path,
            profile or Profile(),
            lambda connection: schema.migrate(connection, where),
            inspect=inspect,
            create=create,
        )
        return cls(database, clock or SystemClock(), rules or Rules())

    @property
    def terms(self) -> Terms:
        """See `stores.base.Store`."""
        return Terms(self._clock, self._rules.max_pending)

    @property
    def busy_retries(self) -> int:
        """How often a statement met a busy database and was tried again."""
        return self._database.busy_retries

    async def write(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """See `stores.base.Store`."""

        async def run(connection: aiosqlite.Connection) -> T:
            self._turn += 1
            return await work(SqliteTransaction(connection, self._clock.now_ms(), self._rules, self._turn))

        return await self._database.write(run)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See `stores.base.Store`."""
        found = {row[1]: _job(row) for row in await self._database.read(statements.GET, {"ids": _array(ids)})}
        return [found.get(job_id) for job_id in ids]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See `stores.base.Store`."""
        statement = statements.LIST_DEAD if wanted.status is Status.DEAD else statements.LIST
        return [_job(row) for row in await self._database.read(statement, self._filter(wanted))]

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
        queues: dict[str, dict[str, int]] = {}
        for queue, status, jobs in await self._database.read(statements.STATS):
            queues.setdefault(queue, dict.fromkeys(map(str, Status), 0))[status] = jobs
        totals = {str(status): sum(counts[status] for counts in queues.values()) for status in Status}
        (due,) = (await self._database.read(statements.NEXT_DUE))[0]
        ((redrives,),) = await self._database.read(statements.REDRIVES)
        ready, expired = await self._eligible(queues, now_ms) if detail else (None, None)
        paused = tuple(name for name, is_paused in (await self.queues()).items() if is_paused)
        return Stats(
            **totals,
            lag_ms=now_ms - due if due is not None and due <= now_ms else None,
            next_due_ms=None if due is None else max(0, due - now_ms),
            redrives=redrives,
            ready=ready,
            expired=expired,
            queues=queues,
            paused=paused,
        )

    async def _eligible(self, queues: Iterable[str], now_ms: int) -> tuple[int, int]:
        """Return how many eligible jobs are pending and how many leased, each queue counted up to a bound."""
        found = dict.fromkeys(map(str, Status), 0)
        for queue in queues:
            asked = {"queue": queue, "now": now_ms, "limit": _DETAIL_MAX, "kinds": None}
            for _seq, _priority, status in await self._database.read(statements.PICK, asked):
                found[status] += 1
        return found[Status.PENDING], found[Status.LEASED]

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

    async def next_due_ms(self) -> int | None:
        """See `stores.base.Store`."""
        (due,) = (await self._database.read(statements.NEXT_DUE))[0]
        return None if due is None else max(0, due - self._clock.now_ms())

    async def version(self) -> int:
        """See `stores.base.Store`."""
        return await self._database.data_version()

    async def close(self) -> None:
        """See `stores.base.Store`."""
        await self._database.close()


def _ticket(ticket: Ticket) -> tuple[str, int, int, str, int]:
    return ticket.id, ticket.token, ticket.qty, ticket.owner, ticket.attempt


def _rounds(items: list[tuple[Any, ...]]) -> list[list[tuple[int, tuple[Any, ...]]]]:
    """Split `items` (id first) so that no id comes twice in a round; each with its place in `items`."""
    rounds: list[list[tuple[int, tuple[Any, ...]]]] = []
    seen: dict[str, int] = {}
    for place, item in enumerate(items):
        nth = seen[item[0]] = seen.get(item[0], -1) + 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append((place, item))
    return rounds


def _job(row: Sequence[Any]) -> Job:
    seq, job_id, qty, status, *middle = row
    middle[7] = None if middle[7] is None else Reason(middle[7])
    return Job(seq, job_id, qty, Status(status), *middle)


def _in_turns(by_queue: list[list[tuple[int, int, str]]], turn: int) -> list[tuple[int, int, str]]:
    """Merge what several queues offer: by priority, and within one priority the queues take turns.

    `turn` changes with each claim, so that the queue which goes first does, too.
    """
    ranked = []
    for place, offered in enumerate(by_queue):
        order = (place + turn) % len(by_queue)
        rank: dict[int, int] = {}
        for row in offered:
            rank[row[1]] = rank.get(row[1], 0) + 1
            ranked.append((-row[1], rank[row[1]], order, row))
    return [row for *_key, row in sorted(ranked, key=itemgetter(0, 1, 2))]
