"""`asyncqueue migrate-store`: a queue moves to another store, with everything that is known of its jobs."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asyncqueue.cli.failure import say
from asyncqueue.cli.options import as_json, examples
from asyncqueue.cli.render import console, print_json
from asyncqueue.errors import StoreError
from asyncqueue.stores import open_side
from asyncqueue.stores.move import Moved, Side, Told, abandon, move
from asyncqueue.stores.url import shown

__all__ = ["migrate_store"]


@click.command(
    "migrate-store",
    short_help="Move a queue from one store to another, SQLite or PostgreSQL.",
    epilog=examples(
        "asyncqueue migrate-store jobs.db postgresql://queue@db.example/app",
        "asyncqueue migrate-store postgresql://queue@db.example/app jobs.db",
    ),
)
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option(
    "--with-leases",
    is_flag=True,
    help="Move although jobs are leased: their holders can report no more, and each job is delivered again, under "
    "a higher token, once its lease is over.",
)
@click.option(
    "--abandon",
    "abandons",
    is_flag=True,
    help="Give up a move that is not done: SOURCE can be used again, and what is in TARGET is deleted.",
)
@as_json("the result as one JSON document")
def migrate_store(*, source: str, target: str, with_leases: bool, abandons: bool, json_: bool) -> None:
    """Move the queue at SOURCE to TARGET, each the path of a SQLite file or a postgresql:// URL.

    Ids, order, tokens, attempts, deadlines, history, audit rows and paused queues are kept. SOURCE is sealed first
    and stays so: every writer is told that the queue has moved. TARGET must be empty and can be used once both
    were compared row by row. After an interruption of any kind the same command goes on where it ended. Stop the
    dispatchers before, start them with TARGET after; producers too.

    Exit codes: 0 moved (also if it was already); 1 leases are held, or a store is busy, full or away: run it
    again; 2 SOURCE or TARGET is not what can be moved, nothing was changed.
    """
    if abandons:
        anyio.run(_abandon, source, target)
        return
    moved = anyio.run(_move, source, target, with_leases)
    if json_:
        print_json({"rows": moved.rows, "checksums": moved.checksums, "was_done": moved.was_done})
        return
    click.echo("was moved before" if moved.was_done else "moved and compared, row by row")
    for table, rows in moved.rows.items():
        checksum = moved.checksums.get(table)
        click.echo(f"  {table:<9}{rows:>12} rows" + (f"  sha256 {checksum}" if checksum else ""))


async def _move(source: str, target: str, with_leases: bool) -> Moved:  # noqa: FBT001 - anyio.run passes by place
    async with _opened(source, create=False) as old, _opened(target, create=True) as new:
        with _bar() as told:
            return await move(old, new, told, with_leases=with_leases)


async def _abandon(source: str, target: str) -> None:
    async with _opened(source, create=False) as old:
        mark = await old.mark()
        try:
            async with _opened(target, create=False) as new:
                emptied = await abandon(old, new)
        except StoreError as error:
            if mark is None or await old.mark() is not None:
                await abandon(old, None)
            emptied = False
            say("note", f"{shown(target)} was left as it is: {error}")
    click.echo(f"given up: {shown(source)} can be used again" + (f", {shown(target)} is empty" if emptied else ""))


@asynccontextmanager
async def _opened(url: str, *, create: bool) -> AsyncIterator[Side]:
    side = await open_side(url, create=create)
    try:
        yield side
    finally:
        await side.close()


@contextmanager
def _bar() -> Iterator[Told]:
    """Show how many rows are copied, then compared: a bar on stderr if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _what, _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        tasks = {what: bar.add_task(what, total=None) for what in ("copied", "compared")}
        yield lambda what, done, of: bar.update(tasks[what], completed=done, total=of)
