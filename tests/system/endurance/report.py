"""A run as a table, as JSON and as a picture."""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.system.endurance.plan import ROLES
from tests.system.endurance.run import Result
from tests.system.endurance.watch import Life, longest


def table(result: Result) -> str:
    """Return what a person wants to know of it."""
    books, killed = result.books, Counter(role for _at, role in result.kills)
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(result.done.items()))
    lines = [
        f"seed {result.seed}: {result.seconds / 60:.1f} minutes, drained in {result.drained_s:.1f} s more",
        f"traffic: {counted}",
        f"{len(books.promised):,} jobs acknowledged: {books.lost} lost, {books.doubled} doubled",
        "",
        "| process | killed | longest life, s | MB settled | MB at its end | MB an hour | descriptors | threads |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(life, killed[life.role]) for life in longest(result.lives)]
    lines += ["", "| file | MB at half-time | peak MB | MB at the end |", "|---|--:|--:|--:|"]
    for name, seen in (
        ("queue", [f.queue_mb for f in result.files]),
        ("inbox", [f.inbox_mb for f in result.files]),
    ):
        lines.append(f"| {name} | {seen[len(seen) // 2]:.2f} | {max(seen):.2f} | {seen[-1]:.2f} |")
    lines += ["", *(f"FAILED: {fault}" for fault in result.faults)]
    if not result.faults:
        lines.append("every job done once, or dead for its known reason")
        if not result.plan.is_long:
            lines.append("too short to judge what grows")
        elif not result.plan.tells_slopes:
            lines.append(
                "descriptors, threads and the queue's file are flat; too short to judge the slope of memory"
            )
        else:
            lines.append("memory, descriptors, threads and the queue's file are within their bounds")
    return "\n".join(lines)


def _row(life: Life, killed: int) -> str:
    settled, slope = life.settled or life.samples, life.slope()
    if not settled:
        return f"| {life.role} | {killed} | {life.length_s:.0f} | | | | | |"
    first, last = settled[0], settled[-1]
    steepness = "too short" if slope is None else f"{slope:+.2f}"
    descriptors, threads = _span(s.descriptors for s in settled), _span(s.threads for s in settled)
    return (
        f"| {life.role} | {killed} | {life.length_s:.0f} | {first.rss_mb:.1f} | {last.rss_mb:.1f} | {steepness} "
        f"| {descriptors} | {threads} |"
    )


def _span(values: Iterable[int]) -> str:
    seen = sorted(values)
    return f"{seen[0]} to {seen[-1]}"


def document(result: Result) -> dict[str, Any]:
    """Return all of it for JSON."""
    return {
        "ok": not result.faults,
        "seed": result.seed,
        "seconds": result.seconds,
        "drained_s": result.drained_s,
        "acknowledged": len(result.books.promised),
        "lost": result.books.lost,
        "doubled": result.books.doubled,
        "faults": result.faults,
        "traffic": dict(result.done),
        "kills": [{"at_s": at_s, "role": role} for at_s, role in result.kills],
        "lives": [
            {
                "role": life.role,
                "started_s": life.started_s,
                "mb_an_hour": life.slope(),
                "samples": [sample._asdict() for sample in life.samples],
            }
            for life in result.lives
        ],
        "files": [sizes._asdict() for sizes in result.files],
    }


def draw(result: Result, path: Path) -> None:
    """Draw memory, descriptors and sizes over time; a line is broken where its process was killed."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "asyncqueue"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(9, 9), layout="constrained")
    memory, descriptors, files = figure.subplots(3, sharex=True)
    for number, role in enumerate(ROLES):
        lives = [life for life in result.lives if life.role == role]
        for axes, column in ((memory, "rss_mb"), (descriptors, "descriptors")):
            axes.plot(*_broken(lives, column), color=f"C{number}", label=role, linewidth=1)
    for at_s, role in result.kills:
        memory.axvline(at_s / 60, ymin=0.97, color=f"C{ROLES.index(role)}", linewidth=1)
    minutes = [sizes.at_s / 60 for sizes in result.files]
    files.plot(minutes, [sizes.queue_mb for sizes in result.files], label="queue")
    files.plot(minutes, [sizes.inbox_mb for sizes in result.files], label="inbox (which forgets nothing)")
    for axes, unit in ((memory, "resident MB"), (descriptors, "open descriptors"), (files, "file, MB")):
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize="small", loc="lower right")
    files.set_xlabel("minutes; a mark at the top is a kill")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _broken(lives: list[Life], column: str) -> tuple[list[float], list[float]]:
    minutes: list[float] = []
    values: list[float] = []
    for life in lives:
        minutes += [sample.at_s / 60 for sample in life.samples] + [math.nan]
        values += [float(getattr(sample, column)) for sample in life.samples] + [math.nan]
    return minutes, values
