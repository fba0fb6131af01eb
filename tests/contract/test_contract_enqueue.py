import asyncio
import sqlite3

import aiosqlite
import contract_tools as tools
import pytest

from asyncqueue.worker import Conflict, enqueue

BAD_EVENTS = [
    {},
    {"id": "a"},
    {"qty": 1},
    {"id": "a", "qty": 1, "note": "x"},
    {"id": "a", "qty": 1, 1: 1},
    {"ID": "a", "qty": 1},
    {tools.StrSub("id"): "a", "qty": 1},
    tools.DictSub(id="a", qty=1),
    [("id", "a"), ("qty", 1)],
    ("id", "qty"),
    "id",
    None,
    1,
]


def event(**changes):
    return {"id": "a", "qty": 3, **changes}


async def test_new_work_is_a_pending_row_with_exactly_these_values(con, path):
    assert await enqueue(con, event(), 500, 2_000, 5) is True
    assert tools.jobs(path) == [
        {
            "id": "a",
            "qty": 3,
            "status": "pending",
            "attempts": 0,
            "max_attempts": 5,
            "token": 0,
            "available_at": 500,
            "deadline": 2_500,
            "owner": None,
            "lease_until": None,
            "reason": None,
        }
    ]


async def test_three_attempts_are_the_default(con, path):
    await enqueue(con, event(), 0, 1)
    assert tools.job(path)["max_attempts"] == 3


@pytest.mark.parametrize("status", ["pending", "leased", "done", "dead"])
async def test_the_same_id_and_qty_keeps_the_whole_row_even_with_another_budget(status, con, path):
    tools.put_leased(path, status=status, attempts=2, token=9, reason="retry")
    before = tools.snapshot(path)
    assert await enqueue(con, event(), 700, 60_000, 16) is False
    assert tools.snapshot(path) == before


@pytest.mark.parametrize("status", ["pending", "leased", "done", "dead"])
@pytest.mark.parametrize("qty", [2, 4])
async def test_the_same_id_with_another_qty_is_a_conflict_and_changes_nothing(status, qty, con, path):
    tools.put_leased(path, status=status)
    before = tools.snapshot(path)
    with pytest.raises(Conflict, match="qty 3") as caught:
        await enqueue(con, event(qty=qty), 0, 1)
    assert (caught.value.job_id, caught.value.fields) == ("a", ("qty",))
    assert tools.snapshot(path) == before
    assert not con.in_transaction
    tools.assert_writable_at_once(path)


async def test_ids_that_differ_in_case_are_different_work(con, path):
    assert [await enqueue(con, event(id=name), 0, 1) for name in ("a", "A", "a_", "a-")] == [True] * 4
    assert [row["id"] for row in tools.jobs(path)] == ["a", "A", "a_", "a-"]


@pytest.mark.parametrize("job_id", tools.GOOD_IDS)
async def test_every_identifier_is_taken(job_id, con, path):
    assert await enqueue(con, event(id=job_id), 0, 1) is True
    assert tools.job(path, job_id)["id"] == job_id


@pytest.mark.parametrize(
    ("qty", "now_ms", "ttl_ms", "max_attempts"), [(1, 0, 1, 1), (1000, tools.NOW_MAX, 60_000, 16)]
)
async def test_the_ends_of_every_range_are_taken(*, qty, now_ms, ttl_ms, max_attempts, con, path):
    assert await enqueue(con, event(qty=qty), now_ms, ttl_ms, max_attempts) is True
    row = tools.job(path)
    assert (row["qty"], row["available_at"], row["max_attempts"]) == (qty, now_ms, max_attempts)
    assert row["deadline"] == now_ms + ttl_ms <= 10**15


async def assert_refused(con, path, *arguments):
    before = tools.snapshot(path)
    changes = con.total_changes
    with pytest.raises(ValueError):
        await enqueue(con, *arguments)
    assert (con.total_changes, tools.snapshot(path)) == (changes, before)
    with pytest.raises(ValueError):
        await enqueue(None, *arguments)  # refused before the connection is touched at all


@pytest.mark.parametrize("bad", tools.named(tools.BAD_IDS))
async def test_a_wrong_id_is_a_value_error_before_anything_changes(bad, con, path):
    await assert_refused(con, path, event(id=bad), 0, 1)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(1, 1000)))
async def test_a_wrong_qty_is_a_value_error_before_anything_changes(bad, con, path):
    await assert_refused(con, path, event(qty=bad), 0, 1)


@pytest.mark.parametrize("bad", tools.named(BAD_EVENTS))
async def test_an_event_of_another_shape_is_a_value_error(bad, con, path):
    await assert_refused(con, path, bad, 0, 1)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(0, tools.NOW_MAX)))
async def test_a_wrong_time_is_a_value_error(bad, con, path):
    await assert_refused(con, path, event(), bad, 1)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(1, 60_000)))
async def test_a_wrong_time_to_live_is_a_value_error(bad, con, path):
    await assert_refused(con, path, event(), 0, bad)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(1, 16)))
async def test_a_wrong_attempt_budget_is_a_value_error(bad, con, path):
    await assert_refused(con, path, event(), 0, 1, bad)


async def test_a_wrong_budget_is_refused_also_where_the_work_is_there_already(con, path):
    tools.put(path)
    await assert_refused(con, path, event(), 0, 60_001)


async def test_the_event_is_not_modified_and_a_later_change_of_it_does_not_matter(con, path):
    mine = event()
    assert await enqueue(con, mine, 0, 1) is True
    assert mine == event()
    task = asyncio.ensure_future(enqueue(con, later := event(id="b"), 0, 1))
    await asyncio.sleep(0)
    later["id"] = "c"
    assert await task is True
    assert [row["id"] for row in tools.jobs(path)] == ["a", "b"]


async def test_of_many_simultaneous_intakes_on_one_connection_exactly_one_is_new(con, path):
    results = await asyncio.gather(*(enqueue(con, event(), 0, 1) for _ in range(20)))
    assert sorted(results) == [False] * 19 + [True]
    assert len(tools.jobs(path)) == 1


async def test_of_many_simultaneous_intakes_on_many_connections_exactly_one_is_new(path):
    async def intake():
        async with aiosqlite.connect(path, isolation_level=None, timeout=10) as own:
            return await enqueue(own, event(), 0, 1)

    assert sorted(await asyncio.gather(*(intake() for _ in range(6)))) == [False] * 5 + [True]


async def test_rows_of_the_named_kind_do_not_disturb(con):
    con.row_factory = sqlite3.Row
    assert await enqueue(con, event(), 0, 1) is True
    assert await enqueue(con, event(), 0, 1) is False


async def test_a_transaction_of_the_caller_is_an_error_and_stays_untouched(con, path):
    await con.execute_fetchall("BEGIN IMMEDIATE")
    await con.execute_fetchall("INSERT INTO redrives (id, token, at_ms, note) VALUES ('x', 1, 1, 'x')")
    with pytest.raises(sqlite3.OperationalError, match="open transaction"):
        await enqueue(con, event(), 0, 1)
    assert con.in_transaction
    await con.commit()
    assert tools.snapshot(path) == ((), (("x", 1, 1, "x"),))


async def test_a_busy_database_is_an_error_and_changes_nothing(con, path):
    async with aiosqlite.connect(path, isolation_level=None) as other:
        await other.execute_fetchall("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await enqueue(con, event(), 0, 1)
        await other.rollback()
    assert not con.in_transaction
    assert await enqueue(con, event(), 0, 1) is True
    assert len(tools.jobs(path)) == 1


async def test_a_reader_does_not_disturb_an_intake_that_changes_nothing(con, path):
    tools.put(path)
    async with aiosqlite.connect(path, isolation_level=None) as reader:
        await reader.execute_fetchall("BEGIN")
        await reader.execute_fetchall("SELECT * FROM jobs")
        assert await enqueue(con, event(), 0, 1) is False
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await enqueue(con, event(id="b"), 0, 1)
    assert not con.in_transaction
    assert [row["id"] for row in tools.jobs(path)] == ["a"]
