"""Run the command line as its users do: as a process, with real files."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment():
    """The environment of a child that finds this checkout from any folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1"}


@pytest.fixture
def run(tmp_path, environment) -> Run:
    """`run("stats", db)` runs `python -m asyncqueue stats …` in an empty folder and returns the ended process."""

    def run(*arguments, stdin: str | bytes = b"", timeout: float = 50) -> "subprocess.CompletedProcess[str]":
        ended = subprocess.run(
            [sys.executable, "-m", "asyncqueue", *map(str, arguments)],
            input=stdin if isinstance(stdin, bytes) else stdin.encode(),
            capture_output=True,
            cwd=tmp_path,
            env=environment,
            timeout=timeout,
            check=False,
        )
        out, err = ended.stdout.decode(), ended.stderr.decode()
        return subprocess.CompletedProcess(ended.args, ended.returncode, out, err)

    return run


@pytest.fixture
def db(tmp_path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def said():
    """Check that a process ended with `code` and one line on stderr that holds `words`, and no traceback."""

    def said(ended, code: int, *words: str) -> None:
        assert ended.returncode == code, ended.stderr
        lines = ended.stderr.splitlines()
        assert len(lines) == 1, ended.stderr
        assert lines[0].startswith("asyncqueue: error: ")
        assert lines[0].isprintable()
        for word in words:
            assert word in lines[0]

    return said
