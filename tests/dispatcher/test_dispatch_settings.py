"""Settings are refused when the dispatcher is made, in one line."""

import pytest
from dispatch_support import Hands

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.errors import ConfigError, InvalidJob


class Slow:
    def __init__(self, timeout_ms):
        self.timeout_ms = timeout_ms

    async def send(self, job): ...


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"concurrency": 10_001},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"concurrency": "4"},
        {"lease_ms": 0},
        {"lease_ms": None},
        {"lease_ms": 10**12},
        {"poll_ms": 0},
        {"poll_ms": 60_001},
        {"poll_ms": -1},
        {"grace_ms": -1},
        {"grace_ms": 24 * 3600 * 1000 + 1},
        {"owner_prefix": "node 1"},
        {"owner_prefix": "né"},
        {"owner_prefix": None},
        {"queues": ()},
        {"queues": "mail"},
        {"queues": ["mail", "two words"]},
        {"queues": [1]},
    ],
    ids=str,
)
async def test_a_bad_setting_is_refused_in_one_line(queue, settings):
    with pytest.raises((ConfigError, InvalidJob)) as caught:
        Dispatcher(queue, Hands(), **settings)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("deliver", [None, 42, "http://127.0.0.1/"])
async def test_what_cannot_deliver_is_refused(queue, deliver):
    with pytest.raises(ConfigError, match="deliver must be"):
        Dispatcher(queue, deliver)


@pytest.mark.parametrize(("timeout_ms", "fits"), [(8_000, False), (7_999, True), (30_000, False), (1, True)])
async def test_an_attempt_must_end_before_its_lease__kind_3(queue, timeout_ms, fits):
    if fits:
        Dispatcher(queue, Slow(timeout_ms), lease_ms=10_000)
    else:
        with pytest.raises(ConfigError, match="lease_ms 10000 must be above"):
            Dispatcher(queue, Slow(timeout_ms), lease_ms=10_000)


@pytest.mark.parametrize("lease_ms", [1, 99])
async def test_a_lease_that_no_renewal_could_save_is_refused__kind_3(queue, lease_ms):
    with pytest.raises(ConfigError, match=f"lease_ms {lease_ms} is too short"):
        Dispatcher(queue, Hands(), lease_ms=lease_ms)


async def test_the_widest_and_the_narrowest_settings_are_taken(queue):
    Dispatcher(queue, Hands(), concurrency=1, lease_ms=100, poll_ms=1, grace_ms=0, owner_prefix="a" * 64)
    Dispatcher(queue, Hands(), concurrency=10_000, poll_ms=60_000, queues=["mail"], owner_prefix="")
