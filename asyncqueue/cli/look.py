"""Jobs as they are shown: a page of them, or one with its timeline. Shared by `job` and `dlq`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import anyio
import click

from asyncqueue.cli.failure import Failed, say
from asyncqueue.cli.opening import no_such_job, readable
from asyncqueue.cli.render import job_record, print_json, print_table
from asyncqueue.clock import time_text
from asyncqueue.job import HistoryRow, Job
from asyncqueue.lifecycle import Status

__all__ = ["list_jobs", "show_job"]

_COLUMNS: Final = ("seq", "id", "qty", "status", "reason", "queue", "attempts", "due", "last error")
_TIMES: Final = frozenset({"available_at", "deadline", "lease_until", "created_at", "finished_at"})
_TIMELINE: Final = ("at", "what", "token", "attempt", "who", "certainty", "http", "detail")
_TIMELINE_MAX: Final = 10_000


def list_jobs(db: str, *, json_: bool, limit: int, **filters: Any) -> None:
    """Print one page of jobs; a note on stderr says how to go on when the page is full."""
    found = anyio.run(_list, db, {"limit": limit, **filters})
    if json_:
        for item in found:
            print_json(job_record(item))
    else:
        print_table(_COLUMNS, (_row(item) for item in found), numbers=("seq", "qty", "attempts"))
    if len(found) == limit:
        say("note", f"the page is full: continue with --after {found[-1].seq}")


def show_job(db: str, id: str, *, json_: bool, dead: bool = False) -> None:
    """Print one job's row and its timeline. Raises `Failed` if there is none, or with `dead` if it is not dead."""
    job, history = anyio.run(_get, db, id)
    if job is None:
        raise no_such_job(db, id)
    if dead and job.status is not Status.DEAD:
        raise Failed(f"job {id} is {job.status}, not dead: see 'asyncqueue job show'")
    if json_:
        print_json({**job_record(job), "history": [asdict(row) for row in history]})
    else:
        _print(job, history)
    if len(history) == _TIMELINE_MAX:
        say("note", f"only the first {_TIMELINE_MAX} entries of the timeline are shown")


def _print(job: Job, history: Sequence[HistoryRow]) -> None:
    record = {**job_record(job), "payload": job.payload}
    rows = [(name, time_text(value) if name in _TIMES else value) for name, value in record.items()]
    print_table(("field", "value"), rows, header=False)
    click.echo("")
    if history:
        print_table(_TIMELINE, (_entry(row) for row in history), numbers=("token", "attempt", "http"))
    else:
        click.echo("timeline: no failed attempt, no redrive")


def _entry(row: HistoryRow) -> tuple[object, ...]:
    at = time_text(row.at_ms)
    return (at, row.what, row.token, row.attempt, row.who, row.certainty, row.http_status, row.detail)


def _row(item: Job) -> tuple[object, ...]:
    attempts = f"{item.attempts}/{item.max_attempts}"
    due = time_text(item.available_at)
    return (item.seq, item.id, item.qty, item.status, item.reason, item.queue, attempts, due, item.last_error)


async def _get(db: str, id: str) -> tuple[Job | None, Sequence[HistoryRow]]:
    async with readable(db) as queue:
        return await queue.get(id), await queue.history(id, limit=_TIMELINE_MAX)


async def _list(db: str, filters: dict[str, Any]) -> list[Job]:
    async with readable(db) as queue:
        return await queue.list(**filters)
