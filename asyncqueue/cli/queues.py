"""`asyncqueue queue`: how each named queue stands, its brake, and the wait until it is empty."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import anyio
import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncqueue.cli.failure import Failed, say
from asyncqueue.cli.opening import existing, no_such_queue, readable
from asyncqueue.cli.options import INTEGER, as_json, database, examples, reads
from asyncqueue.cli.render import cell, console, print_json, print_table, span_text
from asyncqueue.cli.stats import show_stats
from asyncqueue.job import PRODUCT, check_id, check_int
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores.base import QueueDetail, Stats

__all__ = ["queue"]

_POLL_S: Final = 0.05
_COUNTS: Final = tuple(status.value for status in Status)

Live = dict[str, int]


@click.group()
def queue() -> None:
    """See how the named queues stand (`list`, `stats`), stop and start claims, wait until one is empty."""


@queue.command("list", epilog=examples("asyncqueue queue list jobs.db"))
@reads("one JSON document a line")
def list_(*, db: str, json_: bool) -> None:
    """List every queue ever used: whether it is paused, its jobs by status, and its lag.

    The lag is how long the longest-waiting job has been due; a paused queue has none.
    """
    found = list(anyio.run(_records, db).values())
    if json_:
        for record in found:
            print_json(record)
        return
    rows = [
        (r["queue"], "yes" if r["paused"] else "no", *(r[name] for name in _COUNTS), span_text(r["lag_ms"]))
        for r in found
    ]
    print_table(("queue", "paused", *_COUNTS, "lag"), rows, numbers=(*_COUNTS, "lag"))


@queue.command(epilog=examples("asyncqueue queue stats jobs.db", "asyncqueue queue stats jobs.db mail --json"))
@database
@click.argument("name", metavar="[NAME]", required=False)
@as_json("one JSON document")
def stats(*, db: str, name: str | None, json_: bool) -> None:
    """Count the jobs of the queue NAME, or of all queues as `asyncqueue stats` does."""
    if name is None:
        show_stats(db, json_=json_)
        return
    check_id("NAME", name)
    record = anyio.run(_records, db).get(name)
    if record is None:
        raise no_such_queue(db, name)
    if json_:
        print_json(record)
    else:
        print_table(("field", "value"), record.items(), header=False)


@queue.command(epilog=examples("asyncqueue queue pause jobs.db mail"))
@database
@click.argument("name", metavar="NAME")
@as_json("one JSON document")
def pause(*, db: str, name: str, json_: bool) -> None:
    """Let nobody claim from the queue NAME until `resume`; its jobs are kept, sends under way go on."""
    _set_paused(db, name, paused=True, json_=json_)


@queue.command(epilog=examples("asyncqueue queue resume jobs.db mail"))
@database
@click.argument("name", metavar="NAME")
@as_json("one JSON document")
def resume(*, db: str, name: str, json_: bool) -> None:
    """Let claims from the queue NAME go on. Exit code 1 if no such queue was ever used or paused."""
    _set_paused(db, name, paused=False, json_=json_)


@queue.command(epilog=examples("asyncqueue queue drain jobs.db mail --timeout-ms 60000"))
@database
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--timeout-ms", type=INTEGER, help="Give up after this long; 0 looks once.  [default: never]")
@as_json("one JSON document")
def drain(*, db: str, names: Sequence[str], timeout_ms: int | None, json_: bool) -> None:
    """Wait until no job of the queues NAME is pending or leased any more. It sends nothing: dispatchers do.

    Exit code 1 if that is not so in time, or if no such queue was ever used.
    """
    for name in names:
        check_id("NAME", name)
    if timeout_ms is not None:
        check_int("--timeout-ms", timeout_ms, PRODUCT.delay_ms)
    live: Live = anyio.run(_drain, db, list(dict.fromkeys(names)), timeout_ms)
    left = {name: jobs for name, jobs in live.items() if jobs}
    if json_:
        print_json({"drained": not left, "live": live})
    else:
        for name, jobs in live.items():
            click.echo(f"{cell(name)}: {jobs} live jobs" if jobs else f"{cell(name)}: no live job")
    if left:
        raise Failed(f"not drained within {timeout_ms} ms: {', '.join(left)}")


def _set_paused(db: str, name: str, *, paused: bool, json_: bool) -> None:
    check_id("NAME", name)
    known = anyio.run(_pause if paused else _resume, db, name)
    if json_:
        print_json({"queue": name, "paused": paused})
    else:
        click.echo(f"{cell(name)}: {'paused' if paused else 'claims go on'}")
    if not known:
        say("note", f"no job has used the queue {name} so far")


async def _pause(db: str, name: str) -> bool:
    async with existing(db) as opened:
        known = name in await opened.queues()
        await opened.pause(name)
        return known


async def _resume(db: str, name: str) -> bool:
    async with existing(db) as opened:
        if name not in await opened.queues():
            raise no_such_queue(db, name)
        await opened.resume(name)
        return True


async def _records(db: str) -> dict[str, dict[str, Any]]:
    """Return what is known of each queue ever used, by its name."""
    async with readable(db) as opened:
        paused, found = await opened.queues(), await opened.stats(detail=True)
    return {
        name: _record(name, found, paused=paused.get(name, False)) for name in sorted({*paused, *found.queues})
    }


def _record(name: str, found: Stats, *, paused: bool) -> dict[str, Any]:
    counts = found.queues.get(name, dict.fromkeys(_COUNTS, 0))
    return {"queue": name, "paused": paused, **counts, **asdict(found.details.get(name, QueueDetail()))}


async def _drain(db: str, names: Sequence[str], timeout_ms: int | None) -> Live:
    """Wait until the queues have no live job, or for `timeout_ms`; return how many each still has."""
    async with readable(db) as opened:
        await _announce(opened, db, names)
        version = await opened.version(of_ends=True)
        live = await _live(opened, names)
        with (
            _bar(sum(live.values())) as show,
            anyio.move_on_after(None if timeout_ms is None else timeout_ms / 1000),
        ):
            while any(live.values()):
                await _changed_since(opened, version)
                version = await opened.version(of_ends=True)
                live = await _live(opened, names)
                show(sum(live.values()))
    return live


async def _announce(opened: Queue, db: str, names: Sequence[str]) -> None:
    """Refuse a queue that nobody ever used, which is a slip of the pen; tell of one that cannot empty."""
    known = await opened.queues()
    for name in names:
        if name not in known:
            raise no_such_queue(db, name)
        if known[name]:
            say("note", f"queue {name} is paused: its pending jobs wait for 'asyncqueue queue resume'")


async def _live(opened: Queue, names: Sequence[str]) -> Live:
    found = (await opened.stats()).queues
    return {name: found[name]["pending"] + found[name]["leased"] if name in found else 0 for name in names}


async def _changed_since(opened: Queue, version: int) -> None:
    while await opened.version(of_ends=True) == version:  # noqa: ASYNC110 - other processes share no event
        await anyio.sleep(_POLL_S)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many jobs have ended: a bar on stderr if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _live: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task(f"{total} live", total=total)
        yield lambda live: bar.update(task, completed=max(0, total - live), description=f"{live} live")
