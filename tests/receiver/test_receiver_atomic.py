"""Dedup row, effect and answer: all or nothing."""

import asyncio
import contextlib
import logging
import struct
from socket import SO_LINGER, SOL_SOCKET

import pytest
from receiver_tools import check_whole, get, look, message, post, read_answer, request, totals_of

from asyncqueue.errors import StoreBusy, StoreError, StoreFull
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Result
from tests.waiting import until

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
async def test_a_client_that_hangs_up_at_every_byte_leaves_nothing_half_way__kind_44_client_that_left(
    inbox, reset, caplog
):
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


async def test_a_client_that_leaves_while_its_message_is_written_has_it_written_once__kind_44(inbox):
    began, go = asyncio.Event(), asyncio.Event()

    async def held(write):
        began.set()
        await go.wait()
        return await write()

    inbox.wrap_writes(held)
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

    async def counted(write):
        nonlocal transactions
        transactions += 1
        await go.wait()
        return await write()

    inbox.wrap_writes(counted)
    posts = [asyncio.create_task(post(inbox.port, f"m{n}")) for n in range(MANY)]
    await until(lambda: inbox.door.inside == MANY)
    go.set()
    assert [(await task).result for task in posts] == ["accepted"] * MANY
    assert transactions <= 3  # those that wait for the first transaction go together
    assert len(check_whole(inbox.path)) == MANY


async def test_a_set_costs_as_many_statements_as_one_message(inbox):
    await inbox.store.receive(
        lambda: [Arrival(Message("zero", 1, None), None, None)]
    )  # the driver looks up types once
    async with inbox.statements() as for_one:
        await inbox.store.receive(lambda: [Arrival(Message("one", 1, None), None, None)])
    async with inbox.statements() as for_many:
        await inbox.store.receive(lambda: [Arrival(Message(f"m{n}", 1, '{"x":1}'), n, n) for n in range(1_000)])
    assert for_many == for_one
    assert len(for_one) <= 6
    assert for_one == ["WITH"] or (for_one[0][:5], for_one[-1][:6]) == ("BEGIN", "COMMIT")


async def test_one_set_with_every_kind_of_answer(inbox):
    store = inbox.store
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
    assert totals_of(inbox.path) == (2, 3, 6, 4)
    assert look(inbox.path, "SELECT id, kept_qty, qty, payload, times FROM conflicts ORDER BY id") == [
        ("a", 1, 2, "", 2),
        ("b", 2, 2, "[]", 2),
    ]


async def test_a_hostile_client_cannot_fill_the_disk_with_conflicts(inbox):
    store = inbox.store
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
    await store.receive(lambda: [Arrival(Message("a", 2, '"not kept"'), None, None)])
    assert look(inbox.path, "SELECT sum(times) FROM conflicts WHERE qty = 2") == [(8,)]
    assert (await get(inbox.port, "/totals")).json["conflicts"] == 1_508


async def stock(connection, one):
    """An effect of the tests: it writes, then fails if it is told to."""
    await connection.execute("CREATE TABLE IF NOT EXISTS stock (id TEXT, qty INTEGER)")
    await connection.execute(f"INSERT INTO stock VALUES ('{one.id}', {one.qty})")
    if one.payload == '"fail"':
        raise RuntimeError("told to")


async def test_an_own_effect_commits_with_its_row(serve):
    async with serve(effect=stock) as inbox:
        assert (await post(inbox.port, "a", 3)).result == "accepted"
        assert (await post(inbox.port, "a", 3)).result == "duplicate"
        assert look(inbox.path, "SELECT * FROM stock") == [("a", 3)]
        assert look(inbox.path, "SELECT count(*) FROM ledger") == [(0,)]


async def test_effects_that_fail_undo_only_themselves__kind_44_dedup_row_before_effect(serve, caplog):
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


async def test_repeats_of_a_failed_message_in_one_set_are_told_the_same(serve, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")
    async with serve(effect=stock) as inbox:
        arrivals = [Arrival(Message(*values), None, None) for values in [("a", 1, '"fail"'), ("b", 1, None)] * 2]
        results = await inbox.store.receive(lambda: arrivals)
        assert results == [Result.EFFECT_FAILED, Result.ACCEPTED, Result.EFFECT_FAILED, Result.DUPLICATE]
        assert (await inbox.store.totals()).requests == 2


@pytest.mark.parametrize("sql", ["COMMIT", "end", "/* x */ ROLLBACK", "BEGIN", "  -- x\nCommit  "])
async def test_an_effect_cannot_end_the_transaction(serve, sql, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            await connection.execute(sql)

    async with serve(effect=effect) as inbox:
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        assert await inbox.store.receive(lambda: arrivals) == [
            Result.ACCEPTED,
            Result.EFFECT_FAILED,
            Result.ACCEPTED,
        ]
        assert sorted(look(inbox.path, "SELECT id FROM stock")) == sorted(look(inbox.path, "SELECT id FROM inbox"))
        assert (await post(inbox.port, "next")).result == "accepted"


async def test_an_effect_that_hides_an_error_of_the_database_leaves_no_half(serve, caplog):
    caplog.set_level(logging.CRITICAL, "receiver")

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "bad":
            with contextlib.suppress(Exception):
                await connection.execute("INSERT INTO no_such_table VALUES (1)")

    async with serve(effect=effect) as inbox:
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "bad", "last")]
        results = await inbox.store.receive(lambda: arrivals)
        assert results[0] == results[2] == Result.ACCEPTED
        assert sorted(look(inbox.path, "SELECT id FROM stock")) == sorted(look(inbox.path, "SELECT id FROM inbox"))


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


async def test_a_set_that_is_cancelled_in_an_effect_is_undone_as_a_whole(serve):
    """As by an event loop that closes: what is cancelled is the set, not only something inside the effect."""

    async def effect(connection, one):
        await stock(connection, one)
        if one.id == "last":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    async with serve(effect=effect) as inbox:
        arrivals = [Arrival(Message(name, 1, None), None, None) for name in ("first", "last")]
        with pytest.raises(asyncio.CancelledError):
            await inbox.store.receive(lambda: arrivals)
        assert look(inbox.path, "SELECT count(*) FROM inbox") == [(0,)]
        assert (await post(inbox.port, "first")).result == "accepted"
        assert look(inbox.path, "SELECT id FROM stock") == [("first",)]


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreFull("full"), StoreError("disk I/O error")], ids=repr)
async def test_a_503_of_the_store_is_never_remembered_and_said_once__kind_45_cached_failure(inbox, error, caplog):

    async def fail(_write):
        raise error

    repair = inbox.wrap_writes(fail)
    answers = await asyncio.gather(*(post(inbox.port, f"m{n}") for n in range(20)))
    for answer in answers:
        assert (answer.status, answer.problem, answer.headers["retry-after"]) == (503, "busy", "1")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    repair()
    assert check_whole(inbox.path) == {}
    again = await asyncio.gather(*(post(inbox.port, f"m{n}") for n in range(20)))
    assert {answer.result for answer in again} == {"accepted"}


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
