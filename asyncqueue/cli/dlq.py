"""`asyncqueue dlq`: the dead letters, and the way back for them."""

from collections.abc import Sequence
from typing import Any

import anyio
import click

from asyncqueue.cli.failure import Failed
from asyncqueue.cli.jobs import list_jobs
from asyncqueue.cli.options import INTEGER, as_json, database, examples, job_filters, reads
from asyncqueue.cli.render import cell, print_json
from asyncqueue.errors import NotDead
from asyncqueue.job import DEFAULT_TTL_MS, Redrive
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

__all__ = ["dlq"]


@click.group()
def dlq() -> None:
    """See which jobs are dead and why, and put them back."""


@dlq.command("list", epilog=examples("asyncqueue dlq list jobs.db --reason exhausted"))
@job_filters(status=False)
@reads("one JSON document a line")
def list_(*, db: str, json_: bool, **filters: Any) -> None:
    """List dead jobs, one page at a time."""
    list_jobs(db, json_=json_, status=Status.DEAD.value, **filters)


@dlq.command(epilog=examples("asyncqueue dlq redrive jobs.db order-41 order-42 --note endpoint-fixed --actor kim"))
@database
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--note", required=True, metavar="NOTE", help="Why, for the audit: 1-64 of A-Z a-z 0-9 _ -.")
@click.option("--actor", metavar="NAME", help="Who, for the audit: 1-64 of A-Z a-z 0-9 _ -.")
@click.option(
    "--ttl-ms",
    type=INTEGER,
    default=DEFAULT_TTL_MS,
    show_default=True,
    help="Time to live from now, in milliseconds.",
)
@as_json("one JSON document a line")
def redrive(  # noqa: PLR0913 - one parameter an option
    *, db: str, ids: Sequence[str], note: str, actor: str | None, ttl_ms: int, json_: bool
) -> None:
    """Put dead jobs back with fresh attempts. Each gets an audit row with NOTE in the same transaction.

    The token is not reset, so a late report of an earlier attempt still changes nothing. Jobs that are not dead
    are left alone and named; the exit code is then 1.
    """
    redrives = [Redrive(job_id, ttl_ms, note, actor) for job_id in dict.fromkeys(ids)]
    for item in redrives:
        item.check()
    answers = anyio.run(_redrive, db, redrives)
    for item, answer in zip(redrives, answers, strict=True):
        _print(item.id, answer, json_=json_)
    left = [item.id for item, answer in zip(redrives, answers, strict=True) if answer is not None]
    if left:
        raise Failed(f"{len(left)} of {len(redrives)} jobs do not exist or are not dead: {', '.join(left)}")


def _print(id: str, answer: NotDead | None, *, json_: bool) -> None:
    if json_:
        print_json({"id": id, "redriven": answer is None, "error": None if answer is None else str(answer)})
    else:
        click.echo(f"{cell(id)}: {'redriven' if answer is None else 'not dead, left alone'}")


async def _redrive(db: str, redrives: Sequence[Redrive]) -> list[NotDead | None]:
    """Redrive all at once: the queue's callers that wait at the same moment share one transaction."""
    answers: list[NotDead | None] = [None] * len(redrives)

    async def one(queue: Queue, place: int, item: Redrive) -> None:
        try:
            await queue.redrive(item.id, note=item.note, ttl_ms=item.ttl_ms, actor=item.actor)
        except NotDead as error:
            answers[place] = error

    async with Queue.open(db, create=False) as queue, anyio.create_task_group() as group:
        for place, item in enumerate(redrives):
            group.start_soon(one, queue, place, item)
    return answers
