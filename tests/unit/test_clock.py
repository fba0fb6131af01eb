"""Time: never backwards, and the same in every time zone."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncqueue.clock import ManualClock, SystemClock


@given(steps=st.lists(st.integers(0, 2**62), min_size=1))
def test_the_clock_holds_still_while_the_host_is_set_back(steps):
    with pytest.MonkeyPatch.context() as patch:
        clock, seen = SystemClock(), []
        for wall_ns in steps:
            patch.setattr(time, "time_ns", lambda wall_ns=wall_ns: wall_ns)
            seen.append(clock.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] == max(steps) // 1_000_000


def test_an_hour_back_delays_by_at_most_that_hour(monkeypatch):
    clock, hour_ns, start_ns = SystemClock(), 3600 * 10**9, 10**18
    answers = []
    for wall_ns in (start_ns, start_ns - hour_ns, start_ns - 1, start_ns + 10**6):
        monkeypatch.setattr(time, "time_ns", lambda wall_ns=wall_ns: wall_ns)
        answers.append(clock.now_ms())
    assert answers == [10**12, 10**12, 10**12, 10**12 + 1]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC"])
def test_the_time_zone_does_not_matter(monkeypatch, zone):
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)
    monkeypatch.setitem(os.environ, "TZ", zone)
    time.tzset()
    try:
        assert SystemClock().now_ms() == 1_700_000_000_123
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_manual_clock_moves_forward_only():
    clock = ManualClock(5)
    clock.advance(0)
    clock.advance(7)
    assert clock.now_ms() == 12
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    assert clock.now_ms() == 12
