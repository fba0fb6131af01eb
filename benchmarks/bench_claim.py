"""What does one pick cost, whatever the table's shape and size?

Four shapes of the jobs table; for each, the time of the statement that finds the first 1 or 64 eligible jobs (no
commit, whose disk write would hide it). A value is the median of many picks.
"""

import contextlib
import sqlite3
import statistics
import time
from functools import partial

from asyncqueue.stores.sqlite import statements
from benchmarks.harness import Bench, Figures, Run, folder
from benchmarks.jobs import fill_fast

__all__ = ["BENCH", "EMPTY", "PICK_1", "SHAPES"]

NOW_MS = 1_000_000_000
LATER_MS = 2_000_000_000
READY = 1_000
PICK_1 = "ms, pick 1"
EMPTY = "almost empty file"
SHAPES = ("done before 1k ready", "ready", "delayed before 1k ready", "half delayed before half ready")


def shape(name: str, rows: int) -> list[tuple[str, int, int]]:
    """Return the runs of rows in seq order: (status, available_at, count)."""
    few = min(rows, READY)
    return {
        EMPTY: [("pending", 0, READY)],
        SHAPES[0]: [("done", 0, rows), ("pending", 0, few)],
        SHAPES[1]: [("pending", 0, rows)],
        SHAPES[2]: [("pending", LATER_MS, rows), ("pending", 0, few)],
        SHAPES[3]: [("pending", LATER_MS, rows // 2), ("pending", 0, rows // 2)],
    }[name]


def pick_ms(connection: sqlite3.Connection, limit: int, picks: int) -> tuple[float, float]:
    """Return the milliseconds of one pick of `limit` jobs, the median and the slowest."""
    parameters = {"queue": "default", "kinds": None, "now": NOW_MS, "limit": limit}
    times_ms = []
    for _ in range(picks):
        started = time.perf_counter()
        found = connection.execute(statements.PICK, parameters).fetchall()
        times_ms.append((time.perf_counter() - started) * 1000)
        if len(found) != limit:
            raise SystemExit(f"found {len(found)} jobs, not {limit}")
    return statistics.median(times_ms), max(times_ms)


def both(connection: sqlite3.Connection, picks: int) -> Figures:
    (one, slowest_one), (many, slowest) = pick_ms(connection, 1, picks), pick_ms(connection, 64, picks)
    return {PICK_1: one, "slowest, pick 1": slowest_one, "ms, pick 64": many, "slowest, pick 64": slowest}


def measure(run: Run) -> None:
    """Build a file of each shape, then measure them in turns."""
    rows = run.pick(2_000, int(run.part), int(run.part))
    picks = run.pick(3, 50, 100)
    with folder() as place, contextlib.ExitStack() as open_files:
        ways = {}
        for name in (EMPTY, *SHAPES):
            path = place / f"{name.replace(' ', '-')}.db"
            fill_fast(path, shape(name, rows))
            connection = open_files.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
            ways[name] = partial(both, connection, picks)
        run.paired(ways)


BENCH = Bench(
    "claim",
    "What does one pick cost, whatever the table's shape and size?",
    measure,
    parts=("1000", "10000", "100000", "1000000", "10000000"),
    full_only=("10000", "100000", "10000000"),
)
