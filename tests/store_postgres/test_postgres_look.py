"""What a claim asks before it takes jobs: the levels there are, and at one level the queues with something due."""

import itertools

import pytest

from asyncqueue.clock import ManualClock
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.store import PostgresStore
from tests.store.raw import PostgresRaw

COARSE = 16_384
# The jobs of each queue at priority 0: status, kind, in how many ms they are due, coarse bucket.
QUEUES = {
    "a-done": [("done", "job", 0, 0)] * 2,
    "b-due": [("pending", "job", 0, 0), ("pending", "job", -5, 0)],
    "c-fax": [("pending", "fax", 0, 0), ("pending", "job", 1, 0)],
    "d-later": [("pending", "job", 1, 0)] * 2,
    "e-leased": [("leased", "job", 1, 0)] * 2,
    "f-lost": [("leased", "job", 0, 1)] * 2,
    "g-deep": [("pending", "job", 1, 0), ("pending", "job", 1, 1), ("pending", "job", 0, 3)],
    "h-paused": [("pending", "job", 0, 0)] * 2,
    "i-resumed": [("pending", "job", 0, 2)] * 2,
}
DUE = {
    "b-due": {"job"},
    "c-fax": {"fax"},
    "f-lost": {"job"},
    "g-deep": {"job"},
    "i-resumed": {"job"},
}


def row(now, seq, name, status, kind, due_ms, priority=0):  # noqa: PLR0917
    is_leased = status == "leased"
    return {
        "seq": seq,
        "id": f"j{seq}",
        "qty": 1,
        "status": status,
        "attempts": 1,
        "max_attempts": 3,
        "token": 1,
        "available_at": now + (0 if is_leased else due_ms),
        "deadline": now + 1_000,
        "owner": "w" if is_leased else None,
        "lease_until": now + due_ms if is_leased else None,
        "queue": name,
        "kind": kind,
        "priority": priority,
    }


class Table:
    def __init__(self, store, raw, clock):
        self._store = store
        self._now = clock.now_ms()
        self._seqs = itertools.count(1)
        self.raw = raw

    def put(self, name, *jobs, priority=0):
        self.raw.insert_jobs(
            [
                row(self._now, bucket * COARSE + next(self._seqs), name, status, kind, due_ms, priority)
                for status, kind, due_ms, bucket in jobs
            ]
        )

    def pause(self, **paused):
        for name, is_paused in paused.items():
            self.raw.execute(f"INSERT INTO queues (name, paused) VALUES ('{name.replace('_', '-')}', {is_paused})")

    async def ask(self, statement, *arguments):
        return [tuple(found) for found in await self._store.database.read(statement, self._now, *arguments)]


@pytest.fixture
async def table(postgres_url):
    clock = ManualClock()
    store = await PostgresStore.open(postgres_url, clock=clock)
    yield Table(store, PostgresRaw(postgres_url), clock)
    await store.close()


async def test_ring_names_the_queues_of_a_stretch_with_something_due_and_no_other_ones(table):
    for name, jobs in QUEUES.items():
        table.put(name, *jobs)
        table.put(name, *[("pending", "job", 1, 0)] * 2, priority=1)
        table.put(name, *[("pending", "job", 1, 0)] * 2, priority=-1)
    table.put("x-better", *[("pending", "job", 0, 0)] * 2, priority=1)
    table.put("y-worse", *[("pending", "job", 0, 0)] * 2, priority=-1)
    table.pause(h_paused=True, i_resumed=False, z_unused=True)
    begins, ends = ["", "b-due", "d", "i-resumed"], [None, "", "c-fax", "g-deep", "z"]
    wanted = [None, [], ["c-fax", "g-deep", "h-paused"], ["b-due"]]
    for after, until, kinds, queues, count in itertools.product(
        begins, ends, [None, ["job"], ["fax", "none"]], wanted, [1, 9]
    ):
        expected = [
            name
            for name, due in DUE.items()
            if after < name
            and (until is None or name <= until)
            and (kinds is None or not due.isdisjoint(kinds))
            and (queues is None or name in queues)
        ]
        if until is None or after <= until:  # what else is asked: a stretch
            found = await table.ask(statements.RING, 0, after, kinds, count, until, queues)
            assert found == [(name,) for name in expected[:count]], (after, until, kinds, queues)


async def test_look_names_each_level_of_live_jobs_once_unless_all_of_it_is_paused(table):
    pending, done = ("pending", "job", 9, 0), ("done", "job", 0, 0)
    table.put("a", done, done, priority=9)
    table.put("m", pending, pending, priority=7)
    table.put("z", done, done, priority=7)
    table.put("held", pending, pending, priority=5)
    table.put("held", pending, pending, priority=3)
    table.put("m", pending, pending, priority=3)
    table.put("free", pending, pending, priority=0)
    table.put("m", ("leased", "job", 9, 0), ("leased", "job", 9, 0), priority=-2)
    table.put("a", pending, priority=-3)
    table.put("b", pending, priority=-3)
    table.pause(held=True, free=False)
    levels = [(-7, "m", False), (-3, "held", True), (0, "free", False), (2, "m", False), (3, "a", True)]
    assert await table.ask(statements.LOOK) == levels
    table.raw.execute("UPDATE jobs SET deadline = available_at - 9 WHERE queue = 'free'")
    assert await table.ask(statements.LOOK) == [*levels, (None, None, None)]
