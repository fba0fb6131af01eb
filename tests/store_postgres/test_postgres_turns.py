"""Turns between queues: a claim asks for no more queues than it wants jobs, and shares them evenly."""

import contextlib

import pytest

from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores.postgres import schema
from asyncqueue.stores.postgres.connection import Profile
from asyncqueue.stores.postgres.store import PostgresStore
from asyncqueue.stores.postgres.turns import Turns
from tests.store.raw import PostgresRaw


class Queues:
    """Queues with so many jobs each, and what was asked of them."""

    def __init__(self, **jobs):
        self.jobs = jobs
        self.held = set()  # their jobs are due, but another claim is about to take them
        self.named = 0

    async def ring(self, after, until, count):
        names = [name for name in sorted(self.jobs) if after < name and (until is None or name <= until)]
        self.named += min(count, len(names))
        return [name for name in names if self.jobs[name]][:count]

    async def take(self, rooms):
        rows = []
        for name, room in rooms.items():
            count = 0 if name in self.held else min(room, self.jobs[name])
            rows += [{"queue": name, "seq": n} for n in range(self.jobs[name], self.jobs[name] - count, -1)]
            self.jobs[name] -= count
        return rows


async def claimed(turns, queues, limit):
    return [row["queue"] for row in await turns.claim(0, limit, queues.ring, queues.take)]


async def test_claim_asks_for_no_more_queues_than_it_wants_jobs():
    queues, turns = Queues(**{f"q{n:03}": 5 for n in range(500)}), Turns()
    first = await claimed(turns, queues, 8)
    assert len(set(first)) == 8
    assert queues.named <= 64 + 8  # 64 to begin at an arbitrary one of
    queues.named = 0
    assert set(await claimed(turns, queues, 8)).isdisjoint(first)
    assert queues.named == 8


@pytest.mark.parametrize(
    ("jobs", "limit", "shares"),
    [
        ({"a": 50, "b": 50, "c": 50}, 30, {"a": 10, "b": 10, "c": 10}),
        ({"a": 50, "b": 2, "c": 50}, 30, {"a": 14, "b": 2, "c": 14}),
        ({"a": 1, "b": 1, "c": 1}, 30, {"a": 1, "b": 1, "c": 1}),
        ({"a": 0, "b": 0, "c": 0}, 30, {}),
    ],
)
async def test_jobs_are_shared_by_queues_that_have_enough(jobs, limit, shares):
    taken = await claimed(Turns(), Queues(**jobs), limit)
    assert {name: taken.count(name) for name in set(taken)} == shares


@pytest.mark.parametrize("served", ["a", "b", "c"])
async def test_what_a_short_queue_leaves_over_goes_to_those_that_had_less(served):
    turns = Turns()
    turns._served.note(0, served)
    taken = await claimed(turns, Queues(a=1, b=50, c=50), 5)
    assert sorted(taken) == ["a", "b", "b", "c", "c"]


async def test_queue_that_is_asked_last_gets_no_more_than_the_first_one():
    turns, queues = Turns(), Queues(a=50, b=1, c=1, d=1, e=1, f=50)
    turns._served.note(0, "f")
    queues.held = set("bcde")
    taken = await claimed(turns, queues, 5)
    assert sorted(taken) in (["a", "a", "a", "f", "f"], ["a", "a", "f", "f", "f"])


async def test_ring_goes_on_where_it_stopped_and_jobs_of_a_queue_come_in_order():
    queues, turns = Queues(a=9, b=9, c=9), Turns()
    taken = [(await claimed(turns, queues, 1))[0] for _ in range(9)]
    assert all(set(taken[start : start + 3]) == {"a", "b", "c"} for start in range(0, 9, 3)), taken
    rows = await turns.claim(0, 6, queues.ring, queues.take)
    seqs = {name: [row["seq"] for row in rows if row["queue"] == name] for name in "abc"}
    assert seqs == {"a": [5, 6], "b": [5, 6], "c": [5, 6]}


@contextlib.contextmanager
def program_of(monkeypatch, steps):
    """A program that knows only these steps of the schema."""
    older = schema.Part("queue", "jobs", "asyncqueue.stores.postgres", steps)
    with monkeypatch.context() as patch:
        patch.setattr(schema.inspect, "__defaults__", (older,))
        patch.setitem(schema.migrate.__kwdefaults__, "part", older)
        yield


async def test_a_migration_may_take_longer_than_a_statement_may(own_url, monkeypatch):
    with program_of(monkeypatch, schema.QUEUE.steps[:-1]):
        async with Queue.open(own_url) as queue:
            await queue.enqueue("a", 1)
    step = schema.script
    monkeypatch.setattr(schema, "script", lambda *which: step(*which) + ";SELECT pg_sleep(0.6)")
    store = await PostgresStore.open(own_url, profile=Profile(reply_ms=300))
    try:
        assert [job.id for job in await store.get(["a"])] == ["a"]
    finally:
        await store.close()


async def test_schema_of_the_first_version_is_migrated_with_its_jobs(own_url, monkeypatch):
    with program_of(monkeypatch, schema.QUEUE.steps[:1]):
        async with Queue.open(own_url) as queue:
            await queue.enqueue_many([NewJob(f"j{n}", 1, queue=f"q{n % 2}", priority=n % 3) for n in range(12)])
    raw = PostgresRaw(own_url)
    assert raw.select("SELECT version FROM versions") == [(1,)]
    async with Queue.open(own_url) as queue:
        taken = [job.id for job in await queue.claim("w", limit=64)]
    assert sorted(taken[:4]) == ["j11", "j2", "j5", "j8"]
    assert len(taken) == 12
    assert raw.select("SELECT version FROM versions") == [(schema.QUEUE.version,)]
    names = [
        name for (name,) in raw.select("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
    ]
    assert not [name for name in names if name.startswith("jobs_walk")]
