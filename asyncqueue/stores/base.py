"""What a store of jobs must do. These docstrings are the law of a store; `tests/contract` is its proof.

Every verb works on a set and answers item by item, in the same order: a bad item never fails the rest. All
verbs called on one `Transaction` commit together or not at all. The store's clock decides every time, once for
each transaction (after the write lock was obtained, where there is one; on PostgreSQL the server's, unless a clock
was given); callers pass spans. What a verb does to one job is `lifecycle.TRANSITIONS`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar, runtime_checkable

from asyncqueue.clock import Clock, SystemClock
from asyncqueue.errors import Conflict, NotDead, QueueFull
from asyncqueue.job import HistoryRow, Job, LeasedJob, NewJob, Note, Redrive, Release, Renew, Report
from asyncqueue.lifecycle import Reason, Status

__all__ = [
    "AsyncOutbox",
    "Claim",
    "JobFilter",
    "QueueDetail",
    "Rules",
    "Stats",
    "Store",
    "SyncOutbox",
    "Terms",
    "Transaction",
]

T = TypeVar("T")

_CLOCK: Final = SystemClock()  # one for all callers without a store, so that it never runs backwards among them


@dataclass(frozen=True, slots=True)
class Rules:
    """What a store was opened with.

    `accept_late`: reports count after the lease, while nobody took over. `keep_all`: the history also keeps plain
    successes. `max_pending`: how many jobs may wait, None for no bound.
    """

    accept_late: bool = False
    keep_all: bool = False
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants how many jobs for how long; `queues=None` means every queue, `kinds=None` every kind."""

    owner: str
    limit: int
    lease_ms: int
    queues: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant: all given conditions hold; `after_seq` is where the last page ended.

    `older_than_ms` counts from the job's end, or from when it fell due while it is live.
    """

    status: Status | None = None
    queue: str | None = None
    kind: str | None = None
    reason: Reason | None = None
    id_prefix: str | None = None
    older_than_ms: int | None = None
    after_seq: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """How one queue stands now; see `Stats`. A paused queue has no lag and nothing due."""

    ready: int = 0
    expired: int = 0
    lag_ms: int | None = None
    next_due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """How many jobs are where, at a cost that does not grow with their number.

    `lag_ms` is how long the longest-waiting eligible job has been due (None if none is), `next_due_ms` the span to
    the next moment a live job falls due (0: now; None without live jobs in queues that are not paused). `redrives`
    counts audit rows. `ready` (pending and due) and `expired` (leased, the lease is gone) are counted only on
    request, and only up to 10,000 per queue; `details` has them, lag and next due of each queue that has jobs.
    """

    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    lag_ms: int | None = None
    next_due_ms: int | None = None
    redrives: int = 0
    ready: int | None = None
    expired: int | None = None
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    paused: tuple[str, ...] = ()
    details: dict[str, QueueDetail] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the sum over the four statuses."""
        return self.pending + self.leased + self.done + self.dead

    @property
    def live(self) -> int:
        """Return how many jobs still need a delivery: pending and leased."""
        return self.pending + self.leased


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms an outbox takes a job.

    `clock` decides the time, if there is one: else this process's clock, or the server's on PostgreSQL, as of the
    call. `max_pending` is how many jobs may wait, None for no bound; `committed` is called after the caller's
    commit, by connections that can tell, and must not raise; `place` is where the queue keeps its jobs, None if
    any place will do: a connection to another is refused. `schema` is where PostgreSQL has the queue's tables.
    """

    clock: Clock | None = None
    max_pending: int | None = None
    committed: Callable[[], None] | None = None
    place: str | None = None
    schema: str = "asyncqueue"

    @property
    def here(self) -> Clock:
        """The clock of the terms, or this process's own."""
        return self.clock or _CLOCK


@runtime_checkable
class SyncOutbox(Protocol):
    """A caller's own connection, as the place where jobs are put; it is borrowed for one call."""

    def enqueue(self, job: NewJob, terms: Terms) -> bool:
        """Insert a checked job within the caller's open transaction: True if it is new, False if it is there.

        Never begins, commits or rolls back, and leaves the transaction usable whatever it raises: `Conflict`,
        `QueueFull`, `NoTransaction`, `NotAQueue`, `NewerSchema`, `StoreClosed`, `StoreBusy`, `StoreError`. Only
        where the database itself gives the whole transaction up is it gone, and the error says so.
        """
        ...


@runtime_checkable
class AsyncOutbox(Protocol):
    """A caller's own async connection; the same law as `SyncOutbox`."""

    async def enqueue_async(self, job: NewJob, terms: Terms) -> bool:
        """See `SyncOutbox.enqueue`."""
        ...


class Transaction(Protocol):
    """The verbs, inside one open write transaction."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict | QueueFull]:
        """Insert checked jobs, in order; `seq` rises in the order given.

        True: new. False: the same job is there already (same qty, queue, kind and payload); its row is
        unchanged, whatever budget was offered. Conflict: the id is taken by a different job; QueueFull: new, but
        as many jobs wait as the store's `max_pending`. Neither is raised.
        """
        ...

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """Lease up to `claim.limit` eligible jobs: highest priority first, then ascending seq, exactly.

        Between queues, jobs of equal priority take turns in a ring of the queues' names, which goes on from claim
        to claim of this store; it may ask as many queues as it wants jobs, not all there are.

        Eligible is pending and due, or leased with an expired lease; a deadline that has passed or a used-up
        attempt budget makes a job dead instead (a bounded number of those per call). State, token, attempt
        and lease are written in one statement.
        """
        ...

    async def finish(self, reports: Sequence[Report]) -> list[Status | Exception | None]:
        """Settle leases; the new status, or None for a stale ticket, which changes nothing.

        A report with an effect runs it inside this transaction, in a savepoint with the settlement: a stale ticket
        does not run its effect, and an effect that raises undoes both, leaves the job leased and is answered with
        its own error (not raised), with `BadEffect` if it tried to end the transaction. Reports on one job are
        taken in their order.

        Stale: the job is not leased, or quantity, owner, token or attempt differ, or (unless the store was
        opened with `late="accept"`) the lease is over. `lease_until` is not compared: renewals move it.
        """
        ...

    async def finish_and_claim(
        self, reports: Sequence[Report], claim: Claim
    ) -> tuple[list[Status | Exception | None], list[LeasedJob]]:
        """Do `finish`, then `claim`, in one statement where a store can; return what each of them returns."""
        ...

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """Push leases out; the new `lease_until` (ms), or None for a stale ticket. Never past the deadline."""
        ...

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """Give leases back: attempt refunded, token kept; False for a stale ticket."""
        ...

    async def note(self, notes: Sequence[Note]) -> list[None]:
        """Add history rows for attempts without a report, and tell `last_error` while their leases are current.

        Nothing else of the jobs changes; unknown ids leave no row.
        """
        ...

    async def cancel(self, ids: Sequence[str]) -> list[Status | None]:
        """Make pending and leased jobs dead with reason `cancelled`; the status each had, None for an unknown id.

        The holder of a cancelled lease is stale from then on and learns of it at its next renewal.
        """
        ...

    async def redrive(self, redrives: Sequence[Redrive]) -> list[bool | NotDead]:
        """Put dead jobs back with a fresh budget and an audit row each; NotDead with the status for others."""
        ...

    async def sweep(self, limit: int) -> int:
        """Move up to `limit` jobs without time or attempts left to dead; return how many.

        Raises `StoreMoved` where the queue has moved, also if there is none: so who only waits learns of it.
        """
        ...

    async def pause(self, names: Sequence[str], *, paused: bool) -> None:
        """Stop (or let go on) the claims from these queues; their jobs are kept. Persistent.

        A queue can be paused before its first job; to let an unknown one go on leaves nothing.
        """
        ...

    async def raise_tokens(self) -> int:
        """Raise the tokens of all jobs, and of ids to come, above any that was ever given out; return that floor.

        For a database that was put back to an earlier state: what it gave out since is known to nobody.
        """
        ...

    async def purge(self, status: Status, older_than_ms: int, limit: int) -> int:
        """Delete up to `limit` done or dead jobs that ended at least `older_than_ms` ago, with their history.

        Redrive audit rows stay. A purged id is forgotten: enqueueing it again is a new job.
        """
        ...


class Store(Protocol):
    """An open database of jobs."""

    @property
    def terms(self) -> Terms:
        """The terms for an outbox beside this store: its clock and its bound."""
        ...

    @property
    def is_concurrent(self) -> bool:
        """Whether several transactions may run at once, so that one need not wait for another."""
        ...

    async def write(
        self, work: Callable[[Transaction], Awaitable[T]], *, inline: bool = False, at_once: bool = False
    ) -> T:
        """Run `work` in one short write transaction and return its result; shielded against cancellation.

        With `inline`, `work` promises to wait for nothing but the transaction's verbs; a store may run it faster.
        With `at_once`, too, it is likely to ask for `finish_and_claim`, and if it does for nothing else; a store
        may do that in one exchange, which is read back when the same reports are brought again, should it fail.

        Raises `StoreBusy`, `StoreFull`, `StoreClosed`, `ForkedProcess` or another `StoreError`; then nothing
        of the transaction is visible.
        """
        ...

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """Return the rows of these ids, None where there is none."""
        ...

    async def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """Return one page of jobs in ascending seq."""
        ...

    async def count(self, wanted: JobFilter) -> int:
        """Return how many jobs a filter meets, whatever its page."""
        ...

    async def history(self, job_id: str, limit: int) -> list[HistoryRow]:
        """Return a job's timeline, oldest first: attempts that were not a plain success, and redrives.

        The order is that of the tokens, not of clocks; a redrive follows the attempt whose token it found.
        """
        ...

    async def queues(self) -> dict[str, bool]:
        """Return the names of all queues ever used, and whether each is paused."""
        ...

    async def stats(self, *, detail: bool = False) -> Stats:
        """Count the jobs; with `detail` also those that are ready and expired."""
        ...

    async def next_due_ms(
        self, queues: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> int | None:
        """Return the span from now to the next moment a live job falls due (0: now), None without live jobs.

        With `queues` and `kinds` only jobs of these count; those of paused queues never do. It may
        cost a look at every queue, and with the default kind at every live job.
        """
        ...

    async def version(self, *, of_ends: bool = False) -> int:
        """Return a number that changes when someone else has committed; cheap, takes no lock.

        A store may tell only of jobs that wait, unless `of_ends` asks for those that have ended or are gone, too.
        """
        ...

    def alarm(self, ring: Callable[[], None]) -> bool:
        """Have `ring` called once in this event loop when someone else may have committed jobs that wait.

        False if that cannot be promised: the caller must look by itself. It may ring for nothing, and a moment
        before the commit can be seen. Ask for the alarm first, then look: what is committed in between
        is seen or rings. A dead connection or file system may keep it silent, so look now and then all the same.
        """
        ...

    async def backup(self, target: Path, told: Callable[[int, int], None] | None = None) -> None:
        """Copy everything, as of one moment, into the new file `target`.

        `told(done, of)` is called with pages, in any thread.

        Raises `ConfigError` if `target` is there already, and where that is the server's own business.
        """
        ...

    async def close(self) -> None:
        """Close it; waits for a running transaction. May be called again."""
        ...
