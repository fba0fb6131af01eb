"""What must hold, checked after each commit of either file, at each send, and at the end of a run.

I1 an acknowledged enqueue is never lost. I2 the receiver's total per id is its quantity, once. I3 a job's token
only rises, and an old token changes nothing. I4 each job is in exactly one status and the sums add up.
I5 attempts <= max, and no send begins after the deadline, as its holder knows the time. I6 an audit row if and
only if a redrive. I7 once faults stop, every job is done or dead within a bound. I8 in flight <= limit, and no
send from within a transaction.
"""

import contextvars
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.disk import _connect

_JOBS = """SELECT id, seq, qty, status, attempts, max_attempts, token, available_at, deadline, owner, lease_until,
  reason, finished_at, payload, queue, kind, priority, created_at FROM jobs"""

in_transaction: contextvars.ContextVar[bool] = contextvars.ContextVar("in_transaction", default=False)


class Row(NamedTuple):
    """A job as it is on the disk."""

    id: str
    seq: int
    qty: int
    status: str
    attempts: int
    max_attempts: int
    token: int
    available_at: int
    deadline: int
    owner: str | None
    lease_until: int | None
    reason: str | None
    finished_at: int | None
    payload: str | None
    queue: str
    kind: str
    priority: int
    created_at: int

    @property
    def constant(self) -> tuple[Any, ...]:
        """What never changes."""
        return (self.seq, self.qty, self.max_attempts, self.payload, self.queue, self.kind, self.priority,
                self.created_at)  # fmt: skip


class Law:
    """The observer of one run."""

    def __init__(self, world: Any, queue_path: Path, inbox_path: Path, *, accepts_late: bool) -> None:
        self._world = world
        self._accepts_late = accepts_late
        self._queue = _connect(queue_path, isolation_level=None)
        self._inbox = _connect(inbox_path, isolation_level=None)
        self.jobs: dict[str, Row] = {}
        self.ledger: dict[str, int] = {}
        self._redrives: Counter[str] = Counter()
        self.enqueued: dict[str, int] = {}  # acknowledged: id to quantity
        self.news: Counter[str] = Counter()  # how often an enqueue was answered "new"
        self.acked: set[tuple[str, int]] = set()  # (id, token) whose send was acknowledged
        self._sending: Counter[Any] = Counter()
        self._late_sends: set[tuple[str, int]] = set()

    def close(self) -> None:
        self._queue.close()
        self._inbox.close()

    # --- told by the roles -----------------------------------------------------------------------------------

    def enqueue_answered(self, job_id: str, qty: int, *, is_new: bool) -> None:
        self.enqueued[job_id] = qty
        if is_new:
            self.news[job_id] += 1
            if self.news[job_id] > 1:
                self._world.fail(f"I1: {job_id} was new twice: it had been lost")
        if job_id not in self.jobs:
            self._world.fail(f"I1: the enqueue of {job_id} was acknowledged and is not on the disk")

    def send_begins(self, process: Any, job: Any, limit: int) -> None:
        self._sending[process] += 1
        if self._sending[process] > limit:
            self._world.fail(f"I8: {process} has {self._sending[process]} sends under way, more than {limit}")
        if in_transaction.get():
            self._world.fail(f"I8: {job.id} is sent from within a transaction")
        if self._holders_now_ms(process, job) >= job.deadline:
            self._late_sends.add((job.id, job.token))

    def _holders_now_ms(self, process: Any, job: Any) -> int:
        """Return what time it is to a lease's holder: the time of its claim, and what has passed since then.

        A wall clock that was set forward in between is known to the next claim, not to those who hold a lease.
        """
        claimed_ms = job.lease_until - job.lease_ms
        return int(claimed_ms + (self._world.now_ns - process.told_ns[claimed_ms]) // 1_000_000)

    def send_ended(self, process: Any, job: Any, *, is_acked: bool) -> None:
        self._sending[process] -= 1
        if is_acked:
            self.acked.add((job.id, job.token))
            if job.id not in self.ledger:
                self._world.fail(f"I2: {job.id} was acknowledged and is not in the ledger")

    def requested(self, _process: Any, job_id: str, token: int) -> None:
        if (job_id, token) in self._late_sends:
            self._world.fail(f"I5: {job_id} was sent after its deadline")

    # --- after each commit -----------------------------------------------------------------------------------

    def queue_committed(self, process: Any) -> None:
        try:
            rows = {row[0]: Row(*row) for row in self._queue.execute(_JOBS)}
            redrives = Counter(dict(self._queue.execute("SELECT id, count(*) FROM redrives GROUP BY id")))
            counts = dict(
                self._queue.execute("SELECT status, sum(jobs) FROM counts GROUP BY status HAVING sum(jobs) > 0")
            )
        except sqlite3.OperationalError as error:
            if "no such" in str(error):  # not migrated yet
                return
            raise
        try:
            self._check_sums(rows, counts)
            for job_id in self.jobs.keys() | rows.keys() if self.jobs.keys() - rows.keys() else rows:
                before, after = self.jobs.get(job_id), rows.get(job_id)
                redriven = redrives[job_id] - self._redrives[job_id]
                if before != after or redriven:
                    self._check_change(process, job_id, before, after, redriven)
        except _Broken as broken:
            self._world.fail(str(broken))
        self.jobs, self._redrives = rows, redrives

    def _check_sums(self, rows: dict[str, Row], counts: dict[str, int]) -> None:
        found = Counter(row.status for row in rows.values())
        _require(counts == dict(found), f"I4: the counts say {counts}, the rows say {dict(found)}")
        lost = [job_id for job_id in self.enqueued if job_id not in rows]
        _require(not lost, f"I1: acknowledged, and gone: {lost}")

    def _check_change(
        self, process: Any, job_id: str, before: Row | None, after: Row | None, redriven: int
    ) -> None:
        _require(after is not None, f"I1: {job_id} is gone")
        if before is None:
            self._world.tell(f"  {job_id} is new, {after.status}")
            _require((after.status, after.attempts, after.token) in (("pending", 0, 0), ("leased", 1, 1)),
                     f"I4: {job_id} begins as {after}")  # fmt: skip
            return
        changed = f"{_short(before)} -> {_short(after)}"
        self._world.tell(f"  {job_id} {changed} {after.reason or ''}")
        what = f"{job_id}: {changed}"
        _require(after.constant == before.constant, f"I4: {what}: {before.constant} became {after.constant}")
        _require(after.token - before.token in (0, 1), f"I3: {what}: tokens rise by one")
        _require(0 <= after.attempts <= after.max_attempts, f"I5: {what}: of {after.max_attempts} attempts")
        _require((after.status == "leased") == (after.owner is not None) == (after.lease_until is not None),
                 f"I4: {what}: owner {after.owner}, lease {after.lease_until}")  # fmt: skip
        _require(before.status != "done", f"I3: {what}: done is the end")
        was_redriven = before.status == "dead" and (after.status != "dead" or after.token > before.token)
        _require(redriven == was_redriven, f"I6: {what}: {redriven} audit rows")
        _require(redriven or after.deadline == before.deadline, f"I5: {what}: its deadline moved")
        if after.token > before.token:
            self._check_claim(process, what, before, after, redriven=bool(redriven))
        elif not redriven:
            self._check_report(what, before, after, is_mine=process.facts.get("owner") == before.owner)

    def _check_claim(self, process: Any, what: str, before: Row, after: Row, *, redriven: bool) -> None:
        now_ms = max(self._world.wall_ns() // 1_000_000, process.wall_high_ms)
        _require(after.status == "leased", f"I3: {what}: a claim leases")
        _require(after.lease_until <= after.deadline, f"I5: {what}: leased beyond its deadline")
        # a report and the claim after it may share a commit, so its attempt may have been refunded before
        spent = 0 if redriven else before.attempts
        refunded = before.status == "leased" and not redriven
        _require(after.attempts in ((spent + 1, spent) if refunded else (spent + 1,)), f"I5: {what}: attempts")
        if before.status == "leased" and before.lease_until > now_ms:
            is_reported = (before.id, before.token) not in self.acked
            _require(is_reported and after.owner == before.owner,
                     f"I3: {what}: claimed {before.lease_until - now_ms} ms before its lease ended")  # fmt: skip
        if before.status == "pending":
            _require(before.available_at <= now_ms, f"I5: {what}: claimed before it was due")

    def _check_report(self, what: str, before: Row, after: Row, *, is_mine: bool) -> None:
        same = before.attempts == after.attempts
        if before.status == "leased" and (after.status != "dead" or after.reason == "permanent"):
            _require(is_mine, f"I3: {what}: by somebody who did not hold the lease")
        match (before.status, after.status):
            case ("leased", "done"):
                _require((before.id, before.token) in self.acked, f"I3: {what}: token was never acknowledged")
                _require(self.ledger.get(before.id) == before.qty, f"I2: {what}: the receiver does not have it")
                _require(self._accepts_late or after.finished_at < before.lease_until, f"I3: {what}: late")
                _require(same, f"I5: {what}: attempts")
            case ("leased", "pending"):
                refunded = after.attempts == before.attempts - 1
                _require(same if after.reason == "retry" else refunded, f"I5: {what}: attempts, {after.reason}")
            case ("leased", "leased"):
                _require(same and before.owner == after.owner, f"I3: {what}: owner or attempts changed")
                _require(before.lease_until <= after.lease_until <= after.deadline, f"I5: {what}: renewed back")
            case (_, "dead"):
                _require(same, f"I5: {what}: attempts")
                _require(
                    after.reason in ("exhausted", "deadline", "permanent", "cancelled"), f"I4: {what}: no reason"
                )
            case _:
                _require(before == after, f"I4: {what} is no step of a job's life")

    def inbox_committed(self, _process: Any) -> None:
        try:
            ledger = dict(self._inbox.execute("SELECT id, qty FROM ledger"))
            seen = dict(self._inbox.execute("SELECT id, qty FROM inbox"))
            ((count, quantity, conflicts),) = self._inbox.execute(
                "SELECT messages, quantity, conflicts FROM totals"
            )
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                return
            raise
        for job_id, qty in ledger.items():
            if self.ledger.get(job_id) != qty:
                self._world.tell(f"  ledger: {job_id} = {qty}")
        try:
            _require(ledger == seen, "I2: the ledger and the inbox differ")
            _require((count, quantity) == (len(ledger), sum(ledger.values())), "I2: the totals do not add up")
            _require(conflicts == 0, "I2: a message arrived with another quantity")
            for job_id, qty in self.ledger.items():
                _require(ledger.get(job_id) == qty, f"I2: {job_id} was {qty}, is {ledger.get(job_id)}")
            for job_id, qty in ledger.items():
                job = self.jobs.get(job_id)
                _require(job is not None and job.qty == qty, f"I2: {job_id} has {qty} at the receiver, {job}")
        except _Broken as broken:
            self._world.fail(str(broken))
        self.ledger = ledger

    # --- at the end ------------------------------------------------------------------------------------------

    def live(self) -> list[str]:
        return [row.id for row in self.jobs.values() if row.status in ("pending", "leased")]

    def check_end(self) -> None:
        try:
            for connection in (self._queue, self._inbox):
                ((verdict,),) = connection.execute("PRAGMA integrity_check")
                _require(verdict == "ok", f"I4: {verdict}")
            for row in self.jobs.values():
                _require(row.status in ("done", "dead"), f"I7: {row.id} is {row.status}")
                _require(
                    row.status != "done" or self.ledger.get(row.id) == row.qty, f"I2: {row.id} was never received"
                )
        except _Broken as broken:
            self._world.fail(str(broken))


def _short(row: Row) -> str:
    return f"{row.status} t{row.token} a{row.attempts}"


class _Broken(Exception):
    """An invariant does not hold."""


def _require(condition: object, text: str) -> None:
    if not condition:
        raise _Broken(text)
