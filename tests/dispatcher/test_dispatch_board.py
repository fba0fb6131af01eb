"""Who may go in a request of many."""

import asyncio
from types import SimpleNamespace

from asyncqueue.dispatcher.settle import board


class Lane:
    def __init__(self):
        self.boarded = []

    def board(self, seats):
        self.boarded += [job for job, _answered in seats]
        return [object() for _ in seats]


async def test_a_job_whose_lease_ends_now_does_not_go_in_a_request_of_many(monkeypatch):
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 5.0)
    lane = Lane()
    held, over = [
        SimpleNamespace(lane=lane, job=name, ended=None, lease_ends=ends)
        for name, ends in (("a", 5.001), ("b", 5.0))
    ]
    assert board(None, None, [held, over]) == [over]
    assert lane.boarded == ["a"]
