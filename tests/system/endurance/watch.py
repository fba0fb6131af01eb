"""Memory, descriptors and threads of each process over its lives, the sizes of the files, and what is judged.

The slope of a life is that of the least-squares line through its resident memory, once a second, without the first
third of the life and never its first half minute: what a process fills on its way up (imports, connections, the
page cache of SQLite, 2 MB) is no leak. The longest life of each role counts, but that of the dispatcher which is
killed all the time. Descriptors and threads are flat if their median over the last fifth of that life is at most
`FLAT_MORE` above the one over the first fifth, after the same third.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import psutil

MB: Final = 2**20
SETTLING_S_MIN: Final = 30.0
SLOPE_MAX: Final = 1.0  # MB an hour
FLAT_MORE: Final = 3
GROWTH_MAX: Final = 1.25  # of the queue's file in the last third, from the peak before it on
SAMPLES_MIN: Final = 10
SLOPE_S_MIN: Final = 600.0  # an allocator's step of 0.1 MB is 1.2 MB an hour in five minutes, and no leak


class Sample(NamedTuple):
    """A process at one moment."""

    at_s: float
    rss_mb: float
    descriptors: int
    threads: int


class Sizes(NamedTuple):
    """The files at one moment, in MB."""

    at_s: float
    queue_mb: float
    inbox_mb: float


@dataclass
class Life:
    """A process from its start to its end."""

    role: str
    started_s: float
    samples: list[Sample] = field(default_factory=list)

    @property
    def length_s(self) -> float:
        return self.samples[-1].at_s - self.started_s if self.samples else 0.0

    @property
    def settled(self) -> list[Sample]:
        """Return what was seen after the time in which a process fills what it then keeps."""
        since_s = self.started_s + max(SETTLING_S_MIN, self.length_s / 3)
        return [sample for sample in self.samples if sample.at_s >= since_s]

    def slope(self) -> float | None:
        """Return MB an hour; None for a life that is too short to tell."""
        settled = self.settled
        if len(settled) < SAMPLES_MIN:
            return None
        return slope([s.at_s for s in settled], [s.rss_mb for s in settled]) * 3600

    def rise(self, values: Sequence[int]) -> float:
        """Return by how much the median of the last fifth is above that of the first."""
        fifth = max(1, len(values) // 5)
        return statistics.median(values[-fifth:]) - statistics.median(values[:fifth])


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least-squares line."""
    return statistics.linear_regression(x, y).slope


def sample(pid: int, at_s: float) -> Sample | None:
    """Look at a process; None if it is gone or going."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return Sample(at_s, process.memory_info().rss / MB, process.num_fds(), process.num_threads())
    except psutil.Error:
        return None


def sizes(at_s: float, queue: Path, inbox: Path) -> Sizes:
    """Return the sizes of both databases without their journals, which come and go with each transaction."""
    return Sizes(at_s, queue.stat().st_size / MB, inbox.stat().st_size / MB if inbox.exists() else 0.0)


def longest(lives: Sequence[Life]) -> list[Life]:
    """Return the longest life of each role."""
    best: dict[str, Life] = {}
    for life in lives:
        if life.role not in best or life.length_s > best[life.role].length_s:
            best[life.role] = life
    return [best[role] for role in sorted(best)]


def steep(lives: Sequence[Life]) -> list[str]:
    """Return whose memory grew by too much. `lives` are the ones to judge."""
    found = []
    for life in lives:
        settled, steepness = life.settled, life.slope()
        if steepness is None or settled[-1].at_s - settled[0].at_s < SLOPE_S_MIN:
            found.append(f"the {life.role} never lived long enough to tell a slope")
        elif steepness >= SLOPE_MAX:
            found.append(f"the memory of the {life.role} grows by {steepness:.2f} MB an hour")
    return found


def out_of_bounds(lives: Sequence[Life], files: Sequence[Sizes]) -> list[str]:
    """Return what else grew."""
    found = []
    for life in lives:
        settled = life.settled
        if not settled:
            found.append(f"the {life.role} never lived long enough to tell")
            continue
        for what, values in (
            ("descriptors", [s.descriptors for s in settled]),
            ("threads", [s.threads for s in settled]),
        ):
            if (more := life.rise(values)) > FLAT_MORE:
                found.append(f"the {life.role} has {more:g} {what} more at the end than before")
    # A file keeps the size of its worst minute; one that grows all the time is half as large again after a third.
    early = len(files) * 2 // 3
    before, after = (max((f.queue_mb for f in part), default=0.0) for part in (files[:early], files[early:]))
    if after > GROWTH_MAX * before:
        found.append(f"the queue's file grew from {before:.1f} to {after:.1f} MB, whatever is purged")
    return found
