"""Rows that somebody changed by hand: the verbs leave nothing behind of what a job must not have."""

import pytest

from asyncqueue.errors import NotDead
from asyncqueue.job import FailedAttempt, NewJob, Note, Redrive, Release, Renew, Report
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim

LEASE_MS = 1_000


@pytest.fixture
async def leased(store):
    await store.write(lambda transaction: transaction.enqueue([NewJob("a", 1), NewJob("b", 1)]))
    return (await store.write(lambda transaction: transaction.claim(Claim("w", 1, LEASE_MS))))[0]


VERBS = {
    "ok": lambda transaction, ticket: transaction.finish([Report.ok(ticket)]),
    "retry": lambda transaction, ticket: transaction.finish([Report.retry(ticket, 0)]),
    "permanent": lambda transaction, ticket: transaction.finish([Report.permanent(ticket)]),
    "renew": lambda transaction, ticket: transaction.renew([Renew(ticket, 9_000)]),
    "release": lambda transaction, ticket: transaction.release([Release(ticket)]),
}


async def settle(store, verb, ticket):
    return (await store.write(lambda transaction: VERBS[verb](transaction, ticket)))[0]


async def found(store):
    return (await store.get(["a"]))[0]


@pytest.mark.parametrize("status", ["pending", "done", "dead"])
@pytest.mark.parametrize("verb", VERBS)
async def test_ticket_of_a_job_that_was_ended_by_hand_is_stale(store, raw, leased, verb, status):
    raw.execute(f"UPDATE jobs SET status = '{status}' WHERE id = 'a'")  # its owner and lease are left
    before = await found(store)
    assert not await settle(store, verb, leased)
    assert await found(store) == before


@pytest.mark.parametrize("verb", ["ok", "permanent", "retry", "release"])
async def test_settled_job_has_no_reason_of_before(store, raw, leased, verb):
    raw.execute("UPDATE jobs SET reason = 'deadline' WHERE id = 'a'")
    assert await settle(store, verb, leased)
    reasons = {"ok": None, "permanent": "permanent", "retry": "retry", "release": None}
    assert (await found(store)).reason == reasons[verb]


async def test_ok_in_a_set_with_others_has_no_reason_of_before(store, raw, leased):
    (other,) = await store.write(lambda transaction: transaction.claim(Claim("w", 1, LEASE_MS)))
    raw.execute("UPDATE jobs SET reason = 'deadline'")
    await store.write(lambda transaction: transaction.finish([Report.ok(leased), Report.retry(other, 0)]))
    assert [job.reason for job in await store.get(["a", "b"])] == [None, "retry"]


@pytest.mark.parametrize("verb", ["cancel", "sweep", "redrive"])
async def test_verbs_without_a_ticket_leave_no_lease(store, raw, clock, leased, verb):
    status = "dead" if verb == "redrive" else "pending"
    raw.execute(f"UPDATE jobs SET status = '{status}', finished_at = 1, reason = 'retry' WHERE id = 'a'")
    if verb == "cancel":
        await store.write(lambda transaction: transaction.cancel(["a"]))
    elif verb == "sweep":
        raw.execute(f"UPDATE jobs SET deadline = {clock.now_ms()} WHERE id = 'a'")
        assert await store.write(lambda transaction: transaction.sweep(9)) == 1
    else:
        assert await store.write(lambda transaction: transaction.redrive([Redrive("a", 500, "n")])) == [True]
    after = await found(store)
    reasons = {"cancel": "cancelled", "sweep": "deadline", "redrive": None}
    assert (after.owner, after.lease_until, after.reason) == (None, None, reasons[verb])
    assert after.finished_at == (None if verb == "redrive" else clock.now_ms())


@pytest.mark.parametrize("verb", ["ok", "permanent", "retry", "release"])
async def test_note_about_a_lease_that_is_settled_changes_no_row(store, leased, verb):
    assert await settle(store, verb, leased)
    before = await found(store)
    note = Note(leased, FailedAttempt("told too late"))
    assert await store.write(lambda transaction: transaction.note([note])) == [None]
    assert await found(store) == before
    assert [line.detail for line in await store.history("a", 9)][-1] == "told too late"


async def test_job_that_is_both_spent_and_late_counts_once_in_a_bounded_sweep(store, raw, clock):
    jobs = [NewJob("late", 1, ttl_ms=10), NewJob("spent1", 1), NewJob("spent2", 1)]
    await store.write(lambda transaction: transaction.enqueue(jobs))
    raw.execute("UPDATE jobs SET attempts = max_attempts")
    clock.advance(10)
    assert [await store.write(lambda transaction: transaction.sweep(2)) for _ in range(3)] == [2, 1, 0]
    assert [job.reason for job in await store.get(["late", "spent1"])] == ["deadline", "exhausted"]


async def test_dead_job_is_redriven_and_no_job_of_another_status_though_its_reason_is_left(store, raw, leased):
    assert await settle(store, "ok", leased)
    raw.execute("UPDATE jobs SET reason = 'permanent' WHERE id = 'a'")
    (answer,) = await store.write(lambda transaction: transaction.redrive([Redrive("a", 500, "n")]))
    assert isinstance(answer, NotDead)
    assert (await found(store)).status is Status.DONE
