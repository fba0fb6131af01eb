"""`dispatch` as a process: drains, tells, stops, and keeps its children alive."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from asyncqueue.dispatcher.refusal import STANDS_S

JOBS = 300


@pytest.fixture
def filled(run, db):
    source = "".join(f'{{"id":"j{n}","qty":{n % 7 + 1}}}\n' for n in range(JOBS))
    assert run("enqueue", db, "--file", "-", stdin=source).returncode == 0
    return db


@pytest.fixture
def start(environment):
    """Start `python -m asyncqueue dispatch …` and see to it that nothing of it is left."""
    started = []

    def start(*arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [sys.executable, "-m", "asyncqueue", "dispatch", *map(str, arguments)]
        process = subprocess.Popen(command, env=environment, **options)
        started.append(process)
        return process

    yield start
    for process in started:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.communicate()


@pytest.fixture
def silent():
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/inbox"


def _events(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def _await_event(process, name: str) -> dict:
    while line := process.stdout.readline():
        if (record := json.loads(line))["event"] == name:
            return record
    raise AssertionError(f"no {name}: {process.stderr.read()!r}")


def _stats(run, db) -> dict:
    return json.loads(run("stats", db, "--json").stdout)


def test_drain_delivers_everything_and_tells_each_event_as_a_line(run, filled, serve):
    ended = run("dispatch", filled, serve(), "--drain", "--owner-prefix", "box1")
    assert (ended.returncode, ended.stderr) == (0, "")
    events = _events(ended.stdout)
    assert events[0]["event"] == "started"
    assert events[0]["owner"].startswith("box1-")
    assert {"at_ms", "pid"} <= events[0].keys()
    assert events[-1]["event"] == "stopped"
    assert events[-1]["done"] == JOBS
    assert sorted(e["id"] for e in events if e["event"] == "settled") == sorted(f"j{n}" for n in range(JOBS))
    assert _stats(run, filled)["done"] == JOBS


def test_an_empty_queue_is_drained_at_once(run, db, serve):
    run("enqueue", db, "a", 1)
    url = serve()
    assert run("dispatch", db, url, "--drain").returncode == 0
    ended = run("dispatch", db, url, "--drain")
    assert ended.returncode == 0
    assert _events(ended.stdout)[-1]["claimed"] == 0


def test_only_the_named_queues_are_served(run, db, start, serve):
    for queue in ("a", "b", "c"):
        run("enqueue", db, queue, 1, "--queue", queue)
    process = start(db, serve(), "--queue", "a", "--queue", "c")
    assert {_await_event(process, "settled")["id"] for _ in range(2)} == {"a", "c"}
    process.terminate()
    assert process.wait(30) == 0
    queues = _stats(run, db)["queues"]
    assert [queues[name]["done"] for name in "abc"] == [1, 0, 1]


def test_a_drain_of_one_queue_ends_although_others_have_jobs(run, db, serve):
    run("enqueue", db, "mine", 1, "--queue", "mine")
    run("enqueue", db, "other", 1)
    assert run("dispatch", db, serve(), "--drain", "--queue", "mine").returncode == 0
    queues = _stats(run, db)["queues"]
    assert (queues["mine"]["done"], queues["default"]["done"]) == (1, 0)


def test_refused_jobs_are_dead_and_what_the_peer_says_is_escaped(run, db, serve):
    run("enqueue", db, "a", 1)
    ended = run("dispatch", db, serve(TAMPER="refuse"), "--drain")
    assert ended.returncode == 0
    assert ended.stdout.isascii()
    assert "\x1b" not in ended.stdout
    assert _stats(run, db)["dead"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_one_signal_stops_cleanly_and_gives_leases_back(run, filled, start, silent, number):
    process = start(filled, silent, "--grace-ms", 0, "--concurrency", 8)
    _await_event(process, "claimed")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    events = _events(out.decode())
    assert [e["why"] for e in events if e["event"] == "stopping"] == [number.name]
    assert _stats(run, filled)["leased"] == 0


@pytest.mark.parametrize("how", [(signal.SIGTERM, 1), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_second_signal_leaves_at_once_and_that_is_no_clean_end(run, filled, start, silent, how):
    number, code = how
    process = start(filled, silent, "--grace-ms", 3_600_000, "--concurrency", 8)
    _await_event(process, "claimed")
    process.send_signal(number)
    _await_event(process, "stopping")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.decode() == (
        "asyncqueue: error: stopped at once: 8 sends were cut off; their jobs go on when the leases run out\n"
    )
    (stopped,) = [event for event in _events(out.decode()) if event["event"] == "stopped"]
    assert (stopped["claimed"], stopped["left"]) == (8, 8)
    assert _stats(run, filled)["leased"] == 8


def test_the_end_of_standard_input_stops_it(filled, start, silent):
    process = start(filled, silent, "--grace-ms", 0, "--stop-with-stdin", stdin=subprocess.PIPE)
    _await_event(process, "claimed")
    process.stdin.close()
    process.stdin = None
    out, _err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"standard input has ended" in out


def test_a_reader_of_the_events_that_leaves_stops_no_delivery(run, filled, start, serve):
    process = start(filled, serve(), "--drain")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(30) == 0
    assert err == b""
    assert _stats(run, filled)["done"] == JOBS


def test_a_reader_of_the_events_that_never_reads_stops_no_delivery(run, db, start, serve):
    source = "".join(f'{{"id":"j{n}","qty":1}}\n' for n in range(1500))
    run("enqueue", db, "--file", "-", stdin=source)
    process = start(db, serve(), "--drain")
    assert process.wait(40) == 0  # its pipe holds a part of the lines only
    assert _stats(run, db)["done"] == 1500


def test_processes_share_the_work_and_the_output(run, filled, serve):
    ended = run("dispatch", filled, serve(), "--drain", "--processes", "2", "--concurrency", "4")
    assert (ended.returncode, ended.stderr) == (0, "")
    events = _events(ended.stdout)
    assert len({e["pid"] for e in events}) == 2
    assert sum(e["done"] for e in events if e["event"] == "stopped") == JOBS


def test_a_child_that_is_killed_is_started_again_and_a_signal_ends_all(filled, start, silent):
    process = start(filled, silent, "--processes", 2, "--grace-ms", 0, "--concurrency", 2)
    pids = {_await_event(process, "started")["pid"] for _ in range(2)}
    os.kill(min(pids), signal.SIGKILL)
    third = _await_event(process, "started")["pid"]
    assert third not in pids
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"died of SIGKILL: restart 1 of 8 in 0.5 s" in err
    assert b"Traceback" not in err
    assert not any(psutil.pid_exists(pid) for pid in (*pids, third))


def test_children_end_when_their_parent_is_killed(filled, start, silent):
    process = start(filled, silent, "--processes", 2, "--grace-ms", 0, "--concurrency", 2)
    children = [psutil.Process(_await_event(process, "started")["pid"]) for _ in range(2)]
    process.kill()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert len(gone) == 2
    assert not alive


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, db):
    """Where a queue may be: a file, or a URL."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else db


def _moved(run, place, tmp_path) -> None:
    ended = run("migrate-store", place, tmp_path / "moved.db", "--with-leases")
    assert ended.returncode == 0, ended.stderr


def test_a_queue_that_has_moved_ends_the_dispatcher_with_one_line(run, place, tmp_path, start, serve):
    run("enqueue", place, "a", 1, "--delay-ms", 3_600_000)
    process = start(place, serve())
    _await_event(process, "started")
    _moved(run, place, tmp_path)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = err.decode().splitlines()
    assert line.startswith("asyncqueue: error: ")
    assert line.endswith("this queue was moved, or is being moved, to another store: see asyncqueue migrate-store")
    events = _events(out.decode())
    assert [event["why"].split(":")[0] for event in events if event["event"] == "stopping"] == ["StoreMoved"]
    assert events[-1]["event"] == "stopped"


def test_a_queue_that_has_moved_is_not_drained(run, said, place, tmp_path, serve):
    run("enqueue", place, "a", 1)
    run("job", "cancel", place, "a")  # nothing is left to do
    _moved(run, place, tmp_path)
    said(run("dispatch", place, serve(), "--drain"), 1, "this queue was moved")


def test_children_whose_queue_has_moved_are_not_started_again(run, place, tmp_path, start, serve):
    run("enqueue", place, "a", 1, "--delay-ms", 3_600_000)
    process = start(place, serve(), "--processes", 2)
    pids = {_await_event(process, "started")["pid"] for _ in range(2)}
    _moved(run, place, tmp_path)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    *said, last = err.decode().splitlines()
    assert said
    assert all(line.startswith("asyncqueue: error: ") and "this queue was moved" in line for line in said)
    assert last in {f"asyncqueue: error: {n} of 2 dispatcher processes failed: see above" for n in (1, 2)}
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_rights_that_are_taken_away_end_the_dispatchers_and_only_after_a_while(run, start, serve, lowly):
    run("enqueue", lowly.url, "a", 1, "--delay-ms", 3_600_000)
    process = start(lowly.url, serve(), "--processes", 2)
    for _ in range(2):
        _await_event(process, "started")
    lowly.revoke("UPDATE ON ALL TABLES")
    failed = _await_event(process, "chore_failed")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    *said, last = err.decode().splitlines()
    assert all(line.endswith("check user, password, database and permissions") for line in said)
    assert "dispatcher processes failed" in last
    first = next(event for event in _events(out.decode()) if event["event"] == "stopping")
    assert first["at_ms"] - failed["at_ms"] >= STANDS_S * 1000


def test_rights_that_are_granted_anew_in_time_are_outlived(run, start, serve, lowly):
    run("enqueue", lowly.url, "a", 1, "--delay-ms", 3_600_000)
    process = start(lowly.url, serve())
    _await_event(process, "started")
    lowly.revoke("UPDATE ON ALL TABLES")
    assert "StoreDenied" in _await_event(process, "chore_failed")["error"]
    lowly.grant("UPDATE ON ALL TABLES")
    _await_event(process, "chore_recovered")
    run("enqueue", lowly.url, "b", 1)
    assert _await_event(process, "settled")["id"] == "b"
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert b"SIGTERM" in out


def _watch(command, environment) -> tuple[int, bytes]:
    """Run `command` on a terminal of its own; return its exit code and all that it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return process.wait(10), shown


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_terminal_shows_progress_and_no_json(filled, serve, environment, processes):
    environment = {**environment, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "asyncqueue", "dispatch", str(filled), serve(), "--drain"]
    code, shown = _watch([*command, "--processes", processes], environment)
    assert code == 0
    assert b"jobs/s" in shown
    assert str(JOBS).encode() in shown
    assert b'"event"' not in shown


def test_a_terminal_shows_a_progress_bar_for_a_file(db, tmp_path, environment):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"id":"j{n}","qty":1}}\n' for n in range(3000)))
    environment = {**environment, "TERM": "xterm"}
    command = [sys.executable, "-m", "asyncqueue", "enqueue", str(db), "--file", str(source)]
    code, shown = _watch(command, environment)
    assert code == 0
    assert b"3000 lines: 3000 new" in shown
    assert b"\x1b[" in shown
