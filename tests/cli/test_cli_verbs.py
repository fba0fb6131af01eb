"""The verbs of an operator: cancel, wait, pause, resume, drain, redrive by filter, purge, and the timeline."""

import asyncio
import contextlib
import json
import os
import pty
import sqlite3
import subprocess
import sys
import time

import pytest

from asyncqueue.queue import Queue

HOSTILE = "\x1b[2J\u202egnp.exe\x07\r\n[red]x[/red]"
QUEUE_KEYS = {
    *("queue", "paused", "pending", "leased", "done", "dead"),
    *("ready", "expired", "lag_ms", "next_due_ms"),
}


def _lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def _on(db, work):
    """Run `work(queue)` on an open queue and return its result."""

    async def run():
        async with Queue.open(db) as queue:
            return await work(queue)

    return asyncio.run(run())


@pytest.fixture
def mixed(db):
    """One job in each status: pending p, leased l, done o, dead d and e (of queue mail, with a hostile error)."""

    async def fill(queue):
        for job_id, name in (("l", "q"), ("o", "r"), ("d", "default"), ("e", "mail")):
            await queue.enqueue(job_id, 1, queue=name)
            (leased,) = await queue.claim("w", queues=[name])
            if job_id == "o":
                await queue.finish(leased, "ok")
            if job_id in "de":
                await queue.finish(leased, "permanent", error=HOSTILE)
        await queue.enqueue("p", 1)

    _on(db, fill)
    return db


def _status(run, db, job_id: str) -> str:
    return json.loads(run("job", "show", db, job_id, "--json").stdout)["status"]


# --- job cancel ----------------------------------------------------------------------------------------


def test_cancel_ends_a_pending_job_at_once_and_says_so(run, mixed):
    ended = run("job", "cancel", mixed, "p")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "p: cancelled\n", "")
    row = json.loads(run("job", "show", mixed, "p", "--json").stdout)
    assert (row["status"], row["reason"]) == ("dead", "cancelled")


def test_cancel_of_a_leased_job_says_that_its_holder_learns_later(run, mixed):
    ended = run("job", "cancel", mixed, "l")
    assert ended.returncode == 0
    assert ended.stdout == "l: cancelled; it was leased: its holder learns of it at its next renewal\n"
    shown = run("job", "show", mixed, "l").stdout
    assert "cancelled while it was leased" in shown


@pytest.mark.parametrize(
    ("job_id", "words"), [("o", "o (done already)"), ("d", "d (dead already)"), ("x", "x (no such job)")]
)
def test_cancel_of_a_job_that_has_ended_or_never_was_is_one_line_and_exit_1(run, said, mixed, job_id, words):
    before = run("job", "list", mixed, "--json").stdout
    said(run("job", "cancel", mixed, job_id), 1, words)
    assert run("job", "list", mixed, "--json").stdout == before


def test_cancel_of_several_does_what_it_can_and_tells_each_in_json(run, said, mixed):
    ended = run("job", "cancel", mixed, "p", "o", "x", "p", "l", "--json")
    said(ended, 1, "2 of 4", "o (done already), x (no such job)")
    assert _lines(ended.stdout) == [
        {"id": "p", "cancelled": True, "before": "pending"},
        {"id": "o", "cancelled": False, "before": "done"},
        {"id": "x", "cancelled": False, "before": None},
        {"id": "l", "cancelled": True, "before": "leased"},
    ]


# --- job show, dlq show --------------------------------------------------------------------------------


def test_show_tells_the_timeline_with_readable_times_and_escaped_errors(run, mixed):
    assert run("dlq", "redrive", mixed, "e", "--note", "fixed", "--actor", "kim").returncode == 0
    text = run("job", "show", mixed, "e").stdout
    assert text.replace("\n", "").isprintable()
    timeline = [line.split() for line in text.split("\n\n")[1].splitlines()]
    assert timeline[0] == ["at", "what", "token", "attempt", "who", "certainty", "http", "detail"]
    assert [line[1:5] for line in timeline[2:]] == [
        ["permanent", "1", "1", "w"],
        ["redrive", "1", "-", "kim"],
    ]
    assert all(line[0].endswith("Z") and line[0].startswith("20") for line in timeline[2:])
    record = json.loads(run("job", "show", mixed, "e", "--json").stdout)
    assert [entry["what"] for entry in record["history"]] == ["permanent", "redrive"]
    assert set(record["history"][0]) == {
        *("at_ms", "what", "token", "attempt", "who", "certainty", "detail", "http_status")
    }


def test_errors_that_another_program_stored_are_escaped_in_the_timeline(run, mixed):
    import sqlite3  # noqa: PLC0415 - only here

    connection = sqlite3.connect(mixed)
    connection.execute("UPDATE attempts SET error = ?", (HOSTILE,))
    connection.commit()
    connection.close()
    for verb in (("job", "show"), ("dlq", "show")):
        text = run(*verb, mixed, "e").stdout
        assert text.replace("\n", "").isprintable()
        assert r"\x1b[2J\u202egnp.exe\x07\r\n[red]x[/red]" in text
        assert run(*verb, mixed, "e", "--json").stdout.isascii()


def test_show_of_a_job_without_a_history_says_that(run, mixed):
    assert "timeline: no failed attempt, no redrive" in run("job", "show", mixed, "p").stdout


def test_dlq_show_is_for_dead_jobs(run, said, mixed):
    shown = run("dlq", "show", mixed, "d")
    assert shown.returncode == 0
    assert "permanent" in shown.stdout
    assert json.loads(run("dlq", "show", mixed, "d", "--json").stdout)["reason"] == "permanent"
    said(run("dlq", "show", mixed, "p"), 1, "job p is pending, not dead")
    said(run("dlq", "show", mixed, "x"), 1, "no such job")


# --- job wait ------------------------------------------------------------------------------------------


def test_wait_returns_at_once_for_a_job_that_has_ended(run, said, mixed):
    ended = run("job", "wait", mixed, "o")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "o: done\n", "")
    assert json.loads(run("job", "wait", mixed, "o", "--json").stdout)["status"] == "done"
    dead = run("job", "wait", mixed, "d", "--json")
    said(dead, 1, "job d is dead (permanent)")
    assert json.loads(dead.stdout)["status"] == "dead"


def test_wait_gives_up_after_its_time_and_for_an_unknown_id(run, said, mixed):
    said(run("job", "wait", mixed, "p", "--timeout-ms", 50), 1, "job p has not ended within 50 ms")
    said(run("job", "wait", mixed, "p", "--timeout-ms", 0), 1, "within 0 ms")
    said(run("job", "wait", mixed, "x"), 1, "no such job")


def test_wait_sees_the_end_that_another_process_brings(mixed, environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "job", "wait", str(mixed), "p", "--timeout-ms", "30000"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    async def deliver(queue):
        (leased,) = await queue.claim("w", queues=["default"])
        await queue.finish(leased, "ok")

    _on(mixed, deliver)
    out, err = process.communicate(timeout=40)
    assert (process.returncode, out, err) == (0, b"p: done\n", b"")


# --- queue ---------------------------------------------------------------------------------------------


def test_queue_list_tells_counts_pause_and_lag(run, mixed):
    run("queue", "pause", mixed, "q")
    records = {record["queue"]: record for record in _lines(run("queue", "list", mixed, "--json").stdout)}
    assert list(records) == ["default", "mail", "q", "r"]
    assert all(set(record) == QUEUE_KEYS for record in records.values())
    assert (records["default"]["pending"], records["default"]["dead"], records["default"]["ready"]) == (1, 1, 1)
    assert records["default"]["lag_ms"] >= 0
    assert (records["q"]["paused"], records["q"]["leased"], records["q"]["lag_ms"]) == (True, 1, None)
    table = [line.split() for line in run("queue", "list", mixed).stdout.splitlines()]
    assert table[0] == ["queue", "paused", "pending", "leased", "done", "dead", "lag"]
    assert ["q", "yes", "0", "1", "0", "0", "-"] in table
    assert next(line for line in table if line[0] == "default")[-1] == "s"


def test_queue_stats_of_one_and_of_all(run, said, mixed):
    one = json.loads(run("queue", "stats", mixed, "mail", "--json").stdout)
    assert set(one) == QUEUE_KEYS
    assert (one["queue"], one["dead"], one["pending"]) == ("mail", 1, 0)
    assert ["dead", "1"] in [line.split() for line in run("queue", "stats", mixed, "mail").stdout.splitlines()]
    assert run("queue", "stats", mixed).stdout.splitlines()[0] == run("stats", mixed).stdout.splitlines()[0]
    assert json.loads(run("queue", "stats", mixed, "--json").stdout)["total"] == 5
    said(run("queue", "stats", mixed, "nowhere"), 1, "queue nowhere: no such queue")


def test_pause_stops_claims_and_resume_lets_them_go_on(run, said, mixed):
    ended = run("queue", "pause", mixed, "default")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "default: paused\n", "")
    assert _on(mixed, lambda queue: queue.claim("v", queues=["default"])) == []
    ended = run("queue", "resume", mixed, "default", "--json")
    assert json.loads(ended.stdout) == {"queue": "default", "paused": False}
    assert len(_on(mixed, lambda queue: queue.claim("v", queues=["default"]))) == 1
    said(run("queue", "resume", mixed, "nowhere"), 1, "no such queue")


def test_a_queue_can_be_paused_before_its_first_job(run, mixed):
    ended = run("queue", "pause", mixed, "new")
    assert (ended.returncode, ended.stdout) == (0, "new: paused\n")
    assert ended.stderr == "asyncqueue: note: no job has used the queue new so far\n"
    assert run("queue", "resume", mixed, "new").returncode == 0


def test_drain_of_an_empty_queue_returns_at_once(run, mixed):
    ended = run("queue", "drain", mixed, "r", "mail", "r")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "r: no live job\nmail: no live job\n", "")
    found = json.loads(run("queue", "drain", mixed, "r", "--json").stdout)
    assert found == {"drained": True, "live": {"r": 0}}


def test_drain_gives_up_after_its_time_and_names_what_is_left(run, said, mixed):
    ended = run("queue", "drain", mixed, "default", "q", "r", "--timeout-ms", 100, "--json")
    said(ended, 1, "not drained within 100 ms: default, q")
    assert json.loads(ended.stdout) == {"drained": False, "live": {"default": 1, "q": 1, "r": 0}}
    said(run("queue", "drain", mixed, "nowhere"), 1, "no such queue")
    said(run("queue", "drain", mixed, "default", "--timeout-ms", 0), 1, "within 0 ms")


def test_drain_of_a_paused_queue_tells_why_it_waits(run, mixed):
    run("queue", "pause", mixed, "default")
    ended = run("queue", "drain", mixed, "default", "--timeout-ms", 50)
    assert ended.returncode == 1
    assert ended.stderr.startswith("asyncqueue: note: queue default is paused")


def test_drain_shows_its_progress_on_a_terminal_and_ends_when_the_last_job_does(mixed, environment):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "queue", "drain", str(mixed), "default", "--timeout-ms", "30000"],
        env={**environment, "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    until = time.monotonic() + 30
    while b"1 live" not in seen:
        assert time.monotonic() < until, seen
        seen += os.read(ours, 4096)

    async def deliver(queue):
        (leased,) = await queue.claim("w", queues=["default"])
        await queue.finish(leased, "ok")

    _on(mixed, deliver)
    out, _err = process.communicate(timeout=40)
    os.close(ours)
    assert (process.returncode, out) == (0, b"default: no live job\n")


# --- dlq list and redrive by filter --------------------------------------------------------------------


@pytest.fixture
def dead(db):
    """Dead jobs a1 and a2 of queue mail, b1 of queue web (cancelled), kinds k1, k2, k1."""

    async def fill(queue):
        for job_id, name, kind in (("a1", "mail", "k1"), ("a2", "mail", "k2"), ("b1", "web", "k1")):
            await queue.enqueue(job_id, 1, queue=name, kind=kind)
        for leased in await queue.claim("w", limit=2, queues=["mail"]):
            await queue.finish(leased, "permanent", error="no")
        await queue.cancel("b1")

    _on(db, fill)
    return db


FILTERS = [
    (("--queue", "mail"), ["a1", "a2"]),
    (("--kind", "k1"), ["a1", "b1"]),
    (("--reason", "cancelled"), ["b1"]),
    (("--id-prefix", "a"), ["a1", "a2"]),
    (("--older-than-ms", "3600000"), []),
    (("--queue", "mail", "--kind", "k1", "--reason", "permanent", "--id-prefix", "a1"), ["a1"]),
]


@pytest.mark.parametrize(("filters", "ids"), FILTERS, ids=str)
def test_list_dry_run_and_redrive_mean_the_same_jobs(run, dead, filters, ids):
    listed = run("dlq", "list", dead, *filters, "--json")
    assert [job["id"] for job in _lines(listed.stdout)] == ids
    before = run("job", "list", dead, "--json").stdout
    dry = run("dlq", "redrive", dead, *filters, "--note", "n", "--dry-run")
    assert (dry.returncode, dry.stdout, dry.stderr) == (0, f"{len(ids)} dead jobs would be redriven\n", "")
    assert run("job", "list", dead, "--json").stdout == before
    ended = run("dlq", "redrive", dead, *filters, "--note", "n", "--actor", "kim", "--json")
    assert ended.returncode == 0
    assert json.loads(ended.stdout) == {"redriven": len(ids), "matched": len(ids), "dry_run": False}
    pending = run("job", "list", dead, "--status", "pending", "--json")
    assert [job["id"] for job in _lines(pending.stdout)] == ids


def test_the_list_is_limited_and_tells_how_to_go_on(run, dead):
    page = run("dlq", "list", dead, "--limit", 1, "--json")
    assert [job["id"] for job in _lines(page.stdout)] == ["a1"]
    assert "continue with --after" in page.stderr


def test_redrive_of_all_needs_to_be_said_and_can_be_paced(run, dead):
    began_at = time.monotonic()
    ended = run("dlq", "redrive", dead, "--all", "--note", "n", "--ttl-ms", 5_000_000, "--rate", "1.5")
    assert (ended.returncode, ended.stdout) == (0, "3 dead jobs redriven\n")
    assert time.monotonic() - began_at >= 3 / 1.5 - 0.7  # the first goes at once
    row = json.loads(run("job", "show", dead, "a1", "--json").stdout)
    assert 0 < row["deadline"] - row["available_at"] <= 5_000_000
    assert row["history"][-1]["detail"] == "n"


def test_a_dry_run_by_id_names_what_is_not_dead_and_changes_nothing(run, said, dead):
    run("enqueue", dead, "alive", 1)
    before = run("job", "list", dead, "--json").stdout
    ended = run("dlq", "redrive", dead, "a1", "alive", "--note", "n", "--dry-run")
    assert ended.stdout == ("a1: would be redriven\nalive: pending, left alone\n1 of 2 jobs would be redriven\n")
    said(ended, 1, "alive (pending)")
    assert run("job", "list", dead, "--json").stdout == before


# --- purge ---------------------------------------------------------------------------------------------


def test_purge_of_all_needs_to_be_said_warns_and_keeps_the_rest(run, mixed):
    ended = run("purge", mixed, "--status", "dead", "--older-than-ms", 0, "--all", "--limit", 1)
    assert (ended.returncode, ended.stdout) == (0, "1 dead jobs purged\n")
    assert ended.stderr.startswith("asyncqueue: warning: 0 ms is below the dedup horizon of 604800000 ms")
    assert len(ended.stderr.splitlines()) == 1
    ended = run("purge", mixed, "--status", "done", "--older-than-ms", 0, "--all", "--json")
    assert json.loads(ended.stdout) == {"status": "done", "older_than_ms": 0, "purged": 1}
    left = _lines(run("job", "list", mixed, "--json").stdout)
    assert sorted(job["status"] for job in left) == ["dead", "leased", "pending"]


def test_purge_beyond_the_horizon_is_quiet_and_leaves_young_jobs(run, mixed):
    ended = run("purge", mixed, "--status", "done", "--older-than-ms", 604_800_000)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0 done jobs purged\n", "")
    assert _status(run, mixed, "o") == "done"


# --- enqueue and dispatch options ----------------------------------------------------------------------


def test_max_pending_refuses_a_job_and_counts_refused_lines(run, said, db, tmp_path):
    source = "".join(f'{{"id":"j{n}","qty":1}}\n' for n in range(5)) + '{"id":"j0","qty":1}\n'
    ended = run("enqueue", db, "--file", "-", "--max-pending", 3, "--rejects", "r.jsonl", stdin=source)
    assert ended.returncode == 1
    first = "6 lines: 3 new, 1 duplicate, 0 conflict, 0 invalid, 2 refused by --max-pending"
    assert ended.stdout.splitlines()[0] == first
    assert [line["line"] for line in _lines((tmp_path / "r.jsonl").read_text())] == [4, 5]
    said(run("enqueue", db, "j9", 1, "--max-pending", 3), 1, "3")
    record = json.loads(run("enqueue", db, "--file", "-", "--max-pending", 3, "--json", stdin=source).stdout)
    assert (record["new"], record["duplicate"], record["full"]) == (0, 4, 2)
    assert {refusal["kind"] for refusal in record["rejects"]} == {"full"}
    assert run("enqueue", db, "j9", 1, "--max-pending", 4).returncode == 0


def _journal(db) -> str:
    import sqlite3  # noqa: PLC0415 - only here

    connection = sqlite3.connect(db)
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()
    return mode


def test_a_wal_file_stays_one_whoever_looks_or_adds(run, db, serve):
    assert run("enqueue", db, "a", 1, "--journal", "wal", "--force-wal").returncode == 0
    assert _journal(db) == "wal"
    verbs = [
        *(("stats", db), ("queue", "list", db), ("job", "cancel", db, "b"), ("job", "show", db, "a")),
        *(("enqueue", db, "b", 1), ("enqueue", db, "c", 1, "--journal", "keep"), ("dlq", "list", db)),
    ]
    for verb in verbs:
        assert "error: /" not in run(*verb).stderr
        assert _journal(db) == "wal"
    url = serve()
    assert run("dispatch", db, url, "--drain").returncode == 0
    assert _journal(db) == "wal"
    options = ("--journal", "wal", "--force-wal", "--late", "accept", "--history", "all", "--processes", 2)
    run("enqueue", db, "z", 1)
    assert run("dispatch", db, url, "--drain", *options).returncode == 0
    history = json.loads(run("job", "show", db, "z", "--json").stdout)["history"]
    assert [entry["what"] for entry in history] == ["ok"]
    assert run("dispatch", db, url, "--drain", "--journal", "delete").returncode == 0
    assert _journal(db) == "delete"


def test_reading_makes_no_new_file(run, mixed):
    before = sorted(path.name for path in mixed.parent.iterdir())
    for verb in (("stats", mixed), ("queue", "list", mixed), ("queue", "stats", mixed), ("job", "list", mixed)):
        assert run(*verb).returncode == 0
    for verb in (("job", "show", mixed, "d"), ("dlq", "show", mixed, "d"), ("job", "wait", mixed, "o")):
        assert run(*verb).returncode == 0
    assert sorted(path.name for path in mixed.parent.iterdir()) == before


def test_init_makes_a_queue_and_adopts_a_database_only_when_told(run, said, db, tmp_path):
    assert run("init", db).stdout == f"{db} is a queue\n"
    assert json.loads(run("stats", db, "--json").stdout)["live"] == 0
    service = str(tmp_path / "service.db")
    with contextlib.closing(sqlite3.connect(service)) as connection:
        connection.execute("CREATE TABLE orders (id)")
    said(run("init", service), 2, "not a queue", "asyncqueue init --adopt")
    assert json.loads(run("init", service, "--adopt", "--json").stdout) == {"db": service}
    assert run("enqueue", service, "a", 1).returncode == 0
