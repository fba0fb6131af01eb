"""Each benchmark still runs: tiny sizes, and no judgement of its figures."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TINY = {
    "bench_claim": ["--rows", "3000", "--repetitions", "3"],
    "bench_contention": ["--writers", "2", "--seconds", "0.5"],
    "bench_dispatch": ["--jobs", "200", "--pairs", "1", "--concurrency", "8", "--batch", "8"],
    "bench_queues": ["--jobs", "2000", "--others", "100", "--claims", "3"],
    "bench_postgres": ["--rows", "3000", "--repetitions", "2", "--rate-jobs", "500", "--jobs", "3000"],
    "bench_memory": ["--enqueue", "2000", "--drain", "200"],
    "scaling_model": ["--jobs", "400", "--processes", "1", "2", "--hosts", "2", "--think-ms", "1"],
}


@pytest.mark.parametrize("name", TINY)
def test_benchmark_runs_to_its_table(name):
    command = [sys.executable, "-m", f"benchmarks.{name}", *TINY[name]]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert run.returncode == 0, run.stderr
    assert "|---|" in run.stdout
