"""Runs the tests of one file on mutant after mutant, each in a forked process, up to the first failure.

The processes are forked from one that has pytest and the libraries in memory, but nothing of this project: so a
mutant costs the import of the project and the tests, not that of the world. Each of the `jobs` workers breaks the
file in a copy of the project of its own.
"""

import contextlib
import faulthandler
import importlib
import io
import json
import math
import os
import select
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pytest

from tests.mutation.operators import Mutant
from tests.mutation.reach import Reach

__all__ = ["CLOCK", "Judge", "Verdict", "likely_first", "ordered"]

ROOT: Final = Path(__file__).parents[2]
CLOCK: Final = "the clock, or the end of its process"
_NOT_COPIED: Final = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build")
_PRELOADED: Final = (
    "_pytest.assertion.rewrite",
    "aiohttp.web",
    "aiosqlite",
    "anyio._backends._asyncio",
    "asyncpg",
    "hypothesis.stateful",
    "psutil",
    "pytest_asyncio",
    "sqlalchemy.ext.asyncio",
)
_LIKELY: Final = 12  # tests that are asked before all others
_TEST_S_MIN: Final = 2.0  # a test that hangs is ended by this or by 8 times what the slowest may take
_END_S: Final = 5.0  # what is left to a test run that has told a failure, to put away what it began
_OURS: Final = ("asyncqueue", "receiver", "tests")
_OPTIONS: Final = (
    "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist",
    "-p", "no:schemathesis", "-o", "addopts=", "--hypothesis-seed=0",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",  # the libraries are in memory before pytest begins
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: killed `by` a test, by the clock, or (`by` is None) not at all."""

    mutant: Mutant
    by: str | None
    seconds: float


class _Told:
    """A pytest plugin: puts the likely killers first, leaves out the slow, and tells how it went.

    A failure is told by `tell` at once: what hangs in a broken transaction may never come to an end. A test that
    holds the interpreter itself for longer than `limit_s`, as a statement without an end does, ends the process.
    """

    def __init__(
        self, order: dict[str, float] | None, tell: Callable[[dict[str, Any]], None], limit_s: float
    ) -> None:
        self._order = order
        self._tell = tell
        self._limit_s = limit_s
        self._shared_s = 0.0  # of the present test's time, what went into what its module shares
        self.seconds: Counter[str] = Counter()
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order is not None:
            items[:] = ordered([item for item in items if item.nodeid in self._order], self._order)

    def pytest_runtest_logstart(self) -> None:
        if self._order is not None:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=2)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        began = time.monotonic()
        try:
            return (yield)
        finally:  # else whoever comes first is slow by the server that all of its file use
            self._shared_s += time.monotonic() - began if fixturedef.scope != "function" else 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration - self._shared_s
        self._shared_s = 0.0
        if report.failed:
            self._failed(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed(f"{report.nodeid} (cannot be collected)")

    def _failed(self, what: str) -> None:
        if self.failed is None:
            self.failed = what
            if self._order is not None:
                self._tell({"failed": what})


def ordered(items: list[pytest.Item], order: dict[str, float]) -> list[pytest.Item]:
    """Return those who have killed before first, then the files one after the other, the faster ones before.

    Not every test by its own time: what a file sets up once would be set up again at each change of files.
    """
    files: dict[Path, list[float]] = defaultdict(list)
    for item in items:
        if order[item.nodeid] >= 0:
            files[item.path].append(order[item.nodeid])

    def place(item: pytest.Item) -> tuple[float, float, str, float]:
        own = order[item.nodeid]
        return (own, 0.0, "", 0.0) if own < 0 else (0.0, fmean(files[item.path]), str(item.path), own)

    return sorted(items, key=place)


def likely_first(order: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the likely killers, if any are known, and the rest: to collect all files takes longer than a kill."""
    likely = dict(sorted((item for item in order.items() if item[1] < 0), key=itemgetter(1))[:_LIKELY])
    return (likely, {test: s for test, s in order.items() if test not in likely}) if likely else (order, {})


@dataclass(slots=True)
class _Running:
    pid: int
    answer: io.FileIO
    mutant: Mutant
    copy: Path
    began: float
    rest: dict[str, float]  # the tests to ask if these notice nothing


class Judge:
    """Judges mutants of the file `target` by `tests`, of which those slower than `slowest_s` are left out.

    `chosen` says which of `tests` judge, in the words of pytest's `-k`.

    A mutant that takes longer than `limit_s` (by default much longer than the unbroken tests did) is killed by it.
    """

    def __init__(
        self,
        target: str,
        tests: Sequence[str],
        scratch: Path,
        *,
        jobs: int,
        slowest_s: float,
        limit_s: float | None = None,
        root: Path = ROOT,
        chosen: str = "not postgres",
    ) -> None:
        self._target = target
        self._tests = tests
        self._copies = [scratch / f"copy{number}" for number in range(jobs)]
        self._root = root
        self._chosen = chosen
        self._slowest_s = slowest_s
        self._seconds: dict[str, float] = {}
        self._reach: dict[str, dict[str, list[str]]] = {}
        self._kills: Counter[str] = Counter()
        self._limit_s = limit_s

    def prepare(self, memory: Path | None = None) -> int:
        """Run the unbroken tests, note how long each takes and what it reaches, and return their number.

        What is noted is kept in the file `memory`, and taken from there if there it is.
        """
        for name in _PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        first = self._copies[0]
        shutil.copytree(self._root, first, ignore=_NOT_COPIED)
        if memory is not None and memory.exists():
            answer = json.loads(memory.read_text("utf-8"))
            _answer_of(*self._forked(first, {}), 600.0)  # compiles
        else:
            answer = _answer_of(*self._forked(first, None), 600.0)
            if answer is None or answer["failed"] or not answer["seconds"]:
                raise RuntimeError(f"the tests of {self._target} fail unbroken: {answer and answer['failed']}")
            if memory is not None:
                memory.write_text(json.dumps(answer), "utf-8")
        self._seconds = {test: s for test, s in answer["seconds"].items() if s <= self._slowest_s}
        self._reach = answer["reach"]
        self._limit_s = self._limit_s or 10 + 3 * sum(self._seconds.values())
        for compiled in (first / self._target).parent.glob(f"__pycache__/{Path(self._target).stem}.*"):
            compiled.unlink()
        for copy in self._copies[1:]:  # with the compiled files of all that is not broken
            shutil.copytree(first, copy)
        return len(self._seconds)

    def _order(self, mutant: Mutant, source: bytes) -> dict[str, float]:
        """Return the tests that reach the mutant, in the order to run them: likely killers, then the fast."""
        last = mutant.line + source[mutant.start : mutant.end].count(b"\n")
        lines = self._reach["lines"]
        reaching = {test for line in range(mutant.line, last + 1) for test in lines.get(str(line), ())}
        if "." not in mutant.place and self._target.endswith("statements.py"):  # else its own module asks for it
            reaching |= set(self._reach["names"].get(mutant.place, ()))
        tests = reaching & self._seconds.keys() or self._seconds.keys()  # what all import is reached by all
        return {test: self._seconds[test] - 100 * self._kills[test] for test in tests}

    def judged(self, mutants: Sequence[Mutant], until: float) -> Generator[Verdict]:
        """Judge the mutants, until `until` (of `time.monotonic`): what was not begun then is not judged."""
        source = (self._copies[0] / self._target).read_bytes()
        limit_s = self._limit_s or math.inf
        waiting = list(reversed(mutants))
        free = list(self._copies)
        running: list[_Running] = []
        try:
            while running or (waiting and time.monotonic() < until):
                while free and waiting and time.monotonic() < until:
                    mutant, copy = waiting.pop(), free.pop()
                    (copy / self._target).write_bytes(mutant.applied_to(source))
                    running.append(self._begun(mutant, copy, *likely_first(self._order(mutant, source))))
                for one in self._ended(running, limit_s):
                    running.remove(one)
                    verdict = self._verdict(one, limit_s)
                    if verdict.by is None and one.rest:
                        running.append(self._begun(one.mutant, one.copy, one.rest, {}))
                        continue
                    (one.copy / self._target).write_bytes(source)
                    free.append(one.copy)
                    yield verdict
        finally:  # a run that is cut off leaves no process behind
            for one in running:
                _answer_of(one.pid, one.answer, 0.0)

    def _begun(self, mutant: Mutant, copy: Path, asked: dict[str, float], rest: dict[str, float]) -> _Running:
        pid, answer = self._forked(copy, asked)
        return _Running(pid, answer, mutant, copy, time.monotonic(), rest)

    def _forked(self, copy: Path, order: dict[str, float] | None) -> tuple[int, io.FileIO]:
        """Fork a process that runs the tests in `copy`, all of them without an `order`, and tells by a pipe."""
        read, write = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.close(write)
            return pid, io.FileIO(read)
        try:  # from here on in the child
            os.close(read)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            pipe = io.FileIO(write, "wb")
            limit_s = max(_TEST_S_MIN, 8 * self._slowest_s)
            try:
                _run(copy, self._target, self._tests, self._chosen, order, limit_s, partial(_tell, pipe))
            except BaseException as error:  # noqa: BLE001 - told to the parent
                _tell(pipe, {"failed": f"the run itself: {error!r}"})
        finally:
            os._exit(0)

    @staticmethod
    def _ended(running: list[_Running], limit_s: float) -> list[_Running]:
        ready = select.select([one.answer for one in running], [], [], 0.5)[0]
        now = time.monotonic()
        return [one for one in running if one.answer in ready or now - one.began > limit_s]

    def _verdict(self, one: _Running, limit_s: float) -> Verdict:
        spent = time.monotonic() - one.began
        answer = _answer_of(one.pid, one.answer, 0.0 if spent > limit_s else _END_S)
        by = CLOCK if answer is None else answer["failed"]
        if by in self._seconds:  # who has killed one may well kill the next
            self._kills[by] += 1
        return Verdict(one.mutant, by, spent)


def _run(  # noqa: PLR0917 - called in one place
    copy: Path,
    target: str,
    tests: Sequence[str],
    chosen: str,
    order: dict[str, float] | None,
    test_s_max: float,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    os.chdir(copy)
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    os.environ["PYTHONPATH"] = str(copy)
    if order:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    importlib.invalidate_caches()
    told = _Told(order, tell, test_s_max + _TEST_S_MIN)
    reach = Reach(copy, target)
    files = sorted({test.partition("::")[0] for test in order}) if order else tests
    limit = ["--timeout", str(test_s_max)] if order else []
    code = pytest.main([*_OPTIONS, *limit, "-k", chosen, *files], plugins=[told, *([] if order else [reach])])
    faulthandler.cancel_dump_traceback_later()
    failed = told.failed or (None if code == pytest.ExitCode.OK else f"pytest ended by {code!r}")
    tell({"failed": failed} if order else {"failed": failed, "seconds": told.seconds, "reach": reach.told()})


def _tell(pipe: io.FileIO, told: dict[str, Any]) -> None:
    text = json.dumps(told).encode() + b"\n"
    while text:
        text = text[pipe.write(text) or 0 :]


def _answer_of(pid: int, answer: io.FileIO, patience_s: float) -> dict[str, Any] | None:
    """Wait for the first answer and the end, and end whatever else there is; None if there is no answer."""
    told = b""
    end = time.monotonic() + patience_s
    with answer:
        while select.select([answer], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (part := answer.read(1 << 20)):
                break
            told += part
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        answered: dict[str, Any] = json.loads(told.partition(b"\n")[0])
    except ValueError:
        return None
    return answered
