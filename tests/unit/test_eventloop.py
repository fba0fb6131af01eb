"""The event loop of the command line: uvloop where it is installed, asyncio's own elsewhere, and as asked for."""

import platform
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


def output_of(code):
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    return run.stdout.split(), run.stderr


def test_the_collector_looks_seldom_and_leaves_what_is_there_alone():
    printed, _errors = output_of(
        "import gc; from asyncqueue.eventloop import prepare_process; rest = gc.get_threshold()[1:];"
        "prepare_process(); young, *others = gc.get_threshold();"
        "print(young, (*others,) == rest, gc.get_freeze_count() > 1_000, gc.isenabled())"
    )
    assert printed == ["10000", "True", "True", "True"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how glibc keeps memory")
def test_memory_for_a_read_is_not_asked_of_the_kernel_each_time():
    printed, _errors = output_of(
        "import resource, socket; from asyncqueue.eventloop import prepare_process\n"
        "def faults():\n"
        "    left, right = socket.socketpair(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(1_000): left.send(b'request'); right.recv(256 * 1024)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "print(faults()); prepare_process(); faults(); print(faults())"
    )
    before, after = map(int, printed)
    assert before >= 1_000
    assert after < 100


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("asyncqueue.cli.dispatching", "run(type('Settings', (), {'processes': 1}))"),
        ("receiver.__main__", "cli(['inbox.db'])"),
    ],
    ids=COMMANDS,
)
def test_the_processes_of_the_command_line_do_so_before_they_begin(module, call):
    printed, errors = output_of(
        f"import {module} as it; it.prepare_process = lambda: print('seldom'); it.loop_factory = lambda: 1 / 0;"
        f"it.{call}"
    )
    assert "ZeroDivisionError" in errors
    assert printed == ["seldom"]
