import sqlite3
from contextlib import closing

import contract_tools as tools
import pytest

from asyncqueue.worker import claim, open_queue, redrive

DEAD = {"status": "dead", "attempts": 3, "token": 7, "reason": "exhausted", "available_at": 5}


async def test_dead_work_gets_a_fresh_budget_and_keeps_qty_max_attempts_and_token(con, path):
    before = tools.put(path, **DEAD)
    assert await redrive(con, "a", 600, 2_000, "retry-1") is True
    fresh = {"status": "pending", "attempts": 0, "available_at": 600, "deadline": 2_600, "reason": None}
    assert tools.job(path) == {**before, **fresh}
    assert tools.audit(path) == [("a", 7, 600, "retry-1")]


async def test_owner_and_lease_are_cleared(con, path):
    tools.put(path, **DEAD, owner="one", lease_until=9)
    await redrive(con, "a", 600, 2_000, "n")
    row = tools.job(path)
    assert (row["owner"], row["lease_until"], row["reason"]) == (None, None, None)


async def test_the_claim_number_goes_on_after_a_redrive(con, path):
    tools.put(path, **DEAD)
    await redrive(con, "a", 600, 2_000, "n")
    ticket = await claim(con, "one", 600)
    assert (ticket["token"], ticket["attempt"]) == (8, 1)


async def test_every_redrive_leaves_its_own_audit_row(con, path):
    tools.put(path, **DEAD)
    await redrive(con, "a", 600, 1, "first")
    assert await claim(con, "one", 601) is None  # dead of its deadline again
    await redrive(con, "a", 700, 1, "second")
    assert tools.audit(path) == [("a", 7, 600, "first"), ("a", 7, 700, "second")]


@pytest.mark.parametrize("status", ["pending", "leased", "done"])
async def test_work_that_is_not_dead_is_a_value_error(status, con, path, points):
    tools.put(path, **{**DEAD, "status": status})
    before = tools.snapshot(path)
    with pytest.raises(ValueError, match="not dead"):
        await redrive(con, "a", 600, 2_000, "n", points)
    assert tools.snapshot(path) == before
    assert points == []
    tools.assert_writable_at_once(path)


async def test_work_that_does_not_exist_is_a_value_error(con, path, points):
    tools.put(path, **DEAD)
    before = tools.snapshot(path)
    for other in ("b", "A"):
        with pytest.raises(ValueError, match="does not exist"):
            await redrive(con, other, 600, 2_000, "n", points)
    assert tools.snapshot(path) == before
    assert points == []


async def test_other_dead_work_is_left_alone(con, path):
    tools.put(path, **DEAD)
    other = tools.put(path, "b", **DEAD)
    await redrive(con, "a", 600, 2_000, "n")
    assert tools.job(path, "b") == other


async def test_the_order_is_audit_hook_change_hook_commit_hook(con, path):
    tools.put(path, **DEAD)
    seen, steps = [], []

    def fault(point):
        with closing(sqlite3.connect(path, timeout=0)) as plain:
            found = plain.execute("SELECT status, (SELECT count(*) FROM redrives) FROM jobs").fetchone()
        seen.append((point, con.in_transaction, *found))
        steps.append(point)

    await con.set_trace_callback(lambda sql: steps.append(" ".join(sql.split()[:2])))
    assert await redrive(con, "a", 600, 2_000, "n", fault) is True
    await con.set_trace_callback(None)
    assert seen == [
        ("after-audit", True, "dead", 0),
        ("after-redrive", True, "dead", 0),
        ("after-commit", False, "pending", 1),
    ]
    assert steps == [
        *(
            "BEGIN IMMEDIATE",
            "INSERT INTO",
            "after-audit",
            "UPDATE jobs",
            "after-redrive",
            "COMMIT",
            "after-commit",
        )
    ]


@pytest.mark.parametrize("point", ["after-audit", "after-redrive"])
async def test_an_error_before_the_commit_leaves_neither_the_audit_row_nor_the_change(point, con, path):
    tools.put(path, **DEAD)
    before = tools.snapshot(path)
    error = RuntimeError(point)

    def fault(reached):
        if reached == point:
            raise error

    with pytest.raises(RuntimeError) as caught:
        await redrive(con, "a", 600, 2_000, "n", fault)
    assert caught.value is error
    assert tools.snapshot(path) == before
    assert not con.in_transaction
    assert await redrive(con, "a", 600, 2_000, "n") is True


async def test_an_error_after_the_commit_keeps_both(con, path):
    tools.put(path, **DEAD)

    def fault(point):
        if point == "after-commit":
            raise RuntimeError(point)

    with pytest.raises(RuntimeError, match="after-commit"):
        await redrive(con, "a", 600, 2_000, "n", fault)
    assert tools.job(path)["status"] == "pending"
    assert len(tools.audit(path)) == 1


async def test_a_commit_that_meets_a_reader_rolls_back_and_raises(con, path):
    tools.put(path, **DEAD)
    before = tools.snapshot(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await redrive(con, "a", 600, 2_000, "n")
        reader.execute("ROLLBACK")
    assert tools.snapshot(path) == before
    assert not con.in_transaction


@pytest.mark.parametrize(("now_ms", "ttl_ms"), [(0, 1), (tools.NOW_MAX, 60_000)])
async def test_the_ends_of_every_range_are_taken(now_ms, ttl_ms, con, path):
    tools.put(path, "a" * 64, **DEAD)
    assert await redrive(con, "a" * 64, now_ms, ttl_ms, "n" * 64) is True
    assert tools.job(path, "a" * 64)["deadline"] == now_ms + ttl_ms


async def assert_refused(con, path, *arguments):
    tools.put(path, **DEAD)
    before = tools.snapshot(path)
    with pytest.raises(ValueError):
        await redrive(con, *arguments, fault=lambda _point: pytest.fail("no hook on a refusal"))
    assert tools.snapshot(path) == before
    with pytest.raises(ValueError):
        await redrive(None, *arguments)


@pytest.mark.parametrize("bad", tools.named(tools.BAD_IDS))
async def test_a_wrong_id_or_note_is_a_value_error(bad, con, path):
    await assert_refused(con, path, "a", 600, 2_000, bad)
    tools.run(path, "DELETE FROM jobs")
    await assert_refused(con, path, bad, 600, 2_000, "n")


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(0, tools.NOW_MAX)))
async def test_a_wrong_time_is_a_value_error(bad, con, path):
    await assert_refused(con, path, "a", bad, 2_000, "n")


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(1, 60_000)))
async def test_a_wrong_time_to_live_is_a_value_error(bad, con, path):
    await assert_refused(con, path, "a", 600, bad, "n")


def _close_below(con):
    con._conn.close()


def _forget(con):
    con._conn.close()
    con._connection = None  # as after the driver's own close, which waits for the transaction


@pytest.mark.parametrize(
    ("closed", "told"), [(_close_below, "Cannot operate on a closed database."), (_forget, "no active connection")]
)
async def test_a_rollback_that_fails_is_noted_on_the_error_that_asked_for_it(path, closed, told):
    before = tools.put(path, **DEAD)
    con = await open_queue(path)
    raw = con._connection

    def fault(_point):
        closed(con)
        raise LookupError("the first error")

    with pytest.raises(LookupError, match="the first error") as raised:
        await redrive(con, "a", 600, 2_000, "n", fault)
    assert raised.value.__notes__ == [f"the rollback failed as well: {told}"]
    con._connection = raw
    await con.close()
    assert tools.job(path) == before


async def test_cached_pages_are_dropped_after_an_error_of_the_database_only(con, path):
    """What was read wrong once must not be believed again."""
    steps = []
    await con.set_trace_callback(steps.append)
    with pytest.raises(ValueError, match="not dead"):
        await redrive(con, "a", 600, 2_000, "n")
    assert steps == ["BEGIN IMMEDIATE", *steps[1:-1], "ROLLBACK"]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await redrive(con, "a", 600, 2_000, "n")
    assert steps[-1] == "PRAGMA shrink_memory"
