"""What must be shown, as data: where each figure comes from, and what it is held against."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks import (
    bench_claim,
    bench_contention,
    bench_dispatch,
    bench_drain,
    bench_enqueue,
    bench_memory,
    bench_postgres_peers,
)
from benchmarks.bench_processes import ONE, TWO
from benchmarks.bench_wakeup import DEFAULT
from benchmarks.peers import SQLITE_PEERS
from benchmarks.results import Results

__all__ = ["GOALS", "Goal", "Verdict", "verdict"]

Values = list[float] | None
Sides = Literal["at least", "at most", "reported"]


@dataclass(frozen=True)
class Goal:
    """One line of the table. `measured` finds the values, one a repetition; without a goal it is only reported."""

    what: str
    side: Sides
    limit: float
    unit: str
    measured: Callable[[Results], Values]

    @property
    def text(self) -> str:
        """Return the goal as it is written."""
        return "reported" if self.side == "reported" else f"{self.side} {self.limit:g}{self.unit}"


@dataclass(frozen=True)
class Verdict:
    """How a goal stands: `met` is None for one that is not measured or only reported."""

    goal: Goal
    values: Values
    met: bool | None


def verdict(goal: Goal, results: Results) -> Verdict:
    """Hold the median against the goal."""
    values = goal.measured(results)
    if not values or goal.side == "reported":
        return Verdict(goal, values, None)
    median = statistics.median(values)
    return Verdict(goal, values, median >= goal.limit if goal.side == "at least" else median <= goal.limit)


def ratio(key: str, way: str, base: str, unit: str) -> Callable[[Results], Values]:
    """Find the ratio of two ways, pair by pair."""

    def find(results: Results) -> Values:
        result = results.get(key)
        return None if result is None else result.ratios(way, base, unit)

    return find


def plain(key: str, way: str, unit: str) -> Callable[[Results], Values]:
    """Find the values of one way."""

    def find(results: Results) -> Values:
        result = results.get(key)
        return None if result is None else result.values(way, unit)

    return find


def against_best_peer(results: Results) -> Values:
    """Find the ratio to the SQLite peer that has the highest median in the same run."""
    result = results.get("drain/sqlite")
    best = None if result is None else result.best((peer.name for peer in SQLITE_PEERS), "jobs/s")
    return None if result is None or best is None else result.ratios(bench_drain.DISPATCHER, best, "jobs/s")


def best_on_server(part: str, mine: str, theirs: str) -> Callable[[Results], Values]:
    """Find the ratio of the best of ours to the best of the peers', of those whose names end like this."""

    def find(results: Results) -> Values:
        result = results.get(f"postgres_peers/{part}")
        if result is None:
            return None
        own = [name for name in result.samples if name.startswith(f"{bench_postgres_peers.OWN},")]
        peers = [name for name in result.samples if name not in own]
        one = result.best([name for name in own if name.endswith(mine)], "jobs/s")
        other = result.best([name for name in peers if name.endswith(theirs)], "jobs/s")
        return None if one is None or other is None else result.ratios(one, other, "jobs/s")

    return find


def worst_pick(*, relative: bool) -> Callable[[Results], Values]:
    """Find the slowest shape's pick at a million rows in each repetition, also relative to the empty file's."""

    def find(results: Results) -> Values:
        result = results.get("claim/1000000")
        shapes = [] if result is None else [result.values(name, bench_claim.PICK_1) for name in bench_claim.SHAPES]
        found = [values for values in shapes if values]
        base = None if result is None else result.values(bench_claim.EMPTY, bench_claim.PICK_1)
        if not found or not base:
            return None
        worst = [max(values) for values in zip(*found, strict=True)]
        return [a / b for a, b in zip(worst, base, strict=True)] if relative else worst

    return find


def fairness(results: Results) -> Values:
    """Find how much the slowest of four writers gets of what the fastest gets."""
    result = results.get("contention/turns")
    return None if result is None else result.values(bench_contention.TURNS["gate"], "slowest/fastest")


_RAW, _PRODUCT, _BATCH = bench_dispatch.RAW, bench_dispatch.PRODUCT, bench_dispatch.BATCH
_CPU = "us CPU"

GOALS: Sequence[Goal] = (
    Goal(
        "drain of no-op jobs through `Dispatcher`, handler in process, 64 at a time, default durability, against "
        "the best SQLite peer at FULL in its own default journal",
        "at least",
        5,
        "x",
        against_best_peer,
    ),
    Goal(
        "drain through the store's verbs in sets of 64, against the same SQL on plain sqlite3 in a loop",
        "at least",
        0.6,
        "x",
        ratio("drain/sqlite", bench_drain.VERBS, bench_drain.PLAIN, "jobs/s"),
    ),
    Goal(
        "enqueue, 1,000 concurrent callers, against one transaction per job",
        "at least",
        50,
        "x",
        ratio("enqueue", bench_enqueue.CONCURRENT, bench_enqueue.ONE_BY_ONE, "jobs/s"),
    ),
    Goal(
        "end to end, 64 in flight, one job a request, against the raw aiohttp loop: default journal",
        "at least",
        0.60,
        "x",
        ratio("dispatch/delete", _PRODUCT, _RAW, "jobs/s"),
    ),
    Goal(
        'end to end, 64 in flight, one job a request, against the raw aiohttp loop: `journal="wal"`',
        "at least",
        0.75,
        "x",
        ratio("dispatch/wal", _PRODUCT, _RAW, "jobs/s"),
    ),
    Goal(
        "end to end with the batch transport, against the raw loop with one request per job",
        "at least",
        2.0,
        "x",
        ratio("dispatch/delete", _BATCH, _RAW, "jobs/s"),
    ),
    Goal(
        "claim pick at 1M rows, worst of the four shapes, against an almost empty file",
        "at most",
        10,
        "x",
        worst_pick(relative=True),
    ),
    Goal("claim pick at 1M rows, worst of the four shapes", "at most", 0.2, " ms", worst_pick(relative=False)),
    Goal(
        "dispatcher CPU per job end to end, against the raw client's CPU per request",
        "at most",
        1.6,
        "x",
        ratio("dispatch/delete", _PRODUCT, _RAW, _CPU),
    ),
    Goal(
        "two dispatcher processes against one, receiver on the same cores: default journal",
        "reported",
        0,
        "x",
        ratio("processes", TWO, ONE, "jobs/s"),
    ),
    Goal(
        'two dispatcher processes against one, receiver on the same cores: `journal="wal"`',
        "reported",
        0,
        "x",
        ratio("processes", f"{TWO}, WAL", f"{ONE}, WAL", "jobs/s"),
    ),
    Goal(
        "commit of another process to its request, p50", "at most", 5, " ms", plain("wakeup", DEFAULT, "ms, p50")
    ),
    Goal(
        "commit of another process to its request, p99", "at most", 15, " ms", plain("wakeup", DEFAULT, "ms, p99")
    ),
    Goal(
        "CPU of an idle dispatcher, share of a core",
        "at most",
        1.5,
        " %",
        plain("wakeup", DEFAULT, "idle CPU, % of a core"),
    ),
    Goal(
        "resident memory of the dispatcher, 64 in flight: slope per 100,000 jobs",
        "at most",
        1,
        " MB",
        plain("memory", bench_memory.DISPATCHER, bench_memory.SLOPE),
    ),
    Goal("four writers back to back on one file: slowest against fastest", "reported", 0, "x", fairness),
    Goal(
        "on PostgreSQL: drain against the best peer, both at their best batch size",
        "at least",
        1.5,
        "x",
        best_on_server("drain", bench_postgres_peers.AT_A_TIME, bench_postgres_peers.AT_A_TIME),
    ),
    Goal(
        "on PostgreSQL: enqueue, 1,000 concurrent callers, against the best peer one by one",
        "at least",
        10,
        "x",
        best_on_server("enqueue", bench_postgres_peers.CALLERS, bench_postgres_peers.ONE_BY_ONE),
    ),
    Goal(
        "on PostgreSQL: enqueue in bulk against the best peer in bulk",
        "at least",
        1,
        "x",
        best_on_server("enqueue", bench_postgres_peers.BULK, bench_postgres_peers.BULK),
    ),
    Goal(
        "on PostgreSQL: end to end, queue and inbox there, 64 in flight, one job a request, against the raw "
        "aiohttp loop",
        "at least",
        0.50,
        "x",
        ratio("dispatch/postgres", bench_dispatch.BOTH, _RAW, "jobs/s"),
    ),
    Goal(
        "on PostgreSQL: the same with the inbox in a SQLite file",
        "at least",
        0.50,
        "x",
        ratio("dispatch/postgres", _PRODUCT, _RAW, "jobs/s"),
    ),
)
