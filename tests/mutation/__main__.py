"""Break the files of `targets.py` in one place after the other and print the breaks that no test notices."""

import argparse
import random
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tests.mutation.judge import ROOT, Judge
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.targets import TARGETS

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def main() -> int:
    """Return 1 if the score is below what is asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("files", nargs="*", help="of targets.py; all of them if none is named")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each file, drawn by --seed; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first of the order that --seed gives")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant of a file later")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--slowest", type=float, default=1.0, help="leave out tests that take longer, in seconds")
    parser.add_argument("--min", type=float, default=90.0, help="the score to reach, in percent")
    options = parser.parse_args()
    killed = judged = 0
    for target in options.files or TARGETS:
        one_killed, one_judged = _one(target, options)
        killed, judged = killed + one_killed, judged + one_judged
    score = 100 * killed / max(judged, 1)
    print(f"all: {killed} of {judged} mutants killed, {score:.1f} %")
    return int(score < options.min)


def _one(target: str, options: argparse.Namespace) -> tuple[int, int]:
    known = equivalents(target)
    every = mutants_of((ROOT / target).read_bytes())
    mutants = [mutant for mutant in every if key(mutant) not in known]
    random.Random(options.seed).shuffle(mutants)
    mutants = mutants[options.skip :][: options.sample or None]
    with tempfile.TemporaryDirectory() as scratch:
        judge = Judge(target, TARGETS[target], Path(scratch), jobs=options.jobs, slowest_s=options.slowest)
        tests = judge.prepare()
        print(f"{target}: {len(every)} mutants, {len(every) - len(mutants)} left out or equivalent; {tests} tests")
        killed = judged = 0
        for verdict in judge.judged(mutants, time.monotonic() + options.seconds):
            judged += 1
            killed += verdict.by is not None
            if verdict.by is None:
                mutant = verdict.mutant
                print(
                    f"  survived, {target}:{mutant.line} in {mutant.place}\n    - {mutant.was}\n    + {mutant.now}"
                )
                sys.stdout.flush()
    print(f"{target}: {killed} of {judged} killed, {100 * killed / max(judged, 1):.1f} %", flush=True)
    return killed, judged


def equivalents(target: str) -> dict[tuple[str, str, str], str]:
    """Return the mutants that change nothing that anybody could see, and why."""
    listed = tomllib.loads(EQUIVALENT.read_text("utf-8")).get(target, [])
    return {(one["in"], one["was"], one["now"]): one["why"] for one in listed}


def key(mutant: Mutant) -> tuple[str, str, str]:
    """Return what names a mutant as long as its line stays as it is."""
    return mutant.place, mutant.was, mutant.now


if __name__ == "__main__":
    sys.exit(main())
