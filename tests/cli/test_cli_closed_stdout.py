"""A program whose stdout is closed has nobody to tell; that is no crash."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    ["asyncqueue enqueue {db} one 1", "asyncqueue --help", "receiver {missing}/inbox.db --port 0"],
)
def test_closed_stdout_gives_no_traceback(arguments, tmp_path):
    command = arguments.format(db=tmp_path / "jobs.db", missing=tmp_path / "missing")
    shell = f"exec {sys.executable} -m {command} >&-"
    ended = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == (2 if "missing" in arguments else 0)


def test_purge_of_a_bad_file_says_one_line(tmp_path):
    bad = tmp_path / "bad.db"
    bad.write_text("this is text, and long enough to be read as a header of a database file" * 20)
    command = [sys.executable, "-m", "asyncqueue", "purge", bad, "--status", "done", "--older-than-ms", "1000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
