"""Run the command line as its users do: as a process, with real files."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lowly import DOCUMENTED, Lowly, lowly_role

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
            [sys.executable, "-m", "asyncqueue", *(a if isinstance(a, bytes) else str(a) for a in arguments)],
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


@pytest.fixture
def lowly(run, postgres_url) -> Iterator[Lowly]:
    """A role that may use a queue which somebody else has made."""
    assert run("init", postgres_url).returncode == 0
    with lowly_role(postgres_url, *DOCUMENTED) as role:
        yield role


STAND_IN = Path(__file__).with_name("stand_in_receiver.py")


@pytest.fixture
def stand_in(tmp_path) -> Path:
    """Lay the stand-in out as the package `receiver` of the test's folder, where `python -m` looks first."""
    package = tmp_path / "receiver"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(STAND_IN, package / "__main__.py")
    return package


@pytest.fixture
def serve(tmp_path, environment, stand_in) -> Iterator[Callable[..., str]]:
    """`serve()` starts a stand-in receiver and returns its URL; `serve(TAMPER="refuse")` a strange one."""
    running: list[subprocess.Popen[bytes]] = []

    def serve(**variables: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "receiver", "inbox.db", "--port", "0"],
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env={**environment, **variables},
        )
        running.append(process)
        return json.loads(process.stdout.readline())["url"]

    yield serve
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
