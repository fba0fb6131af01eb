import sqlite3
from contextlib import closing

import contract_tools as tools
import pytest

from asyncqueue.worker import claim, finish

SETTLED = {"owner": None, "lease_until": None}
OUTCOMES = ["ok", "retry", "permanent"]


@pytest.mark.parametrize("delay_ms", [0, 300])
@pytest.mark.parametrize(
    ("outcome", "status", "reason"), [("ok", "done", None), ("permanent", "dead", "permanent")]
)
async def test_ok_is_done_and_permanent_is_dead_at_the_time_of_the_report(
    *, outcome, status, reason, delay_ms, con, path
):
    ticket = tools.put_leased(path, available_at=7, attempts=3, reason="retry")
    before = tools.job(path)
    assert await finish(con, ticket, outcome, 600, delay_ms) == status
    assert tools.job(path) == {**before, **SETTLED, "status": status, "reason": reason, "available_at": 600}


@pytest.mark.parametrize("delay_ms", [0, 1, 300, 9_399])
async def test_a_retry_is_pending_again_after_its_delay(delay_ms, con, path):
    ticket = tools.put_leased(path, deadline=10_000)
    before = tools.job(path)
    assert await finish(con, ticket, "retry", 600, delay_ms) == "pending"
    expected = {"status": "pending", "reason": "retry", "available_at": 600 + delay_ms}
    assert tools.job(path) == {**before, **SETTLED, **expected}


async def test_there_is_no_delay_by_default(con, path):
    ticket = tools.put_leased(path)
    assert await finish(con, ticket, "retry", 600) == "pending"
    assert tools.job(path)["available_at"] == 600


@pytest.mark.parametrize(("delay_ms", "status"), [(1_399, "pending"), (1_400, "dead"), (1_401, "dead")])
async def test_a_retry_that_would_reach_the_deadline_is_dead(delay_ms, status, con, path):
    ticket = tools.put_leased(path, deadline=2_000)
    assert await finish(con, ticket, "retry", 600, delay_ms) == status
    row = tools.job(path)
    if status == "dead":
        assert (row["status"], row["reason"], row["available_at"]) == ("dead", "deadline", 600)
    else:
        assert (row["status"], row["reason"], row["available_at"]) == ("pending", "retry", 1_999)


@pytest.mark.parametrize(("attempt", "status"), [(2, "pending"), (3, "dead"), (4, "dead")])
async def test_a_retry_after_the_last_attempt_is_dead_exhausted(attempt, status, con, path):
    ticket = tools.put_leased(path, attempts=attempt, max_attempts=3)
    assert await finish(con, ticket, "retry", 600, 100) == status
    row = tools.job(path)
    assert row["reason"] == ("retry" if status == "pending" else "exhausted")
    assert row["available_at"] == (700 if status == "pending" else 600)


async def test_used_up_attempts_come_before_a_missed_deadline(con, path):
    ticket = tools.put_leased(path, attempts=3, deadline=1_000)
    assert await finish(con, ticket, "retry", 999, 60_000) == "dead"
    assert tools.job(path)["reason"] == "exhausted"


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(
    ("key", "other"),
    [
        *(("id", "b"), ("id", "A"), ("qty", 2), ("qty", 4), ("owner", "two"), ("owner", "One")),
        *(
            ("token", 6),
            ("token", 8),
            ("attempt", 1),
            ("attempt", 3),
            ("lease_until", 999),
            ("lease_until", 1_001),
        ),
    ],
)
async def test_a_ticket_that_differs_anywhere_changes_nothing(*, key, other, outcome, con, path, points):
    ticket = tools.put_leased(path, token=7, attempts=2)
    tools.put(path, "b")
    before = tools.snapshot(path)
    assert await finish(con, {**ticket, key: other}, outcome, 600, fault=points) is False
    assert tools.snapshot(path) == before
    assert points == []
    assert not con.in_transaction
    assert await finish(con, ticket, "ok", 600, fault=points) == "done"


@pytest.mark.parametrize("status", ["pending", "done", "dead"])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_work_that_is_not_leased_is_not_changed(status, outcome, con, path):
    ticket = tools.put_leased(path, status=status)
    before = tools.snapshot(path)
    assert await finish(con, ticket, outcome, 600) is False
    assert tools.snapshot(path) == before


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_work_that_does_not_exist_is_stale(outcome, con, path):
    ticket = tools.put_leased(path)
    tools.run(path, "DELETE FROM jobs")
    assert await finish(con, ticket, outcome, 600) is False
    assert tools.jobs(path) == []


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(("now_ms", "held"), [(999, True), (1_000, False), (1_001, False)])
@pytest.mark.parametrize("limits", [(1_000, 5_000), (5_000, 1_000), (1_000, 1_000)])
async def test_a_report_is_stale_from_the_end_of_the_lease_and_from_the_deadline_on(
    *, limits, now_ms, held, outcome, con, path
):
    lease_until, deadline = limits
    ticket = tools.put_leased(path, lease_until=lease_until, deadline=deadline)
    before = tools.snapshot(path)
    assert (await finish(con, ticket, outcome, now_ms) is not False) is held
    assert (tools.snapshot(path) == before) is not held


async def test_a_stale_dispatcher_cannot_overwrite_the_new_one_even_under_the_same_name(con, path):
    tools.put(path)
    old = await claim(con, "same", 0, 100)
    new = await claim(con, "same", 100, 900)
    assert new["token"] == old["token"] + 1
    for outcome in OUTCOMES:
        assert await finish(con, old, outcome, 50) is False
    assert tools.job(path)["status"] == "leased"
    assert await finish(con, new, "ok", 200) == "done"
    assert await finish(con, new, "permanent", 201) is False
    assert tools.job(path)["status"] == "done"


async def test_other_work_is_left_alone(con, path):
    ticket = tools.put_leased(path)
    tools.put_leased(path, "b")
    other = tools.job(path, "b")
    assert await finish(con, ticket, "ok", 1) == "done"
    assert tools.job(path, "b") == other


async def test_the_hooks_are_called_before_and_after_the_commit(con, path):
    ticket = tools.put_leased(path)
    seen = []

    def fault(point):
        with closing(sqlite3.connect(path, timeout=0)) as plain:
            seen.append((point, con.in_transaction, *plain.execute("SELECT status FROM jobs").fetchone()))

    assert await finish(con, ticket, "ok", 0, fault=fault) == "done"
    assert seen == [("after-finish", True, "leased"), ("after-commit", False, "done")]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_an_error_before_the_commit_rolls_back_and_is_raised_as_it_is(outcome, con, path):
    ticket = tools.put_leased(path)
    before = tools.snapshot(path)
    error = RuntimeError("boom")

    def fault(point):
        assert point == "after-finish"
        raise error

    with pytest.raises(RuntimeError) as caught:
        await finish(con, ticket, outcome, 0, fault=fault)
    assert caught.value is error
    assert tools.snapshot(path) == before
    tools.assert_writable_at_once(path)
    assert await finish(con, ticket, "ok", 0) == "done"


async def test_an_error_after_the_commit_keeps_what_was_finalised(con, path):
    ticket = tools.put_leased(path)

    def fault(point):
        if point == "after-commit":
            raise RuntimeError(point)

    with pytest.raises(RuntimeError, match="after-commit"):
        await finish(con, ticket, "ok", 0, fault=fault)
    assert tools.job(path)["status"] == "done"
    assert not con.in_transaction


async def test_a_commit_that_meets_a_reader_rolls_back_and_raises(con, path):
    ticket = tools.put_leased(path)
    before = tools.snapshot(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await finish(con, ticket, "ok", 0)
        assert (
            await finish(con, {**ticket, "token": 2}, "ok", 0) is False
        )  # nothing to commit, nothing to wait for
        reader.execute("ROLLBACK")
    assert tools.snapshot(path) == before
    assert await finish(con, ticket, "ok", 0) == "done"


async def test_the_ends_of_every_range_are_taken(con, path):
    low = {"id": "a", "qty": 1, "owner": "o", "token": 1, "attempt": 1, "lease_until": 1}
    tools.put_leased(path, qty=1, owner="o", lease_until=1, deadline=1)
    assert await finish(con, low, "ok", 0, 0) == "done"
    row = {"qty": 1000, "owner": "o" * 64, "token": 10**15, "attempts": 16, "lease_until": 10**15}
    high = tools.put_leased(path, "b" * 64, **row, max_attempts=16, deadline=10**15 + 1)
    assert await finish(con, high, "retry", tools.NOW_MAX, 60_000) == "dead"


async def assert_refused(con, path, *arguments):
    before = tools.snapshot(path)
    with pytest.raises(ValueError):
        await finish(con, *arguments, fault=lambda _point: pytest.fail("no hook on a refusal"))
    assert tools.snapshot(path) == before
    with pytest.raises(ValueError):
        await finish(None, *arguments)


TICKET_RANGES = {"qty": (1, 1000), "token": (1, 10**15), "attempt": (1, 16), "lease_until": (1, 10**15)}
BAD_PARTS = [(key, bad) for key, ends in TICKET_RANGES.items() for bad in tools.bad_ints(*ends)]
BAD_PARTS += [(key, bad) for key in ("id", "owner") for bad in tools.BAD_IDS]


@pytest.mark.parametrize("part", tools.named(BAD_PARTS))
async def test_a_wrong_value_in_a_ticket_is_a_value_error(part, con, path):
    key, bad = part
    ticket = tools.put_leased(path)
    await assert_refused(con, path, {**ticket, key: bad}, "ok", 600)


async def test_a_ticket_of_another_shape_is_a_value_error(con, path):
    ticket = tools.put_leased(path)
    for key in ticket:
        await assert_refused(con, path, {k: v for k, v in ticket.items() if k != key}, "ok", 600)
        renamed = {tools.StrSub(k) if k == key else k: v for k, v in ticket.items()}
        await assert_refused(con, path, renamed, "ok", 600)
    for bad in ({**ticket, "note": 1}, tools.DictSub(ticket), list(ticket.items()), tuple(ticket), None, "ticket"):
        await assert_refused(con, path, bad, "ok", 600)


@pytest.mark.parametrize(
    "bad", tools.named(["", "OK", "done", "ok ", tools.StrSub("ok"), b"ok", None, True, 1, [], {}])
)
async def test_a_wrong_outcome_is_a_value_error(bad, con, path):
    await assert_refused(con, path, tools.put_leased(path), bad, 600)


@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(0, tools.NOW_MAX)))
async def test_a_wrong_time_is_a_value_error(bad, con, path):
    await assert_refused(con, path, tools.put_leased(path), "ok", bad)


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("bad", tools.named(tools.bad_ints(0, 60_000)))
async def test_a_wrong_delay_is_a_value_error_whatever_the_outcome(bad, outcome, con, path):
    await assert_refused(con, path, tools.put_leased(path), outcome, 600, bad)


async def test_the_ticket_is_not_modified(con, path):
    ticket = tools.put_leased(path)
    copy = dict(ticket)
    await finish(con, ticket, "retry", 600, 1)
    assert ticket == copy
