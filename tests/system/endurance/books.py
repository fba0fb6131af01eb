"""What was promised, what is seen each second, and what does not add up.

Jobs are purged while the run goes on, so the end of each must be seen before: the whole table is read every
second, before and after each purge, and each look is compared with the one before.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.system.endurance.orders import POISON, is_deadly, kind_of, quantity

FAULTS_MAX = 50  # kept; one cause may have thousands of effects
ENDED = ("done", "dead")
JOBS = "SELECT id, qty, status, reason, token, attempts, max_attempts FROM jobs"
COUNTS = "SELECT status, sum(jobs) FROM counts GROUP BY status HAVING sum(jobs) > 0"


class Row(NamedTuple):
    """A job as it was seen."""

    qty: int
    status: str
    reason: str | None
    token: int
    attempts: int
    max_attempts: int

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


@dataclass
class Books:
    """The producer's own account of the run; nothing in it comes from what is judged, except what was answered."""

    promised: set[str] = field(default_factory=set)  # enqueues that were acknowledged
    redriven: Counter[str] = field(default_factory=Counter)  # redrives that were acknowledged
    closed: set[str] = field(default_factory=set)  # seen ended, then purged
    delivered: list[str] = field(default_factory=list)  # those of them that the receiver has
    rows: dict[str, Row] = field(default_factory=dict)  # the last look
    strangers: set[str] = field(default_factory=set)  # seen, and not promised at that moment
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while rows must be those of the file

    def fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)

    def redrive(self, job_id: str) -> None:
        """Note that a dead job was put back."""
        self.redriven[job_id] += 1
        self.rows[job_id] = self.rows[job_id]._replace(status="pending", reason=None, attempts=0)

    def compare(self, rows: dict[str, Row], counts: dict[str, int]) -> None:
        """Take a new look at all jobs, and compare it with the last one."""
        statuses = Counter(row.status for row in rows.values())
        if counts != statuses:
            self.fault(f"I4: the queue counts {counts}, its rows say {dict(statuses)}")
        for job_id, row in rows.items():
            self._compare_row(job_id, self.rows.get(job_id), row)
        for job_id in self.rows.keys() - rows.keys():
            if self.rows[job_id].has_ended:
                self.closed.add(job_id)
                if not is_deadly(job_id):
                    self.delivered.append(job_id)
            else:
                self.lost += 1
                self.fault(f"I1: {job_id} is gone, and was {self.rows[job_id]} when it was seen last")
        self.strangers |= rows.keys() - self.promised
        self.rows = rows

    def _compare_row(self, job_id: str, before: Row | None, row: Row) -> None:
        if before is not None and before.token > row.token:
            self.fault(f"I3: the token of {job_id} fell: {before}, then {row}")
        if before is not None and before.has_ended and row != before:
            self.fault(f"I3: {job_id} changed after its end: {before}, then {row}")
        if job_id in self.closed:
            self.fault(f"I1: {job_id} is back after it was purged: {row}")
        if row.attempts > row.max_attempts:
            self.fault(f"I5: {job_id} has more attempts than its maximum: {row}")
        if row.qty != quantity(job_id):
            self.fault(f"I1: {job_id} was enqueued with {quantity(job_id)}: {row}")
        right = ("dead", "permanent") if is_deadly(job_id) else ("done", None)
        if row.has_ended and (row.status, row.reason) != right:
            self.fault(f"I1: {job_id} ended as {row}, not as {right}")

    def ledger(self) -> dict[str, int]:
        """Return what the receiver's ledger must hold: each quantity once."""
        # what is refused with 409 was accepted with one piece more, before the job was there
        return {
            job_id: quantity(job_id) + (kind_of(job_id) == POISON)
            for job_id in self.promised
            if kind_of(job_id) == POISON or not is_deadly(job_id)
        }


class Reader:
    """Looks at the queue's file with a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"file:{path}?mode=ro", uri=True, timeout=60, isolation_level=None, check_same_thread=False
        )

    async def look(self, books: Books) -> None:
        """Read all of it as of one moment, and compare."""
        books.compare(*await asyncio.to_thread(self._read))

    def _read(self) -> tuple[dict[str, Row], dict[str, int]]:
        self._connection.execute("BEGIN")
        try:
            jobs = {job_id: Row(*values) for job_id, *values in self._connection.execute(JOBS)}
            return jobs, dict(self._connection.execute(COUNTS).fetchall())
        finally:
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


def reconcile(books: Books, jobs: Path, inbox: Path) -> None:
    """Compare the books with both files after the end of everything."""
    with _opened(books, jobs, "queue") as connection:
        books.compare(
            {job_id: Row(*values) for job_id, *values in connection.execute(JOBS)},
            dict(connection.execute(COUNTS).fetchall()),
        )
        audited = Counter(job_id for (job_id,) in connection.execute("SELECT id FROM redrives"))
    live = [job_id for job_id, row in books.rows.items() if not row.has_ended]
    if live:
        books.fault(f"I7: {len(live)} jobs have not ended, as {live[0]}: {books.rows[live[0]]}")
    missing = books.promised - books.closed - books.rows.keys()
    if missing:
        books.lost += len(missing)
        books.fault(f"I1: {len(missing)} acknowledged jobs were never seen, as {min(missing)}")
    if strangers := books.strangers - books.promised:
        books.fault(f"I1: {len(strangers)} jobs were never acknowledged, as {min(strangers)}")
    if audited != books.redriven:
        books.fault(f"I6: {books.redriven.total()} redrives were acknowledged, {audited.total()} are audited")
    with _opened(books, inbox, "inbox") as connection:
        ledger = dict(connection.execute("SELECT id, qty FROM ledger").fetchall())
        accepted = dict(connection.execute("SELECT id, qty FROM inbox").fetchall())
        totals = connection.execute("SELECT messages, quantity FROM totals").fetchone()
    _compare_ledger(books, ledger)
    if accepted != ledger or totals != (len(ledger), sum(ledger.values())):
        books.fault(f"I4: the inbox has {len(accepted)} rows and counts {totals}, the ledger has {len(ledger)}")


def _compare_ledger(books: Books, ledger: dict[str, int]) -> None:
    wanted = books.ledger()
    lost = [job_id for job_id, qty in wanted.items() if ledger.get(job_id, 0) < qty]
    doubled = [job_id for job_id, qty in ledger.items() if qty > wanted.get(job_id, 0)]
    books.lost += len(lost)
    books.doubled += len(doubled)
    for what, ids in (("lost", lost), ("doubled", doubled)):
        if ids:
            first = min(ids)
            books.fault(
                f"I2: {len(ids)} {what} at the receiver, as {first}: {ledger.get(first)}, not {wanted.get(first)}"
            )


@contextmanager
def _opened(books: Books, path: Path, name: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            books.fault(f"the {name} file is damaged")
        yield connection
