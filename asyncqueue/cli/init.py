"""`asyncqueue init`: make a queue, or let a database of something else become one."""

import anyio
import click

from asyncqueue.cli.options import as_json, check_journal, database, examples, journal
from asyncqueue.cli.render import print_json
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite.connection import Journal
from asyncqueue.stores.url import shown

__all__ = ["init"]


@click.command(
    short_help="Make a queue in DB, or bring it up to date.",
    epilog=examples("asyncqueue init jobs.db", "asyncqueue init app.db --adopt"),
)
@database
@click.option(
    "--adopt",
    is_flag=True,
    help="Also if DB (its schema) has other tables: add the queue's beside them, as the outbox needs in a file.",
)
@journal
@as_json("one JSON document")
def init(*, db: str, adopt: bool, journal: Journal, force_wal: bool, json_: bool) -> None:
    """Make a queue in DB, or migrate the one that is there. No other command but enqueue makes one.

    With --adopt, a database of a service becomes a queue as well. It is refused if a name that the queue needs is
    taken, or if its user_version is in use; its tables and its application_id are left as they are. On PostgreSQL
    this is about the schema: the default one, the queue's own, needs no --adopt, whatever else the database holds.
    """
    check_journal(db, journal, force_wal=force_wal)
    anyio.run(_init, db, adopt, journal, force_wal)
    if json_:
        print_json({"db": shown(db)})
    else:
        click.echo(f"{shown(db)} is a queue")


async def _init(db: str, adopt: bool, journal: Journal, force_wal: bool) -> None:  # noqa: FBT001 - anyio's way
    async with Queue.open(db, adopt=adopt, journal=journal, force_wal=force_wal):
        pass
