"""Real processes: racing claims, deaths at every hook, and the crash between the effect and the report."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import contract_tools as tools
import pytest

from asyncqueue.worker import claim, enqueue, open_queue

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@contextmanager
def child(script, *arguments):
    """Run a helper script; kill it, whatever state it is in, when the test is over."""
    process = subprocess.Popen(
        [sys.executable, HERE / script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def heard(process):
    """Return the next line of a child as a value; a child that ended instead fails the test."""
    line = process.stdout.readline()
    assert line, f"the child ended with {process.wait()}"
    return json.loads(line)


def test_of_two_processes_that_claim_at_once_exactly_one_wins_every_time(path):
    winners = []
    with (
        child("contract_child.py", "claims", path, "one") as one,
        child("contract_child.py", "claims", path, "two") as two,
    ):
        assert [heard(one), heard(two)] == ["ready", "ready"]
        for round_ in range(40):
            tools.put(path, f"job-{round_}")
            for process in (one, two):
                process.stdin.write("100\n")
                process.stdin.flush()
            answers = [heard(one), heard(two)]
            (won,) = [answer for answer in answers if answer is not None]
            row = tools.job(path, f"job-{round_}")
            assert (won["id"], won["token"], won["attempt"]) == (row["id"], 1, 1)
            assert (row["status"], row["owner"], row["token"]) == ("leased", won["owner"], 1)
            winners.append(won["owner"])
    assert len(winners) == 40


STARTS = {
    "claim": {"status": "pending"},
    "finish": {"status": "leased", "attempts": 1, "token": 1, "owner": "one", "lease_until": 1_000},
    "redrive": {"status": "dead", "reason": "exhausted", "token": 4},
}
ENDS = {"claim": "leased", "finish": "done", "redrive": "pending"}
POINTS = {
    "claim": ["after-claim", "after-commit"],
    "finish": ["after-finish", "after-commit"],
    "redrive": ["after-audit", "after-redrive", "after-commit"],
}


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize(("verb", "point"), [(verb, point) for verb in POINTS for point in POINTS[verb]])
async def test_a_death_before_the_commit_changes_nothing_and_after_it_everything(verb, point, how, path):
    tools.put(path, **STARTS[verb])
    if verb == "claim":
        tools.put(path, "late", deadline=0)
    before = tools.snapshot(path)
    with child("contract_child.py", "die", path, verb, point, how) as process:
        assert process.stdout.read() == ""
        assert process.wait() == (-signal.SIGKILL if how == "kill" else 9)
    con = await open_queue(path)
    try:
        if point == "after-commit":
            assert tools.job(path)["status"] == ENDS[verb]
            assert len(tools.audit(path)) == (verb == "redrive")
            assert verb != "claim" or tools.job(path, "late")["status"] == "dead"
        else:
            assert tools.snapshot(path) == before
        assert await enqueue(con, {"id": "next", "qty": 1}, 0, 60_000) is True
        assert (await claim(con, "two", 1_000))["owner"] == "two"
        assert await con.execute_fetchall("PRAGMA integrity_check") == [("ok",)]
    finally:
        await con.close()


def test_work_whose_dispatcher_died_after_the_effect_is_sent_twice_and_takes_effect_once(path, tmp_path):
    inbox = tmp_path / "inbox.db"
    tools.put(path, "order-1", qty=7)
    with child("contract_receiver.py", inbox) as receiver:
        url = f"http://127.0.0.1:{heard(receiver)}/inbox"
        with child("contract_child.py", "dispatch", path, "first", 100, url) as first:
            assert receiver.stdout.readline() == "committed\n"
            first.send_signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            assert first.stdout.read() == ""
        row = tools.job(path, "order-1")
        assert (row["status"], row["owner"], row["token"]) == ("leased", "first", 1)
        assert tools.look(inbox, "SELECT (SELECT count(*) FROM requests), qty FROM total") == [(1, 7)]

        with child("contract_child.py", "dispatch", path, "early", 1_099, url) as early:
            assert heard(early) is None  # the lease of the dead one still runs
        with child("contract_child.py", "dispatch", path, "second", 1_100, url) as second:
            assert heard(second) == {"id": "order-1", "token": 2, "status": "done"}
        assert receiver.stdout.readline() == "committed\n"
    assert tools.look(inbox, "SELECT id, qty FROM requests") == [("order-1", 7)] * 2
    assert tools.look(inbox, "SELECT id, qty FROM inbox") == [("order-1", 7)]
    assert tools.look(inbox, "SELECT qty FROM total") == [(7,)]
    row = tools.job(path, "order-1")
    assert (row["status"], row["attempts"], row["token"]) == ("done", 2, 2)
