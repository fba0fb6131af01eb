"""`asyncqueue demo`: the main job, end to end, with a dispatcher killed on the way."""

from contextlib import ExitStack
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import click

from asyncqueue.cli.demo.reconcile import Reconciliation
from asyncqueue.cli.demo.story import Story
from asyncqueue.cli.failure import Failed
from asyncqueue.cli.options import as_json, examples
from asyncqueue.cli.render import print_json, print_table
from asyncqueue.errors import ConfigError
from asyncqueue.eventloop import loop_factory

__all__ = ["demo"]


@click.command(
    short_help="Run it all once, kill a dispatcher, count.",
    epilog=examples("asyncqueue demo", "asyncqueue demo --keep /tmp/demo && asyncqueue stats /tmp/demo/jobs.db"),
)
@click.option(
    "--orders",
    type=click.Path(),
    metavar="FILE",
    help="JSON Lines to enqueue, 500 or more.  [default: 6,919 real orders that come with the package]",
)
@click.option(
    "--keep",
    type=click.Path(),
    metavar="DIR",
    help="Work in DIR, which must be new or empty, and leave both databases and all events there.",
)
@as_json("the reconciliation as one JSON document")
def demo(*, orders: str | None, keep: str | None, json_: bool) -> None:
    """Enqueue real orders, run a receiver and two dispatchers, kill one of them, and count.

    All are processes of their own. One dispatcher gets SIGKILL while its requests are under way; the other one
    takes its jobs over when the leases have run out. The table at the end compares what was put in with what the
    receiver's ledger holds; exit code 1 names the line that does not add up. Takes less than half a minute.
    """
    loop_factory()  # the processes will ask for it: what is wrong with it is told here, once
    with ExitStack() as resources:
        folder = _folder(keep, resources)
        source = files("asyncqueue") / "demo_data" / "orders.jsonl"
        path = Path(orders) if orders is not None else resources.enter_context(as_file(source))
        found: Reconciliation = anyio.run(Story(folder, path).run)
    _print(found, json_=json_)
    if wrong := found.wrong:
        raise Failed(f"does not add up: {', '.join(check.name for check in wrong)}")


def _folder(keep: str | None, resources: ExitStack) -> Path:
    if keep is None:
        return Path(resources.enter_context(TemporaryDirectory(prefix="asyncqueue-demo-")))
    folder = Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"--keep {keep}: the folder is not empty: give a new one")
    return folder.absolute()


def _print(found: Reconciliation, *, json_: bool) -> None:
    if json_:
        print_json(found.record())
        return
    rows = [(c.name, f"{c.wanted:,}", f"{c.found:,}", "ok" if c.ok else "WRONG") for c in found.checks]
    print_table(("what", "expected", "found", ""), rows, numbers=("expected", "found"))
    click.echo(f"\n{found.story}")
