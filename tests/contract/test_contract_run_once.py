import asyncio
import sqlite3
from contextlib import closing

import contract_tools as tools
import pytest

from asyncqueue.worker import BadAck, Permanent, Retryable, claim, enqueue, open_queue, retry_delay, run_once

BAD_CLOCKS = tools.named(tools.bad_ints(0, tools.NOW_MAX))


class Clock:
    """Returns the given readings one after the other and counts them."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.readings.pop(0)


class Send:
    """An async send that records its events and then answers or raises."""

    def __init__(self, answer=True):
        self.answer = answer
        self.events = []

    async def __call__(self, event):
        self.events.append(event)
        await asyncio.sleep(0)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class EqualsTrue:
    def __eq__(self, other):
        return True

    __hash__ = None


async def test_an_acknowledged_send_is_done(con, path):
    tools.put(path, token=4)
    send = Send()
    assert await run_once(con, "one", Clock(100, 200), send, 0.5) == {"id": "a", "token": 5, "status": "done"}
    assert send.events == [{"id": "a", "qty": 3}]
    assert type(send.events[0]) is dict
    assert (tools.job(path)["status"], tools.job(path)["available_at"]) == ("done", 200)


async def test_without_work_it_is_none_and_nothing_is_sent(con, path):
    clock, send = Clock(100), Send()
    assert await run_once(con, "one", clock, send, 0.5) is None
    assert (clock.calls, send.events) == (1, [])


async def test_the_lease_is_a_second_by_default_and_as_long_as_asked_otherwise(con, path):
    tools.put(path)
    tools.put(path, "b")
    leases = []

    async def send(event):
        leases.append(tools.job(path, event["id"])["lease_until"])
        return True

    await run_once(con, "one", Clock(100, 100), send, 1)
    await run_once(con, "one", Clock(100, 100), send, 1, 2_000)
    assert leases == [1_100, 2_100]


async def test_the_send_runs_outside_any_transaction(con, path):
    tools.put(path)

    async def send(_event):
        assert not con.in_transaction
        tools.assert_writable_at_once(path)
        assert tools.job(path)["status"] == "leased"
        return True

    assert (await run_once(con, "one", Clock(0, 0), send, 1))["status"] == "done"


@pytest.mark.parametrize(
    "answer",
    tools.named([None, False, 1, 1.0, "True", b"true", {"ok": True}, [True], EqualsTrue(), object(), 10**6000]),
)
async def test_any_answer_but_an_exact_true_is_a_bad_ack_and_stays_leased(answer, con, path):
    tools.put(path)
    clock = Clock(100)
    with pytest.raises(BadAck):
        await run_once(con, "one", clock, Send(answer), 0.5)
    assert clock.calls == 1
    row = tools.job(path)
    assert (row["status"], row["owner"], row["token"], row["lease_until"]) == ("leased", "one", 1, 1_100)


@pytest.mark.parametrize("jitter", [0, 0.5, 1])
@pytest.mark.parametrize("attempts", [0, 1, 2, 3, 4, 14])
async def test_retryable_is_a_retry_after_the_delay_of_its_attempt(attempts, jitter, con, path):
    tools.put(path, attempts=attempts, max_attempts=16)
    result = await run_once(con, "one", Clock(100, 200), Send(Retryable("later")), jitter)
    assert result == {"id": "a", "token": 1, "status": "pending"}
    row = tools.job(path)
    assert row["available_at"] == 200 + retry_delay(attempts + 1, 100, 1000, jitter)
    assert (row["reason"], row["attempts"]) == ("retry", attempts + 1)


async def test_retryable_on_the_last_attempt_or_too_near_the_deadline_is_dead(con, path):
    tools.put(path, attempts=2)
    tools.put(path, "b", deadline=300)
    for reason in ("exhausted", "deadline"):
        assert (await run_once(con, "one", Clock(100, 200), Send(Retryable()), 1))["status"] == "dead"
        assert [row["reason"] for row in tools.jobs(path)].count(reason) == 1


async def test_permanent_is_dead(con, path):
    tools.put(path)
    result = await run_once(con, "one", Clock(100, 200), Send(Permanent("no")), 0.5)
    assert result == {"id": "a", "token": 1, "status": "dead"}
    assert (tools.job(path)["reason"], tools.job(path)["available_at"]) == ("permanent", 200)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), OSError("x"), TimeoutError("x"), BadAck("x"), KeyError("x"), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
async def test_any_other_error_is_raised_as_it_is_and_stays_leased(error, con, path):
    tools.put(path)
    clock = Clock(100)
    with pytest.raises(type(error)) as caught:
        await run_once(con, "one", clock, Send(error), 0.5)
    assert caught.value is error
    assert clock.calls == 1
    assert (tools.job(path)["status"], tools.job(path)["token"]) == ("leased", 1)
    tools.assert_writable_at_once(path)


async def test_a_send_that_is_not_async_is_an_error_and_stays_leased(con, path):
    tools.put(path)
    with pytest.raises(TypeError):
        await run_once(con, "one", Clock(100), lambda _event: True, 0.5)
    assert tools.job(path)["status"] == "leased"


@pytest.mark.parametrize(
    "jitter", tools.named([-0.1, 1.1, True, False, float("nan"), float("inf"), "1", None, 10**400])
)
async def test_jitter_is_checked_before_the_clock_the_claim_and_the_send(jitter, con, path):
    tools.put(path, deadline=0)
    before = tools.snapshot(path)
    clock, send = Clock(100), Send()
    with pytest.raises(ValueError, match="jitter"):
        await run_once(con, "not an owner!", clock, send, jitter)
    assert (clock.calls, send.events, tools.snapshot(path)) == (0, [], before)


@pytest.mark.parametrize("first", BAD_CLOCKS)
async def test_a_wrong_first_time_is_a_value_error_before_anything_changes(first, con, path):
    tools.put(path)
    before, send = tools.snapshot(path), Send()
    with pytest.raises(ValueError):
        await run_once(con, "one", Clock(first), send, 0.5)
    assert (send.events, tools.snapshot(path)) == ([], before)


@pytest.mark.parametrize(("owner", "lease_ms"), [("", 1), ("a b", 1), ("one", 0), ("one", 60_001), ("one", True)])
async def test_a_wrong_owner_or_lease_is_a_value_error_and_nothing_is_sent(owner, lease_ms, con, path):
    tools.put(path)
    before, send = tools.snapshot(path), Send()
    with pytest.raises(ValueError):
        await run_once(con, owner, Clock(100), send, 0.5, lease_ms)
    assert (send.events, tools.snapshot(path)) == ([], before)


@pytest.mark.parametrize("answer", [True, Retryable("x"), Permanent("x")], ids=["ok", "retry", "permanent"])
@pytest.mark.parametrize("second", BAD_CLOCKS)
async def test_a_wrong_second_time_is_a_value_error_and_the_claim_stays(second, answer, con, path):
    tools.put(path)
    with pytest.raises(ValueError):
        await run_once(con, "one", Clock(100, second), Send(answer), 0.5)
    assert (tools.job(path)["status"], tools.job(path)["token"]) == ("leased", 1)


@pytest.mark.parametrize(("second", "accepted"), [(99, False), (100, True), (101, True)])
async def test_a_second_time_before_the_first_is_a_value_error_and_the_claim_stays(second, accepted, con, path):
    tools.put(path)
    if accepted:
        assert (await run_once(con, "one", Clock(100, second), Send(), 0.5))["status"] == "done"
    else:
        with pytest.raises(ValueError, match="backwards"):
            await run_once(con, "one", Clock(100, second), Send(), 0.5)
        assert tools.job(path)["status"] == "leased"


async def test_an_error_of_the_second_clock_is_raised_and_the_claim_stays(con, path):
    tools.put(path)
    with pytest.raises(IndexError):
        await run_once(con, "one", Clock(100), Send(), 0.5)
    assert tools.job(path)["status"] == "leased"


@pytest.mark.parametrize(("second", "status"), [(1_099, "done"), (1_100, "stale"), (1_101, "stale")])
async def test_the_second_time_decides_whether_the_ticket_still_holds(second, status, con, path):
    tools.put(path)
    result = await run_once(con, "one", Clock(100, second), Send(), 0.5)
    assert result == {"id": "a", "token": 1, "status": status}
    assert tools.job(path)["status"] == ("done" if status == "done" else "leased")


async def test_a_result_after_another_dispatcher_took_over_is_stale_and_changes_nothing(con, path):
    tools.put(path)

    async def send(_event):
        async with closing_queue(path) as other:
            assert (await claim(other, "one", 1_100))["token"] == 2
        return True

    result = await run_once(con, "one", Clock(100, 1_150), send, 0.5)
    assert result == {"id": "a", "token": 1, "status": "stale"}
    assert (tools.job(path)["status"], tools.job(path)["token"]) == ("leased", 2)


class closing_queue:  # noqa: N801 - reads as a verb where it is used
    def __init__(self, path):
        self.path = path

    async def __aenter__(self):
        self.con = await open_queue(self.path)
        return self.con

    async def __aexit__(self, *error):
        await self.con.close()


async def test_a_send_may_change_its_dict_and_the_ticket_still_holds(con, path):
    tools.put(path)
    tools.put(path, "b")

    async def send(event):
        event.update(id="b", qty=999, token=999, owner="x")
        event.clear()
        return True

    assert await run_once(con, "one", Clock(0, 0), send, 0.5) == {"id": "a", "token": 1, "status": "done"}
    assert tools.job(path, "b")["status"] == "pending"


async def test_a_send_may_put_in_work_over_a_separate_connection_and_over_the_same_one(con, path):
    tools.put(path)

    async def send(_event):
        async with closing_queue(path) as other:
            assert await enqueue(other, {"id": "b", "qty": 1}, 0, 1_000) is True
        assert await enqueue(con, {"id": "c", "qty": 1}, 0, 1_000) is True
        return True

    assert await run_once(con, "one", Clock(0, 0), send, 0.5) == {"id": "a", "token": 1, "status": "done"}
    assert [(row["id"], row["status"]) for row in tools.jobs(path)] == [
        ("a", "done"),
        ("b", "pending"),
        ("c", "pending"),
    ]


async def test_two_runs_at_once_on_one_connection_send_different_work(con, path):
    tools.put(path)
    tools.put(path, "b")
    send = Send()
    results = await asyncio.gather(*(run_once(con, "one", Clock(0, 0), send, 0.5) for _ in range(3)))
    assert sorted(event["id"] for event in send.events) == ["a", "b"]
    assert [result["status"] for result in results if result] == ["done", "done"]


async def test_a_finish_that_fails_is_raised_and_the_claim_stays(con, path):
    tools.put(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:

        async def send(_event):
            other.execute("BEGIN IMMEDIATE")
            return True

        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await run_once(con, "one", Clock(0, 0), send, 0.5)
        other.execute("ROLLBACK")
    assert tools.job(path)["status"] == "leased"
