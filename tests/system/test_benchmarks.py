"""Each benchmark still runs, in small; no judgement of any figure."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.__main__ import FULL, PAGE
from benchmarks.goals import GOALS, verdict
from benchmarks.harness import Run, Scale, Skipped
from benchmarks.registry import BENCHES
from benchmarks.report import page_of, write_report
from benchmarks.results import Result, Results, compared, environment

ROOT = Path(__file__).parents[2]
KEYS = [bench.keys(Scale.FULL)[0] for bench in BENCHES] + [
    "contention/turns",
    "profile/drain",
    "profile/statements",
]


def bench(*arguments):
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("key", KEYS)
def test_benchmark_runs_and_its_answer_is_kept(key, tmp_path):
    results = tmp_path / "results.json"
    run = bench("run", "--only", key, "--scale", "tiny", "--results", results)
    assert run.returncode == 0, run.stderr
    assert "|---|" in run.stdout
    found = json.loads(results.read_text())["results"]
    assert list(found) == [key]
    assert found[key]["samples"], run.stdout


ALONE = {
    "bench_queues": ["--jobs", "2000", "--others", "100", "--claims", "3"],
    "bench_postgres": [
        "--rows",
        "3000",
        "--repetitions",
        "2",
        "--rate-jobs",
        "500",
        "--jobs",
        "3000",
        "--room-jobs",
        "600",
    ],
    "scaling_model": ["--jobs", "400", "--processes", "1", "2", "--hosts", "2", "--think-ms", "1"],
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ALONE)
def test_benchmark_that_stands_alone_runs_to_its_table(name):
    command = [sys.executable, "-m", f"benchmarks.{name}", *ALONE[name]]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert run.returncode == 0, run.stderr
    assert "|---|" in run.stdout


def test_unknown_benchmark_is_refused():
    run = bench("run", "--only", "nothing")
    assert run.returncode == 2
    assert "there is no benchmark nothing" in run.stderr


def test_full_leaves_no_choice_of_scale_or_results():
    run = bench("run", "--full", "--scale", "tiny")
    assert run.returncode == 2
    assert "--full says what --scale and --results would" in run.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_interrupted_benchmark_leaves_no_process_and_no_folder(number, status, tmp_path):
    command = [sys.executable, "-m", "benchmarks", "run", "--only", "contention/verbs"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    writers = writers_of(run)
    assert any(tmp_path.iterdir())
    run.send_signal(number)
    _out, told = run.communicate(timeout=20)
    assert run.returncode == status
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())
    assert not any(writer.is_running() for writer in writers)


def writers_of(run):
    """Wait until the processes of a benchmark are under way."""
    deadline = time.monotonic() + 20
    while True:
        found = psutil.Process(run.pid).children()
        if found and all(writer.cpu_times().user > 0.05 for writer in found):
            return found
        assert time.monotonic() < deadline


def test_list_names_every_part():
    run = bench("list")
    assert run.returncode == 0
    assert all(key in run.stdout for one in BENCHES for key in one.keys(Scale.FULL))


def result(samples):
    return Result("How?", "tiny", "2026-01-01 00:00 UTC", 1.0, {"versions": {}}, samples)


def test_a_repetition_measures_each_way_once_and_counts_no_warm_up():
    calls = []
    run = Run(Scale.FULL)
    ways = {name: lambda name=name: calls.append(name) or {"jobs/s": float(len(calls))} for name in "ab"}
    run.paired(ways)
    assert len(calls) == 16
    assert all(set(calls[turn : turn + 2]) == {"a", "b"} for turn in range(0, 16, 2))
    assert {calls[turn] for turn in range(0, 16, 2)} == {"a", "b"}  # both went first at times
    assert [len(run.samples[name]["jobs/s"]) for name in "ab"] == [7, 7]
    assert min(run.samples["a"]["jobs/s"] + run.samples["b"]["jobs/s"]) == 3.0


def test_a_way_that_cannot_be_measured_is_left_out_and_noted():
    def missing():
        raise Skipped("it is not installed")

    run = Run(Scale.TINY)
    run.paired({"here": lambda: {"jobs/s": 1.0}, "gone": missing})
    assert list(run.samples) == ["here"]
    assert run.notes == ["gone: left out: it is not installed"]


def test_ratios_are_taken_pair_by_pair():
    found = result({"a": {"jobs/s": [10.0, 30.0]}, "b": {"jobs/s": [5.0, 10.0]}})
    assert found.ratios("a", "b", "jobs/s") == [2.0, 3.0]
    assert found.ratios("a", "c", "jobs/s") is None
    assert found.best(("a", "b", "c"), "jobs/s") == "a"


def test_merging_keeps_what_was_measured_before(tmp_path):
    path = tmp_path / "results.json"
    Results(path).merge("one", result({"a": {"s": [1.0]}}))
    Results(path).merge("two", result({"a": {"s": [2.0]}}))
    Results(path).merge("one", result({"a": {"s": [3.0]}}))
    found = Results(path)
    assert found.found["one"].values("a", "s") == [3.0]
    assert found.found["two"].values("a", "s") == [2.0]


def test_compare_marks_ranges_that_do_not_touch(tmp_path):
    old, new = Results(tmp_path / "old.json"), Results(tmp_path / "new.json")
    old.merge("one", result({"a": {"s": [1.0, 2.0], "t": [1.0, 2.0]}}))
    new.merge("one", result({"a": {"s": [3.0, 4.0], "t": [2.0, 4.0]}}))
    lines = compared(old, new).splitlines()[2:]
    assert ["apart" in line for line in lines] == [True, False]
    assert "2.33" in lines[0]


def test_a_goal_is_met_by_its_median_and_missed_without_ado(tmp_path):
    results = Results(tmp_path / "results.json")
    goal = next(goal for goal in GOALS if goal.what.startswith("enqueue"))
    assert verdict(goal, results).met is None
    for rates, met in (([49.0, 50.0, 80.0], True), ([10.0, 49.0, 80.0], False)):
        ones = {"jobs/s": [1.0] * 3}
        results.merge("enqueue", result({"1,000 callers at once": {"jobs/s": rates}, "one by one": ones}))
        assert verdict(goal, results).met is met


def test_the_report_tells_met_from_missed_and_who_is_ahead(tmp_path):
    results = Results(tmp_path / "results.json")
    ones = {"jobs/s": [1.0, 1.0]}
    ways = {
        "asyncqueue Dispatcher": {"jobs/s": [6.0, 7.0]},
        "huey SqliteHuey": ones,
        "litequeue": {"jobs/s": [9.0, 9.0]},
    }
    drained = result(ways)
    drained.environment = environment()
    results.merge("drain/sqlite", drained)
    write_report(results, tmp_path / "page.md", plots=False)
    lines = (tmp_path / "page.md").read_text("utf-8").splitlines()
    assert any("best SQLite peer" in line and "**not met**" in line for line in lines)
    assert any("huey" in line and line.endswith("| asyncqueue |") for line in lines)
    assert any("litequeue" in line and line.endswith("| **the peer** |") for line in lines)
    assert any(line.startswith("- drain of no-op jobs") for line in lines)


def test_the_page_is_what_the_full_results_say():
    assert PAGE.read_text("utf-8") == page_of(Results(FULL)), "run `python -m benchmarks report`"
