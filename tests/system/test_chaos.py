"""The chaos run in small: the same kinds of jobs, fewer of each."""

import pytest

from tests.system.chaos import run_chaos


@pytest.mark.timeout(120)
async def test_every_job_is_done_once_or_dead_whatever_handlers_do_to_their_workers(tmp_path):
    result = await run_chaos(7, tmp_path, jobs=60, workers=4)
    assert not result.faults
    assert result.crashed >= 2
    assert result.ledger_rows == result.statuses["done"]
    assert result.statuses["done"] + result.statuses["dead"] == 60
