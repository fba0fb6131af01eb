"""What every benchmark shares: paired repetitions, processes that never outlive it, and what is written down.

The ways to do a thing are measured in turns: one of each makes a repetition, and only figures of one repetition
are compared. Single figures on a shared machine drift by a quarter and more; the ratio of neighbours hardly
does.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from asyncqueue.eventloop import prepare_process

__all__ = [
    "ROOT",
    "Bench",
    "Run",
    "Scale",
    "Skipped",
    "Watch",
    "child",
    "folder",
    "percentile",
    "python_process",
    "run_async",
    "say",
    "spread",
    "table",
]

T = TypeVar("T")
Figures = dict[str, float]
"""What one measurement of one way says: the unit, or a name with its unit, and the value."""
ROOT = Path(__file__).parents[1]
REPETITIONS = 7
WARM_UPS = 1
_STOP_S = 10.0


class Scale(StrEnum):
    """How much is measured: `tiny` proves that a benchmark runs, `full` is for the report."""

    TINY = "tiny"
    SHORT = "short"
    FULL = "full"


class Skipped(Exception):
    """This way cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Bench:
    """One question. `measure(run)` answers it; a benchmark with `parts` is called once for each of them."""

    name: str
    question: str
    measure: Callable[["Run"], None]
    parts: tuple[str, ...] = ()
    full_only: tuple[str, ...] = ()  # parts that the short set leaves out

    def keys(self, scale: Scale) -> list[str]:
        """Return the names of what can be run on its own at this scale."""
        if not self.parts:
            return [self.name]
        left_out = () if scale is Scale.FULL else self.full_only
        return [f"{self.name}/{part}" for part in self.parts if part not in left_out]

    def keys_in_order(self, key: str) -> int:
        """Return the place of a result among those of this benchmark."""
        part = key.partition("/")[2]
        return self.parts.index(part) if part in self.parts else 0


@dataclass
class Run:
    """One run of one benchmark: how large, and what was found so far."""

    scale: Scale
    part: str = ""
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def pick(self, tiny: T, short: T, full: T) -> T:
        """Return the one that belongs to the scale."""
        return {Scale.TINY: tiny, Scale.SHORT: short, Scale.FULL: full}[self.scale]

    @property
    def repetitions(self) -> int:
        """Return how many pairs are measured."""
        return 1 if self.scale is Scale.TINY else REPETITIONS

    @property
    def warm_ups(self) -> int:
        """Return how many repetitions come first and do not count."""
        return 0 if self.scale is Scale.TINY else WARM_UPS

    def note(self, text: str) -> None:
        """Write down what a reader must know of these figures."""
        if text not in self.notes:
            self.notes.append(text)
            say(f"  note: {text}")

    def paired(self, ways: Mapping[str, Callable[[], Figures]], repetitions: int | None = None) -> None:
        """Measure each way once a repetition, after a warm-up; who goes first changes from one to the next."""
        left = dict(ways)
        for number in range(-self.warm_ups, repetitions or self.repetitions):
            names = list(left)
            first = number % len(names) if names else 0
            for name in names[first:] + names[:first]:
                started = time.perf_counter()
                try:
                    figures = left[name]()
                except Skipped as why:
                    self.note(f"{name}: left out: {why}")
                    del left[name]
                    continue
                if number >= 0:
                    self.add(name, figures)
                shown = ", ".join(f"{value:,.4g} {unit}" for unit, value in figures.items())
                turn = f"{number + 1}/{repetitions or self.repetitions}" if number >= 0 else "warm-up"
                say(f"  {turn:>7}  {name}: {shown}  [{time.perf_counter() - started:.1f} s]")

    def add(self, name: str, figures: Figures) -> None:
        """Write down one measurement of one way."""
        log = self.samples.setdefault(name, {})
        for unit, value in figures.items():
            log.setdefault(unit, []).append(value)


class Watch:
    """Seconds and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def figures(self, count: int, unit: str = "jobs/s") -> Figures:
        """Return how many a second, and the CPU time of each in microseconds."""
        seconds, cpu = time.perf_counter() - self._started, time.process_time() - self._cpu
        return {unit: count / seconds, "us CPU": cpu / count * 1e6}


def say(text: str) -> None:
    """Tell whoever watches how it goes; stdout is for the answer."""
    print(text, file=sys.stderr, flush=True)


def run_async(work: Coroutine[Any, Any, T], loop: str = "asyncio") -> T:
    """Run `work` on a fresh event loop of the kind named, `asyncio` or `uvloop`, as a process of our own would."""
    prepare_process()
    if loop == "asyncio":
        return asyncio.run(work)
    try:
        factory = uvloop_factory()
    except Skipped:
        work.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes uvloop's loops. Raises `Skipped` if it is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        raise Skipped("uvloop is not installed") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for the files of one measurement, and delete it."""
    with tempfile.TemporaryDirectory(prefix="asyncqueue-bench-") as name:
        yield Path(name)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` (0 to 1) of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return `median (min-max)`."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


@contextmanager
def child(
    *arguments: str, stdin: int | None = None, stdout: int = subprocess.DEVNULL, loop: str = "asyncio"
) -> Iterator[subprocess.Popen[str]]:
    """Run `python ARGUMENTS` from the repository on the event loop named; it never outlives the block.

    Ctrl-C on the terminal is for this process alone, which then ends its children.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=stdin,
        stdout=stdout,
        text=True,
        env={**os.environ, "ASYNCQUEUE_LOOP": loop},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


@contextmanager
def python_process(
    *arguments: str, loop: str = "asyncio"
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """Run `python ARGUMENTS` from the repository and yield it with the JSON object of its first line.

    The process uses the event loop named, whatever is installed.
    """
    if loop == "uvloop":
        uvloop_factory()  # before a process is started that could only complain
    with child(*arguments, stdout=subprocess.PIPE, loop=loop) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first.strip():
            raise SystemExit(f"{' '.join(arguments)} ended before it was ready")
        yield process, json.loads(first)
