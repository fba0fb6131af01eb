"""`python -m receiver` as a real process: bad input, signals, SIGKILL, a full disk."""

import asyncio
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from receiver_tools import (
    CHILD,
    Receiver,
    check_whole,
    chunked,
    get,
    message,
    post,
    read_answer,
    request,
    run_cli,
    running,
    totals_of,
)

from asyncqueue.stores.sqlite.connection import has_wal_reset_bug
from tests.waiting import until

QUEUE = "CREATE TABLE jobs (id TEXT); INSERT INTO jobs VALUES ('a')"
STATEMENTS = ["BEGIN", "KNOWN", "ACCEPT", "LEDGER", "TOTALS_ADD", "COMMIT"]


def other_database(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript(QUEUE)


def newer_inbox(path):
    other_inbox(path)
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("PRAGMA user_version = 2")


def other_inbox(path):
    receiver = Receiver(path)
    receiver.send_signal(signal.SIGTERM)
    receiver.process.wait(20)
    receiver.close()


def folder(path):
    path.mkdir()


def garbage(path):
    path.write_bytes(b"not a database, but long enough to have a header" * 100)


def read_only(path):
    other_inbox(path)
    path.chmod(0o400)


def hard_link(path):
    other_inbox(path)
    path.with_name("second.db").hardlink_to(path)


def half_an_inbox(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript("CREATE TABLE inbox (id); CREATE TABLE ledger (id)")


def look_alike(path):
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript("".join(f"CREATE TABLE {t} (id);" for t in ("inbox", "ledger", "conflicts", "totals")))


def contents(where):
    """Return every file of a folder with its bytes and mode."""
    return {
        path.name: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in where.rglob("*")
        if not path.name.endswith("-gate")
    }


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (other_database, "not an inbox"),
        (newer_inbox, "newer"),
        (folder, "not a regular file"),
        (garbage, "not a"),
        (read_only, "read-only"),
        (hard_link, "hard links"),
        (half_an_inbox, "not an inbox"),
        (look_alike, "not an inbox"),
    ],
    ids=lambda value: getattr(value, "__name__", "words"),
)
def test_a_file_that_is_no_inbox_is_refused_in_one_line_and_not_changed(tmp_path, prepare, words):
    path = tmp_path / "inbox.db"
    prepare(path)
    before = contents(tmp_path)
    done = run_cli(path, "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(tmp_path) == before


def test_a_truncated_inbox_is_a_failure_not_wrong_usage(tmp_path):
    path = tmp_path / "inbox.db"
    other_inbox(path)
    os.truncate(path, 6_000)
    done = run_cli(path, "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "damaged" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["inbox.db", "--nonsense"],
        ["inbox.db", "more"],
        ["inbox.db", "--port", "65536"],
        ["inbox.db", "--port", "-1"],
        ["inbox.db", "--port", "x"],
        ["inbox.db", "--journal", "memory"],
        ["postgresql://me@127.0.0.1/db", "--journal", "delete"],
        ["postgresql://me@127.0.0.1/db", "--force-wal"],
        ["inbox.db", "--body-bytes-max", "0"],
        ["inbox.db", "--body-timeout-s", "nan"],
        ["inbox.db", "--grace-s", "-1"],
        ["inbox.db", "--host", "0.0.0.0"],  # beyond loopback
        ["inbox.db", "--host", "::"],
        ["inbox.db", "--host", ""],
        ["inbox.db", "--host", "192.0.2.1", "--allow-unsigned"],  # not an address of this host
        ["inbox.db", "--host", "no-such-host.invalid"],
        ["inbox.db", "--host", "a" * 70 + ".invalid"],
        ["missing/inbox.db"],
        ["mysql://user:secret@x/y"],
        ["postgresql://user:secret@x/y?schema=No"],
        [":memory:"],
        ["\x1b[31m\u202e/inbox.db"],
        ["x" * 300],
        [""],
    ],
    ids=lambda arguments: " ".join(arguments)[:40] or "nothing",
)
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path, arguments):
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "receiver", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("receiver: error: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.strip().isprintable()
    assert "secret" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not has_wal_reset_bug(), reason="this SQLite may use WAL")
def test_wal_on_a_build_with_the_wal_reset_bug_is_refused_unless_forced(tmp_path):
    done = run_cli(tmp_path / "inbox.db", "--port", "0", "--journal", "wal")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "WAL-reset bug" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_makes_no_file(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_cli(tmp_path / "inbox.db", "--port", port)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"port {port}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_shows_an_example():
    done = run_cli("--help")
    assert done.returncode == 0
    assert "Example: python -m receiver" in done.stdout


async def test_it_says_where_it_is_ready_and_beyond_loopback_only_if_told(tmp_path):
    async with running(tmp_path / "a.db", "--json") as receiver:
        assert receiver.ready == {"event": "ready", "url": f"http://127.0.0.1:{receiver.port}/inbox"}
    async with running(tmp_path / "b.db", "--host", "0.0.0.0", "--allow-unsigned") as receiver:
        assert (await post(receiver.port)).result == "accepted"
        assert await receiver.stopped() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_what_is_in_flight(tmp_path, number):
    path = tmp_path / "inbox.db"
    async with running(path) as receiver, asyncio.timeout(40):
        alive_reader, alive = await asyncio.open_connection("127.0.0.1", receiver.port)
        alive.write(request(b"", method="GET", path="/readyz", kind=None))
        assert (await read_answer(alive_reader)).status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        whole = request(message("a", 3), "Expect: 100-continue")
        writer.write(whole[: -len(message("a", 3))])
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")  # it is inside now
        receiver.send_signal(number)
        await until(lambda: not is_listening(receiver.port))
        alive.write(request(b"", method="GET", path="/readyz", kind=None))
        answer = await read_answer(alive_reader)
        assert (answer.status, answer.problem) == (503, "busy")
        writer.write(message("a", 3))
        assert (await read_answer(reader)).result == "accepted"
        assert await receiver.ended() == 0
        writer.close()
        alive.close()
        assert receiver.process.stderr.read() == b""
    assert check_whole(path) == {"a": 3}
    assert not path.with_name("inbox.db-journal").exists()


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def hanging(receiver):
    """Open a request whose body never comes; return its connection once it is inside."""
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
    writer.write(request(b"", "Expect: 100-continue", "Content-Length: 5", length=False))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    return writer


async def test_a_stop_is_bounded_by_its_grace(tmp_path):
    async with running(tmp_path / "inbox.db", "--grace-s", "0.2", "--body-timeout-s", "3000") as receiver:
        writer = await hanging(receiver)
        async with asyncio.timeout(15):
            assert await receiver.stopped() == 0
        writer.close()
        assert b"Traceback" not in receiver.process.stderr.read()


async def test_a_second_signal_stops_at_once(tmp_path):
    async with running(tmp_path / "inbox.db", "--grace-s", "3000", "--body-timeout-s", "3000") as receiver:
        writer = await hanging(receiver)
        receiver.send_signal(signal.SIGTERM)
        await until(lambda: not is_listening(receiver.port))
        receiver.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            assert await receiver.ended() == 128 + signal.SIGINT
        writer.close()


async def flood(port, first, acknowledged):
    """Post messages over one connection until it breaks; add the acknowledged ids."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        for number in range(first, first + 100_000):
            writer.write(request(message(f"m{number}", number % 7 + 1)))
            assert (await read_answer(reader)).status == 200
            acknowledged.add(number)
    writer.close()


@pytest.mark.parametrize("seed", range(4))
async def test_sigkill_at_a_random_moment_loses_nothing_and_repeats_are_applied_once(tmp_path, seed):
    path, rng = tmp_path / "inbox.db", random.Random(seed)
    acknowledged = set()
    async with running(path) as receiver, asyncio.timeout(40):
        floods = [
            asyncio.create_task(flood(receiver.port, 100_000 * n, acknowledged)) for n in range(rng.randint(1, 20))
        ]
        enough = rng.randint(1, 400)
        await until(lambda: len(acknowledged) >= enough)
        receiver.send_signal(signal.SIGKILL)
        await asyncio.gather(*floods)
    async with running(path) as receiver:
        kept = check_whole(path)
        assert {f"m{number}" for number in acknowledged} <= kept.keys()
        for number in list(acknowledged)[:50]:
            assert (await post(receiver.port, f"m{number}", number % 7 + 1)).result == "duplicate"
        unanswered = kept.keys() - {f"m{number}" for number in acknowledged}
        for name in unanswered:
            assert (await post(receiver.port, name, kept[name])).result == "duplicate"
        assert check_whole(path) == kept


@pytest.mark.parametrize("place", range(1, len(STATEMENTS) + 1), ids=STATEMENTS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_sigkill_at_every_statement_leaves_all_or_nothing(tmp_path, when, place):
    path = tmp_path / "inbox.db"
    async with running(path, script=[str(CHILD)], env={"KILL_AT": f"{when}:{place}"}) as receiver:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await post(receiver.port, "a", 3)
        assert await receiver.ended() == -signal.SIGKILL
    is_kept = (when, STATEMENTS[place - 1]) == ("after", "COMMIT")
    async with running(path) as receiver:
        assert (await post(receiver.port, "a", 3)).result == ("duplicate" if is_kept else "accepted")
        assert (await post(receiver.port, "a", 3)).result == "duplicate"
        assert (await get(receiver.port, "/inbox/a")).json["times"] == 3 - (not is_kept)
    assert check_whole(path) == {"a": 3}


async def test_a_full_disk_is_a_503_and_never_half_a_message(tmp_path):
    path = tmp_path / "inbox.db"
    limit = {"FILE_BYTES_MAX": str(200_000)}
    async with running(path, script=[str(CHILD)], env=limit) as receiver, asyncio.timeout(40):
        accepted = []
        for number in range(1_000):
            answer = await post(receiver.port, f"m{number}", 1, payload="x" * 5_000)
            if answer.status != 200:
                break
            accepted.append(f"m{number}")
        assert (answer.status, answer.problem, answer.headers["retry-after"]) == (503, "busy", "1")
        assert (await post(receiver.port, "again", 1, payload="x" * 5_000)).problem == "busy"
        assert (await get(receiver.port, "/totals")).json["messages"] == len(accepted)
        assert await receiver.stopped() == 0
        said = receiver.process.stderr.read().decode()
        assert said.count("\n") == 1
        assert "no room" in said or "disk" in said
    async with running(path) as receiver:  # there is room again
        assert (await post(receiver.port, f"m{number}", 1, payload="x" * 5_000)).result == "accepted"
        assert set(check_whole(path)) == {*accepted, f"m{number}"}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("parser", "status"), [("", 408), ("1", 400)], ids=["C parser", "Python parser"])
async def test_a_bad_chunk_while_the_body_is_read_is_refused_in_bounded_time(tmp_path, parser, status, apart):
    # aiohttp's C parser does not tell the reader of the body: the body's time limit ends the wait
    flags, env = ("--body-timeout-s", "0.5"), {"AIOHTTP_NO_EXTENSIONS": parser}
    async with running(tmp_path / "inbox.db", *flags, env=env) as receiver, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        whole = chunked(message(), last=b"")
        head = whole.index(b"\r\n\r\n")
        writer.write(whole[:head] + b"\r\nExpect: 100-continue\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(whole[head + 4 :])
        for _ in range(2 * apart):  # then the first chunk has been read, and the handler waits again
            assert (await get(receiver.port, "/totals")).json["messages"] == 0
        writer.write(b"ZZ\r\n")
        assert (await read_answer(reader)).status == status
        writer.close()
        assert (await get(receiver.port, "/totals")).json["messages"] == 0
        assert await receiver.stopped() == 0
        assert b"Traceback" not in receiver.process.stderr.read()


async def test_two_processes_on_one_file_apply_each_message_once(tmp_path):
    path = tmp_path / "inbox.db"
    async with running(path) as one, running(path) as two, asyncio.timeout(40):
        both = [post(port, f"m{n}", 2) for n in range(100) for port in (one.port, two.port)]
        results = [answer.result for answer in await asyncio.gather(*both)]
        assert (results.count("accepted"), results.count("duplicate")) == (100, 100)
    assert check_whole(path) == {f"m{n}": 2 for n in range(100)}
    assert totals_of(path)[2] == 100


async def test_the_ready_line_is_json_when_it_is_no_terminal(tmp_path):
    async with running(tmp_path / "inbox.db") as receiver:
        assert json.loads(receiver.first)["event"] == "ready"
        assert receiver.first.count(b"\n") == 1


def test_the_ready_line_is_words_on_a_terminal(tmp_path):
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "receiver", tmp_path / "inbox.db", "--port", "0"],
        cwd=CHILD.parents[2],
        stdout=theirs,
    ) as process:
        os.close(theirs)
        line = os.read(ours, 1_000)
        process.terminate()
        assert process.wait(20) == 0
    os.close(ours)
    assert line.startswith(b"receiver is ready at http://127.0.0.1:")


async def test_with_stop_with_stdin_it_lives_as_long_as_its_parent(tmp_path):
    path = tmp_path / "inbox.db"
    async with running(path, "--stop-with-stdin", stdin=subprocess.PIPE) as receiver:
        receiver.process.stdin.write(b"words mean nothing")
        receiver.process.stdin.flush()
        assert (await post(receiver.port, "a")).result == "accepted"
        receiver.process.stdin.close()
        assert await receiver.ended() == 0
    assert totals_of(path)[:2] == (1, 1)


async def test_with_stop_with_stdin_and_no_parent_to_hear_of_it_stops_at_once(tmp_path):
    async with running(tmp_path / "inbox.db", "--stop-with-stdin", stdin=subprocess.DEVNULL) as receiver:
        assert await receiver.ended() == 0
