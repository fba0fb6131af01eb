"""What a store of jobs must do. These docstrings are the law of a store; `tests/contract` is its proof.

Every verb works on a set and answers item by item, in the same order: a bad item never fails the rest. All
verbs called on one `Transaction` commit together or not at all. The store's clock decides every time
(`Transaction.now_ms`); callers pass spans. What a verb does to one job is `lifecycle.TRANSITIONS`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from asyncqueue.errors import Conflict, NotDead
from asyncqueue.job import Job, LeasedJob, NewJob, Redrive, Release, Renew, Report
from asyncqueue.lifecycle import Reason, Status

__all__ = ["Claim", "JobFilter", "Stats", "Store", "Transaction"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants how many jobs for how long; `queues=None` means every queue."""

    owner: str
    limit: int
    lease_ms: int
    queues: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list: all given conditions hold; `after_seq` is where the last page ended."""

    status: Status | None = None
    queue: str | None = None
    kind: str | None = None
    reason: Reason | None = None
    after_seq: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Stats:
    """How many jobs are where. `ready` are pending and due; `expired` are leased but their lease is gone.

    `oldest_ready_ms` is the age of the oldest ready job since it fell due, None if none is ready; `redrives`
    counts audit rows.
    """

    pending: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    ready: int = 0
    expired: int = 0
    oldest_ready_ms: int | None = None
    redrives: int = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Return the sum over the four statuses."""
        return self.pending + self.leased + self.done + self.dead

    @property
    def live(self) -> int:
        """Return how many jobs still need a delivery: pending and leased."""
        return self.pending + self.leased


class Transaction(Protocol):
    """The verbs, inside one open write transaction."""

    @property
    def now_ms(self) -> int:
        """The time of this transaction, taken after the write lock was obtained."""
        ...

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[bool | Conflict]:
        """Insert checked jobs, in order; `seq` rises in the order given.

        True: new. False: the same job is there already (same qty, queue, kind and payload); its row is
        unchanged, whatever budget was offered. Conflict: the id is taken by a different job; not raised.
        """
        ...

    async def claim(self, claim: Claim) -> list[LeasedJob]:
        """Lease up to `claim.limit` eligible jobs: highest priority first, then ascending seq, exactly.

        Eligible is pending and due, or leased with an expired lease; a deadline that has passed or a used-up
        attempt budget makes a job dead instead (a bounded number of those per call). State, token, attempt
        and lease are written in one statement.
        """
        ...

    async def finish(self, reports: Sequence[Report]) -> list[Status | None]:
        """Settle leases; the new status, or None for a stale ticket, which changes nothing.

        Stale: the job is not leased, or quantity, owner, token or attempt differ, or (unless the store was
        opened with `late="accept"`) the lease is over. `lease_until` is not compared: renewals move it.
        """
        ...

    async def renew(self, renewals: Sequence[Renew]) -> list[int | None]:
        """Push leases out; the new `lease_until` (ms), or None for a stale ticket. Never past the deadline."""
        ...

    async def release(self, releases: Sequence[Release]) -> list[bool]:
        """Give leases back: attempt refunded, token kept; False for a stale ticket."""
        ...

    async def redrive(self, redrives: Sequence[Redrive]) -> list[bool | NotDead]:
        """Put dead jobs back with a fresh budget and an audit row each; NotDead (not raised) for all others."""
        ...

    async def sweep(self, limit: int) -> int:
        """Move up to `limit` jobs without time or attempts left to dead; return how many."""
        ...


class Store(Protocol):
    """An open database of jobs."""

    async def write(self, work: Callable[[Transaction], Awaitable[T]], *, inline: bool = False) -> T:
        """Run `work` in one short write transaction and return its result; shielded against cancellation.

        With `inline`, `work` promises to wait for nothing but the transaction's verbs; a store may run it faster.

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

    async def stats(self) -> Stats:
        """Count the jobs, all in one consistent moment."""
        ...

    async def next_due_ms(self, queues: Sequence[str] | None = None) -> int | None:
        """Return the span from now to the next moment a live job falls due (0: now), None without live jobs.

        With `queues` only jobs of these count.
        """
        ...

    async def version(self) -> int:
        """Return a number that changes when someone else has committed; cheap, takes no lock."""
        ...

    async def close(self) -> None:
        """Close it; waits for a running transaction. May be called again."""
        ...
