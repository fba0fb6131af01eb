"""Finishing and claiming at once does what the one verb does, and then the other: word for word."""

import random
from dataclasses import replace

import pytest

from asyncqueue.clock import ManualClock
from asyncqueue.job import FailedAttempt, NewJob, Report
from asyncqueue.stores import open_store
from asyncqueue.stores.base import Claim, JobFilter, Rules

LEASE_MS = 1_000
IDS = [f"j{n:02}" for n in range(40)]

REPORTS = {
    "all ok": lambda held: [Report.ok(job) for job in held],
    "in another order": lambda held: [Report.ok(job) for job in reversed(held)],
    "none": lambda _held: [],
    "one is stale": lambda held: [Report.ok(replace(held[0], token=9)), *(Report.ok(job) for job in held[1:])],
    "one twice": lambda held: [Report.ok(held[0]), *(Report.ok(job) for job in held)],
    "stale, then its holder's": lambda held: [Report.ok(replace(held[0], token=9)), Report.ok(held[0])],
    "one to be tried again": lambda held: [Report.retry(held[0], 0, FailedAttempt("x")), Report.ok(held[1])],
    "one for good": lambda held: [Report.permanent(held[0], FailedAttempt("x")), Report.ok(held[1])],
    "some are left": lambda held: [Report.ok(job) for job in held[:2]],
}
CLAIMS = {
    "as many": {"limit": 4},
    "one": {"limit": 1},
    "all there is": {"limit": 100},
    "of this queue": {"limit": 4, "queues": ("default",)},
    "of another queue": {"limit": 4, "queues": ("other",)},
    "of a kind": {"limit": 4, "kinds": ("mail",)},
}


async def put(transaction, *jobs):
    await transaction.enqueue(jobs)


async def nothing(_transaction, _clock):
    """Leave all as it is."""


async def a_better_one(transaction, _clock):
    await put(transaction, NewJob("urgent", 1, priority=1))


async def another_queue(transaction, _clock):
    await put(transaction, NewJob("elsewhere", 1, queue="other"))


async def a_pause(transaction, _clock):
    await transaction.pause(["default"], paused=True)


async def the_leases_have_ended(_transaction, clock):
    clock.advance(LEASE_MS)


async def all_is_late(_transaction, clock):
    clock.advance(60_000)


EVENTS = {
    event.__name__: event
    for event in (nothing, a_better_one, another_queue, a_pause, the_leases_have_ended, all_is_late)
}


async def told(url, rules, reports, claim, event, *, at_once):
    """Return what is answered, and what all jobs are then."""
    random.seed(1)  # whose turn it is among queues is drawn
    clock = ManualClock()
    store = await open_store(url, clock=clock, rules=rules)
    try:
        jobs = [NewJob(name, 1, kind="mail" if n % 3 else "", ttl_ms=50_000) for n, name in enumerate(IDS)]
        await store.write(lambda transaction: put(transaction, *jobs))
        for _ in range(2):  # the second one of a PostgreSQL store knows where to begin
            held = await store.write(lambda transaction: transaction.claim(Claim("w", 4, LEASE_MS)))
        await store.write(lambda transaction: event(transaction, clock))
        settled = reports(held)

        async def work(transaction):
            if at_once:
                return await transaction.finish_and_claim(settled, claim)
            return await transaction.finish(settled), await transaction.claim(claim)

        statuses, leased = await store.write(work, inline=at_once, at_once=at_once)
        histories = {name: await store.history(name, 10) for name in IDS}
        return statuses, leased, await store.list_jobs(JobFilter(limit=100)), histories
    finally:
        await store.close()


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("wanted", CLAIMS.values(), ids=CLAIMS)
async def test_at_once_is_one_after_the_other_whoever_is_asked_for(new_url, wanted, event):
    claim = Claim("v", lease_ms=LEASE_MS, **wanted)
    for rules in (Rules(), Rules(accept_late=True)):
        asked = (rules, REPORTS["all ok"], claim, event)
        at_once = await told(new_url(), *asked, at_once=True)
        assert at_once == await told(new_url(), *asked, at_once=False)


@pytest.mark.parametrize("event", [nothing, the_leases_have_ended], ids=lambda event: event.__name__)
@pytest.mark.parametrize("reports", REPORTS.values(), ids=REPORTS)
async def test_at_once_is_one_after_the_other_whatever_is_reported(new_url, reports, event):
    for rules in (Rules(), Rules(accept_late=True), Rules(keep_all=True)):
        asked = (rules, reports, Claim("v", 4, LEASE_MS), event)
        at_once = await told(new_url(), *asked, at_once=True)
        assert at_once == await told(new_url(), *asked, at_once=False)


async def test_a_late_report_that_still_counts_is_before_the_claim_that_would_take_its_job(new_url):
    asked = (REPORTS["all ok"], Claim("v", 100, LEASE_MS), the_leases_have_ended)
    statuses, leased, *_rest = await told(new_url(), Rules(accept_late=True), *asked, at_once=True)
    assert statuses == ["done"] * 4
    assert [job.id for job in leased] == [*IDS[:4], *IDS[8:]]
    statuses, leased, *_rest = await told(new_url(), Rules(), *asked, at_once=True)
    assert statuses == [None] * 4
    assert [job.id for job in leased] == IDS
