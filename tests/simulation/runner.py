"""Runs seeds in this process of the machine, which it replaces for the code under test."""

import atexit
import gc
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

from tests.simulation import network, plants, scenario, seams
from tests.simulation.world import Violation

# What a history is searched for: a run of many seeds tells how often each of these happened.
HAPPENINGS = {
    name: re.compile(pattern, re.MULTILINE)
    for name, pattern in {
        "sends": r" POST ",
        "commits": r": committed",
        "done": r"-> done",
        "dead": r"-> dead",
        "taken over": r"leased t(\d+) .* -> leased (?!t\1 )",
        "stale reports": r"Settled.*'(ok|retry|permanent)'>, status=None",
        "redriven": r" dead t.* -> (pending|leased)",
        "leases lost": r"LeaseLost\(",
        "released": r"leased t(\d+) .* -> pending t\d+ a\d+ $",
        "kills": r" KILLED",
        "stops": r"is asked to",
        "stalls": r" stalls for ",
        "clock steps": r"the wall clock is set",
        "disk errors": r"(I/O error|full|busy) at ",
        "failed commits": r"COMMIT fails",
        "hung connects": r"a connect hangs",
        "enqueues of unknown outcome": r": unknown",
        **{fate: rf"POST .*: {fate}$" for fate in network.FATES},
    }.items()
}


class Runner:
    """Runs seeds, one after the other, in this process of the machine."""

    def __init__(self, plant: str = "") -> None:
        _make_quiet()
        in_memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(
            prefix="simulation-", dir=in_memory if os.access(in_memory, os.W_OK) else None
        )
        self._templates = Path(self._folder.name) / "templates"
        self._templates.mkdir()
        plants.make_templates(self._templates)
        seams.install()
        scenario.watch_transactions()
        scenario.watch_clock()
        if plant:
            plants.PLANTS[plant].plant()
        gc.collect()
        gc.freeze()  # what is here by now is not looked at again

    def run(self, seed: int) -> tuple[str, str, list[str]]:
        """Return the trace, what is violated ("" for nothing) and the history."""
        here = Path(self._folder.name) / "run"
        shutil.copytree(self._templates, here)
        gc.disable()
        verdict = ""
        played = scenario.Scenario(seed, here)
        try:
            played.run()
        except Violation as violation:
            verdict = str(violation)
        finally:
            gc.enable()
            shutil.rmtree(here)
        return played.world.trace, verdict, played.world.history

    def close(self) -> None:
        self._folder.cleanup()


def _make_quiet() -> None:
    sys.unraisablehook = lambda _unraisable: None  # of dead processes, whose cleanup never runs
    warnings.simplefilter("ignore")
    logging.lastResort = None
    root = logging.getLogger()
    root.addHandler(scenario.Complaints())
    random.seed(0)


@cache
def the_runner(plant: str) -> Runner:
    """Return the one runner of this process of the machine: what it replaces stays replaced."""
    runner = Runner(plant)
    atexit.register(runner.close)
    return runner


def run_chunk(seeds: range, plant: str) -> tuple[list[tuple[int, str]], Counter[str]]:
    """Return each seed's violation, up to the first that has one, and what happened how often."""
    runner, happened, results = the_runner(plant), Counter(), []
    for seed in seeds:
        _trace, verdict, history = runner.run(seed)
        results.append((seed, verdict))
        told = "\n".join(history)
        for name, mark in HAPPENINGS.items():
            happened[name] += sum(1 for _ in mark.finditer(told))
        if verdict:
            break
        if seed % 10 == 0:
            gc.collect()
    return results, happened
