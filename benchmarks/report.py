"""The page about performance, written from the results and from nothing else."""

import statistics
from pathlib import Path

from benchmarks.bench_drain import DISPATCHER
from benchmarks.goals import GOALS, verdict
from benchmarks.harness import ROOT, say, spread, table
from benchmarks.peers import POSTGRES_PEERS, SQLITE_PEERS
from benchmarks.plots import draw, plots
from benchmarks.registry import BENCHES
from benchmarks.results import Result, Results

__all__ = ["page_of", "write_report"]

TRIED = ROOT / "benchmarks" / "results" / "tried.md"
INTRODUCTION = """\
# Performance

Written by `python -m benchmarks report` from `benchmarks/results/full.json`; do not edit. What counts are ratios
of ways that took turns in one run, pair by pair: single figures of a shared machine drift by a quarter and more.
Shown are the median and, in brackets, the lowest and highest of all repetitions. Durability is full everywhere: a
job that is acknowledged is on the disk. `python -m benchmarks list` names the benchmarks, `make bench` runs the
short set.
"""


def write_report(results: Results, page: Path, *, plots: bool) -> None:
    """Write the page, and draw the plots beside the results."""
    if not results.found:
        raise SystemExit(f"{results.path}: there are no results to report")
    if plots and not draw(results, results.path.parent):
        say("no plots: matplotlib is not installed (pip install 'asyncqueue[bench]')")
    text = page_of(results)
    try:
        page.write_text(text, "utf-8")
    except OSError as error:
        raise SystemExit(f"{page}: cannot be written: {error.strerror}") from None


def page_of(results: Results) -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, goals(results), peers(results), unmet(results), details(results), origins(results)]
    return "\n".join(part for part in parts if part)


def goals(results: Results) -> str:
    """Return the table of goals, each with what was measured and whether that is enough."""
    rows = []
    for goal in GOALS:
        found = verdict(goal, results)
        measured = f"{spread(found.values, 3)}{goal.unit}" if found.values else "not measured"
        stands = {True: "met", False: "**not met**", None: ""}[found.met]
        rows.append((goal.what, goal.text, measured, stands))
    return "## Goals\n\n" + table(("what", "goal", "measured", ""), rows) + "\n"


def peers(results: Results) -> str:
    """Say how asyncqueue stands against each peer, and who wins."""
    lines: list[tuple[str, ...]] = []
    for key, kinds in (("drain/sqlite", SQLITE_PEERS), ("drain/postgres", POSTGRES_PEERS)):
        result = results.get(key)
        if result is None:
            continue
        for kind in kinds:
            ratios = result.ratios(DISPATCHER, kind.name, "jobs/s")
            if ratios:
                lines.append((f"drain, {key.partition('/')[2]}", DISPATCHER, kind.name, *_won(ratios)))
    lines += _enqueue(results.get("enqueue"))
    if not lines:
        return ""
    header = ("what", "asyncqueue", "peer", "times the peer's rate", "ahead")
    return "## Against the peers\n\n" + table(header, lines) + "\n"


def _enqueue(result: Result | None) -> list[tuple[str, ...]]:
    if result is None:
        return []
    names = [name for name in result.samples if name.endswith(", one by one")]
    own = ("one by one", "one by one, WAL", "1,000 callers at once")
    return [
        ("enqueue", way, name.removesuffix(", one by one"), *_won(ratios))
        for name in names
        for way in own
        if (ratios := result.ratios(way, name, "jobs/s"))
    ]


def _won(ratios: list[float]) -> tuple[str, str]:
    ahead = "asyncqueue" if statistics.median(ratios) >= 1 else "**the peer**"
    return spread(ratios), ahead


def unmet(results: Results) -> str:
    """Show where the time goes if a goal is not met, and what was tried."""
    missed = [goal.what for goal in GOALS if verdict(goal, results).met is False]
    if not missed:
        return ""
    parts = ["## Where a goal is not met\n", *(f"- {what}" for what in missed), ""]
    for name in ("dispatch", "drain", "statements"):
        result = results.get(f"profile/{name}")
        if result is not None:
            parts += [f"### Where the time of a job goes: {name}\n", *(f"{note}\n" for note in result.notes)]
            parts += [result.table(), ""]
    if TRIED.exists():
        parts.append(TRIED.read_text("utf-8"))
    return "\n".join(parts)


def details(results: Results) -> str:
    """Return every benchmark with its question, notes, figures and picture."""
    pictures = plots(results)
    parts = ["## All figures\n"]
    for bench in BENCHES:
        keys = [key for key in results.found if key.partition("/")[0] == bench.name]
        if not keys or (bench.name == "profile" and unmet(results)):
            continue
        parts.append(f"### {bench.name}: {bench.question}\n")
        if bench.name in pictures and bench.parts:
            parts.append(f"![{bench.name}](../benchmarks/results/{pictures[bench.name]})\n")
        for key in sorted(keys, key=bench.keys_in_order):
            result = results.found[key]
            if "/" in key:
                parts.append(f"#### {key}\n")
            parts += [f"{note}\n" for note in result.notes]
            parts += [result.table(), ""]
            if key in pictures:
                parts.append(f"![{key}](../benchmarks/results/{pictures[key]})\n")
    return "\n".join(parts)


def origins(results: Results) -> str:
    """Say where and when each figure was taken."""
    rows = []
    for key, result in sorted(results.found.items()):
        where = result.environment
        commit = f"{where['commit']}{' with changes' if where['changed'] else ''}"
        rows.append((key, result.scale, result.at, f"{result.seconds:.0f}", commit))
    machines = {
        f"{where['system']}, {where['cores']} cores ({where['cpu']}), "
        f"Python {where['python']}, SQLite {where['sqlite']}"
        for where in (result.environment for result in results.found.values())
    }
    versions: dict[str, set[str]] = {}
    for result in results.found.values():
        for name, version in result.environment["versions"].items():
            versions.setdefault(name, set()).add(version)
    listed = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in sorted(versions.items()))
    parts = [
        "## Where the figures come from\n",
        *(f"{line}\n" for line in sorted(machines)),
        f"Versions: {listed}.\n",
    ]
    return "\n".join([*parts, table(("benchmark", "scale", "at", "seconds", "commit"), rows), ""])
