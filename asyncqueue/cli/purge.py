"""`asyncqueue purge`: forget the jobs that have ended."""

import warnings

import anyio
import click

from asyncqueue.cli.failure import say
from asyncqueue.cli.opening import existing
from asyncqueue.cli.options import INTEGER, as_json, database, examples
from asyncqueue.cli.render import print_json
from asyncqueue.job import PRODUCT, Range, check_int
from asyncqueue.queue import DEFAULT_DEDUP_MS, SEQ_MAX, DedupHorizonWarning

__all__ = ["purge"]


@click.command(
    short_help="Delete done or dead jobs that ended long ago.",
    epilog=examples("asyncqueue purge jobs.db --status done --older-than-ms 2592000000"),
)
@database
@click.option("--status", type=click.Choice(["done", "dead"]), required=True, help="Which jobs: done or dead.")
@click.option(
    "--older-than-ms", type=INTEGER, required=True, help="Only jobs that ended at least this long ago; 0 is any."
)
@click.option("--limit", type=INTEGER, help="At most this many.  [default: all that there are]")
@click.option("--all", "everything", is_flag=True, help="Really all: needed with --older-than-ms 0.")
@as_json("one JSON document")
def purge(  # noqa: PLR0913 - one parameter an option
    *, db: str, status: str, older_than_ms: int, limit: int | None, everything: bool, json_: bool
) -> None:
    """Delete done or dead jobs with their history, in small sets that let others write in between.

    A purged id is forgotten: the same id is then a new job and is delivered again. A purge of jobs that ended less
    than 7 days ago (the dedup horizon) says so on stderr. The audit rows of redrives stay.
    """
    check_int("--older-than-ms", older_than_ms, PRODUCT.delay_ms)
    if limit is not None:
        check_int("--limit", limit, Range(1, SEQ_MAX))
    if older_than_ms == 0 and not everything:
        raise click.UsageError(f"this would purge every {status} job: give an age, or --all")
    count = anyio.run(_purge, db, status, older_than_ms, limit)
    if json_:
        print_json({"status": status, "older_than_ms": older_than_ms, "purged": count})
    else:
        click.echo(f"{count} {status} jobs purged")


def _horizon(older_than_ms: int) -> str:
    return (
        f"{older_than_ms} ms is below the dedup horizon of {DEFAULT_DEDUP_MS} ms: "
        "the purged ids, if they are enqueued again, are new jobs"
    )


async def _purge(db: str, status: str, older_than_ms: int, limit: int | None) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DedupHorizonWarning)  # told already, in our own form
        async with existing(db) as queue:
            if older_than_ms < DEFAULT_DEDUP_MS:
                say("warning", _horizon(older_than_ms))
            return await queue.purge(status=status, older_than_ms=older_than_ms, limit=limit)
