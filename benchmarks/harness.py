"""What every benchmark shares: where it ran, repetitions, medians, and processes that never outlive it."""

import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

__all__ = ["ROOT", "machine", "python_process", "spread", "table"]

ROOT = Path(__file__).parents[1]


def machine() -> str:
    """Return one line about the machine, the versions and the commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("aiosqlite", "aiohttp", "anyio"))
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {versions}, commit {commit or 'unknown'}"
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return `median (min-max)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


@contextmanager
def python_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Run `python ARGUMENTS` from the repository and yield it with the JSON object of its first line."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        yield process, json.loads(first) if first.strip() else {}
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
