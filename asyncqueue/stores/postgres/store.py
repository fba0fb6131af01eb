"""The PostgreSQL store: the verbs of `stores.base` as a few set-based statements in one transaction each."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import asyncpg

from asyncqueue.clock import Clock
from asyncqueue.errors import BadEffect, ConfigError, Conflict, NotDead, QueueFull
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
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim, JobFilter, QueueDetail, Rules, Stats, Terms, Transaction
from asyncqueue.stores.postgres import fence, schema, statements
from asyncqueue.stores.postgres.address import Address
from asyncqueue.stores.postgres.alone import Alone, LostAnswers, NeedsTransaction, key_of
from asyncqueue.stores.postgres.asked import LOST, TICKET, columns, leased_jobs, wanted
from asyncqueue.stores.postgres.connection import Connection, Database, Profile, Xact, is_gone
from asyncqueue.stores.postgres.effects import run_effect
from asyncqueue.stores.postgres.floor import Floor, Sight, Signs
from asyncqueue.stores.postgres.listen import Listener
from asyncqueue.stores.postgres.turns import Turns
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

__all__ = ["PostgresStore", "PostgresTransaction"]

T = TypeVar("T")

# Jobs that one claim may move to dead: bounds the transaction. Not fewer: until they are moved, each claim passes
# over all of them.
_SWEEP_MAX: Final = 4_096
_DETAIL_MAX: Final = 10_000
_UNEXPLAINED: Final = FailedAttempt("")
_CANCELLED: Final = FailedAttempt("cancelled while it was leased", "unknown")
_NEW_JOB: Final = 9  # values of a new job

Ended = tuple[str, int, int, str, str, FailedAttempt]
"""A history row to be: id, token, attempt, owner, outcome, failure."""


class PostgresTransaction:
    """The verbs on a connection whose transaction is open; commits and rolls back nothing itself."""

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place
        self,
        connection: Connection,
        now_ms: int | None,
        rules: Rules,
        turns: Turns,
        sight: Sight,
        render: Callable[[str], str],
        lost: LostAnswers,
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms  # None: the server's clock
        self._rules = rules
        self._turns = turns
        self._before = sight
        self.sight = sight  # to be kept once it is committed
        self.xact: Xact | None = None  # if a statement has told it
        self._render = render
        self._lost = lost
        # by the number of a transaction whose answer was lost: where it began
        self.read_back: dict[int, Floor] = {}
        self.answered: set[tuple[str, int]] = set()  # of what was lost, once this is committed

    @property
    def has_looked(self) -> bool:
        """Whether it has seen more than was known before."""
        return self.sight is not self._before

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict | QueueFull]:
        """See `stores.base.Transaction`."""
        bound = self._rules.max_pending
        if bound is None:
            return [*await self._enqueue(jobs)]
        refused = await self._beyond(jobs, bound)
        stored = iter(await self._enqueue([job for job in jobs if job.id not in refused]))
        return [full(bound) if job.id in refused else next(stored) for job in jobs]

    async def _beyond(self, jobs: Sequence[NewJob], max_pending: int) -> set[str]:
        """Return the ids that are new and have no room; the next one who asks waits for our commit."""
        await self._rows(statements.PENDING_TURN)
        room = max_pending - (await self._rows(statements.PENDING))[0][0]
        if len(jobs) <= room:
            return set()
        ids = list(dict.fromkeys(job.id for job in jobs))
        there = {row[0] for row in await self._rows(statements.EXISTING, ids)}
        return set([job_id for job_id in ids if job_id not in there][max(0, room) :])

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict]:
        if not jobs:
            return []
        known: dict[str, Sequence[Any]] = {}
        fresh: set[str] = set()
        missing = list(jobs)
        while missing:  # again only if a row that was in the way has just been purged
            rows = await self._timed(statements.ENQUEUE, *columns(map(new_row, missing), _NEW_JOB, _NEW_JOB))
            fresh.update(row[0] for row in rows)
            others = [job.id for job in missing if job.id not in fresh]
            if others:
                known.update((row[0], row[1:]) for row in await self._rows(statements.EXISTING, others))
            missing = [job for job in missing if job.id not in fresh and job.id not in known]
        answers: list[bool | Conflict] = []
        for job in jobs:
            there = known.get(job.id)
            answers.append(True if there is None else compared(job, there))
            if there is None:  # the same id again in this set finds it
                known[job.id] = (job.qty, job.queue, job.kind, job.payload)
        return answers

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """See `stores.base.Transaction`."""
        floor = self.sight.floor
        taken = await self._take_above(floor, claim) if floor is not None else []
        return await self._filled(taken, claim)

    async def _filled(self, taken: list[Any], claim: Claim) -> list[LeasedJob]:
        """Lease what is missing to `taken` from wherever it is; return all that is leased now."""
        if len(taken) < claim.limit:
            self.sight = self.sight._replace(floor=None)
            taken += await self._take_all(claim, claim.limit - len(taken))
        await self._remember(
            (row["id"], row[15], row[16], row[17], "lost", LOST) for row in taken if row[14] == Status.LEASED
        )
        return leased_jobs(taken)

    async def _take_above(self, floor: Floor, claim: Claim) -> list[Any]:
        """Lease jobs of the only queue there is, if it still is; where it begins is known."""
        if not floor.serves(claim.queues):
            return []
        rows = await self._take(floor.level, {floor.queue: claim.limit}, claim, floor)
        self._raise_floor(floor, rows)
        return rows

    def _raise_floor(self, floor: Floor, rows: Sequence[Any]) -> None:
        if rows:
            self.sight = self.sight._replace(floor=floor.raised(Signs.of(rows), self.sight.decided))

    async def _take_all(self, claim: Claim, limit: int) -> list[Any]:
        """Lease jobs of whatever levels and queues there are."""
        levels = await self._timed(statements.LOOK)
        if any(level is None for level, _name, _has_more in levels):
            await self.sweep(_SWEEP_MAX)
        taken: list[Any] = []
        for level, name, has_more in levels:  # the best first
            if level is None or len(taken) == limit:
                break
            if has_more:
                taken += await self._take_in_turns(level, limit - len(taken), claim)
            elif claim.queues is None or name in claim.queues:
                rows = await self._take(level, {name: limit - len(taken)}, claim)
                if rows and not taken and level == levels[0][0]:
                    floor = Floor.seen(level, name, Signs.of(rows), self.sight.decided)
                    self.sight = self.sight._replace(floor=floor)
                taken += rows
        return taken

    async def _take(
        self, level: int, rooms: dict[str, int], claim: Claim, floor: Floor | None = None
    ) -> list[Any]:
        """Lease up to so many jobs of each queue at this level; in the order of their seq."""
        return self._taken(await self._timed(statements.CLAIM, *wanted(level, rooms, claim, floor)))

    def _taken(self, rows: Iterable[Any]) -> list[Any]:
        """Take note of what a claim saw beside its jobs; return these in their order."""
        taken = sorted(rows, key=itemgetter("seq"))
        if taken:
            signs = Signs.of(taken)
            self.xact = str(signs.xact), signs.server
            self.sight = self.sight._replace(decided=self._before.decided.after(signs))
        return taken

    async def _take_in_turns(self, level: int, limit: int, claim: Claim) -> list[Any]:
        """Lease jobs of several queues at this level, in their turns."""
        kinds = None if claim.kinds is None else list(claim.kinds)
        queues = None if claim.queues is None else list(claim.queues)

        async def ring(after: str, until: str | None, count: int) -> list[str]:
            rows = await self._timed(statements.RING, level, after, kinds, count, until, queues)
            return [row[0] for row in rows]

        return await self._turns.claim(level, limit, ring, lambda rooms: self._take(level, rooms, claim))

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """See `stores.base.Transaction`."""
        if all(report.effect is None for report in reports):
            return [*await self._finish(reports)]
        answers: list[Status | Exception | None] = []
        await self._connection.execute(statements.EFFECTS_FREE)
        for part in parts(reports):
            if len(part) == 1 and part[0].effect is not None:
                answers.append(await self._with_effect(part[0], part[0].effect))
            else:
                answers += await self._finish(part)
        await self._connection.execute(statements.EFFECTS_OVER)
        return answers

    async def finish_and_claim(
        self, reports: Sequence[Report], claim: Claim
    ) -> tuple[list[Status | Exception | None], list[LeasedJob]]:
        """See `stores.base.Transaction`; `Alone` does it in one statement."""
        answers, leased = await self.finish(reports), list[LeasedJob]()
        for number, floor in self.read_back.items():
            where = (floor.level, floor.queue, floor.bucket)
            room = claim.limit - len(leased)
            rows = await self._timed(statements.LEASED_BEFORE, *where, claim.owner, [str(number)], room)
            leased += leased_jobs(sorted(rows, key=itemgetter("seq")))
        if len(leased) < claim.limit:
            leased += await self.claim(replace(claim, limit=claim.limit - len(leased)))
        return answers, leased

    async def _read_done(self, reports: Sequence[Report], answers: list[Any]) -> None:
        """Complete `answers` by what was done by a statement whose answer was lost."""
        met = self._lost.keys() & map(key_of, reports)
        self.answered |= met
        stale = [n for n, report in enumerate(reports) if answers[n] is None and key_of(report) in met]
        if not stale:
            return
        tickets = [reports[n].ticket for n in stale]
        asked = [ticket.id for ticket in tickets], [ticket.token for ticket in tickets]
        number_of = {row[0]: int(row[1]) for row in await self._rows(statements.DONE_BEFORE, *asked)}
        for n in stale:
            lost, number = self._lost[key_of(reports[n])], number_of.get(reports[n].ticket.id)
            if number is not None and lost.may_be(number):
                answers[n] = Status.DONE
                self.read_back[number] = lost.floor

    async def _with_effect(self, report: Report, effect: EffectWork) -> Status | Exception | None:
        """Settle one report and run its effect in one savepoint; undo both if the effect fails."""
        await self._connection.execute(statements.EFFECT_BEGIN)
        status = (await self._finish([report]))[0]
        failure = None if status is None else await run_effect(effect, self._connection)
        if is_gone(self._connection) or not self._connection.is_in_transaction():
            if failure is not None and not isinstance(failure, BadEffect):
                raise failure  # the server or the network ended it, and the effect only met that
            raise BadEffect("an effect must not end the transaction or close the connection")
        if failure is None:
            try:
                await self._connection.execute(statements.EFFECT_END)
            except (asyncpg.InFailedSQLTransactionError, asyncpg.InvalidSavepointSpecificationError) as error:
                failure = BadEffect(f"the effect hid an error of the database, which undoes it: {error}")
        if failure is None:
            return status
        await self._connection.execute(statements.EFFECT_UNDO)
        await self._connection.execute(statements.EFFECT_END)
        return failure

    async def _finish(self, reports: Sequence[Report]) -> list[Status | None]:
        if all(report.outcome == "ok" for report in reports):
            items = [ticket_row(report.ticket) for report in reports]
            answers = await self._settled(statements.FINISH_OK, items, TICKET, self._rules.accept_late)
        else:
            answers = await self._settled(
                statements.FINISH,
                [
                    (
                        *ticket_row(r.ticket),
                        r.outcome,
                        r.delay_ms,
                        printable(r.failure.error) if r.failure else None,
                    )
                    for r in reports
                ],
                TICKET + 3,
                self._rules.accept_late,
            )
        await self._remember(
            _ended(r.ticket, r.outcome, r.failure)
            for r, status in zip(reports, answers, strict=True)
            if status and (r.outcome != "ok" or self._rules.keep_all)
        )
        told = [None if status is None else STATUSES[status] for status in answers]
        if self._lost:
            await self._read_done(reports, told)
        return told

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """See `stores.base.Transaction`."""
        items = [(*ticket_row(r.ticket), r.lease_ms) for r in renewals]
        return await self._settled(statements.RENEW, items, TICKET + 1)

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """See `stores.base.Transaction`."""
        items = [
            (*ticket_row(r.ticket), r.delay_ms, printable(r.failure.error) if r.failure else None)
            for r in releases
        ]
        answers = await self._settled(statements.RELEASE, items, TICKET + 2)
        await self._remember(
            _ended(r.ticket, "release", r.failure)
            for r, status in zip(releases, answers, strict=True)
            if status and r.failure
        )
        return [status is not None for status in answers]

    async def note(self, notes: Sequence[Note]) -> list[None]:
        """See `stores.base.Transaction`."""
        await self._remember(_ended(note.ticket, "left", note.failure) for note in notes)
        told = sorted((note.ticket.id, note.ticket.token, printable(note.failure.error)) for note in notes)
        await self._rows(statements.NOTE, *columns(told, 3))
        return [None] * len(notes)

    async def cancel(self, ids: Sequence[str]) -> list[Status | None]:
        """See `stores.base.Transaction`."""
        found = await self._timed(statements.CANCEL, sorted(set(ids)))
        await self._remember(
            (row["id"], row["token"], row["attempts"], row["owner"], "cancelled", _CANCELLED)
            for row in found
            if row["status"] == Status.LEASED
        )
        before = {row["id"]: Status(row["status"]) for row in found}
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
        items = sorted((r.id, r.ttl_ms, r.note, r.actor) for r in first.values())
        done = {row[0] for row in await self._timed(statements.REDRIVE, *columns(items, 4))}
        if len(done) == len(redrives):
            return [True] * len(redrives)
        statuses = dict(await self._rows(statements.STATUS_OF, list(first)))
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
        buried = await self._timed(statements.SWEEP, limit)
        await self._remember(
            (row["id"], row["token"], row["attempts"], row["owner"], "lost", LOST)
            for row in buried
            if row["status"] == Status.LEASED
        )
        return len(buried)

    async def pause(self, names: Sequence[str], *, paused: bool) -> None:
        """See `stores.base.Transaction`."""
        await self._rows(statements.PAUSE, list(names), paused)

    async def raise_tokens(self) -> int:
        """See `stores.base.Transaction`."""
        return await fence.raise_tokens(self._rows, self._now_ms, "this queue")

    async def purge(self, status: Status, older_than_ms: int, limit: int) -> int:
        """See `stores.base.Transaction`."""
        ids = [row[0] for row in await self._timed(statements.PURGE, status, older_than_ms, limit)]
        if ids:
            await self._rows(statements.PURGE_HISTORY, ids)
        return len(ids)

    async def _settled(self, statement: str, items: list[tuple[Any, ...]], width: int, *extra: Any) -> list[Any]:
        """Run a report statement over `items`; return what it answered to each, None for a stale ticket.

        Reports on one job are taken one after the other, as if they had come alone: a stale ticket must not
        hide the holder's own, which shares its set by group commit. Rows are locked in the order of their ids.
        """
        answers: list[Any] = [None] * len(items)
        for a_round in by_rounds(items):
            ordered = sorted((item for _place, item in a_round), key=itemgetter(0))
            by_id = dict(await self._timed(statement, *columns(ordered, width, TICKET), *extra))
            for place, item in a_round:
                answers[place] = by_id.get(item[0])
        return answers

    async def _remember(self, ended: Iterable[Ended]) -> None:
        """Append history rows; a history that cannot be written never undoes the change that it tells of."""
        rows = [
            (job_id, token, attempt, owner, outcome, f.certainty, printable(f.error), f.http_status)
            for job_id, token, attempt, owner, outcome, f in ended
        ]
        if not rows:
            return
        await self._connection.execute(statements.HISTORY_BEGIN)
        try:
            await self._timed(statements.HISTORY_APPEND, *columns(rows, 8))
        except asyncpg.PostgresError:  # if the connection is lost, too, the next statement says so
            await self._connection.execute(statements.HISTORY_UNDO)
        await self._connection.execute(statements.HISTORY_END)

    async def _timed(self, statement: str, *arguments: Any) -> list[Any]:
        return await self._rows(statement, self._now_ms, *arguments)

    async def _rows(self, statement: str, *arguments: Any) -> list[Any]:
        return list(await self._connection.fetch(self._render(statement), *arguments))


class PostgresStore:
    """A queue in one schema of a PostgreSQL database; made by `PostgresStore.open`."""

    def __init__(self, database: Database, clock: Clock | None, rules: Rules, place: str) -> None:
        self._database = database
        self._place = place
        self._clock = clock
        self._rules = rules
        self._turns = Turns()
        self._sight = Sight()
        self._lost: LostAnswers = {}
        self._answered = 0  # the largest number of a transaction whose leases were told
        self._listener = Listener(database)

    @classmethod
    async def open(  # noqa: PLR0913 - settings, all by name
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        profile: Profile | None = None,
        rules: Rules | None = None,
        create: bool = True,
        adopt: bool = False,
    ) -> "PostgresStore":
        """Open (and with `create` make) the queue's schema and migrate it. Without `clock` the server's decides.

        With `adopt`, a schema with other tables gets a queue, too.

        Raises `ConfigError`, `StoreUnreachable`, `StoreDenied`, `NotAQueue`, `NewerSchema`, `StoreBusy`.
        """
        address = Address.parse(url)

        async def migrate(connection: Connection) -> None:
            await schema.migrate(connection, address.schema, address.shown, create=create, adopt=adopt)

        database = await Database.open(address, profile or Profile(), migrate)
        try:
            ((place,),) = await database.read(statements.PLACE)
        except BaseException:
            await database.close()
            raise
        return cls(database, clock, rules or Rules(), place)

    @property
    def database(self) -> Database:
        """The database itself, for work that is no verb."""
        return self._database

    @property
    def terms(self) -> Terms:
        """See `stores.base.Store`."""
        return Terms(self._clock, self._rules.max_pending, place=self._place, schema=self._database.address.schema)

    @property
    def is_concurrent(self) -> bool:
        """See `stores.base.Store`."""
        return True

    @property
    def busy_retries(self) -> int:
        """How often a call was tried again, for a reason that passes by itself."""
        return self._database.retries

    async def write(
        self, work: Callable[[Transaction], Awaitable[T]], *, inline: bool = False, at_once: bool = False
    ) -> T:
        """See `stores.base.Store`; `inline` says that no effect is shown the connection."""
        until = self._database.patience_ends()
        if at_once and self._may_go_alone:
            try:
                return await self._database.alone(partial(self._go_alone, work, until), until)
            except NeedsTransaction:
                pass
        made: list[PostgresTransaction] = []
        run = self._carried(work, made)
        result = await self._database.write(run, lambda: made[0].xact, is_ours=inline, until=until)
        self._learn(made[0])
        return result

    def _learn(self, transaction: PostgresTransaction) -> None:
        """Keep what a transaction has seen, now that it is committed."""
        if transaction.has_looked:
            self._sight = transaction.sight
        if transaction.xact is not None:
            self._answered = max(self._answered, int(transaction.xact[0]))
        for number in transaction.read_back:  # later than what was answered, or it would not have been read back
            self._answered += max(0, (number - self._answered + 2**31) % 2**32 - 2**31)
        for key in transaction.answered:
            self._lost.pop(key, None)

    @property
    def _may_go_alone(self) -> bool:
        """Whether one statement may be all that is needed; a pooler's session lacks our settings."""
        floor = self._sight.floor
        return (
            floor is not None and floor.holds and not self._rules.keep_all and not self._database.address.is_pooled
        )

    def _carried(
        self, work: Callable[[Transaction], Awaitable[T]], made: list[PostgresTransaction]
    ) -> Callable[[Connection], Awaitable[T]]:
        """Return what runs `work` in an open transaction, with what is known now; `made` holds it then."""
        before = self._sight

        async def run(connection: Connection) -> T:
            made[:] = [
                PostgresTransaction(
                    connection, self._now_ms(), self._rules, self._turns, before, self._database.sql, self._lost
                )
            ]
            return await work(made[0])

        return run

    async def _go_alone(
        self, work: Callable[[Transaction], Awaitable[T]], until: float, connection: Connection
    ) -> T:
        """Run `work` without a transaction; raises `NeedsTransaction` if it asks for more than one statement."""

        async def claim_rest(claim: Claim) -> list[LeasedJob]:
            self._sight = alone.sight
            made: list[PostgresTransaction] = []
            run = self._carried(lambda transaction: transaction.claim(claim), made)
            jobs = await self._database.within(connection, run, lambda: made[0].xact, until)
            self._learn(made[0])
            alone.sight = self._sight
            return jobs

        alone = Alone(
            connection,
            self._now_ms(),
            self._rules,
            self._sight,
            self._database.sql,
            self._lost,
            self._answered,
            claim_rest,
        )
        result = await work(cast("Transaction", alone))
        self._database.commits += 1
        self._sight, self._answered = alone.sight, max(self._answered, alone.after)
        return result

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See `stores.base.Store`."""
        found = {row[1]: job_of(row) for row in await self._database.read(statements.GET, list(ids))}
        return [found.get(job_id) for job_id in ids]

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """See `stores.base.Store`."""
        statement = statements.LIST_DEAD if wanted.status is Status.DEAD else statements.LIST
        page = (wanted.after_seq, wanted.limit)
        return [job_of(row) for row in await self._database.read(statement, *self._filter(wanted), *page)]

    async def count(self, wanted: JobFilter) -> int:
        """See `stores.base.Store`."""
        statement = statements.COUNT_DEAD if wanted.status is Status.DEAD else statements.COUNT
        return int((await self._database.read(statement, *self._filter(wanted)))[0][0])

    async def history(self, job_id: str, limit: int) -> list[HistoryRow]:
        """See `stores.base.Store`."""
        return [HistoryRow(*row) for row in await self._database.read(statements.HISTORY, job_id, limit)]

    async def queues(self) -> dict[str, bool]:
        """See `stores.base.Store`."""
        return dict(await self._database.read(statements.QUEUES))

    async def stats(self, *, detail: bool = False) -> Stats:
        """See `stores.base.Store`."""
        queues = counts_of(await self._database.read(statements.STATS))
        ((due_at_ms, now_ms),) = await self._database.read(statements.NEXT_DUE, self._now_ms())
        ((redrives,),) = await self._database.read(statements.REDRIVES)
        return stats_of(
            queues,
            due_at_ms=due_at_ms,
            now_ms=now_ms,
            redrives=redrives,
            names=await self.queues(),
            details=await self._details(list(queues), now_ms) if detail else None,
        )

    async def _details(self, queues: list[str], now_ms: int) -> dict[str, QueueDetail]:
        """Return the detail of each queue; its eligible jobs, pending and leased, are counted up to a bound."""
        due = dict(await self._database.read(statements.DUE_BY_QUEUE))
        rows = await self._database.read(statements.PICK, now_ms, queues, [_DETAIL_MAX] * len(queues), None)
        found: dict[str, Counter[Status]] = {queue: Counter() for queue in queues}
        for queue, _seq, _priority, status in rows:
            found[queue][status] += 1
        return {queue: detail_of(found[queue], due.get(queue), now_ms) for queue in queues}

    def _filter(self, wanted: JobFilter) -> tuple[Any, ...]:
        return (
            self._now_ms(),
            wanted.status,
            wanted.queue,
            wanted.kind,
            wanted.reason,
            wanted.id_prefix,
            wanted.older_than_ms,
        )

    async def next_due_ms(
        self, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> int | None:
        """See `stores.base.Store`."""
        names = None if queues is None else list(queues)
        if names is None:
            ((due, now_ms),) = await self._database.read(statements.NEXT_DUE, self._now_ms())
        else:
            ((due, now_ms),) = await self._database.read(statements.NEXT_DUE_OF_QUEUES, self._now_ms(), names)
        if kinds is not None and due is not None:  # else nobody's job is live
            asked = (self._now_ms(), names, list(kinds))
            ((due, now_ms),) = await self._database.read(statements.NEXT_DUE_OF_KINDS, *asked)
        return None if due is None else max(0, due - now_ms)

    async def version(self, *, of_ends: bool = False) -> int:
        """See `stores.base.Store`."""
        self._database.check_usable()
        return await (self._listener.asked() if of_ends else self._listener.version())

    def alarm(self, ring: Callable[[], None]) -> bool:
        """See `stores.base.Store`."""
        self._database.check_usable()
        return self._listener.alarm(ring)

    async def backup(self, target: Path, told: Callable[[int, int], None] | None = None) -> None:  # noqa: ARG002
        """See `stores.base.Store`: a server is backed up as a whole."""
        raise ConfigError(
            f"{self._database.address.shown}: is backed up by the server's own tools (pg_dump, or a base backup "
            "and its log); run asyncqueue restore on what they have put back"
        )

    async def close(self) -> None:
        """See `stores.base.Store`."""
        await self._listener.close()
        await self._database.close()

    def _now_ms(self) -> int | None:
        return None if self._clock is None else self._clock.now_ms()


def _ended(ticket: Ticket, outcome: str, failure: FailedAttempt | None) -> Ended:
    return ticket.id, ticket.token, ticket.attempt, ticket.owner, outcome, failure or _UNEXPLAINED
