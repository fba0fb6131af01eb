"""`asyncqueue dlq`: the dead letters, and the way back for them."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import click

from asyncqueue.cli.failure import Failed
from asyncqueue.cli.look import list_jobs, show_job
from asyncqueue.cli.opening import existing, readable
from asyncqueue.cli.options import INTEGER, as_json, database, examples, job_conditions, job_filters, reads
from asyncqueue.cli.render import cell, print_json
from asyncqueue.errors import NotDead
from asyncqueue.job import DEFAULT_TTL_MS, Redrive
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

__all__ = ["dlq"]

Answers = list[NotDead | None]


@click.group()
def dlq() -> None:
    """See which jobs are dead and why, and put them back."""


@dlq.command("list", epilog=examples("asyncqueue dlq list jobs.db --reason exhausted --older-than-ms 3600000"))
@job_filters(status=False)
@reads("one JSON document a line")
def list_(*, db: str, json_: bool, **filters: Any) -> None:
    """List dead jobs, one page at a time."""
    list_jobs(db, json_=json_, status=Status.DEAD.value, **filters)


@dlq.command(epilog=examples("asyncqueue dlq show jobs.db order-41"))
@database
@click.argument("id", metavar="ID")
@as_json("one JSON document")
def show(*, db: str, id: str, json_: bool) -> None:
    """Show everything that is stored about one dead job, with its timeline. Exit code 1 if it is not dead."""
    show_job(db, id, json_=json_, dead=True)


@dlq.command(
    epilog=examples(
        "asyncqueue dlq redrive jobs.db order-41 order-42 --note endpoint-fixed --actor kim",
        "asyncqueue dlq redrive jobs.db --queue mail --reason exhausted --note endpoint-fixed --dry-run",
        "asyncqueue dlq redrive jobs.db --all --note endpoint-fixed --rate 50",
    )
)
@database
@click.argument("ids", metavar="[ID...]", nargs=-1)
@job_conditions
@click.option("--all", "everything", is_flag=True, help="Every dead job, instead of ids or filters.")
@click.option("--note", required=True, metavar="NOTE", help="Why, for the audit: 1-64 of A-Z a-z 0-9 _ -.")
@click.option("--actor", metavar="NAME", help="Who, for the audit: 1-64 of A-Z a-z 0-9 _ -.")
@click.option(
    "--ttl-ms",
    type=INTEGER,
    default=DEFAULT_TTL_MS,
    show_default=True,
    help="Time to live from now, in milliseconds.",
)
@click.option("--rate", type=click.FLOAT, metavar="JOBS", help="At most this many a second; not with ids.")
@click.option("--dry-run", is_flag=True, help="Only say what would be redriven; change nothing.")
@as_json("one JSON document a line (one in all with filters)")
def redrive(  # noqa: PLR0913 - one parameter an option
    *,
    db: str,
    ids: Sequence[str],
    everything: bool,
    note: str,
    actor: str | None,
    ttl_ms: int,
    rate: float | None,
    dry_run: bool,
    json_: bool,
    **conditions: Any,
) -> None:
    """Put dead jobs back with fresh attempts. Each gets an audit row with NOTE in the same transaction.

    Which ones: those with these IDs, or those that all given filters meet, or --all. The token is not reset, so a
    late report of an earlier attempt still changes nothing. With IDs, jobs that are not dead are left alone and
    named; the exit code is then 1.
    """
    given = {name: value for name, value in conditions.items() if value is not None}
    _check_scope(ids, given, everything=everything, paced=rate is not None)
    if ids:
        redrives = [Redrive(job_id, ttl_ms, note, actor) for job_id in dict.fromkeys(ids)]
        _redrive_ids(db, redrives, dry_run=dry_run, json_=json_)
        return
    audit = {"note": note, "actor": actor, "ttl_ms": ttl_ms}
    count = anyio.run(_redrive_many, db, {**given, **audit, "rate": rate, "dry_run": dry_run})
    if json_:
        print_json({"redriven": 0 if dry_run else count, "matched": count, "dry_run": dry_run})
    else:
        click.echo(f"{count} dead jobs {'would be ' if dry_run else ''}redriven")


def _check_scope(ids: Sequence[str], given: Mapping[str, Any], *, everything: bool, paced: bool) -> None:
    """Raise `UsageError` unless it is clear which jobs are meant, and all of them only if that was said."""
    narrows = any(value or name != "older_than_ms" for name, value in given.items())
    if ids and (given or everything):
        raise click.UsageError("give either IDs, or filters, or --all")
    if ids and paced:
        raise click.UsageError("--rate goes with filters or --all, not with IDs")
    if everything and narrows:
        raise click.UsageError("give either filters or --all, not both")
    if not ids and not narrows and not everything:
        raise click.UsageError("this would redrive every dead job: give IDs or filters, or --all")


def _redrive_ids(db: str, redrives: Sequence[Redrive], *, dry_run: bool, json_: bool) -> None:
    for item in redrives:
        item.check()
    answers: Answers = anyio.run(_probe if dry_run else _redrive, db, redrives)
    for item, answer in zip(redrives, answers, strict=True):
        _print(item.id, answer, dry_run=dry_run, json_=json_)
    left = [f"{item.id} ({_what(answer)})" for item, answer in zip(redrives, answers, strict=True) if answer]
    if not json_:
        click.echo(f"{len(redrives) - len(left)} of {len(redrives)} jobs {'would be ' if dry_run else ''}redriven")
    if left:
        raise Failed(f"{len(left)} of {len(redrives)} jobs do not exist or are not dead: {', '.join(left)}")


def _print(id: str, answer: NotDead | None, *, dry_run: bool, json_: bool) -> None:
    if json_:
        error = None if answer is None else str(answer)
        print_json({"id": id, "redriven": answer is None and not dry_run, "error": error})
    elif answer is None:
        click.echo(f"{cell(id)}: {'would be redriven' if dry_run else 'redriven'}")
    else:
        click.echo(f"{cell(id)}: {_what(answer)}, left alone")


def _what(answer: NotDead) -> str:
    return answer.status or "does not exist"


async def _redrive(db: str, redrives: Sequence[Redrive]) -> Answers:
    """Redrive all at once: the queue's callers that wait at the same moment share one transaction."""
    answers: Answers = [None] * len(redrives)

    async def one(queue: Queue, place: int, item: Redrive) -> None:
        try:
            await queue.redrive(item.id, note=item.note, ttl_ms=item.ttl_ms, actor=item.actor)
        except NotDead as error:
            answers[place] = error

    async with existing(db) as queue, anyio.create_task_group() as group:
        for place, item in enumerate(redrives):
            group.start_soon(one, queue, place, item)
    return answers


async def _probe(db: str, redrives: Sequence[Redrive]) -> Answers:
    """Tell what a redrive would answer now; changes nothing."""
    async with readable(db) as queue:
        found = [await queue.get(item.id) for item in redrives]
    return [
        None
        if job is not None and job.status is Status.DEAD
        else NotDead.of(item.id, None if job is None else job.status)
        for item, job in zip(redrives, found, strict=True)
    ]


async def _redrive_many(db: str, options: dict[str, Any]) -> int:
    async with (readable if options["dry_run"] else existing)(db) as queue:
        return await queue.redrive_many(**options)
