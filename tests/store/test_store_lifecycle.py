"""The full product of status and event, walked on the store and compared with `lifecycle.step`."""

import itertools

import pytest

from asyncqueue.job import Redrive, Release, Renew, Report, Ticket
from asyncqueue.lifecycle import TRANSITIONS, Event, Facts, Reason, Status, step
from asyncqueue.stores.base import Claim

MAX_ATTEMPTS = 3
SPANS_MS = (1, 2, 3, 50)
OWNER = "holder"
REPORTS = {Event.OK, Event.RETRY, Event.PERMANENT, Event.RENEW, Event.RELEASE}


def facts_around_every_boundary(now, status):
    leases = (now - 1, now, now + 1, now + 40) if status is Status.LEASED else (None,)
    reasons = tuple(Reason) if status is Status.DEAD else (None,)
    for attempts, due, deadline, lease, reason in itertools.product(
        (0, 1, 2, 3), (now - 1, now, now + 1), (now - 1, now, now + 1, now + 2, now + 3, now + 60), leases, reasons
    ):
        if status is Status.LEASED and attempts == 0:
            continue  # a claim has counted
        yield Facts(status, attempts, MAX_ATTEMPTS, 7, due, deadline, lease, reason)


def as_row(number, facts):
    return {
        "id": f"j{number}",
        "qty": 1,
        "owner": OWNER if facts.status is Status.LEASED else None,
        **{name: getattr(facts, name) for name in Facts.__slots__},
    }


def ticket(number, facts):
    return Ticket(f"j{number}", 1, OWNER, facts.token, facts.attempts, facts.lease_until or 0)


async def happen(transaction, event, span_ms, numbered):
    if event is Event.CLAIM:
        while await transaction.claim(Claim(OWNER, 1024, span_ms)) or await transaction.sweep(1000):
            pass
        return None
    tickets = [ticket(number, facts) for number, facts in numbered]
    if event is Event.RENEW:
        return await transaction.renew([Renew(one, span_ms) for one in tickets])
    if event is Event.RELEASE:
        return await transaction.release([Release(one, span_ms) for one in tickets])
    if event is Event.CANCEL:
        return await transaction.cancel([one.id for one in tickets])
    if event is Event.REDRIVE:
        return await transaction.redrive([Redrive(one.id, span_ms, "n") for one in tickets])
    return await transaction.finish([Report(one, event.value, span_ms) for one in tickets])


def lawful(facts, event, now, span_ms):
    if (facts.status, event) not in TRANSITIONS:
        return None
    return step(facts, event, now_ms=now, span_ms=span_ms)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", Event)
def test_store_does_to_every_job_what_the_law_says(harness, status, event):
    now = harness.clock.now_ms()
    numbered = list(enumerate(facts_around_every_boundary(now, status)))
    for span_ms in SPANS_MS:
        harness.fresh()
        harness.raw.insert_jobs([as_row(number, facts) for number, facts in numbered])

        async def work(transaction, span_ms=span_ms):
            return await happen(transaction, event, span_ms, numbered)

        answers = harness.run(harness.store.write(work)) or [None] * len(numbered)
        found = harness.run(harness.store.get([f"j{number}" for number, _ in numbered]))
        for (_, facts), job, answer in zip(numbered, found, answers, strict=True):
            expected = lawful(facts, event, now, span_ms)
            if event in REPORTS or event is Event.REDRIVE:
                assert (expected is not None) == (answer in (*Status, True) or type(answer) is int), (
                    facts,
                    answer,
                )
            if event is Event.CANCEL:
                assert answer == status
            shown = Facts(**{name: getattr(job, name) for name in Facts.__slots__})
            assert shown == (expected or facts), (facts, event, span_ms)


def test_schema_accepts_exactly_the_statuses_of_the_law(harness):
    row = as_row(1, next(facts_around_every_boundary(0, Status.PENDING)))
    for status in Status:
        harness.raw.insert_jobs([{**row, "id": status.value, "status": status.value}])
    for status in ("", "Pending", "running", "failed", None):
        with pytest.raises(harness.raw.IntegrityError):
            harness.raw.insert_jobs([{**row, "id": "x", "status": status}])
    assert harness.raw.select("SELECT count(*) FROM jobs") == [(len(Status),)]


def test_every_reason_of_the_law_can_be_read_back(harness):
    row = as_row(1, next(facts_around_every_boundary(0, Status.PENDING)))
    harness.raw.insert_jobs(
        [{**row, "id": reason.value, "status": "dead", "reason": reason.value} for reason in Reason]
    )
    found = harness.run(harness.store.get([reason.value for reason in Reason]))
    assert [job.reason for job in found] == list(Reason)
