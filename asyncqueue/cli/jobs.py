"""`asyncqueue job`: look at jobs."""

from typing import Any, Final

import anyio
import click

from asyncqueue.cli.failure import Failed, say
from asyncqueue.cli.options import as_json, database, examples, job_filters, reads
from asyncqueue.cli.render import job_record, print_json, print_table, time_text
from asyncqueue.job import Job
from asyncqueue.queue import Queue

__all__ = ["job", "list_jobs"]

_COLUMNS: Final = ("seq", "id", "qty", "status", "reason", "queue", "attempts", "due", "last error")
_TIMES: Final = frozenset({"available_at", "deadline", "lease_until", "created_at", "finished_at"})


@click.group()
def job() -> None:
    """Look at jobs: one (`show`) or a page of them (`list`)."""


@job.command(
    "list",
    epilog=examples(
        "asyncqueue job list jobs.db --status leased", "asyncqueue job list jobs.db --after 100 --limit 100 --json"
    ),
)
@job_filters(status=True)
@reads("one JSON document a line")
def list_(*, db: str, json_: bool, **filters: Any) -> None:
    """List jobs in the order in which they were put in, one page at a time."""
    list_jobs(db, json_=json_, **filters)


@job.command(epilog=examples("asyncqueue job show jobs.db order-41"))
@database
@click.argument("id", metavar="ID")
@as_json("one JSON document")
def show(*, db: str, id: str, json_: bool) -> None:
    """Show everything that is stored about one job. Exit code 1 if there is no such job."""
    found = anyio.run(_get, db, id)
    if found is None:
        raise Failed(f"job {id}: no such job in {db}: see 'asyncqueue job list'")
    if json_:
        print_json(job_record(found))
        return
    record = {**job_record(found), "payload": found.payload}
    rows = [(name, time_text(value) if name in _TIMES else value) for name, value in record.items()]
    print_table(("field", "value"), rows, header=False)


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


def _row(item: Job) -> tuple[object, ...]:
    attempts = f"{item.attempts}/{item.max_attempts}"
    due = time_text(item.available_at)
    return (
        item.seq,
        item.id,
        item.qty,
        item.status,
        item.reason,
        item.queue,
        attempts,
        due,
        item.last_error,
    )


async def _get(db: str, id: str) -> Job | None:
    async with Queue.open(db, create=False) as queue:
        return await queue.get(id)


async def _list(db: str, filters: dict[str, Any]) -> list[Job]:
    async with Queue.open(db, create=False) as queue:
        return await queue.list(**filters)
