"""The law: walked over its whole table, with facts and times chosen at random."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncqueue.errors import IllegalTransition
from asyncqueue.lifecycle import STATUSES, TRANSITIONS, Event, Facts, Reason, Status, step

PAIRS = set(product(STATUSES, Event))
NOW_MS = st.integers(0, 200)


@st.composite
def jobs(draw, status=None):
    status = draw(st.sampled_from(STATUSES)) if status is None else status
    leased = status is Status.LEASED
    max_attempts = draw(st.integers(1, 3))
    return Facts(
        status,
        attempts=draw(st.integers(1 if leased else 0, max_attempts)),
        max_attempts=max_attempts,
        token=draw(st.integers(0, 9)),
        available_at=draw(NOW_MS),
        deadline=(deadline := draw(NOW_MS)),
        lease_until=draw(st.integers(0, deadline)) if leased else None,
    )


def test_the_table_is_complete_for_a_leased_job_and_done_is_the_end():
    assert {event for status, event in TRANSITIONS if status is Status.LEASED} == set(Event) - {Event.REDRIVE}
    assert not [pair for pair in TRANSITIONS if pair[0] is Status.DONE]


@pytest.mark.parametrize(("status", "event"), sorted(PAIRS - TRANSITIONS.keys()))
def test_a_missing_pair_is_the_error(status, event):
    with pytest.raises(IllegalTransition, match=f"{status} job has no event {event}"):
        step(Facts(status, 1, 2, 3, 0, 100, 50), event, now_ms=10)


@pytest.mark.parametrize("pair", TRANSITIONS, ids="-".join)
def test_the_last_rule_of_a_pair_always_applies(pair):
    facts = Facts(pair[0], 1, 5, 3, 0, 10**6, 10**5 if pair[0] is Status.LEASED else None)
    assert TRANSITIONS[pair][-1].when(facts, None)


@given(jobs(), st.sampled_from(Event), NOW_MS, st.integers(0, 50))
def test_what_holds_after_every_step(before, event, now_ms, span_ms):
    if (before.status, event) not in TRANSITIONS:
        return
    after = step(before, event, now_ms=now_ms, span_ms=span_ms)
    if after is None:
        return
    assert after.token >= before.token
    assert 0 <= after.attempts <= after.max_attempts
    assert (after.lease_until is None) == (after.status is not Status.LEASED)
    assert after.lease_until is None or after.lease_until <= after.deadline
    assert (after.status is Status.DEAD) == (after.reason not in (None, Reason.RETRY))


@given(jobs(), NOW_MS, st.integers(1, 50))
def test_a_claim_counts_once_and_raises_the_token_by_one(before, now_ms, span_ms):
    if (before.status, Event.CLAIM) not in TRANSITIONS:
        return
    after = step(before, Event.CLAIM, now_ms=now_ms, span_ms=span_ms)
    if after is not None and after.status is Status.LEASED:
        assert (after.attempts, after.token) == (before.attempts + 1, before.token + 1)
        assert now_ms < after.lease_until
        assert before.lease_until is None or before.lease_until <= now_ms


@given(jobs(Status.LEASED), st.sampled_from([Event.OK, Event.RETRY, Event.PERMANENT, Event.RELEASE, Event.RENEW]))
def test_a_stale_report_changes_nothing(facts, event):
    assert step(facts, event, now_ms=facts.lease_until, span_ms=10) is None


@given(jobs(Status.LEASED), NOW_MS, st.integers(0, 50))
def test_a_release_refunds_the_attempt_and_keeps_the_token(facts, now_ms, span_ms):
    after = step(facts, Event.RELEASE, now_ms=now_ms, span_ms=span_ms)
    if after is not None:
        assert (after.attempts, after.token) == (facts.attempts - 1, facts.token)


@given(jobs(Status.LEASED), NOW_MS, st.integers(0, 50))
def test_a_renewal_never_shortens_a_lease(facts, now_ms, span_ms):
    after = step(facts, Event.RENEW, now_ms=now_ms, span_ms=span_ms)
    if after is not None:
        assert facts.lease_until <= after.lease_until <= facts.deadline


@pytest.mark.parametrize(
    ("attempts", "delay_ms", "status", "reason"),
    [
        (3, 0, Status.DEAD, Reason.EXHAUSTED),
        (1, 90, Status.DEAD, Reason.DEADLINE),
        (1, 89, Status.PENDING, Reason.RETRY),
    ],
)
def test_a_retry_meets_its_limits(attempts, delay_ms, status, reason):
    after = step(Facts(Status.LEASED, attempts, 3, 1, 0, 100, 50), Event.RETRY, now_ms=10, span_ms=delay_ms)
    assert (after.status, after.reason) == (status, reason)


def test_a_crash_on_the_last_attempt_ends_as_a_dead_letter():
    crashed = Facts(
        Status.LEASED, attempts=3, max_attempts=3, token=3, available_at=0, deadline=100, lease_until=50
    )
    assert step(crashed, Event.CLAIM, now_ms=49) is None
    after = step(crashed, Event.CLAIM, now_ms=50)
    assert (after.status, after.reason, after.token) == (Status.DEAD, Reason.EXHAUSTED, 3)


def test_a_redrive_gives_a_fresh_budget_and_keeps_the_token():
    dead = Facts(Status.DEAD, 3, 3, 9, 0, 100, None, Reason.EXHAUSTED)
    after = step(dead, Event.REDRIVE, now_ms=500, span_ms=60)
    assert after == Facts(Status.PENDING, 0, 3, 9, 500, 560)


def test_a_lease_without_an_end_is_gone():
    assert step(Facts(Status.LEASED, 1, 2, 3, 0, 100), Event.OK, now_ms=0) is None
    assert step(Facts(Status.LEASED, 1, 2, 3, 0, 100), Event.CLAIM, now_ms=0, span_ms=5).lease_until == 5


def test_a_redrive_forgets_a_lease_that_the_dead_should_not_have():
    assert step(Facts(Status.DEAD, 1, 2, 3, 0, 100, 50), Event.REDRIVE, now_ms=10, span_ms=5).lease_until is None


def test_a_delay_that_is_not_given_is_none():
    assert step(Facts(Status.LEASED, 1, 2, 3, 0, 100, 50), Event.RETRY, now_ms=10).available_at == 10
