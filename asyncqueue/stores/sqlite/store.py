"""The SQLite store: the verbs of `stores.base` as a few set-based statements in one transaction each."""

import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import aiosqlite

from asyncqueue.clock import Clock, SystemClock
from asyncqueue.errors import ConfigError, Conflict, NotDead
from asyncqueue.job import (
    FailedAttempt,
    Job,
    LeasedJob,
    NewJob,
    Redrive,
    Release,
    Renew,
    Report,
    Ticket,
    printable,
)
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores.base import Claim, JobFilter, Stats, Transaction
from asyncqueue.stores.sqlite import schema, statements
from asyncqueue.stores.sqlite.connection import Database, Profile

__all__ = ["SqliteStore", "SqliteTransaction"]

T = TypeVar("T")

_SQLITE_MIN: Final = (3, 38, 0)  # the operator ->> on JSON
# Jobs that one claim may move to dead: bounds the transaction (about 30 ms). Not fewer: until they are moved, each
# claim passes over all of them (130 ms for 300,000), so a backlog that died overnight must go in few claims.
_SWEEP_MAX: Final = 4_096
_UNEXPLAINED: Final = FailedAttempt("")
_COMPARED: Final = ("qty", "queue", "kind", "payload")


class SqliteTransaction:
    """The verbs on a connection whose write transaction is open; commits and rolls back nothing itself."""

    def __init__(self, connection: aiosqlite.Connection, now_ms: int, *, accept_late: bool = False) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._late = accept_late

    @property
    def now_ms(self) -> int:
        """The time of this transaction."""
        return self._now_ms

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict]:
        """See `stores.base.Transaction`."""
        rows = [
            (j.id, j.qty, j.max_attempts, j.delay_ms, j.ttl_ms, j.queue, j.kind, j.payload, j.priority)
            for j in jobs
        ]
        new = {row[0] for row in await self._rows(statements.ENQUEUE, jobs=_array(rows))}
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
        picked = await self._pick(names, claim.limit)
        if not picked:
            return []
        seqs = _array(seq for seq, _priority, _status in picked)
        if any(status == Status.LEASED for _seq, _priority, status in picked):
            await self._history(statements.LOST, seqs=seqs)
        rows = await self._rows(statements.CLAIM, seqs=seqs, owner=claim.owner, lease_ms=claim.lease_ms)
        rank = {seq: place for place, (seq, _priority, _status) in enumerate(picked)}
        rows.sort(key=lambda row: rank[row[-1]])
        return [LeasedJob(*row[:-1]) for row in rows]

    async def finish(self, reports: Sequence[Report]) -> list[Status | None]:
        """See `stores.base.Transaction`."""
        items = [
            (*_ticket(r.ticket), r.outcome, r.delay_ms, printable(r.failure.error) if r.failure else None)
            for r in reports
        ]
        answers = await self._settled(statements.FINISH, items, late=self._late)
        await self._remember(
            (r.ticket, r.outcome, r.failure)
            for r, status in zip(reports, answers, strict=True)
            if status and r.outcome != "ok"
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

    async def _bury(self, seqs: list[int]) -> int:
        array = _array(seqs)
        await self._history(statements.LOST, seqs=array)
        return len(await self._rows(statements.SWEEP, seqs=array))

    async def _pick(self, names: list[str], limit: int) -> list[tuple[int, int, str]]:
        picked: list[tuple[int, int, str]] = []
        for name in names:
            picked += await self._rows(statements.PICK, queue=name, limit=limit)
        if len(names) > 1:
            picked.sort(key=lambda row: (-row[1], row[0]))
        return picked[:limit]

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

    def __init__(self, database: Database, clock: Clock, *, accept_late: bool) -> None:
        self._database = database
        self._clock = clock
        self._accept_late = accept_late

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        profile: Profile | None = None,
        accept_late: bool = False,
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
        return cls(database, clock or SystemClock(), accept_late=accept_late)

    @property
    def busy_retries(self) -> int:
        """How often a statement met a busy database and was tried again."""
        return self._database.busy_retries

    async def write(self, work: Callable[[Transaction], Awaitable[T]], *, inline: bool = False) -> T:
        """See `stores.base.Store`."""

        async def run(connection: aiosqlite.Connection) -> T:
            return await work(SqliteTransaction(connection, self._clock.now_ms(), accept_late=self._accept_late))

        return await (self._database.write_inline(run) if inline else self._database.write(run))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See `stores.base.Store`."""
        found = {row[1]: _job(row) for row in await self._database.read(statements.GET, {"ids": _array(ids)})}
        return [found.get(job_id) for job_id in ids]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See `stores.base.Store`."""
        rows = await self._database.read(
            statements.LIST,
            {
                "status": wanted.status,
                "queue": wanted.queue,
                "kind": wanted.kind,
                "reason": wanted.reason,
                "after_seq": wanted.after_seq,
                "limit": wanted.limit,
            },
        )
        return [_job(row) for row in rows]

    async def stats(self) -> Stats:
        """See `stores.base.Store`."""
        now_ms = self._clock.now_ms()
        return _stats(await self._database.read(statements.STATS, {"now": now_ms}), now_ms)

    async def next_due_ms(self, queues: Sequence[str] | None = None) -> int | None:
        """See `stores.base.Store`."""
        names = None if queues is None else _array(queues)
        (due,) = (await self._database.read(statements.NEXT_DUE, {"queues": names}))[0]
        return None if due is None else max(0, due - self._clock.now_ms())

    async def version(self) -> int:
        """See `stores.base.Store`."""
        return await self._database.data_version()

    async def close(self) -> None:
        """See `stores.base.Store`."""
        await self._database.close()


def _array(items: Iterable[Any]) -> str:
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


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


def _compared(job: NewJob, there: Sequence[Any]) -> bool | Conflict:
    offered = (job.qty, job.queue, job.kind, job.payload)
    fields = tuple(name for name, mine, theirs in zip(_COMPARED, offered, there, strict=True) if mine != theirs)
    if not fields:
        return False
    return Conflict(f"job {job.id} exists with another {' and '.join(fields)}", job_id=job.id, fields=fields)


def _job(row: Sequence[Any]) -> Job:
    seq, job_id, qty, status, *middle = row
    middle[7] = None if middle[7] is None else Reason(middle[7])
    return Job(seq, job_id, qty, Status(status), *middle)


def _stats(rows: list[Any], now_ms: int) -> Stats:
    totals = dict.fromkeys(Status, 0)
    queues: dict[str, dict[str, int]] = {}
    ready = expired = redrives = 0
    oldest: list[int] = []
    for queue, status, count, ready_here, expired_here, due_since, audited in rows:
        totals[Status(status)] += count
        queues.setdefault(queue, dict.fromkeys(Status, 0))[status] = count
        ready += ready_here
        expired += expired_here or 0
        redrives = audited
        if due_since is not None:
            oldest.append(due_since)
    return Stats(
        **{status.value: count for status, count in totals.items()},
        ready=ready,
        expired=expired,
        oldest_ready_ms=max(0, now_ms - min(oldest)) if oldest else None,
        redrives=redrives,
        queues=queues,
    )
