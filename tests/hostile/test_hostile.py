"""The long form of the hostile inputs runs, and would see a promise that is broken."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from asyncqueue import wire
from tests.hostile.__main__ import see

ROOT = Path(__file__).parents[2]
INPUTS = 5_000


def see_many(chance):
    for _ in range(1_000):
        see(chance)


def test_thousands_of_damaged_inputs_break_no_promise_at_any_door():
    command = [sys.executable, "-m", "tests.hostile", "--inputs", str(INPUTS), "--seed", "7"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    counts = {line.split(None, 1)[1]: int(line.split()[0].replace(",", "")) for line in ended.stdout.splitlines()}
    assert counts.pop(next(name for name in counts if "every promise kept" in name)) == INPUTS
    posted = next(name for name in counts if "posted" in name)
    assert counts.pop(posted) > INPUTS / 100
    assert "'/ 200'" in posted
    assert "'/ 400'" in posted
    assert sum(counts.values()) == INPUTS
    assert min(counts.values()) > INPUTS / 20


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("is_ack", lambda _body, _id, _qty: True),
        ("parse_retry_after", lambda _value, _now_ms: -1),
        ("parse_message", lambda _body: wire.Message("a", 1, None)),
    ],
)
def test_a_broken_promise_is_seen(monkeypatch, name, lie):
    monkeypatch.setattr(wire, name, lie)
    with pytest.raises((AssertionError, ValueError, KeyError, TypeError)):
        see_many(random.Random(7))
