"""Every reachable state of small worlds keeps I1-I8; without a safeguard there is a way to break one of them.

I1, I4 and I8 hold by the shape of the model (a row is never removed and has one status, a dispatcher holds one
ticket, every act is one transaction and a send is none); the other parts of the proof show them on the real code.
"""

import pytest

from tests.model.explore import explore
from tests.model.protocol import Protocol

WORLDS = {
    "time left for a retry": Protocol(redrives_max=0, clock_steps=0),
    "a redrive": Protocol(ttl=1, clock_steps=0),
    "a step of the wall clock": Protocol(ttl=1, redrives_max=0),
    "late reports are accepted": Protocol(redrives_max=0, clock_steps=0, accepts_late=True),
}
MISSING = {
    "I2": {"dedup": False},
    "I3": {"fence": False},
    "I5 at the send": {"deadline": False},
    "I5 in the count": {"budget": False, "max_attempts": 1},
    "I6": {"audit": False},
    "I7": {"sweep": False, "ttl": 1, "redrives_max": 0},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", WORLDS)
def test_every_reachable_state_keeps_the_invariants(world):
    found = explore(WORLDS[world])
    print(f"{world}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}")
    assert found.fault is None, str(found.fault)
    assert found.states > 10_000


@pytest.mark.parametrize("invariant", MISSING)
def test_without_its_safeguard_an_invariant_has_a_counter_example(invariant):
    found = explore(Protocol(clock_steps=0, **MISSING[invariant]))
    print(found.fault)
    assert found.fault is not None
    assert found.fault.invariant == invariant[:2]
    assert 1 <= len(found.fault.story) <= 8
