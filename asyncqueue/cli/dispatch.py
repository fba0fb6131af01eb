"""`asyncqueue dispatch`: the options, and nothing that costs an import of the HTTP client."""

from dataclasses import fields
from importlib import import_module
from typing import Any

import click

from asyncqueue.cli.options import INTEGER, as_json, database, examples, journal
from asyncqueue.cli.settings import DispatchSettings
from asyncqueue.job import DEFAULT_LEASE_MS

__all__ = ["dispatch"]


@click.command(
    short_help="Send the jobs in DB to URL.",
    epilog=examples(
        "asyncqueue dispatch jobs.db https://example.com/inbox --processes 2",
        "asyncqueue dispatch jobs.db http://127.0.0.1:8080/inbox --drain --json | jq -c .status",
    ),
)
@database
@click.argument("url", metavar="URL")
@click.option(
    "--concurrency",
    type=INTEGER,
    default=64,
    show_default=True,
    help="Sends under way at one moment in each process, 1 to 10000.",
)
@click.option(
    "--batch",
    type=INTEGER,
    default=1,
    show_default=True,
    help="Most jobs in one request, 1 to 1000; goes to URL/batch, or one by one where that is not offered.",
)
@click.option(
    "--processes",
    type=INTEGER,
    default=1,
    show_default=True,
    help="Dispatcher processes on the one file, 1 to 64.",
)
@click.option("--drain", is_flag=True, help="Stop when no job is pending or leased any more.")
@click.option(
    "--lease-ms",
    type=INTEGER,
    default=DEFAULT_LEASE_MS,
    show_default=True,
    help="How long a lease lasts without a renewal; a killed dispatcher's jobs wait for that long.",
)
@click.option(
    "--timeout-ms",
    type=INTEGER,
    default=10_000,
    show_default=True,
    help="Longest time of one send; must stay more than 2000 below --lease-ms.",
)
@click.option(
    "--connect-timeout-ms",
    type=INTEGER,
    help="Longest time for name lookup, connect and TLS.  [default: 3000, or --timeout-ms if that is less]",
)
@click.option(
    "--ack",
    type=click.Choice(["echo", "status"]),
    default="echo",
    show_default=True,
    help="What acknowledges a job: a 2xx that echoes its id and quantity, or any 2xx.",
)
@click.option(
    "--queue", "queues", metavar="NAME", multiple=True, help="Only this queue; may be repeated.  [default: all]"
)
@click.option("--owner-prefix", default="", metavar="NAME", help="A readable beginning of the random owner id.")
@click.option(
    "--retry-base-ms",
    type=INTEGER,
    default=1_000,
    show_default=True,
    help="Backoff before the second attempt; doubled for each further one, with full jitter.",
)
@click.option("--retry-cap-ms", type=INTEGER, default=300_000, show_default=True, help="Longest backoff.")
@click.option(
    "--grace-ms",
    type=INTEGER,
    default=10_000,
    show_default=True,
    help="How long a stop waits for sends under way before it cuts them off.",
)
@click.option(
    "--poll-ms",
    type=INTEGER,
    default=5,
    show_default=True,
    help="How often an idle dispatcher looks for jobs of other processes at most; it looks less often where it is "
    "told of them (Linux, PostgreSQL).",
)
@click.option(
    "--late",
    type=click.Choice(["strict", "accept"]),
    default="strict",
    show_default=True,
    help="A report after its lease ran out: stale, or taken if nobody took the job over.",
)
@click.option(
    "--history",
    type=click.Choice(["failures", "all"]),
    default="failures",
    show_default=True,
    help="Which attempts the timeline of a job keeps: those that failed, or plain successes too.",
)
@journal
@click.option(
    "--stop-with-stdin",
    is_flag=True,
    help="Also stop when standard input ends, as it does when the parent process has died.",
)
@click.option(
    "--supervised",
    is_flag=True,
    help="Tell a supervisor, by exit code 3 instead of 1, that the store refuses for good.",
)
@as_json("each event as one line of JSON, on a terminal too")
def dispatch(**values: Any) -> None:
    """Send the jobs in DB to URL until SIGTERM or SIGINT (or, with --drain, until none is left).

    Each job is POSTed as {"id", "qty", "payload"?} under a lease, outside any transaction, and sent again if its
    outcome is unknown: the receiver must be idempotent. The first signal stops gracefully, a second one at once.
    On a terminal the progress is shown; else each event is one line of JSON. With --processes N, N dispatchers run
    side by side, and one that dies is started again.

    A store that is busy, full or away is waited for. One that refuses for good (the queue was moved; the role has
    lost a right, or the schema is gone, for more than ten seconds) ends it with exit code 1, all N at once, with
    --drain too. Let a service manager start it again.
    """
    known = {field.name for field in fields(DispatchSettings)}
    settings = DispatchSettings(**{name: value for name, value in values.items() if name in known})
    settings.check()
    # The HTTP client is imported by those who send, not by those who ask for help.
    import_module("asyncqueue.cli.dispatching").run(settings)
