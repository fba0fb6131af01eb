"""Every call of SQLite to its files fails once, in every verb of every role: a typed error, no change, no lock.

FAULTS 32 in particular: a full disk is a state with an end.
"""

import pytest

from tests.io_errors.faults import Fault
from tests.io_errors.injection import inject
from tests.roles import CONTRACT, QUEUE, RECEIVER

ROLES = {"queue": QUEUE, "receiver": RECEIVER, "contract": CONTRACT}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("role", ROLES)
def test_a_call_that_fails_once_costs_one_step_at_most(role, fault):
    found = inject(ROLES[role], fault, lasting=False)
    assert not found.wrong, "\n".join(found.wrong[:10])
    assert found.positions >= 10


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("role", "fault"),
    [
        ("receiver", Fault.ENOSPC),
        ("receiver", Fault.BUSY),
        ("receiver", Fault.LOCKED),
        ("queue", Fault.BUSY),
    ],
)
def test_a_fault_that_lasts_is_told_and_leaves_nothing_behind_when_it_ends(role, fault):
    found = inject(ROLES[role], fault, lasting=True)
    assert not found.wrong, "\n".join(found.wrong[:10])
    assert found.failed == found.positions >= 10
