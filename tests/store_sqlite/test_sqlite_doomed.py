"""Jobs that must die are never claimed, also while so many wait for it that a claim cannot bury them all."""

import pytest

from asyncqueue.clock import ManualClock
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import store as store_module


@pytest.mark.parametrize("queues", [("one",), ("one", "other")], ids=["one queue", "turns"])
@pytest.mark.parametrize("priority", [0, 5])
@pytest.mark.parametrize("kinds", [None, ("job", "mail"), ("mail",)])
@pytest.mark.parametrize("is_spent", [False, True], ids=["deadline", "attempts"])
async def test_doomed_job_that_is_not_buried_yet_is_not_claimed(  # noqa: PLR0917 - one table of cases
    path, plain, no_sync, monkeypatch, is_spent, kinds, priority, queues
):
    monkeypatch.setattr(store_module, "_SWEEP_MAX", 1)
    clock = ManualClock()
    async with Queue.open(path, clock=clock) as queue:
        for name in queues:
            like = {"queue": name, "kind": "mail", "priority": priority}
            await queue.enqueue(f"buried-{name}", 1, ttl_ms=10, **like)
            await queue.enqueue(f"doomed-{name}", 1, ttl_ms=1_000 if is_spent else 11, **like)
            await queue.enqueue(f"good-{name}", 1, **like)
        if is_spent:
            plain(path).execute("UPDATE jobs SET attempts = max_attempts WHERE id LIKE 'doomed-%'")
        clock.advance(11)
        taken = {job.id for job in await queue.claim("w", limit=9, kinds=kinds)}
        assert taken == {f"good-{name}" for name in queues}
        assert (await queue.stats()).dead == 1, "else there was nothing left to pass over"
