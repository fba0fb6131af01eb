"""`asyncqueue job`: look at jobs, wait for one, cancel some."""

from collections.abc import Sequence
from typing import Any

import anyio
import click

from asyncqueue.cli.failure import Failed
from asyncqueue.cli.look import list_jobs, show_job
from asyncqueue.cli.opening import existing, no_such_job, readable
from asyncqueue.cli.options import INTEGER, as_json, database, examples, job_filters, reads
from asyncqueue.cli.render import cell, job_record, print_json
from asyncqueue.errors import UnknownJob
from asyncqueue.job import Job, check_id
from asyncqueue.lifecycle import Status

__all__ = ["job"]


@click.group()
def job() -> None:
    """Look at jobs (`list`, `show`), wait for the end of one (`wait`), or call some off (`cancel`)."""


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
    """Show everything that is stored about one job, with its timeline. Exit code 1 if there is no such job.

    The timeline has the attempts that were not a plain success and the redrives, oldest first.
    """
    show_job(db, id, json_=json_)


@job.command(
    epilog=examples("asyncqueue job wait jobs.db order-41 --timeout-ms 60000 && echo delivered"),
)
@database
@click.argument("id", metavar="ID")
@click.option("--timeout-ms", type=INTEGER, help="Give up after this long; 0 looks once.  [default: never]")
@as_json("the job as one JSON document")
def wait(*, db: str, id: str, timeout_ms: int | None, json_: bool) -> None:
    """Wait until the job is done or dead, whoever ends it.

    Exit code 0 if it is done; 1 if it is dead, if it has not ended in time, or if there is no such job.
    """
    found = anyio.run(_wait, db, id, timeout_ms)
    if json_:
        print_json(job_record(found))
    elif found.status is Status.DONE:
        click.echo(f"{cell(id)}: done")
    if found.status is not Status.DONE:
        raise Failed(f"job {id} is dead ({found.reason}): {found.last_error or 'no error is known'}")


@job.command(epilog=examples("asyncqueue job cancel jobs.db order-41 order-42"))
@database
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@as_json("one JSON document a line")
def cancel(*, db: str, ids: Sequence[str], json_: bool) -> None:
    """Make jobs dead with the reason `cancelled`. A pending one is cancelled at once and never sent.

    A leased one is under way: its holder learns of it at its next renewal, and its report does not count any more;
    the receiver may have got it all the same. Jobs that have ended or do not exist are left alone and named; the
    exit code is then 1.
    """
    unique = list(dict.fromkeys(ids))
    for job_id in unique:
        check_id("id", job_id)
    found = dict(zip(unique, anyio.run(_cancel, db, unique), strict=True))
    for job_id, before in found.items():
        _print_cancelled(job_id, before, json_=json_)
    left = [f"{job_id} ({_what(before)})" for job_id, before in found.items() if not _was_live(before)]
    if left:
        raise Failed(f"{len(left)} of {len(unique)} jobs could not be cancelled: {', '.join(left)}")


def _print_cancelled(id: str, before: Status | None, *, json_: bool) -> None:
    if json_:
        print_json({"id": id, "cancelled": _was_live(before), "before": before})
    elif before is Status.LEASED:
        click.echo(f"{cell(id)}: cancelled; it was leased: its holder learns of it at its next renewal")
    elif _was_live(before):
        click.echo(f"{cell(id)}: cancelled")
    else:
        click.echo(f"{cell(id)}: {_what(before)}, left alone")


def _was_live(before: Status | None) -> bool:
    return before in (Status.PENDING, Status.LEASED)


def _what(before: Status | None) -> str:
    return "no such job" if before is None else f"{before} already"


async def _cancel(db: str, ids: Sequence[str]) -> list[Status | None]:
    async with existing(db) as queue:
        return await queue.cancel_many(ids)


async def _wait(db: str, id: str, timeout_ms: int | None) -> Job:
    async with readable(db) as queue:
        try:
            return await queue.wait(id, timeout_ms)
        except UnknownJob:
            raise no_such_job(db, id) from None
        except TimeoutError:
            raise Failed(f"job {id} has not ended within {timeout_ms} ms") from None
