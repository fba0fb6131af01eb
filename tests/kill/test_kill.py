"""SIGKILL between any two statements of any verb, and at random times: FAULTS 21 and 44 at their root."""

import random

import pytest

from tests.kill.killing import kill_at_every_boundary, kill_at_random
from tests.roles import ROLES


@pytest.mark.timeout(150)
@pytest.mark.parametrize("role", ROLES)
def test_a_kill_between_two_statements_leaves_all_of_a_step_or_nothing(role):
    found = kill_at_every_boundary(role)
    print(found)
    assert not found.wrong, "\n".join(found.wrong[:10])
    assert found.kills >= 40


@pytest.mark.timeout(150)
@pytest.mark.parametrize("role", ROLES)
def test_a_kill_at_any_other_time_does_so_too(role):
    found = kill_at_random(role, 12, random.Random(7))
    assert not found.wrong, "\n".join(found.wrong[:10])
    assert found.kills >= 5
