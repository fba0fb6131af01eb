"""Break the core in one place after the other and print the breaks that no test notices."""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from tests import postgres_server
from tests.mutation.judge import CLOCK, ROOT, Judge
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.targets import TARGETS, Target

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main() -> int:
    """Return 1 if the score is below what is asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of targets.py; all of them if none is named")
    parser.add_argument("--named", default="", help="of those, only targets with this in their name")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each target, drawn by --seed; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the order that --seed gives")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant of a target later")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--slowest", type=float, default=1.0, help="leave out tests that take longer, in seconds")
    parser.add_argument("--memory", type=Path, help="a folder that keeps what is known of the unbroken tests")
    parser.add_argument("--min", type=float, default=90.0, help="the score to reach, in percent")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _cut_off)
    if options.memory:
        options.memory.mkdir(parents=True, exist_ok=True)
    killed = judged = 0
    for target in TARGETS:
        if (not options.files or target.file in options.files) and options.named in str(target):
            one_killed, one_judged = _one(target, options)
            killed, judged = killed + one_killed, judged + one_judged
    score = 100 * killed / max(judged, 1)
    print(f"all: {killed} of {judged} mutants killed, {score:.1f} %")
    return int(score < options.min)


def _one(target: Target, options: argparse.Namespace) -> tuple[int, int]:
    known = equivalents(target.file)
    every = [mutant for mutant in mutants_of((ROOT / target.file).read_bytes()) if target.has(mutant)]
    mutants = [mutant for mutant in every if key(mutant) not in known]
    equivalent = len(every) - len(mutants)
    random.Random(options.seed).shuffle(mutants)
    mutants = mutants[options.skip :][: options.sample or None]
    killed = judged = by_clock = 0
    with tempfile.TemporaryDirectory() as scratch, _server(target), contextlib.suppress(_CutOff):
        judge = Judge(
            target.file,
            target.tests,
            Path(scratch),
            jobs=options.jobs,
            slowest_s=options.slowest,
            chosen=target.chosen,
        )
        tests = judge.prepare(options.memory and memory_of(options.memory, target))
        print(f"{target}: {len(every)} mutants, {equivalent} of them equivalent; {tests} tests", flush=True)
        verdicts = judge.judged(mutants, time.monotonic() + options.seconds)
        with contextlib.closing(verdicts):
            for verdict in verdicts:
                judged += 1
                killed += verdict.by is not None
                by_clock += verdict.by == CLOCK
                if verdict.by is None:
                    _print_survivor(verdict.mutant)
    score = f"{100 * killed / max(judged, 1):.1f} %"
    print(f"{target}: {killed} of {judged} killed, {by_clock} of them by the clock, {score}", flush=True)
    return killed, judged


def memory_of(folder: Path, target: Target) -> Path:
    """Return the file that keeps what is known of a target's unbroken tests."""
    return folder / f"{quote(str(target), safe='')}.json"


def _print_survivor(mutant: Mutant) -> None:
    print(f"  survived: line {mutant.line}, {mutant.place}\n    - {mutant.was}\n    + {mutant.now}", flush=True)


@contextlib.contextmanager
def _server(target: Target) -> Iterator[None]:
    """Let the tests of all mutants share a server, if they need one and none is given."""
    if target.on == "sqlite" or postgres_server.GIVEN in os.environ:
        yield
        return
    server = postgres_server.Server.made()
    try:
        os.environ[postgres_server.GIVEN] = server.start().url
        yield
    finally:
        os.environ.pop(postgres_server.GIVEN, None)
        server.remove()


class _CutOff(BaseException):
    """SIGTERM: what was judged until then counts."""


def _cut_off(*_signal: object) -> None:
    raise _CutOff


def equivalents(file: str) -> dict[tuple[str, str, str], str]:
    """Return the mutants of a file that change nothing that anybody could see, and why."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8")).get(file, [])
    return {(one["in"], one["was"], one["now"]): one["why"] for one in listed}


def key(mutant: Mutant) -> tuple[str, str, str]:
    """Return what names a mutant as long as its line stays as it is."""
    return mutant.place, mutant.was, mutant.now


if __name__ == "__main__":
    sys.exit(main())
