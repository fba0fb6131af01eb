"""The demo: its arithmetic, its story, and that it notices what does not add up (with a stand-in receiver)."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from asyncqueue.cli.demo.reconcile import Facts, Totals, reconcile
from asyncqueue.stores.base import Stats

ROOT = Path(__file__).parents[2]
GOOD = Facts(
    jobs=10,
    quantity=25,
    queue=Stats(done=10),
    inbox=Totals(messages=10, quantity=25, duplicates=2, conflicts=0, requests=12),
    leases_at_kill=3,
    victim_code=-9,
    survivor_code=0,
    recovered=3,
    elapsed_ms=1_000,
)


def test_what_adds_up_adds_up():
    found = reconcile(GOOD)
    assert found.wrong == ()
    assert found.record()["ok"] is True
    assert "Nothing lost, every effect once." in found.story


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"queue": Stats(done=9)}, "jobs in the queue"),
        ({"queue": Stats(done=9, pending=1)}, "jobs done"),
        ({"queue": Stats(done=9, dead=1)}, "jobs dead"),
        ({"queue": Stats(done=9, leased=1)}, "jobs live"),
        ({"inbox": replace(GOOD.inbox, messages=9)}, "messages in the inbox"),
        ({"inbox": replace(GOOD.inbox, quantity=26)}, "quantity in the ledger"),
        ({"inbox": replace(GOOD.inbox, conflicts=1)}, "conflicts in the inbox"),
        ({"inbox": replace(GOOD.inbox, requests=11)}, "requests sent, at least"),
        ({"leases_at_kill": 0, "recovered": 0}, "leases held at the kill, at least"),
        ({"recovered": 2}, "jobs of those delivered by the other"),
        ({"victim_code": 0}, "signal that ended the killed dispatcher"),
        ({"survivor_code": 1}, "exit code of the other dispatcher"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_thing_that_does_not_add_up_is_named(changes, name):
    found = reconcile(replace(GOOD, **changes))
    assert name in [check.name for check in found.wrong]
    assert found.record()["ok"] is False
    assert "does not add up" in found.story


def _orders(tmp_path, count: int = 1500):
    orders = tmp_path / "orders.jsonl"
    orders.write_text("".join(f'{{"id":"o{n}","qty":{n % 9 + 1}}}\n' for n in range(count)))
    return orders


def _children_left(folder) -> list[int]:
    def is_ours(process: psutil.Process) -> bool:
        return any(str(folder) in word for word in process.info["cmdline"] or ())

    return [process.pid for process in psutil.process_iter(["cmdline"]) if is_ours(process)]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_story_ends_well_with_the_packaged_orders(run, tmp_path):
    keep = tmp_path / "keep"
    ended = run("demo", "--keep", keep, "--json", timeout=140)  # a shared host may stand still for a while
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["ok"] is True
    facts = found["facts"]
    assert (facts["jobs"], facts["quantity"]) == (6_919, 16_479)
    assert facts["leases_at_kill"] >= 1
    assert {"first.jsonl", "second.jsonl"} <= {path.name for path in keep.iterdir()}
    assert json.loads(run("stats", keep / "jobs.db", "--json").stdout)["done"] == 6_919
    assert _children_left(keep) == []


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("tamper", "line"), [("quantity", "quantity in the ledger"), ("lose", "messages in the inbox")]
)
@pytest.mark.usefixtures("stand_in")
def test_a_tampered_result_exits_1_and_names_the_line(run, said, tmp_path, environment, tamper, line):  # noqa: PLR0917 - fixtures
    environment["TAMPER"] = tamper
    ended = run("demo", "--orders", _orders(tmp_path), timeout=140)
    said(ended, 1, "does not add up", line)
    assert "WRONG" in ended.stdout
    assert _children_left(tmp_path) == []


def test_a_receiver_that_does_not_start_is_told_in_one_line(run, stand_in, tmp_path, environment):
    environment["TAMPER"] = "mute"
    ended = run("demo", "--orders", _orders(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("asyncqueue: error: the receiver did not start")
    assert "Traceback" not in ended.stderr
    assert _children_left(tmp_path) == []


def test_an_event_loop_that_nobody_knows_is_bad_usage_and_told_once(run, tmp_path, environment):
    environment["ASYNCQUEUE_LOOP"] = "foo"
    ended = run("demo", "--orders", _orders(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr == "asyncqueue: error: ASYNCQUEUE_LOOP must be 'asyncio' or 'uvloop', not 'foo'\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_no_child_outlives_an_interrupted_demo(stand_in, tmp_path, environment, number):
    keep = tmp_path / "keep"
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "demo", "--orders", str(_orders(tmp_path)), "--keep", str(keep)],
        cwd=tmp_path,
        env={**environment, "TAMPER": "refuse"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ourselves = psutil.Process(process.pid)
    while len(ourselves.children()) < 3:
        assert process.poll() is None
    process.send_signal(number)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else 1)
    assert b"Traceback" not in err
    assert _children_left(keep) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"id":"a","qty":1}\n', "has 1 jobs"),
        ('{"id":"a","qty":1}\n' * 2, "every line"),
        ('{"id":"a","qty":0}\n', "line 1: qty must be"),
    ],
)
def test_orders_that_do_not_suit_are_bad_input(run, said, tmp_path, content, words):
    orders = tmp_path / "orders.jsonl"
    orders.write_text(content)
    said(run("demo", "--orders", orders), 2, words)


def test_a_folder_that_is_in_use_is_bad_input_and_untouched(run, said, tmp_path):
    kept = tmp_path / "keep" / "a.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    said(run("demo", "--keep", kept.parent), 2, "not empty")
    said(run("demo", "--orders", "missing.jsonl"), 2, "missing.jsonl")
    assert kept.read_text() == "mine"


def test_the_example_in_the_repository_is_the_packaged_file():
    example = ROOT / "examples" / "orders.jsonl"
    assert example.samefile(ROOT / "asyncqueue" / "demo_data" / "orders.jsonl")
    assert sum(json.loads(line)["qty"] for line in example.read_text().splitlines()) == 16_479


def test_no_child_outlives_a_demo_that_is_killed(tmp_path, environment):
    keep = tmp_path / "keep"
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "demo", "--orders", str(_orders(tmp_path)), "--keep", str(keep)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ourselves = psutil.Process(process.pid)
    while not (keep / "second.jsonl").exists():  # the last child is running
        assert process.poll() is None
    children = ourselves.children(recursive=True)
    assert len(children) == 3
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(children, timeout=30)
    for child in alive:
        child.kill()
    assert (len(gone), alive) == (3, [])
