"""The pictures of the report: bars for each result that is a comparison, lines where there is a size."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.bench_claim import EMPTY, PICK_1, SHAPES
from benchmarks.bench_contention import VERBS
from benchmarks.results import Result, Results

__all__ = ["BARS", "draw", "plots"]

BARS = {  # which unit of which result is drawn
    "drain/sqlite": "jobs/s",
    "drain/postgres": "jobs/s",
    "enqueue": "jobs/s",
    "dispatch/delete": "jobs/s",
    "dispatch/wal": "jobs/s",
    "dispatch/delete-uvloop": "jobs/s",
    "dispatch/wal-uvloop": "jobs/s",
    "processes": "jobs/s",
    "receiver": "requests/s",
    "wakeup": "ms, p50",
}


def plots(results: Results) -> dict[str, str]:
    """Return the file name of each picture that these results have, by the name of the benchmark or its part."""
    found = {key: f"{key.replace('/', '-')}.svg" for key in BARS if results.get(key)}
    if claim_sizes(results):
        found["claim"] = "claim.svg"
    if results.get("contention/verbs"):
        found["contention/verbs"] = "contention.svg"
    return found


def claim_sizes(results: Results) -> list[int]:
    return sorted(int(key.partition("/")[2]) for key in results.found if key.startswith("claim/"))


def draw(results: Results, folder: Path) -> bool:
    """Draw all of them into `folder`; False if matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
    except ImportError:
        return False
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "asyncqueue"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    for key, name in plots(results).items():
        if key == "claim":
            figure = _claim(results)
        elif key == "contention/verbs":
            figure = _contention(results.found[key])
        else:
            figure = _bars(results.found[key], BARS[key])
        figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
    return True


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, figure.subplots()


def _bars(result: Result, unit: str) -> Any:
    named = [(name, figures[unit]) for name, figures in result.samples.items() if unit in figures]
    figure, axes = _figure(0.6 + 0.35 * len(named))
    medians = [statistics.median(values) for _name, values in named]
    below = [median - min(values) for median, (_name, values) in zip(medians, named, strict=True)]
    above = [max(values) - median for median, (_name, values) in zip(medians, named, strict=True)]
    colors = ["tab:blue" if "asyncqueue" in name else "tab:gray" for name, _values in named]
    axes.barh([name for name, _values in named], medians, xerr=[below, above], color=colors, capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit}: median, lowest and highest")
    return figure


def _claim(results: Results) -> Any:
    figure, axes = _figure(4)
    sizes = claim_sizes(results)
    for shape in (EMPTY, *SHAPES):
        points = [(size, results.found[f"claim/{size}"].values(shape, PICK_1)) for size in sizes]
        drawn = [(size, statistics.median(values)) for size, values in points if values]
        axes.plot(*zip(*drawn, strict=True), marker="o", label=shape)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows")
    axes.set_ylabel(PICK_1)
    axes.legend(fontsize="small")
    return figure


def _contention(result: Result) -> Any:
    figure, axes = _figure(4)
    counts = [int(name.split()[0]) for name in result.samples]
    for number, verb in enumerate(VERBS):
        for unit, style in ((f"{verb} p50 ms", "-"), (f"{verb} p99 ms", "--")):
            medians = [statistics.median(figures[unit]) for figures in result.samples.values()]
            axes.plot(counts, medians, style, marker="o", color=f"C{number}", label=unit)
    axes.set_yscale("log")
    axes.set_xticks(counts)
    axes.set_xlabel("processes")
    axes.set_ylabel("ms of one call, of the process that fares worst")
    axes.legend(fontsize="small", ncols=2)
    return figure
