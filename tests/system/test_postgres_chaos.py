"""The chaos on PostgreSQL in small: fewer jobs and fewer deaths."""

import pytest

from tests import postgres_server
from tests.system.postgres_chaos import run_chaos


@pytest.mark.timeout(240)
async def test_every_job_is_done_once_though_processes_are_killed_and_the_server_crashes_twice(tmp_path):
    postgres_server.needed()
    result = await run_chaos(tmp_path, 7, jobs=1_500, workers=8, kills=5)
    assert not result.faults
    assert result.restarts == 2
    assert 1 <= result.kills <= 5
    assert result.starts >= 1_500
