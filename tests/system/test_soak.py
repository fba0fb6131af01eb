"""The soak in small: the same rounds with fewer orders."""

import pytest

from tests.system.soak import read_orders, run_round


@pytest.mark.timeout(150)
@pytest.mark.parametrize("seed", [7, 11])
async def test_nothing_is_lost_or_doubled_when_any_process_is_killed(seed, tmp_path):
    result = await run_round(seed, tmp_path, read_orders(1_200), kills=5)
    assert not result.faults
    assert sum(result.kills.values()) >= 1
    assert result.requests >= 1_200
