"""`asyncqueue enqueue`: one job from arguments, or a stream of JSON Lines."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio
import click

from asyncqueue.cli.failure import say
from asyncqueue.cli.ingest import Ingest, Summary
from asyncqueue.cli.lines import parse_json
from asyncqueue.cli.options import INTEGER, as_json, check_journal, database, examples, journal
from asyncqueue.cli.render import print_json
from asyncqueue.errors import Conflict
from asyncqueue.job import (
    DEFAULT_KIND,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_QUEUE,
    DEFAULT_TTL_MS,
    NewJob,
    Range,
    check_int,
    encode_payload,
    printable,
)
from asyncqueue.queue import SEQ_MAX, Queue
from asyncqueue.stores.sqlite.connection import Journal

__all__ = ["enqueue"]

_SHOWN_MAX = 5  # refused lines that the summary names; --rejects has them all


@click.command(
    short_help="Put one job or a file of jobs into DB.",
    epilog=examples(
        "asyncqueue enqueue jobs.db order-41 3 --payload '{\"sku\": 7}'",
        "zcat orders.jsonl.gz | asyncqueue enqueue jobs.db --file - --rejects rejects.jsonl",
    ),
)
@database
@click.argument("id", metavar="[ID]", required=False)
@click.argument("qty", metavar="[QTY]", type=INTEGER, required=False)
@click.option(
    "--file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Read jobs from FILE, one JSON object a line; - is standard input.",
)
@click.option(
    "--rejects",
    type=click.Path(),
    metavar="FILE",
    help="With --file: write each line that was not taken, and why, to FILE as JSON Lines.",
)
@click.option("--payload", metavar="JSON", help="What the receiver gets beside id and qty; at most 256 KiB.")
@click.option(
    "--queue", default=DEFAULT_QUEUE, show_default=True, metavar="NAME", help="Queue: 1-64 of A-Z a-z 0-9 _ -."
)
@click.option(
    "--kind", default=DEFAULT_KIND, show_default=True, metavar="NAME", help="Kind: 1-64 of A-Z a-z 0-9 _ -."
)
@click.option("--priority", type=INTEGER, default=0, show_default=True, help="Higher goes first, -32768 to 32767.")
@click.option(
    "--delay-ms", type=INTEGER, default=0, show_default=True, help="Not before this many milliseconds from now."
)
@click.option(
    "--ttl-ms",
    type=INTEGER,
    default=DEFAULT_TTL_MS,
    show_default=True,
    help="Dead if not delivered within this many milliseconds from now.",
)
@click.option(
    "--max-attempts",
    type=INTEGER,
    default=DEFAULT_MAX_ATTEMPTS,
    show_default=True,
    help="Dead after this many failed attempts, 1 to 10000.",
)
@click.option(
    "--max-pending",
    type=INTEGER,
    help="Take no new job while this many are pending in DB; the line or the job is refused.  [default: no bound]",
)
@journal
@as_json("the result as one JSON document")
def enqueue(  # noqa: PLR0913 - one parameter an option
    *,
    db: str,
    id: str | None,
    qty: int | None,
    file: str | None,
    rejects: str | None,
    payload: str | None,
    max_pending: int | None,
    journal: Journal,
    force_wal: bool,
    json_: bool,
    **fields: Any,
) -> None:
    """Put one job (ID, QTY) or a file of jobs into DB, durably; DB is made if it is missing.

    ID is the idempotency key, 1-64 of A-Z a-z 0-9 _ - (write -- before one that begins with a dash); QTY is 1 to
    1000000000. The same job again changes nothing; the same ID with another quantity, queue, kind or payload is a
    conflict. Lines of a file hold "id" and "qty", and may hold "payload", "queue", "kind", "priority", "delay_ms",
    "ttl_ms" and "max_attempts"; what a line leaves out is taken from the options. A bad line fails no other line:
    exit code 2 if any was invalid, else 1 if any was a conflict or refused by --max-pending. DB is not made for a
    file without one good line.
    """
    check_journal(db, journal, force_wal=force_wal)
    if max_pending is not None:
        check_int("--max-pending", max_pending, Range(1, SEQ_MAX))
    opening = {"max_pending": max_pending, "journal": journal, "force_wal": force_wal}
    if file is None:
        _check_alone(id, qty, rejects)
        value = None if payload is None else parse_json(payload)
        _one(db, NewJob(id or "", qty or 0, encode_payload(value), **fields), opening, json_=json_)
    else:
        if id is not None or qty is not None or payload is not None:
            raise click.UsageError("give either ID and QTY (and --payload), or --file, not both")
        defaults = NewJob("", 0, None, **fields)
        replace(defaults, id="any", qty=1).check()  # a wrong option is one error, not one on every line
        ingest = Ingest(db, file, rejects, defaults, opening)
        _many(ingest, rejects, json_=json_)


def _check_alone(id: str | None, qty: int | None, rejects: str | None) -> None:
    if id is None or qty is None:
        raise click.UsageError("give ID and QTY, or --file FILE")
    if rejects is not None:
        raise click.UsageError("--rejects needs --file")


def _one(db: str, job: NewJob, opening: Mapping[str, Any], *, json_: bool) -> None:
    job.check()  # before the database is made
    result = "new" if anyio.run(_enqueue, db, job, opening) else "duplicate"
    if json_:
        print_json({"id": job.id, "qty": job.qty, "result": result})
    else:
        click.echo(f"{job.id}: {'enqueued' if result == 'new' else 'is there already, unchanged'}")


async def _enqueue(db: str, job: NewJob, opening: Mapping[str, Any]) -> bool:
    async with Queue.open(db, **opening) as queue:
        answer = (await queue.enqueue_many([job]))[0]
    if isinstance(answer, Conflict):
        raise Conflict(f"{answer}: nothing was changed; use another id", job_id=job.id, fields=answer.fields)
    if isinstance(answer, bool):
        return answer
    raise answer


def _many(ingest: Ingest, rejects: str | None, *, json_: bool) -> None:
    summary = anyio.run(ingest.run)
    if json_:
        print_json(summary.record())
    else:
        _print(summary, rejects)
    if summary.invalid:
        worst = next((refusal for refusal in summary.first if refusal.kind == "invalid"), None)
        where = f"; the first is line {worst.line}: {printable(worst.error, 200)}" if worst else ""
        say("error", f"{summary.invalid} of {summary.lines} lines are invalid and were left out{where}")
    if summary.refused:
        click.get_current_context().exit(2 if summary.invalid else 1)


def _print(summary: Summary, rejects: str | None) -> None:
    click.echo(
        f"{summary.lines} lines: {summary.new} new, {summary.duplicate} duplicate, "
        f"{summary.conflict} conflict, {summary.invalid} invalid"
        + (f", {summary.full} refused by --max-pending" if summary.full else "")
    )
    for refusal in summary.first[:_SHOWN_MAX]:
        click.echo(f"  line {refusal.line}: {printable(refusal.error, 200)}")
    if summary.refused > _SHOWN_MAX:
        where = f"all are in {printable(rejects)}" if rejects else "--rejects FILE writes them all"
        click.echo(f"  and {summary.refused - _SHOWN_MAX} more: {where}")
