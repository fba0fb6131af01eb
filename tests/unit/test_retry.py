"""The retry policy: no overflow, no delay outside its bounds, one report for each verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncqueue.errors import ConfigError
from asyncqueue.job import PRODUCT, FailedAttempt, Release, Report, Ticket
from asyncqueue.retry import Certainty, Outcome, RetryPolicy, Verdict, backoff_ms, check_jitter, decide

TICKET = Ticket("a", 1, "me", token=7, attempt=3, lease_until=10_000)
POLICY = RetryPolicy(base_ms=100, cap_ms=10_000, retry_after_cap_ms=60_000)
TIMES = st.integers(1, PRODUCT.delay_ms.high)
JITTERS = st.floats(0, 1) | st.sampled_from([0, 1])


def test_ten_thousand_attempts_have_a_finite_delay__kind_16_backoff_overflow():
    for attempt in range(1, 10_001):
        for base_ms, cap_ms in [(1, 1), (1_000, 300_000), (1, PRODUCT.delay_ms.high), (2**60, 2**53 + 3)]:
            assert 0 <= backoff_ms(attempt, base_ms, cap_ms, 1.0) <= cap_ms
            assert backoff_ms(attempt, base_ms, cap_ms, 0) == 0


@given(st.integers(1, 10_000), st.integers(1, 2**900), st.integers(1, 2**900), JITTERS)
def test_backoff_stays_within_its_cap__kind_16(attempt, base_ms, cap_ms, jitter):
    delay_ms = backoff_ms(attempt, base_ms, cap_ms, jitter)
    assert type(delay_ms) is int
    assert 0 <= delay_ms <= cap_ms


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 100), (2, 200), (7, 6_400), (8, 10_000), (10_000, 10_000)])
def test_backoff_doubles_up_to_the_cap(attempt, delay_ms):
    assert POLICY.delay_ms(attempt, 1.0) == delay_ms
    assert POLICY.delay_ms(attempt, 0.5) == delay_ms // 2


POLICIES = st.builds(lambda one, two, wish_cap: RetryPolicy(*sorted((one, two)), wish_cap), TIMES, TIMES, TIMES)


@given(POLICIES, st.integers(1, 10_000), JITTERS, st.none() | st.integers(-(10**30), 10**30))
def test_every_delay_can_be_reported(policy, attempt, jitter, wish_ms):
    delay_ms = policy.delay_ms(attempt, jitter, wish_ms)
    assert delay_ms in PRODUCT.delay_ms
    assert delay_ms <= max(policy.cap_ms, policy.retry_after_cap_ms) + policy.base_ms
    assert Report.retry(TICKET, delay_ms).delay_ms == delay_ms


@pytest.mark.parametrize(
    ("wish_ms", "delay_ms"),
    [(None, 10_000), (-5, 10_100), (0, 10_100), (30_000, 30_100), (10**12, 60_100)],
)
def test_a_wish_counts_within_its_cap_only__kind_17_retry_after_trusted(wish_ms, delay_ms):
    assert POLICY.delay_ms(50, 1.0, wish_ms) == delay_ms


@pytest.mark.parametrize(
    "times",
    [
        (0, 1, 1),
        (2, 1, 1),
        (-1, 1, 1),
        (1, 1, -1),
        (1, PRODUCT.delay_ms.high + 1, 1),
        (1, 1, PRODUCT.delay_ms.high + 1),
        (1.0, 1, 1),
        (True, 1, 1),
        (1, float("nan"), 1),
    ],
)
def test_a_policy_outside_its_ranges_is_refused(times):
    with pytest.raises(ConfigError):
        RetryPolicy(*times)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan"), float("inf"), True, "0", None])
def test_a_jitter_outside_its_range_is_refused(jitter):
    with pytest.raises(ValueError):
        check_jitter(jitter)


FAILED = {"error": "503 busy", "http_status": 503, "certainty": Certainty.REFUSED}
FAILURE = FailedAttempt("503 busy", "refused", 503)


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (Outcome(Verdict.OK, Certainty.ACCEPTED), Report(TICKET, "ok")),
        (Outcome(Verdict.RETRY, **FAILED), Report(TICKET, "retry", 200, FAILURE)),
        (Outcome(Verdict.RETRY, **FAILED, retry_after_ms=5_000), Report(TICKET, "retry", 5_050, FAILURE)),
        (Outcome(Verdict.PERMANENT, **FAILED), Report(TICKET, "permanent", 0, FAILURE)),
        (Outcome(Verdict.HOLD, **FAILED), Release(TICKET, 50, FAILURE)),
        (Outcome(Verdict.HOLD, **FAILED, retry_after_ms=10**18), Release(TICKET, 60_050, FAILURE)),
        (Outcome(Verdict.LEAVE, **FAILED), None),
    ],
)
def test_each_verdict_has_its_report(outcome, report):
    assert decide(TICKET, outcome, POLICY, lambda: 0.5) == report


def test_no_verdict_is_without_a_report():
    reported = {verdict: decide(TICKET, Outcome(verdict), POLICY, lambda: 0.0) for verdict in Verdict}
    assert {verdict for verdict, report in reported.items() if report is None} == {Verdict.LEAVE}
