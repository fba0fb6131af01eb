"""The event loop of the command line: uvloop where it is installed, asyncio's own elsewhere, and as asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncqueue.errors import ConfigError
from asyncqueue.eventloop import LOOP, loop_factory

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "dispatch": ["-m", "asyncqueue", "dispatch", "jobs.db", "http://127.0.0.1:9/inbox"],
    "receiver": ["-m", "receiver", "inbox.db", "--port", "0"],
}


def test_without_uvloop_it_is_asyncio(monkeypatch):
    monkeypatch.delenv(LOOP, raising=False)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None


def test_uvloop_is_taken_where_it_is_installed(monkeypatch):
    monkeypatch.delenv(LOOP, raising=False)
    uvloop = pytest.importorskip("uvloop")
    assert loop_factory() is uvloop.new_event_loop


def test_asyncio_is_taken_when_asked_for(monkeypatch):
    monkeypatch.setenv(LOOP, "asyncio")
    assert loop_factory() is None


def test_uvloop_asked_for_and_missing_is_refused(monkeypatch):
    monkeypatch.setenv(LOOP, "uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ConfigError, match=r"asyncqueue\[fast\]"):
        loop_factory()


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_loop_is_a_usage_error_in_one_line(name, tmp_path):
    environment = {LOOP: "trio", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *COMMANDS[name]]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30, env=environment
    )
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert LOOP in run.stderr
