"""The command `asyncqueue`: its groups and its version."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from asyncqueue.cli.backup import backup, restore
from asyncqueue.cli.demo import demo
from asyncqueue.cli.dispatch import dispatch
from asyncqueue.cli.dlq import dlq
from asyncqueue.cli.enqueue import enqueue
from asyncqueue.cli.failure import PIPE_GONE
from asyncqueue.cli.init import init
from asyncqueue.cli.jobs import job
from asyncqueue.cli.migrate import migrate_store
from asyncqueue.cli.options import examples
from asyncqueue.cli.purge import purge
from asyncqueue.cli.queues import queue
from asyncqueue.cli.stats import stats

__all__ = ["cli"]


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    if wanted and not context.resilient_parsing:
        try:
            number = version("asyncqueue")
        except PackageNotFoundError:  # a checkout that was never installed
            number = "(not installed)"
        click.echo(f"asyncqueue {number}")
        context.exit()


class _Root(click.Group):
    """Takes note of a reader that has gone before click does, which would call that a plain failure."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return ctx.exit(PIPE_GONE)


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "asyncqueue enqueue jobs.db order-41 3",
        "asyncqueue dispatch jobs.db http://127.0.0.1:8080/inbox --drain",
        "asyncqueue stats jobs.db",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Put jobs into a durable queue, and carry them to an HTTP receiver.

    DB is the path of one SQLite file. Delivery is at least once; with an idempotent receiver, such as
    `python -m receiver`, the effect is once. Times are in milliseconds, as the names of the options say.
    Commands that only read work on a file that cannot be written, too.

    Exit codes: 0 done; 1 failed; 2 wrong usage or bad input, nothing was changed; 130 interrupted.
    """


for _command in (init, enqueue, dispatch, stats, queue, job, dlq, purge, backup, restore, migrate_store, demo):
    cli.add_command(_command)
