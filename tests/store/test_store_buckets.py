"""Stores walk buckets of seqs, for each level and queue: no job is left out of a walk, and none is met twice.

The table has live jobs on both sides of the buckets' boundaries; queues and levels begin in different ones.
"""

import random
from dataclasses import dataclass

import pytest

from asyncqueue.stores.base import Claim
from tests.store.turns import assert_lawful_claim

FINE, COARSE = 128, 16_384
BUCKETS = {
    ("a", 5): (2, 3),
    ("a", 0): (0, 4),
    ("m", 5): (0, 1, 6),
    ("m", 0): (1, 2),
    ("z", 5): (1,),
    ("z", 0): (0, 1, 2, 2**20),
}
QUEUES = ("a", "m", "z")


@dataclass(frozen=True)
class Row:
    seq: int
    queue: str
    priority: int

    @property
    def id(self):
        return f"j{self.seq}"


ROWS = [
    Row(bucket * COARSE + offset, queue, priority)
    for number, ((queue, priority), buckets) in enumerate(BUCKETS.items())
    for bucket in buckets
    for offset in (number, 70 * FINE + number, COARSE - 1 - number)
]


@pytest.fixture
def fill(raw, store, clock):
    """Write all rows; `delay_of(row)` is the span in which one falls due."""

    def write(delay_of):
        now = clock.now_ms()
        raw.insert_jobs(
            [
                {
                    "seq": row.seq,
                    "id": row.id,
                    "qty": 1,
                    "status": "pending",
                    "attempts": 0,
                    "max_attempts": 3,
                    "token": 0,
                    "available_at": now + delay_of(row),
                    "deadline": now + 1_000_000,
                    "queue": row.queue,
                    "priority": row.priority,
                }
                for row in ROWS
            ]
        )

    return write


async def take(store, limit, **wanted):
    claim = Claim("w", limit, 500_000, **wanted)
    return [job.id for job in await store.write(lambda transaction: transaction.claim(claim))]


def shuffled():
    """All rows, in an order in which they may fall due."""
    return random.Random(7).sample(ROWS, len(ROWS))


async def test_job_that_alone_is_due_is_found_wherever_it_is(store, fill, clock):
    order = shuffled()
    fill(lambda row: 1 + order.index(row))
    for row in order:
        clock.advance(1)
        assert await take(store, 2) == [row.id]


@pytest.mark.parametrize("limit", [1, 5, 100])
async def test_jobs_that_are_all_due_are_met_once_and_in_order(store, fill, limit):
    fill(lambda _row: 0)
    left = sorted(ROWS, key=lambda row: (-row.priority, row.seq))
    while left:
        taken = await take(store, limit)
        assert_lawful_claim(taken, left, limit, name_of=lambda row: row.id)
        left = [row for row in left if row.id not in taken]
    assert await take(store, 1) == []


@pytest.mark.parametrize("queues", [("a",), ("m", "z")])
async def test_claim_of_some_queues_meets_their_jobs_once(store, fill, queues):
    fill(lambda _row: 0)
    mine = sorted((row for row in ROWS if row.queue in queues), key=lambda row: (-row.priority, row.seq))
    assert_lawful_claim(await take(store, 100, queues=queues), mine, 100, name_of=lambda row: row.id)


async def test_next_due_is_the_smallest_of_all_buckets(store, fill, clock):
    order = shuffled()
    fill(lambda row: 1 + order.index(row))
    for number, row in enumerate(order):
        for queues in (None, (row.queue,), ("a", "z")):
            assert await store.next_due_ms(queues) == due_ms(order, number, queues)
        if number % 8 == 0:
            assert await store.next_due_ms(("a",), ("job",)) == due_ms(order, number, ("a",))
            details = (await store.stats(detail=True)).details
            assert {name: detail.next_due_ms for name, detail in details.items()} == {
                name: due_ms(order, number, (name,)) for name in QUEUES
            }
        await store.write(lambda transaction, row=row: transaction.cancel([row.id]))
        clock.advance(1)


def due_ms(order, number, queues):
    """The span to the first due time of the rows from this number on."""
    left = [n for n, row in enumerate(order) if n >= number and (queues is None or row.queue in queues)]
    return left[0] + 1 - number if left else None


async def test_detail_counts_each_job_once(store, fill, clock):
    fill(lambda row: 0 if row.seq % 2 else 9)
    taken = set(await take(store, 7))
    clock.advance(500_000)  # their leases are over, and all others are due
    details = (await store.stats(detail=True)).details
    for name, detail in details.items():
        mine = {row.id for row in ROWS if row.queue == name}
        assert (detail.ready, detail.expired) == (len(mine - taken), len(mine & taken))
