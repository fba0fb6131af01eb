"""`asyncqueue backup` and `asyncqueue restore`: a copy of one moment, and back to it without a token twice."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from asyncqueue.cli.opening import existing, readable
from asyncqueue.cli.options import as_json, database, examples
from asyncqueue.cli.render import console, print_json
from asyncqueue.stores import put_back
from asyncqueue.stores.url import shown

__all__ = ["backup", "restore"]

_PATIENCE_MS = 10_000


@click.command(
    short_help="Copy a queue, as of one moment, while others work on it.",
    epilog=examples("asyncqueue backup jobs.db jobs-monday.db"),
)
@database
@click.argument("file", metavar="FILE", type=click.Path())
@as_json("one JSON document")
def backup(*, db: str, file: str, json_: bool) -> None:
    """Copy the queue in DB into the new FILE, as of one moment, while others go on working.

    The copy is checked page by page and synced, and has its name once it is whole. With the delete journal writers
    wait while it is made, with WAL they do not. A queue on a PostgreSQL server is backed up by the server's own
    tools. Do not copy a live file by other means: what is copied may be of no moment at all.
    """
    anyio.run(_backup, db, file)
    size = Path(file).stat().st_size
    if json_:
        print_json({"db": shown(db), "file": file, "bytes": size})
    else:
        click.echo(f"{file}: {size} bytes, checked")


@click.command(
    short_help="Go back to a backup; no token comes twice.",
    epilog=examples(
        "asyncqueue restore jobs.db --from jobs-monday.db", "asyncqueue restore postgresql://queue@db.example/app"
    ),
)
@database
@click.option(
    "--from",
    "backup_file",
    metavar="FILE",
    type=click.Path(),
    help="Make DB, which must not be there, from this backup. Without it DB was put back already, by other means "
    "(pg_restore, a snapshot of the disk).",
)
@as_json("one JSON document")
def restore(*, db: str, backup_file: str | None, json_: bool) -> None:
    """Go back to an earlier state of a queue. Stop the dispatchers before, start them after.

    What happened since is forgotten, so jobs that were delivered meanwhile are delivered again, which an
    idempotent receiver turns into one effect. The tokens of all jobs, and of ids to come, are raised above all
    that were ever given out: whoever still holds a lease of the time that is forgotten stays stale. The inbox must
    not be put back to an earlier state than the queue.
    """
    floor = anyio.run(_restore, db, backup_file)
    if json_:
        print_json({"db": shown(db), "tokens_above": floor})
    else:
        click.echo(f"{shown(db)}: restored; tokens go on above {floor}")


async def _backup(db: str, file: str) -> None:
    async with readable(db) as queue:
        with _bar() as told:
            await queue.backup(file, told=told)


async def _restore(db: str, backup_file: str | None) -> int:
    if backup_file is not None:
        with _bar() as told:
            return await put_back(db, backup_file, patience_ms=_PATIENCE_MS, told=told)
    async with existing(db) as queue:
        return await queue.raise_tokens()


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show how much is copied: a bar on stderr if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("copied", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
