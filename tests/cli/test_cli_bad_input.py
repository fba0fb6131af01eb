"""Everything a user can get wrong: one line on stderr, exit code 2, nothing changed, no traceback."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys

import pytest

from asyncqueue.queue import Queue

READERS = [
    ("stats",),
    ("job", "list"),
    ("job", "show", "DB", "a"),
    ("dlq", "list"),
    ("dlq", "show", "DB", "a"),
    ("dlq", "redrive", "DB", "a", "--note", "n"),
    ("dlq", "redrive", "DB", "--all", "--note", "n", "--dry-run"),
    ("queue", "list"),
    ("queue", "stats"),
    ("queue", "stats", "DB", "q"),
    ("queue", "pause", "DB", "q"),
    ("queue", "resume", "DB", "q"),
    ("queue", "drain", "DB", "q"),
    ("job", "cancel", "DB", "a"),
    ("job", "wait", "DB", "a"),
    ("purge", "DB", "--status", "done", "--older-than-ms", "604800000"),
    ("dispatch", "DB", "http://127.0.0.1:9/"),
    ("dispatch", "DB", "http://127.0.0.1:9/", "--processes", "2"),
]
WRITERS = [*READERS, ("enqueue", "DB", "a", "1")]
_VERBS = {"enqueue", "dispatch", "purge", "redrive", "pause", "resume", "cancel"}
CHANGERS = [words for words in WRITERS if _VERBS & {*words[:2]} and "--dry-run" not in words]


def _with_db(arguments, db):
    if "DB" not in arguments:
        arguments = (*arguments, "DB")
    return [db if argument == "DB" else argument for argument in arguments]


async def _put_in(db) -> None:
    async with Queue.open(db) as queue:
        await queue.enqueue("kept", 1)


def _ids(arguments):
    return " ".join(arguments)


@pytest.mark.parametrize("arguments", READERS, ids=_ids)
def test_a_missing_file_is_named_and_not_created(run, said, db, tmp_path, arguments):
    said(run(*_with_db(arguments, db)), 2, "jobs.db", "no such file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", READERS, ids=_ids)
def test_an_empty_file_is_not_turned_into_a_queue(run, said, db, tmp_path, arguments):
    db.touch()
    said(run(*_with_db(arguments, db)), 2, "jobs.db", "empty file")
    assert db.stat().st_size == 0
    assert list(tmp_path.iterdir()) == [db]


@pytest.mark.parametrize("arguments", WRITERS, ids=_ids)
def test_a_directory_is_refused(run, said, db, arguments):
    db.mkdir()
    said(run(*_with_db(arguments, db)), 2, "not a regular file")
    assert list(db.iterdir()) == []


@pytest.mark.parametrize("arguments", WRITERS, ids=_ids)
def test_a_file_that_is_no_database_is_left_as_it_was(run, said, db, arguments):
    content = b"these are not the bytes of a database, but of a letter to a friend\n" * 20
    db.write_bytes(content)
    said(run(*_with_db(arguments, db)), 2, "not a queue")
    assert db.read_bytes() == content


@pytest.mark.parametrize("arguments", WRITERS, ids=_ids)
def test_a_database_of_something_else_is_left_as_it_was(run, said, db, arguments):
    with sqlite3.connect(db) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    before = db.read_bytes()
    said(run(*_with_db(arguments, db)), 2, "not a queue")
    assert db.read_bytes() == before


@pytest.mark.parametrize("arguments", WRITERS, ids=_ids)
def test_a_newer_schema_is_refused_in_words(run, said, db, arguments):
    asyncio.run(_put_in(db))
    connection = sqlite3.connect(db)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = db.read_bytes()
    said(run(*_with_db(arguments, db)), 2, "schema 99 is newer", "upgrade")
    assert db.read_bytes() == before


@pytest.mark.parametrize("arguments", CHANGERS, ids=_ids)
def test_a_read_only_file_is_refused_by_what_changes_it(run, said, db, arguments):
    asyncio.run(_put_in(db))
    db.chmod(0o400)
    before = db.read_bytes()
    said(run(*_with_db(arguments, db)), 2, "read-only")
    assert db.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("bogus",), "No such command"),
        (("stats", "DB", "--bogus"), "--bogus"),
        (("stats",), "DB"),
        (("job",), None),
        (("job", "list", "DB", "--status", "sleeping"), "sleeping"),
        (("job", "list", "DB", "--reason", "boredom"), "boredom"),
        (("job", "list", "DB", "--limit", "0"), "limit"),
        (("job", "list", "DB", "--limit", "10001"), "limit"),
        (("job", "list", "DB", "--limit", "ten"), "ten"),
        (("job", "list", "DB", "--after", "1.5"), "1.5"),
        (("job", "show", "DB", "a b"), "id must be"),
        (("dlq", "redrive", "DB", "a"), "--note"),
        (("dlq", "redrive", "DB", "a", "--note", "two words"), "note must be"),
        (("dlq", "redrive", "DB", "a", "b!", "--note", "n"), "id must be"),
        (("dlq", "redrive", "DB", "a", "--note", "n", "--actor", ""), "actor"),
        (("dlq", "redrive", "DB", "a", "--note", "n", "--ttl-ms", "0"), "ttl_ms"),
        (("dlq", "redrive", "DB", "--note", "n"), "--all"),
        (("dlq", "redrive", "DB", "--note", "n", "--older-than-ms", "0"), "--all"),
        (("dlq", "redrive", "DB", "a", "--all", "--note", "n"), "either IDs"),
        (("dlq", "redrive", "DB", "a", "--queue", "q", "--note", "n"), "either IDs"),
        (("dlq", "redrive", "DB", "a", "--rate", "5", "--note", "n"), "--rate"),
        (("dlq", "redrive", "DB", "--all", "--kind", "k", "--note", "n"), "not both"),
        (("dlq", "redrive", "DB", "--all", "--rate", "0", "--note", "n"), "rate must be"),
        (("dlq", "redrive", "DB", "--all", "--rate", "nan", "--note", "n"), "rate must be"),
        (("dlq", "redrive", "DB", "--id-prefix", "", "--note", "n"), "id_prefix must be"),
        (("dlq", "redrive", "DB", "--queue", "a b", "--note", "n"), "queue must be"),
        (("dlq", "redrive", "DB", "--reason", "bored", "--note", "n"), "bored"),
        (("dlq", "list", "DB", "--older-than-ms", "-1"), "older_than_ms"),
        (("dlq", "list", "DB", "--kind", b"\xff"), "kind must be"),
        (("job", "list", "DB", "--id-prefix", "a%"), "id_prefix must be"),
        (("dlq", "show", "DB", "a b"), "id must be"),
        (("job", "cancel", "DB"), "ID"),
        (("job", "cancel", "DB", "kept", "a b"), "id must be"),
        (("job", "wait", "DB", "a b"), "id must be"),
        (("job", "wait", "DB", "kept", "--timeout-ms", "-1"), "timeout_ms"),
        (("queue", "pause", "DB", "a b"), "NAME must be"),
        (("queue", "resume", "DB", ""), "NAME must be"),
        (("queue", "stats", "DB", b"\xff"), "NAME must be"),
        (("queue", "drain", "DB"), "NAME"),
        (("queue", "drain", "DB", "default", "b!"), "NAME must be"),
        (("queue", "drain", "DB", "default", "--timeout-ms", "-1"), "timeout-ms"),
        (("purge", "DB", "--older-than-ms", "9"), "--status"),
        (("purge", "DB", "--status", "done"), "--older-than-ms"),
        (("purge", "DB", "--status", "pending", "--older-than-ms", "9"), "pending"),
        (("purge", "DB", "--status", "done", "--older-than-ms", "0"), "--all"),
        (("purge", "DB", "--status", "done", "--older-than-ms", "-1"), "older-than-ms"),
        (("purge", "DB", "--status", "done", "--older-than-ms", "9", "--limit", "0"), "limit"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--late", "never"), "never"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--history", "none"), "none"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--force-wal"), "--journal wal"),
        (("dispatch", "DB"), "URL"),
        (("dispatch", "DB", "not a url"), "http"),
        (("dispatch", "DB", "ftp://127.0.0.1/"), "http"),
        (("dispatch", "DB", "http://"), "host"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--concurrency", "0"), "concurrency"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--processes", "0"), "--processes"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--processes", "65"), "--processes"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--lease-ms", "12000"), "lease_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--lease-ms", "-1"), "lease_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--timeout-ms", "0"), "timeout_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--connect-timeout-ms", "10001"), "connect_timeout_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--ack", "maybe"), "maybe"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--journal", "off"), "off"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--queue", "a b"), "--queue"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--owner-prefix", "a b"), "--owner-prefix"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--retry-base-ms", "0"), "base_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--retry-cap-ms", "1"), "cap_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--grace-ms", "-1"), "grace_ms"),
        (("dispatch", "DB", "http://127.0.0.1:9/", "--poll-ms", "0"), "poll_ms"),
    ],
    ids=str,
)
def test_wrong_usage_changes_nothing(run, said, db, arguments, word):
    asyncio.run(_put_in(db))
    before = db.read_bytes()
    ended = run(*(db if argument == "DB" else argument for argument in arguments))
    if word is None:
        assert ended.returncode == 2
        assert "Commands:" in ended.stderr
    else:
        said(ended, 2, word)
    assert db.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("a b", "1"), "id must be"),
        (("", "1"), "id must be"),
        (("x" * 65, "1"), "id must be"),
        (("ü", "1"), "id must be"),
        (("a", "0"), "qty must be"),
        (("a", "1000000001"), "qty must be"),
        (("a", "1.0"), "whole number"),
        (("a", "1_0"), "whole number"),
        (("a", "٣"), "whole number"),
        (("a", "9" * 5000), "out of range"),
        (("a", "1" + "0" * 18), "out of range"),
        (("a", "-1"), "-1: no number here may be below 0"),
        (("a", "-25"), "no number here may be below 0"),
        (("a",), "QTY"),
        ((), "QTY"),
        (("a", "1", "--payload", "{"), "not JSON"),
        (("a", "1", "--payload", "NaN"), "NaN"),
        (("a", "1", "--payload", '{"a":1,"a":2}'), "duplicate key"),
        (("a", "1", "--payload", '"\\ud800"'), "payload"),
        (("a", "1", "--payload", "[" * 100_000), "nested too deeply"),
        (("a", "1", "--queue", ""), "queue must be"),
        (("a", "1", "--kind", "a/b"), "kind must be"),
        (("a", "1", "--priority", "40000"), "priority must be"),
        (("a", "1", "--delay-ms", "-5"), "delay_ms must be"),
        (("a", "1", "--delay-ms", "10", "--ttl-ms", "10"), "below ttl_ms"),
        (("a", "1", "--max-attempts", "0"), "max_attempts must be"),
        (("a", "1", "--rejects", "r"), "--file"),
        (("a", "1", "--file", "-"), "not both"),
        (("--file", "-", "--payload", "1"), "not both"),
        (("--file", "-", "--ttl-ms", "0"), "ttl_ms must be"),
        (("a", "1", "--max-pending", "0"), "max-pending"),
        (("a", "1", "--force-wal"), "--journal wal"),
        (("--file", "-", "--rejects", "r", "--max-pending", "-1"), "max-pending"),
        (("--file", "-", "--rejects", "r", "--journal", "off"), "off"),
        (("--file", "missing.jsonl"), "missing.jsonl"),
        (("--file", "."), "directory"),
        (("--file", "-", "--rejects", "no/such/folder"), "check the path"),
        (("--file", "-", "--rejects", "jobs.db"), "overwrite"),
        (("--file", "-", "--rejects", "jobs.db-journal"), "overwrite"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_job_does_not_even_create_the_file(run, said, db, arguments, word):
    said(run("enqueue", db, *arguments), 2, word)
    assert list(db.parent.iterdir()) == []


def test_enqueue_into_a_folder_that_does_not_exist_is_refused(run, said, tmp_path):
    said(run("enqueue", tmp_path / "no" / "jobs.db", "a", 1), 2, "folder")


def test_memory_is_refused_in_words(run, said):
    said(run("stats", ":memory:"), 2, "path")


def test_a_server_that_cannot_be_reached_is_named_without_its_password(run, said):
    ended = run("stats", "postgresql://user:secret@127.0.0.1:1/db?patience_ms=100")
    assert "secret" not in ended.stderr
    said(ended, ended.returncode, "127.0.0.1:1")
    assert ended.returncode in (1, 2)


def test_rejects_never_overwrite_their_input(run, said, db, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"id":"a","qty":1}\n')
    (tmp_path / "link").symlink_to(source)
    said(run("enqueue", db, "--file", source, "--rejects", tmp_path / "link"), 2, "overwrite")
    assert source.read_text() == '{"id":"a","qty":1}\n'
    assert not db.exists()


def test_control_characters_of_an_argument_are_escaped_in_the_error(run, said):
    said(run("stats", "\x1b[31mred\u202e"), 2, r"\x1b", r"\u202e")
    said(run("\x1b[2J"), 2, r"\x1b")


def test_a_conflict_is_a_failure_that_names_the_fields(run, said, db):
    assert run("enqueue", db, "a", 1).returncode == 0
    before = run("job", "list", db, "--json").stdout
    said(run("enqueue", db, "a", 2, "--payload", "{}"), 1, "job a", "qty", "payload")
    assert run("job", "list", db, "--json").stdout == before


def test_a_job_that_is_not_there_is_a_failure(run, said, db):
    run("enqueue", db, "a", 1)
    said(run("job", "show", db, "b"), 1, "job b", "no such job")


def test_a_reader_that_leaves_is_not_our_error(db, run, environment):
    source = "".join(f'{{"id":"j{n}","qty":1}}\n' for n in range(5000))
    assert run("enqueue", db, "--file", "-", stdin=source).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "job", "list", str(db), "--limit", "5000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout.readline().startswith(b'{"seq"')
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait(20) == 141


def test_ctrl_c_while_the_command_line_is_being_loaded_ends_with_130_and_no_traceback(environment):
    interrupted = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from asyncqueue.__main__ import main; sys.argv = ['asyncqueue', 'stats', 'jobs.db']; main()"
    )
    command = [sys.executable, "-c", interrupted]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_ctrl_c_while_standard_input_is_silent_ends_with_130(db, environment):
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncqueue", "enqueue", str(db), "--file", "-"],
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(reading)
    os.write(writing, b'{"id":"a","qty":1}\n' * 2_500)  # more than a set, less than a pipe holds
    while not db.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=20)
    os.close(writing)
    assert process.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [("stats",), ("enqueue", "DB", "a", "1"), ("dispatch", "DB", "http://127.0.0.1:9/")]
)
@pytest.mark.parametrize("size", [100, 4_096, 6_000])
def test_a_truncated_queue_is_a_failure_not_wrong_usage(run, said, db, arguments, size):
    asyncio.run(_put_in(db))
    os.truncate(db, size)
    said(run(*_with_db(arguments, db)), 1, "jobs.db", "damaged")


def test_a_port_in_use_is_bad_input(run, said):
    from asyncqueue.cli import failure  # noqa: PLC0415 - the mapping itself is what is tested

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        with pytest.raises(OSError) as caught:
            two.bind(one.getsockname())
    assert failure._told(caught.value) == 2
