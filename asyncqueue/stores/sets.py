"""What both stores do to a set of items before and after SQL: rows on their way in, answers on their way out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from asyncqueue.errors import Conflict, QueueFull, StoreError
from asyncqueue.job import Job, NewJob, Report, Ticket, brief
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores.base import QueueDetail, Stats

__all__ = [
    "STATUSES",
    "by_rounds",
    "compared",
    "counts_of",
    "detail_of",
    "full",
    "job_of",
    "new_row",
    "parts",
    "stats_of",
    "ticket_row",
]

STATUSES: Final[Mapping[str, Status]] = {status.value: status for status in Status}
"""The status of each text in a table; a look-up costs less than a call of the class."""
_COMPARED: Final = ("qty", "queue", "kind", "payload")


def new_row(job: NewJob) -> tuple[Any, ...]:
    """Return what `statements.ENQUEUE` wants to know of a job."""
    j = job
    return j.id, j.qty, j.max_attempts, j.delay_ms, j.ttl_ms, j.queue, j.kind, j.payload, j.priority


def compared(job: NewJob, there: Sequence[Any]) -> bool | Conflict:
    """Return False if `there` (the rest of a row of `statements.EXISTING`) is the same job, else the conflict."""
    offered = (job.qty, job.queue, job.kind, job.payload)
    fields = tuple(name for name, mine, theirs in zip(_COMPARED, offered, there, strict=True) if mine != theirs)
    if not fields:
        return False
    return Conflict(f"job {job.id} exists with another {' and '.join(fields)}", job_id=job.id, fields=fields)


def full(max_pending: int) -> QueueFull:
    """Return the refusal of a new job for which there is no room."""
    return QueueFull(f"the queue holds {max_pending} waiting jobs, its max_pending: try again later")


def ticket_row(ticket: Ticket) -> tuple[str, int, int, str, int]:
    """Return what a report statement compares of a ticket."""
    return ticket.id, ticket.token, ticket.qty, ticket.owner, ticket.attempt


def parts(reports: Sequence[Report]) -> list[list[Report]]:
    """Split reports, in their order, into runs without effects and single ones with an effect."""
    found: list[list[Report]] = []
    for report in reports:
        if report.effect is not None or not found or found[-1][0].effect is not None:
            found.append([])
        found[-1].append(report)
    return found


def by_rounds(items: list[tuple[Any, ...]]) -> list[list[tuple[int, tuple[Any, ...]]]]:
    """Split `items` (id first) so that no id comes twice in a round; each with its place in `items`."""
    if len({item[0] for item in items}) == len(items):
        return [list(enumerate(items))] if items else []
    rounds: list[list[tuple[int, tuple[Any, ...]]]] = []
    seen: dict[str, int] = {}
    for place, item in enumerate(items):
        nth = seen[item[0]] = seen.get(item[0], -1) + 1
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append((place, item))
    return rounds


def job_of(row: Sequence[Any]) -> Job:
    """Return the job of a row of `statements.GET`. Raises `StoreError` for a reason that is none."""
    seq, job_id, qty, status, *middle = row
    try:
        middle[7] = None if middle[7] is None else Reason(middle[7])
    except ValueError:
        raise StoreError(f"the row of job {brief(job_id)} is damaged: reason {brief(middle[7])}") from None
    return Job(seq, job_id, qty, Status(status), *middle)


def counts_of(rows: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Return for each queue of the rows of `statements.STATS` its jobs by status."""
    queues: dict[str, dict[str, int]] = {}
    for queue, status, jobs in rows:
        queues.setdefault(queue, dict.fromkeys(map(str, Status), 0))[status] = jobs
    return queues


def detail_of(found: Mapping[Status, int], due_at_ms: int | None, now_ms: int) -> QueueDetail:
    """Return what is eligible in a queue, counted by status, and what its first live job says of the time."""
    lag_ms, next_due_ms = _lag_and_due(due_at_ms, now_ms)
    return QueueDetail(found[Status.PENDING], found[Status.LEASED], lag_ms, next_due_ms)


def stats_of(  # noqa: PLR0913 - what the answer is made of, by name
    queues: dict[str, dict[str, int]],
    *,
    due_at_ms: int | None,
    now_ms: int,
    redrives: int,
    names: Mapping[str, bool],
    details: dict[str, QueueDetail] | None,
) -> Stats:
    """Return the whole answer; `names` says of every queue if it is paused, `details` is None if nobody asked."""
    lag_ms, next_due_ms = _lag_and_due(due_at_ms, now_ms)
    return Stats(
        **{str(status): sum(counts[status] for counts in queues.values()) for status in Status},
        lag_ms=lag_ms,
        next_due_ms=next_due_ms,
        redrives=redrives,
        ready=None if details is None else sum(each.ready for each in details.values()),
        expired=None if details is None else sum(each.expired for each in details.values()),
        queues=queues,
        paused=tuple(name for name, is_paused in names.items() if is_paused),
        details=details or {},
    )


def _lag_and_due(at_ms: int | None, now_ms: int) -> tuple[int | None, int | None]:
    """Return how long the job that fell due first has waited, and how long until one does."""
    if at_ms is None:
        return None, None
    return (now_ms - at_ms if at_ms <= now_ms else None), max(0, at_ms - now_ms)
