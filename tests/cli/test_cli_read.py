"""The reading commands: JSON that parses with stable keys, tables that no stored text can break."""

import asyncio
import json
import sqlite3

import pytest

from asyncqueue.clock import time_text
from asyncqueue.queue import Queue

JOB_KEYS = {
    "seq",
    "id",
    "qty",
    "status",
    "attempts",
    "max_attempts",
    "token",
    "available_at",
    "deadline",
    "owner",
    "lease_until",
    "reason",
    "queue",
    "kind",
    "payload",
    "priority",
    "created_at",
    "finished_at",
    "last_error",
}
HOSTILE = "\x1b[2J\u202egnp.exe\x07\r\n[red]x[/red] :smile:"


def _lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


async def _kill(db, *ids: str, error: str = "no") -> None:
    async with Queue.open(db) as queue:
        for job_id in ids:
            await queue.enqueue(job_id, 1)
        for ticket in await queue.claim("w", limit=len(ids)):
            await queue.finish(ticket, "permanent", error=error)


@pytest.fixture
def dead(db):
    asyncio.run(_kill(db, "d1", "d2", error=HOSTILE))
    return db


def test_a_job_goes_in_once_and_json_says_so(run, db):
    first = run("enqueue", db, "a", 3, "--payload", '{"x": [1, 1.0, "é"]}', "--json")
    again = run("enqueue", db, "a", 3, "--payload", '{"x":[1,1.0,"\\u00e9"]}', "--json")
    assert (first.returncode, again.returncode) == (0, 0)
    assert json.loads(first.stdout) == {"id": "a", "qty": 3, "result": "new"}
    assert json.loads(again.stdout) == {"id": "a", "qty": 3, "result": "duplicate"}
    assert first.stdout.isascii()
    assert run("enqueue", db, "b", 1).stdout == "b: enqueued\n"
    assert run("enqueue", db, "b", 1).stdout == "b: is there already, unchanged\n"


def test_every_option_of_enqueue_reaches_the_row(run, db):
    options = ("--queue", "q", "--kind", "k", "--priority", -7, "--max-attempts", 3, "--ttl-ms", 90_000)
    assert run("enqueue", db, *options, "--delay-ms", 60_000, "--", "-a", 3).returncode == 0
    job = json.loads(run("job", "show", db, "--json", "--", "-a").stdout)
    assert set(job) == JOB_KEYS | {"history"}
    assert {key: job[key] for key in ("id", "qty", "queue", "kind", "priority", "max_attempts", "payload")} == {
        "id": "-a",
        "qty": 3,
        "queue": "q",
        "kind": "k",
        "priority": -7,
        "max_attempts": 3,
        "payload": None,
    }
    assert job["deadline"] - job["available_at"] == 30_000


def test_stats_as_json_and_as_a_table(run, db):
    run("enqueue", db, "a", 1, "--queue", "mail")
    run("enqueue", db, "b", 1)
    ended = run("stats", db, "--json")
    record = json.loads(ended.stdout)
    assert ended.stderr == ""
    assert set(record) == {
        "pending",
        "leased",
        "done",
        "dead",
        "ready",
        "expired",
        "lag_ms",
        "next_due_ms",
        "paused",
        "redrives",
        "queues",
        "live",
        "total",
        "details",
    }
    assert record["queues"]["mail"] == {"pending": 1, "leased": 0, "done": 0, "dead": 0}
    assert (record["live"], record["total"]) == (2, 2)
    table = run("stats", db).stdout.splitlines()
    assert table[0].split() == ["queue", "pending", "leased", "done", "dead", "total"]
    assert ["all", "2", "0", "0", "0", "2"] in [line.split() for line in table]
    assert not any(line.endswith(" ") for line in table)


def test_lists_are_paged_and_filtered(run, db):
    source = "".join(f'{{"id":"j{n}","qty":1,"kind":"k{n % 2}"}}\n' for n in range(6))
    run("enqueue", db, "--file", "-", stdin=source)
    page = run("job", "list", db, "--limit", 4, "--json")
    jobs = _lines(page.stdout)
    assert [job["id"] for job in jobs] == ["j0", "j1", "j2", "j3"]
    assert page.stderr == f"asyncqueue: note: the page is full: continue with --after {jobs[-1]['seq']}\n"
    rest = run("job", "list", db, "--limit", 4, "--after", jobs[-1]["seq"], "--json")
    assert [job["id"] for job in _lines(rest.stdout)] == ["j4", "j5"]
    assert rest.stderr == ""
    odd = run("job", "list", db, "--kind", "k1", "--status", "pending", "--queue", "default", "--json")
    assert [job["id"] for job in _lines(odd.stdout)] == ["j1", "j3", "j5"]
    assert run("job", "list", db, "--status", "dead", "--json").stdout == ""


def test_dead_letters_are_listed_and_redriven_with_an_audit(run, dead):
    run("enqueue", dead, "alive", 1)
    listed = run("dlq", "list", dead, "--reason", "permanent", "--json")
    assert [job["id"] for job in _lines(listed.stdout)] == ["d1", "d2"]
    assert run("dlq", "list", dead, "--reason", "exhausted", "--json").stdout == ""
    ended = run("dlq", "redrive", dead, "d1", "d1", "--note", "fixed", "--actor", "kim", "--json")
    assert ended.returncode == 0
    assert _lines(ended.stdout) == [{"id": "d1", "redriven": True, "error": None}]
    row = json.loads(run("job", "show", dead, "d1", "--json").stdout)
    assert (row["status"], row["attempts"], row["token"]) == ("pending", 0, 1)
    with sqlite3.connect(dead) as connection:
        assert connection.execute("SELECT id, note FROM redrives").fetchall() == [("d1", "fixed")]
    connection.close()


def test_a_redrive_of_some_that_are_not_dead_does_the_rest_and_exits_1(run, dead):
    run("enqueue", dead, "alive", 1)
    ended = run("dlq", "redrive", dead, "alive", "d2", "nowhere", "--note", "fixed")
    assert ended.returncode == 1
    assert ended.stdout == (
        "alive: pending, left alone\nd2: redriven\nnowhere: does not exist, left alone\n1 of 3 jobs redriven\n"
    )
    assert ended.stderr == (
        "asyncqueue: error: 2 of 3 jobs do not exist or are not dead: alive (pending), nowhere (does not exist)\n"
    )
    assert json.loads(run("stats", dead, "--json").stdout)["redrives"] == 1


@pytest.mark.parametrize(
    "arguments", [("job", "list"), ("dlq", "list"), ("job", "show", "DB", "d1")], ids=" ".join
)
def test_stored_text_cannot_speak_to_the_terminal(run, dead, arguments):
    arguments = arguments if "DB" in arguments else (*arguments, "DB")
    connection = sqlite3.connect(dead)
    connection.execute("UPDATE jobs SET last_error = ?, kind = ?, queue = ?", (HOSTILE, HOSTILE, HOSTILE))
    connection.commit()
    connection.close()
    plain = [dead if word == "DB" else word for word in arguments]
    text = run(*plain).stdout
    assert text.replace("\n", "").isprintable()
    assert r"\x1b[2J\u202egnp.exe\x07\r\n[red]x[/red] :smile:" in text
    as_json = run(*plain, "--json").stdout
    assert as_json.isascii()
    assert as_json.replace("\n", "").isprintable()
    assert _lines(as_json)[0]["last_error"] == HOSTILE


def test_stats_escapes_queue_names_too(run, dead):
    connection = sqlite3.connect(dead)
    connection.execute("UPDATE jobs SET queue = ?", (HOSTILE,))
    connection.commit()
    connection.close()
    assert "\x1b" not in run("stats", dead).stdout


def test_reading_changes_no_row(run, db):
    run("enqueue", db, "a", 1)
    before = db.read_bytes()
    for arguments in (("stats",), ("job", "list"), ("dlq", "list"), ("job", "show", db, "a")):
        assert run(*arguments, *([] if db in arguments else [db])).returncode == 0
    assert db.read_bytes() == before


def test_times_outside_the_calendar_are_shown_as_numbers():
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(None) is None
    assert time_text(10**15) == str(10**15)
    assert time_text(-1) == "-1"
