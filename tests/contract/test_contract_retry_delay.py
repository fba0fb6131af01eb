import inspect
import math
from fractions import Fraction

import contract_tools as tools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncqueue import worker

BAD_JITTERS = [-0.001, 1.001, -1, 2, math.nan, math.inf, -math.inf, True, False, "0.5", None, 10**400, -(10**400)]
BAD_JITTERS += [10**6000, Fraction(1, 2), tools.IntSub(1), 1j, []]


def test_the_four_errors_are_exceptions_of_their_own():
    errors = [worker.Conflict, worker.Retryable, worker.Permanent, worker.BadAck]
    assert all(issubclass(error, Exception) for error in errors)
    assert not [(a, b) for a in errors for b in errors if a is not b and issubclass(a, b)]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("retry_delay", "attempt, base_ms, cap_ms, jitter"),
        ("open_queue", "path"),
        ("enqueue", "con, event, now_ms, ttl_ms, max_attempts=3"),
        ("claim", "con, owner, now_ms, lease_ms=1000, fault=None"),
        ("finish", "con, ticket, outcome, now_ms, delay_ms=0, fault=None"),
        ("redrive", "con, job_id, now_ms, ttl_ms, note, fault=None"),
        ("run_once", "con, owner, clock, send, jitter, lease_ms=1000"),
        ("run_file", "path, owner, clock, send, jitter, lease_ms=1000"),
    ],
)
def test_names_arguments_order_and_defaults_are_those_of_the_contract(name, signature):
    function = getattr(worker, name)
    parameters = inspect.signature(function).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert ", ".join(str(p) for p in plain) == signature
    assert inspect.iscoroutinefunction(function) is (name != "retry_delay")


@pytest.mark.parametrize(
    ("attempt", "base_ms", "cap_ms", "jitter", "expected"),
    [
        (1, 100, 1000, 1, 100),
        (2, 100, 1000, 1, 200),
        (4, 100, 1000, 1, 800),
        (5, 100, 1000, 1, 1000),
        (16, 60_000, 60_000, 1, 60_000),
        (16, 1, 60_000, 1.0, 32_768),
        (1, 1, 1, 0, 0),
        (1, 1, 1, 0.999, 0),
        (5, 100, 1000, 0.5, 500),
        (5, 100, 1000, 0.0019, 1),
        (3, 7, 100, 0.5, 14),
        (1, 100, 100, 0.999, 99),
    ],
)
def test_the_cap_comes_first_then_the_ratio_then_the_floor(attempt, base_ms, cap_ms, jitter, expected):
    result = worker.retry_delay(attempt, base_ms, cap_ms, jitter)
    assert result == expected
    assert type(result) is int


@given(st.integers(1, 16), st.integers(1, 60_000), st.data())
def test_the_delay_is_the_formula_and_never_above_the_cap(attempt, base_ms, data):
    cap_ms = data.draw(st.integers(base_ms, 60_000))
    jitter = data.draw(st.floats(0, 1) | st.sampled_from([0, 1]))
    result = worker.retry_delay(attempt, base_ms, cap_ms, jitter)
    assert result == math.floor(min(cap_ms, base_ms * 2 ** (attempt - 1)) * jitter)
    assert 0 <= result <= cap_ms


@pytest.mark.parametrize("attempt", tools.named(tools.bad_ints(1, 16)))
def test_a_wrong_attempt_is_a_value_error(attempt):
    with pytest.raises(ValueError, match="attempt"):
        worker.retry_delay(attempt, 100, 1000, 1)


@pytest.mark.parametrize("base_ms", tools.named(tools.bad_ints(1, 60_000)))
def test_a_wrong_base_is_a_value_error(base_ms):
    with pytest.raises(ValueError, match="base_ms"):
        worker.retry_delay(1, base_ms, 60_000, 1)


@pytest.mark.parametrize("cap_ms", tools.named(tools.bad_ints(100, 60_000)))
def test_a_cap_below_the_base_or_otherwise_wrong_is_a_value_error(cap_ms):
    with pytest.raises(ValueError, match="cap_ms"):
        worker.retry_delay(1, 100, cap_ms, 1)


@pytest.mark.parametrize("jitter", tools.named(BAD_JITTERS))
def test_a_wrong_jitter_is_a_value_error(jitter):
    with pytest.raises(ValueError, match="jitter"):
        worker.retry_delay(1, 100, 1000, jitter)
