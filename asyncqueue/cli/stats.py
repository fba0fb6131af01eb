"""`asyncqueue stats`: how many jobs are where."""

from dataclasses import asdict

import anyio
import click

from asyncqueue.cli.opening import readable
from asyncqueue.cli.options import examples, reads
from asyncqueue.cli.render import cell, print_json, print_table, span_text
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Stats

__all__ = ["show_stats", "stats"]


@click.command(
    short_help="Count the jobs by status and queue.",
    epilog=examples("asyncqueue stats jobs.db", "asyncqueue stats jobs.db --json | jq .live"),
)
@reads("one JSON document")
def stats(*, db: str, json_: bool) -> None:
    """Count the jobs by status and queue, all in one consistent moment.

    `ready` jobs are pending and due; `expired` ones are leased, but their lease is over (both are counted up to
    10000 a queue); `live` ones still need a delivery. `lag_ms` is how long the longest-waiting job has been due.
    """
    show_stats(db, json_=json_)


def show_stats(db: str, *, json_: bool) -> None:
    """Print the counts of all queues."""
    found = anyio.run(_stats, db)
    if json_:
        print_json({**asdict(found), "live": found.live, "total": found.total})
    else:
        _print(found)


async def _stats(db: str) -> Stats:
    async with readable(db) as queue:
        return await queue.stats(detail=True)


def _print(found: Stats) -> None:
    columns = ("queue", *(status.value for status in Status), "total")
    rows: list[tuple[object, ...]] = [
        (name, *(counts[status] for status in Status), sum(counts.values()))
        for name, counts in sorted(found.queues.items())
    ]
    rows.append(("all", found.pending, found.leased, found.done, found.dead, found.total))
    print_table(columns, rows, numbers=columns[1:])
    oldest = span_text(found.lag_ms) or "none"
    click.echo(
        f"\nlive {found.live}   ready {found.ready}   oldest ready {oldest}"
        f"   expired leases {found.expired}   redrives {found.redrives}"
    )
    if found.paused:
        click.echo(f"paused: {', '.join(str(cell(name)) for name in found.paused)}")
