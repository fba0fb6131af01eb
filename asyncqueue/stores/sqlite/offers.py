"""A job on its way in, for store and outbox alike: the row for SQL, and what the database's answer means."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from asyncqueue.errors import Conflict, QueueFull
from asyncqueue.job import NewJob

__all__ = ["array", "compared", "full", "new_row"]

_COMPARED: Final = ("qty", "queue", "kind", "payload")


def array(items: Iterable[Any]) -> str:
    """Return `items` as the JSON array in which a set travels to a statement."""
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))


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
