"""Say what should be in the queue, and see what is there instead."""

import json
from typing import Any, Final

from asyncqueue.job import Job, encode_payload, printable
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

__all__ = ["ANY", "assert_enqueued"]


class _Any:
    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any()
_SHOWN_MAX: Final = 20
_PAGE: Final = 1_000


async def assert_enqueued(  # noqa: PLR0913 - one condition a field, all by name
    asyncqueue: Queue,
    /,
    *,
    id: str | _Any = ANY,
    qty: int | _Any = ANY,
    queue: str | _Any = ANY,
    kind: str | _Any = ANY,
    payload: Any = ANY,
    status: Status | str | _Any = ANY,
    count: int | None = None,
) -> list[Job]:
    """Assert that jobs which meet all given conditions were enqueued, and return them in order.

    At least one, or exactly `count` of them (0: none). `payload` is compared as JSON, so `payload=None` asks for a
    job without one. Jobs of every status count, until they are purged. The failure lists what is there.
    """
    __tracebackhide__ = True
    fields = {"id": id, "qty": qty, "queue": queue, "kind": kind, "payload": payload, "status": status}
    wanted = {name: value for name, value in fields.items() if value is not ANY}
    jobs = await _all_jobs(asyncqueue)
    differing = {job.id: [name for name, value in wanted.items() if _differs(job, name, value)] for job in jobs}
    found = [job for job in jobs if not differing[job.id]]
    if len(found) == count or (count is None and found):
        return found
    raise AssertionError(_told(wanted, count, found, jobs, differing))


async def _all_jobs(queue: Queue) -> list[Job]:
    jobs: list[Job] = []
    while page := await queue.list(after_seq=jobs[-1].seq if jobs else 0, limit=_PAGE):
        jobs += page
    return jobs


def _differs(job: Job, name: str, value: Any) -> bool:
    if name == "payload":  # its text, since in Python 1, 1.0 and True are equal
        return job.payload != encode_payload(value)
    return bool(getattr(job, name) != value)


def _told(
    wanted: dict[str, Any],
    count: int | None,
    found: list[Job],
    jobs: list[Job],
    differing: dict[str, list[str]],
) -> str:
    expected = "at least 1" if count is None else str(count)
    conditions = ", ".join(f"{name}={value!r}" for name, value in wanted.items()) or "any job"
    lines = [f"expected {expected} enqueued with {conditions}; {len(found)} of {len(jobs)} jobs meet that"]
    nearest = sorted(jobs, key=lambda job: len(differing[job.id]))
    lines += [f"  {_line(job, differing[job.id])}" for job in nearest[:_SHOWN_MAX]]
    if len(jobs) > _SHOWN_MAX:
        lines.append(f"  … and {len(jobs) - _SHOWN_MAX} more")
    return "\n".join(lines if jobs else [*lines, "  the queue is empty"])


def _line(job: Job, differs: list[str]) -> str:
    payload = "none" if job.payload is None else json.dumps(job.json(), ensure_ascii=False)
    text = (
        f"{job.id} qty={job.qty} queue={job.queue} kind={job.kind} status={job.status}"
        f" payload={printable(payload, 100)}"
    )
    return f"{text}  <- differs in {', '.join(differs)}" if differs else f"{text}  <- meets it"
