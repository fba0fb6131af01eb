"""The line writer, the tally and the supervisor's command: the parts that processes alone would not corner."""

import inspect
import json
import os

from asyncqueue.cli import output
from asyncqueue.cli.app import cli
from asyncqueue.cli.dispatch import dispatch
from asyncqueue.cli.failure import _only
from asyncqueue.cli.output import LineWriter
from asyncqueue.cli.settings import DispatchSettings, child_command
from asyncqueue.cli.view import LiveView, Tally
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import StoreBusy
from asyncqueue.retry import RetryPolicy


def _settled(status, error=""):
    return {"event": "settled", "id": "a", "status": status, "error": error}


def test_lines_arrive_whole_and_in_order():
    reading, writing = os.pipe()
    with LineWriter(writing) as writer:
        for n in range(50):
            writer.put(json.dumps({"n": n, "text": "x" * 300}))
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert [json.loads(line)["n"] for line in lines] == list(range(50))


def test_a_full_pipe_never_blocks_and_the_dropped_lines_are_counted(monkeypatch):
    monkeypatch.setattr(output, "_WAITING_MAX", 10)
    reading, writing = os.pipe()
    writer = LineWriter(writing)
    total = 200
    for _ in range(total):
        writer.put("x" * 4_000)
    with os.fdopen(reading) as lines:
        for _ in range(5):
            assert lines.readline() == "x" * 4_000 + "\n"
        while writer._waiting:
            lines.readline()
        writer.put("last")
        writer.close()
        os.close(writing)
        rest = lines.read().splitlines()
    assert rest[-1] == "last"
    assert json.loads(rest[-2])["event"] == "events_dropped"
    assert 0 < json.loads(rest[-2])["count"] < total


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with LineWriter(writing) as writer:
        for _ in range(100):
            writer.put("x" * 1_000)
    os.close(writing)
    assert writer._gone
    assert not writer._waiting


def test_the_tally_follows_the_events_of_several_dispatchers():
    tally = Tally()
    for source in ("0", "1"):
        tally.feed({"event": "started", "owner": f"owner{source}"}, source)
        tally.feed({"event": "claimed", "count": 5, "in_flight": 5}, source)
    for status in ("done", "dead", "pending", None):
        tally.feed(_settled(status), "0")
    tally.feed({"event": "lease_lost", "id": "a", "why": "taken"}, "1")
    tally.feed({"event": "released", "count": 2}, "1")
    assert (tally.claimed, tally.done, tally.dead, tally.retried, tally.unsettled) == (10, 1, 1, 1, 1)
    assert (tally.lost, tally.released, tally.sending) == (1, 2, 5)
    assert tally.owners == {"0": "owner0", "1": "owner1"}
    tally.gone("1")
    assert tally.sending == 1
    tally.feed({"event": "stopped"}, "0")
    assert tally.sending == 0


def test_trouble_is_shown_escaped_until_it_is_over(capsys):
    tally = Tally()
    view = LiveView("test", tally, total=10)
    tally.feed(_settled("pending", "\x1b[31m\u202e[bold]boom"))
    with view:
        pass
    shown = capsys.readouterr().out
    assert r"\x1b[31m\u202e[bold]boom" in shown
    assert "\x1b[31m" not in shown
    tally.feed({"event": "chore_failed", "chore": "claim", "error": "disk full", "pause_ms": 100})
    assert tally.trouble == "claim: disk full (tried again in 100 ms)"
    tally.feed({"event": "held", "pause_ms": 5, "error": "401"})
    assert tally.trouble == "the endpoint rests for 5 ms: 401"
    tally.feed({"event": "chore_recovered"})
    assert tally.trouble == ""


def test_a_childs_command_means_the_same_settings():
    settings = DispatchSettings(
        db="-jobs.db",
        url="http://h/",
        concurrency=3,
        processes=4,
        drain=True,
        lease_ms=9_001,
        timeout_ms=5_002,
        connect_timeout_ms=1_003,
        ack="status",
        queues=("a", "-b"),
        owner_prefix="-p",
        retry_base_ms=4,
        retry_cap_ms=5,
        grace_ms=6,
        poll_ms=7,
        journal="wal",
    )
    command = child_command(settings)
    arguments = command[command.index("dispatch") + 1 :]
    context = dispatch.make_context("dispatch", arguments, parent=None, **cli.context_settings)
    assert context.params == {
        **{name: getattr(settings, name) for name in DispatchSettings.__slots__},
        "processes": 1,
        "json_": True,
        "stop_with_stdin": True,
        "supervised": True,
    }


def test_of_several_errors_a_bug_is_never_hidden():
    busy, bug = StoreBusy("busy"), TypeError("bug")
    assert _only(ExceptionGroup("", [ExceptionGroup("", [busy])])) is busy
    assert _only(ExceptionGroup("", [busy, ExceptionGroup("", [bug])])) is bug


def test_the_defaults_of_the_options_are_those_of_the_embedded_api():
    context = dispatch.make_context("dispatch", ["d", "u"], parent=None, **cli.context_settings)
    defaults = DispatchSettings(db="d", url="u")
    assert context.params == {name: getattr(defaults, name) for name in DispatchSettings.__slots__}
    embedded = inspect.signature(Dispatcher).parameters
    for name in ("concurrency", "lease_ms", "poll_ms", "grace_ms", "owner_prefix"):
        assert context.params[name] == embedded[name].default, name
    sending = inspect.signature(HttpSender).parameters
    assert (defaults.timeout_ms, defaults.connect_timeout_ms, defaults.ack) == tuple(
        sending[name].default for name in ("timeout_ms", "connect_timeout_ms", "ack")
    )
    policy = RetryPolicy()
    assert (defaults.retry_base_ms, defaults.retry_cap_ms) == (policy.base_ms, policy.cap_ms)
