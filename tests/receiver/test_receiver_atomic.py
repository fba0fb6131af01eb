"""Dedup row, effect and answer: all or nothing. FAULTS 44: a client that left; 45: failures never remembered."""

import asyncio
import logging
import sqlite3
import struct
from contextlib import closing
from socket import SO_LINGER, SOL_SOCKET

import pytest
from receiver_tools import check_whole, get, look, message, post, read_answer, request, until

from asyncqueue.errors import StoreBusy, StoreError, StoreFull
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Result
from receiver.stores.sqlite.store import Profile, SqliteInbox

MANY = 200


async def leave_after(port, whole, cut, *, reset):
    """Send the first `cut` bytes of a request, then close the connection or reset it."""
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(whole[:cut])
    await writer.drain()
    if reset:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)
    writer.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_client_that_hangs_up_at_every_byte_leaves_nothing_half_way(inbox, reset, caplog):
    length = len(request(message("m000", 3, payload="x")))
    wholes = [request(message(f"m{cut:03}", 3, payload="x")) for cut in range(length + 1)]
    async with asyncio.timeout(50):
        for cut, whole in enumerate(wholes):
            await leave_after(inbox.port, whole, cut, reset=reset)
        await until(lambda: not inbox.connections and not inbox.door.inside)
        kept = check_whole(inbox.path)
        assert set(kept) <= {f"m{length:03}"}
        for whole in wholes:
            assert (await inbox.speak(whole)).status == 200
    assert check_whole(inbox.path) == {f"m{cut:03}": 3 for cut in range(length + 1)}
    assert inbox.door.bytes_inside == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_that_leaves_while_its_message_is_being_written_has_it_written_once(inbox):
    began, go = asyncio.Event(), asyncio.Event()
    write = inbox.database.write_inline

    async def held(work):
        began.set()
        await go.wait()
        return await write(work)

    inbox.database.write_inline = held
    _reader, writer = await asyncio.open_connection("127.0.0.1", inbox.port)
    writer.write(request(message("a", 3)))
    async with asyncio.timeout(20):
        await began.wait()
        writer.close()
        await until(lambda: not any(connection.transport for connection in inbox.connections))
        go.set()
        await until(lambda: not inbox.door.inside)
    assert check_whole(inbox.path) == {"a": 3}
    assert (await post(inbox.port, "a", 3)).result == "duplicate"


async def test_posts_that_wait_together_share_one_transaction(inbox):
    transactions = 0
    go = asyncio.Event()
    write = inbox.database.write_inline

    async def counted(work):
        nonlocal transactions
        transactions += 1
        await go.wait()
        return await write(work)

    inbox.database.write_inline = counted
    posts = [asyncio.create_task(post(inbox.port, f"m{n}")) for n in range(MANY)]
    await until(lambda: inbox.door.inside == MANY)
    go.set()
    assert [(await task).result for task in posts] == ["accepted"] * MANY
    assert transactions <= 3  # those that wait for the first transaction go together
    assert len(check_whole(inbox.path)) == MANY


async def test_a_set_costs_as_many_statements_as_one_message(inbox):
    seen = []
    store = inbox.door.inbox._store
    writer = inbox.database._writer
    await writer.set_trace_callback(lambda sql: seen.append(sql.split()[0]))
    await store.receive(lambda: [Arrival(Message("one", 1, None), None, None)])
    one = list(seen)
    seen.clear()
    await store.receive(lambda: [Arrival(Message(f"m{n}", 1, '{"x":1}'), n, n) for n in range(1_000)])
    await writer.set_trace_callback(None)
    assert seen == one == ["BEGIN", "INSERT", "INSERT", "UPDATE", "COMMIT"]


async def test_one_set_with_every_kind_of_answer(inbox):
    store = inbox.door.inbox._store
    arrivals = [
        Arrival(Message(*values), None, None)
        for values in [
            ("a", 1, None),
            ("b", 2, None),
            ("a", 1, None),
            ("a", 2, None),
            ("b", 2, "[]"),
            ("a", 1, None),
        ]
    ]
    accepted, duplicate, conflict = Result.ACCEPTED, Result.DUPLICATE, Result.CONFLICT
    assert await store.receive(lambda: arrivals) == [accepted, accepted, duplicate, conflict, conflict, duplicate]
    assert await store.receive(lambda: arrivals) == [
        duplicate,
        duplicate,
        duplicate,
        conflict,
        conflict,
        duplicate,
    ]
    assert check_whole(inbox.path) == {"a": 1, "b": 2}
    assert look(inbox.path, "SELECT id, times FROM inbox ORDER BY id") == [("a", 6), ("b", 2)]
    assert look(inbox.path, "SELECT * FROM totals") == [(1, 2, 3, 6, 4)]
    assert look(inbox.path, "SELECT id, kept_qty, qty, payload, times FROM conflicts ORDER BY id") == [
        ("a", 1, 2, "", 2),
        ("b", 2, 2, "[]", 2),
    ]


async def test_a_hostile_client_cannot_fill_the_disk_with_conflicts(inbox):
    store = inbox.door.inbox._store
    await store.receive(lambda: [Arrival(Message("a", 1, None), None, None)])
    for round_number in range(3):
        offered = [Message("a", 2 + n + 500 * round_number, '"' + "x" * 10_000 + '"') for n in range(500)]
        arrivals = [Arrival(one, None, None) for one in offered]
        assert set(await store.receive(lambda arrivals=arrivals: arrivals)) == {Result.CONFLICT}
    ((rows, longest),) = look(inbox.path, "SELECT count(*), max(length(payload)) FROM conflicts")
    assert (rows, longest) == (16, 4_096)
    again = [Arrival(Message("a", 2, '"' + "x" * 10_000 + '"'), None, None)] * 7
    await store.receive(lambda: again)
    assert look(inbox.path, "SELECT times FROM conflicts WHERE qty = 2") == [(8,)]
    assert (await get(inbox.port, "/totals")).json["conflicts"] == 1_507


async def stock(connection, one):
    """An effect of the tests: it writes, then fails if it is told to."""
    await connection.execute_fetchall("CREATE TABLE IF NOT EXISTS stock (id TEXT, qty INTEGER)")
    await connection.execute_fetchall("INSERT INTO stock VALUES (?, ?)", (one.id, one.qty))
    if one.payload == '"fail"':
        raise RuntimeError("told to")


async def test_an_own_effect_commits_with_its_row(serve):
    async with serve(effect=stock) as inbox:
        assert (await post(inbox.port, "a", 3)).result == "accepted"
        assert (await post(inbox.port, "a", 3)).result == "duplicate"
        assert look(inbox.path, "SELECT * FROM stock") == [("a", 3)]
        assert look(inbox.path, "SELECT count(*) FROM ledger") == [(0,)]


async def test_effects_that_fail_undo_only_themselves(serve, caplog):
    broken = True

    async def sometimes(connection, one):
        await stock(connection, one)
        if broken and int(one.id[1:]) % 10 == 0:
            raise LookupError(one.id)

    caplog.set_level(logging.CRITICAL, "receiver")
    async with serve(effect=sometimes) as inbox:
        answers = await asyncio.gather(*(post(inbox.port, f"m{n}", 3) for n in range(100)))
        for number, answer in enumerate(answers):
            if number % 10:
                assert (answer.status, answer.result) == (200, "accepted")
            else:
                assert (answer.status, answer.problem) == (500, "effect-failed")
                assert (await get(inbox.port, f"/inbox/m{number}")).problem == "unknown-id"
        good = {f"m{n}" for n in range(100) if n % 10}
        assert {row[0] for row in look(inbox.path, "SELECT id FROM stock")} == good
        assert {row[0] for row in look(inbox.path, "SELECT id FROM inbox")} == good
        assert (await get(inbox.port, "/totals")).json == {
            "messages": 90,
            "quantity": 270,
            "duplicates": 0,
            "conflicts": 0,
            "requests": 90,
        }
        broken = False  # a failure is never remembered: the repeat is applied
        again = await asyncio.gather(*(post(inbox.port, f"m{n}", 3) for n in range(100)))
        assert [answer.result for answer in again] == [
            "duplicate" if number % 10 else "accepted" for number in range(100)
        ]
        assert look(inbox.path, "SELECT count(*), count(DISTINCT id), sum(qty) FROM stock") == [(100, 100, 300)]


async def test_repeats_of_a_failed_message_in_one_set_are_told_the_same(tmp_path, caplog):
    store = await SqliteInbox.open(tmp_path / "inbox.db", Profile(), stock)
    caplog.set_level(logging.CRITICAL, "receiver")
    try:
        arrivals = [Arrival(Message(*values), None, None) for values in [("a", 1, '"fail"'), ("b", 1, None)] * 2]
        results = await store.receive(lambda: arrivals)
        assert results == [Result.EFFECT_FAILED, Result.ACCEPTED, Result.EFFECT_FAILED, Result.DUPLICATE]
        assert (await store.totals()).requests == 2
    finally:
        await store.close()


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.rollback(),
        lambda connection: connection.execute("COMMIT"),
        lambda connection: connection.execute("end"),
        lambda connection: connection.execute("/* x */ ROLLBACK"),
        lambda connection: connection.execute("BEGIN"),
        lambda connection: connection.executescript("SELECT 1"),
    ],
    ids=["commit()", "rollback()", "COMMIT", "END", "ROLLBACK", "BEGIN", "executescript"],
)
async def test_an_effect_cannot_end_the_transaction(serve, end, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            await end(connection)

    async with serve(effect=effect) as inbox:
        store = inbox.door.inbox._store
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        assert await store.receive(lambda: arrivals) == [Result.ACCEPTED, Result.EFFECT_FAILED, Result.ACCEPTED]
        assert sorted(look(inbox.path, "SELECT id FROM stock")) == sorted(look(inbox.path, "SELECT id FROM inbox"))
        assert (await post(inbox.port, "next")).result == "accepted"


async def test_an_effect_that_loses_the_transaction_fails_its_set_loudly(serve, caplog):
    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            await connection.execute_fetchall("CREATE TABLE one (x PRIMARY KEY)")
            await connection.execute_fetchall("INSERT INTO one VALUES (1)")
            with pytest.raises(sqlite3.IntegrityError):
                await connection.execute_fetchall("INSERT OR ROLLBACK INTO one VALUES (1)")

    async with serve(effect=effect) as inbox:
        store = inbox.door.inbox._store
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        with pytest.raises(StoreError, match="effect of bad"):
            await store.receive(lambda: arrivals)
        answer = await post(inbox.port, "bad")
        assert (answer.status, answer.problem) == (503, "busy")
        assert "effect of bad" in caplog.text
        assert look(inbox.path, "SELECT count(*) FROM inbox") == [(0,)]
        assert (await post(inbox.port, "first")).result == "accepted"


async def test_an_effect_that_is_cancelled_inside_is_a_failed_effect(serve, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            raise asyncio.CancelledError

    async with serve(effect=effect) as inbox:
        assert (await post(inbox.port, "bad")).problem == "effect-failed"
        assert (await post(inbox.port, "good")).result == "accepted"
        assert look(inbox.path, "SELECT id FROM stock") == [("good",)]


async def test_an_effect_may_change_the_row_factory(serve):
    async def effect(connection, one):
        connection.row_factory = lambda _cursor, row: {"row": row}
        await stock(connection, one)

    async with serve(effect=effect) as inbox:
        assert (await post(inbox.port, "a")).result == "accepted"
        assert (await post(inbox.port, "a")).result == "duplicate"


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreFull("full"), StoreError("disk I/O error")], ids=repr)
async def test_a_503_of_the_store_is_never_remembered_and_said_once(inbox, error, caplog):
    write = inbox.database.write_inline

    async def fail(_work):
        raise error

    inbox.database.write_inline = fail
    answers = await asyncio.gather(*(post(inbox.port, f"m{n}") for n in range(20)))
    for answer in answers:
        assert (answer.status, answer.problem, answer.headers["retry-after"]) == (503, "busy", "1")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    inbox.database.write_inline = write
    assert check_whole(inbox.path) == {}
    again = await asyncio.gather(*(post(inbox.port, f"m{n}") for n in range(20)))
    assert {answer.result for answer in again} == {"accepted"}


async def test_a_database_that_others_hold_is_a_503_until_they_let_go(serve):
    async with serve(patience_ms=50) as inbox:
        with closing(sqlite3.connect(inbox.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (await post(inbox.port, "a")).problem == "busy"
            assert (await get(inbox.port, "/readyz")).problem == "busy"
            assert (await get(inbox.port, "/livez")).status == 200
            other.execute("ROLLBACK")
        assert (await get(inbox.port, "/readyz")).status == 200
        assert (await post(inbox.port, "a")).result == "accepted"


async def test_a_bug_is_a_problem_without_its_text(inbox, caplog):
    async def buggy(_message_id):
        raise RuntimeError("a secret")

    inbox.door.inbox._store.get = buggy
    answer = await get(inbox.port, "/inbox/a")
    assert (answer.status, answer.problem) == (500, "internal")
    assert b"secret" not in answer.body
    assert "a secret" in caplog.text


async def test_a_stop_lets_in_nobody_and_finishes_who_is_inside(serve):
    async with serve() as inbox:
        whole = request(message("a", 3))
        reader, writer = await asyncio.open_connection("127.0.0.1", inbox.port)
        writer.write(whole[:-1])
        await until(lambda: inbox.door.inside == 1)
        inbox.door.is_stopping = True
        assert (await get(inbox.port, "/readyz")).problem == "busy"
        assert (await post(inbox.port, "b")).problem == "busy"
        emptied = asyncio.create_task(inbox.door.emptied())
        writer.write(whole[-1:])
        assert (await read_answer(reader)).result == "accepted"
        async with asyncio.timeout(10):
            await emptied
        writer.close()
    assert check_whole(inbox.path) == {"a": 3}
