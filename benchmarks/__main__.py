"""`python -m benchmarks list | run | compare | report`."""

import signal
import time
from pathlib import Path

import click

from benchmarks.harness import ROOT, Bench, Run, Scale, say
from benchmarks.registry import BENCHES
from benchmarks.report import write_report
from benchmarks.results import Result, Results, compared

FULL = ROOT / "benchmarks" / "results" / "full.json"
PAGE = ROOT / "docs" / "performance.md"
DEFAULT_SCALE = "short"
FILE = click.Path(dir_okay=False, path_type=Path)
THERE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Measure asyncqueue and its peers side by side."""


@cli.command("list")
def show() -> None:
    """Show every benchmark, its parts and its question."""
    for bench in BENCHES:
        click.echo(f"{bench.name:12} {bench.question}")
        if bench.parts:
            click.echo(f"{'':12} parts: {', '.join(bench.keys(Scale.FULL))}")


@cli.command()
@click.option(
    "--only", multiple=True, metavar="NAME", help="A benchmark or a part, as `list` shows them; repeatable."
)
@click.option(
    "--scale",
    type=click.Choice([str(scale) for scale in Scale]),
    default=DEFAULT_SCALE,
    show_default=True,
    help="How much to measure.",
)
@click.option("--results", type=FILE, help="Merge the answers into this JSON file.  [default: only print them]")
@click.option("--full", is_flag=True, help="The same as --scale full --results benchmarks/results/full.json.")
def run(only: tuple[str, ...], scale: str, results: Path | None, *, full: bool) -> None:
    """Measure, printing progress to stderr and each answer to stdout as soon as it is there."""
    if full and (scale != DEFAULT_SCALE or results is not None):
        raise click.UsageError("--full says what --scale and --results would: leave those out")
    signal.signal(signal.SIGTERM, _ended)
    size = Scale.FULL if full else Scale(scale)
    into = FULL if full else results
    if into is not None:
        Results(into).save()  # whatever is wrong with the file is told before anything is measured
    for bench, key in chosen(only, size):
        result = answer(bench, key, size)
        if into is not None:
            Results(into).merge(key, result)


def _ended(number: int, _frame: object) -> None:
    """End as by Ctrl-C: children and folders are cleared away."""
    raise SystemExit(128 + number)


def chosen(only: tuple[str, ...], scale: Scale) -> list[tuple[Bench, str]]:
    """Return what to run; everything of that scale if nothing is named."""
    pairs: list[tuple[Bench, str]] = []
    for bench in BENCHES:
        keys = bench.keys(Scale.FULL if only else scale)
        pairs += [(bench, key) for key in keys if not only or bench.name in only or key in only]
    unknown = [name for name in only if not any(name in (bench.name, key) for bench, key in pairs)]
    if unknown:
        raise click.BadParameter(f"there is no benchmark {unknown[0]}: see `python -m benchmarks list`")
    return pairs


def answer(bench: Bench, key: str, scale: Scale) -> Result:
    """Run one benchmark or part and print its table."""
    say(f"{key}: {bench.question}")
    one, started = Run(scale, key.partition("/")[2]), time.perf_counter()
    bench.measure(one)
    result = Result.of(bench.question, one, time.perf_counter() - started)
    where = result.environment
    click.echo(f"\n## {key}: {bench.question}\n")
    click.echo(
        f"{where['system']}, {where['cores']} cores, Python {where['python']}, SQLite {where['sqlite']}, "
        f"commit {where['commit']}{' with changes' if where['changed'] else ''}, {result.seconds:.0f} s\n"
    )
    click.echo(result.table())
    for note in result.notes:
        click.echo(f"\n{note}")
    return result


@cli.command()
@click.argument("old", type=THERE)
@click.argument("new", type=THERE, default=FULL)
def compare(old: Path, new: Path) -> None:
    """Compare two results files, figure by figure."""
    click.echo(compared(Results(old), Results(new)))


@cli.command()
@click.option("--results", type=FILE, default=FULL, help="The results to report.  [default: the last full ones]")
@click.option("--page", type=FILE, default=PAGE, help="The page to write.  [default: docs/performance.md]")
@click.option("--plots/--no-plots", default=True, help="Draw the plots beside the results (needs matplotlib).")
def report(results: Path, page: Path, *, plots: bool) -> None:
    """Write the page about performance from the results."""
    write_report(Results(results), page, plots=plots)
    click.echo(f"{page.name} is written")


if __name__ == "__main__":
    cli(prog_name="python -m benchmarks")
