import asyncio
import sqlite3
from contextlib import closing

import aiosqlite
import contract_tools as tools
import pytest

from asyncqueue.worker import claim


async def test_a_claim_leases_the_work_and_returns_its_ticket(con, path):
    before = tools.put(path, token=4, attempts=1, reason="retry")
    ticket = await claim(con, "one", 500, 2_000)
    assert ticket == {"id": "a", "qty": 3, "owner": "one", "token": 5, "attempt": 2, "lease_until": 2_500}
    assert type(ticket) is dict
    assert tools.job(path) == {
        **before,
        "status": "leased",
        "attempts": 2,
        "token": 5,
        "owner": "one",
        "lease_until": 2_500,
        "reason": None,
    }


async def test_a_lease_lasts_one_second_by_default(con, path):
    tools.put(path)
    assert (await claim(con, "one", 500))["lease_until"] == 1_500


@pytest.mark.parametrize(
    ("lease_ms", "until"), [(9_499, 9_999), (9_500, 10_000), (9_501, 10_000), (60_000, 10_000)]
)
async def test_a_lease_never_outlasts_the_deadline(lease_ms, until, con, path):
    tools.put(path, deadline=10_000)
    assert (await claim(con, "one", 500, lease_ms))["lease_until"] == until
    assert tools.job(path)["lease_until"] == until


@pytest.mark.parametrize(("now_ms", "due"), [(699, False), (700, True), (701, True)])
async def test_pending_work_is_due_at_its_time_and_not_before(now_ms, due, con, path):
    tools.put(path, available_at=700)
    before = tools.snapshot(path)
    ticket = await claim(con, "one", now_ms)
    assert (ticket is not None) is due
    assert (tools.snapshot(path) == before) is not due


@pytest.mark.parametrize(("now_ms", "over"), [(999, False), (1_000, True), (1_001, True)])
async def test_a_lease_is_over_at_its_end_and_not_before(now_ms, over, con, path):
    tools.put_leased(path, lease_until=1_000)
    before = tools.snapshot(path)
    ticket = await claim(con, "two", now_ms)
    assert (ticket is not None) is over
    if over:
        assert (ticket["owner"], ticket["token"], ticket["attempt"]) == ("two", 2, 2)
    else:
        assert tools.snapshot(path) == before


@pytest.mark.parametrize("available_at", [0, 5_000])
@pytest.mark.parametrize(("now_ms", "dies"), [(1_999, False), (2_000, True), (2_001, True)])
async def test_pending_work_dies_at_its_deadline_due_or_not(now_ms, dies, available_at, con, path):
    before = tools.put(path, available_at=available_at, deadline=2_000, attempts=2)
    ticket = await claim(con, "one", now_ms)
    if dies:
        assert ticket is None
        assert tools.job(path) == {**before, "status": "dead", "reason": "deadline"}
    else:
        assert (ticket is not None) is (available_at == 0)
        assert tools.job(path)["status"] == ("leased" if available_at == 0 else "pending")


@pytest.mark.parametrize(("attempts", "dies"), [(2, False), (3, True), (4, True)])
async def test_work_whose_attempts_are_used_up_dies_exhausted(attempts, dies, con, path):
    tools.put_leased(path, attempts=attempts, max_attempts=3, lease_until=1_000)
    before = tools.job(path)
    ticket = await claim(con, "two", 1_000)
    assert (ticket is None) is dies
    if dies:
        expected = {"status": "dead", "reason": "exhausted", "owner": None, "lease_until": None}
        assert tools.job(path) == {**before, **expected}


async def test_pending_work_whose_attempts_are_used_up_dies_also_before_it_is_due(con, path):
    tools.put(path, attempts=3, available_at=9_000)
    assert await claim(con, "one", 0) is None
    assert (tools.job(path)["status"], tools.job(path)["reason"]) == ("dead", "exhausted")


async def test_a_missed_deadline_comes_before_used_up_attempts(con, path):
    tools.put(path, attempts=3, deadline=100)
    await claim(con, "one", 100)
    assert tools.job(path)["reason"] == "deadline"


async def test_a_running_lease_is_left_alone_whatever_its_attempts(con, path):
    tools.put_leased(path, attempts=3, lease_until=1_000, deadline=1_000)
    before = tools.snapshot(path)
    assert await claim(con, "two", 999) is None
    assert tools.snapshot(path) == before


@pytest.mark.parametrize("status", ["done", "dead"])
async def test_finished_work_is_never_touched(status, con, path):
    tools.put(path, status=status, attempts=9, deadline=1)
    before = tools.snapshot(path)
    assert await claim(con, "one", 5_000) is None
    assert tools.snapshot(path) == before


async def test_the_sweep_is_committed_when_there_is_nothing_to_claim_and_no_hook_is_called(con, path, points):
    tools.put(path, deadline=100)
    tools.put(path, "later", available_at=5_000)
    assert await claim(con, "one", 100, fault=points) is None
    assert points == []
    assert tools.job(path)["status"] == "dead"
    assert tools.job(path, "later")["status"] == "pending"


async def test_one_claim_sweeps_everything_that_must_die_and_takes_the_first_of_the_rest(con, path):
    tools.put(path, "late", deadline=100)
    tools.put_leased(path, "spent", attempts=3, lease_until=100)
    tools.put_leased(path, "held", attempts=3, lease_until=101)
    tools.put(path, "future", available_at=101)
    tools.put_leased(path, "lost", lease_until=100)
    tools.put(path, "next")
    tools.put(path, "late2", deadline=99)
    assert (await claim(con, "one", 100))["id"] == "lost"
    found = {row["id"]: (row["status"], row["reason"]) for row in tools.jobs(path)}
    assert found == {
        "late": ("dead", "deadline"),
        "spent": ("dead", "exhausted"),
        "held": ("leased", None),
        "future": ("pending", None),
        "lost": ("leased", None),
        "next": ("pending", None),
        "late2": ("dead", "deadline"),
    }


async def test_work_is_taken_in_ascending_seq_and_earlier_failures_do_not_block_it(con, path):
    for name, row in {"z": {}, "m": {"available_at": 50}, "b": {}, "a": {}}.items():
        tools.put(path, name, **row)
    order = [(await claim(con, "one", 10))["id"] for _ in range(3)]
    assert order == ["z", "b", "a"]
    assert await claim(con, "one", 10) is None
    assert (await claim(con, "one", 50))["id"] == "m"


async def test_the_hooks_are_called_before_and_after_the_commit(con, path):
    tools.put(path)
    seen = []

    def fault(point):
        with closing(sqlite3.connect(path, timeout=0)) as plain:
            seen.append((point, con.in_transaction, *plain.execute("SELECT status FROM jobs").fetchone()))

    assert await claim(con, "one", 0, fault=fault) is not None
    assert seen == [("after-claim", True, "pending"), ("after-commit", False, "leased")]


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("boom"), sqlite3.OperationalError("boom")])
async def test_an_error_before_the_commit_rolls_everything_back_and_is_raised_as_it_is(error, con, path):
    tools.put(path, "late", deadline=0)
    tools.put(path)
    before = tools.snapshot(path)

    def fault(point):
        assert point == "after-claim"
        raise error

    with pytest.raises(type(error)) as caught:
        await claim(con, "one", 0, fault=fault)
    assert caught.value is error
    assert tools.snapshot(path) == before
    assert not con.in_transaction
    tools.assert_writable_at_once(path)
    assert (await claim(con, "one", 0))["token"] == 1


async def test_an_error_after_the_commit_keeps_what_was_finalised(con, path):
    tools.put(path)

    def fault(point):
        if point == "after-commit":
            raise RuntimeError(point)

    with pytest.raises(RuntimeError, match="after-commit"):
        await claim(con, "one", 0, fault=fault)
    assert tools.job(path)["status"] == "leased"
    assert not con.in_transaction


async def test_a_commit_that_meets_a_reader_rolls_back_and_raises(con, path):
    tools.put(path, "late", deadline=0)
    tools.put(path)
    before = tools.snapshot(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()  # SHARED until its transaction ends
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await claim(con, "one", 0)
        assert not con.in_transaction
        reader.execute("ROLLBACK")
    assert tools.snapshot(path) == before
    tools.assert_writable_at_once(path)
    assert await claim(con, "one", 0) is not None


async def test_a_reader_does_not_disturb_a_claim_that_finds_nothing(con, path):
    tools.put(path, available_at=9_000)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
        assert await claim(con, "one", 0) is None
        assert not con.in_transaction


async def test_simultaneous_claims_on_one_connection_take_turns(con, path):
    for number in range(5):
        tools.put(path, f"job-{number}")
    tickets = await asyncio.gather(*(claim(con, f"owner-{n}", 0) for n in range(8)))
    taken = [ticket["id"] for ticket in tickets if ticket]
    assert sorted(taken) == [f"job-{n}" for n in range(5)]
    assert tickets.count(None) == 3


async def test_simultaneous_claims_on_many_connections_never_share_work(path):
    for number in range(3):
        tools.put(path, f"job-{number}")

    async def dispatcher(owner):
        async with aiosqlite.connect(path, isolation_level=None, timeout=10) as own:
            return await claim(own, owner, 0)

    tickets = await asyncio.gather(*(dispatcher(f"owner-{n}") for n in range(5)))
    assert sorted(ticket["id"] for ticket in tickets if ticket) == ["job-0", "job-1", "job-2"]


async def test_rows_of_the_named_kind_do_not_disturb(con, path):
    tools.put(path)
    con.row_factory = sqlite3.Row
    assert await claim(con, "one", 0) == {
        "id": "a",
        "qty": 3,
        "owner": "one",
        "token": 1,
        "attempt": 1,
        "lease_until": 1_000,
    }


@pytest.mark.parametrize(("now_ms", "lease_ms"), [(0, 1), (tools.NOW_MAX, 60_000)])
async def test_the_ends_of_every_range_are_taken(now_ms, lease_ms, con, path):
    tools.put(path, available_at=now_ms, deadline=10**15 + 1)
    assert (await claim(con, "a" * 64, now_ms, lease_ms))["lease_until"] == now_ms + lease_ms


async def assert_refused(con, path, *arguments):
    tools.put(path, deadline=0)
    before = tools.snapshot(path)
    with pytest.raises(ValueError):
        await claim(con, *arguments, fault=lambda _point: pytest.fail("no hook on a refusal"))
    assert tools.snapshot(path) == before
    with pytest.raises(ValueError):
        await claim(None, *arguments)


@pytest.mark.parametrize("bad", tools.named(tools.BAD_IDS))
async def test_a_wrong_owner_is_a_value_error_before_anything_changes(bad, con, path):
    await assert_refused(con, path, bad, 5)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(0, tools.NOW_MAX)))
async def test_a_wrong_time_is_a_value_error(bad, con, path):
    await assert_refused(con, path, "one", bad)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(1, 60_000)))
async def test_a_wrong_lease_is_a_value_error(bad, con, path):
    await assert_refused(con, path, "one", 5, bad)
