"""Claim order against a plain-Python model: exact, whatever surrounds the eligible jobs."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncqueue.stores.base import Claim
from tests.store.turns import assert_lawful_claim

NOW = 1_000_000
FINE, COARSE = 128, 16_384
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Row:
    seq: int
    status: str
    priority: int
    queue: str
    due: int
    deadline: int
    attempts: int
    kind: str = "job"

    @property
    def is_free(self):
        return self.status in ("pending", "leased") and (self.status == "pending" or self.due <= NOW)

    @property
    def is_doomed(self):
        return self.is_free and (self.deadline <= NOW or self.attempts >= MAX_ATTEMPTS)

    @property
    def is_eligible(self):
        return self.is_free and self.due <= NOW and not self.is_doomed

    def as_row(self):
        is_leased = self.status == "leased"
        return {
            "seq": self.seq,
            "id": f"j{self.seq}",
            "qty": 1,
            "status": self.status,
            "attempts": self.attempts,
            "max_attempts": MAX_ATTEMPTS,
            "token": 5,
            "available_at": NOW - 9 if is_leased else self.due,
            "deadline": self.deadline,
            "owner": "w" if is_leased else None,
            "lease_until": self.due if is_leased else None,
            "queue": self.queue,
            "priority": self.priority,
            "kind": self.kind,
        }


near_a_boundary = st.builds(
    lambda size, times, offset: max(1, size * times + offset),
    st.sampled_from([1, FINE, COARSE]),
    st.integers(0, 5) | st.sampled_from([127, 128, 129, 1_000]),
    st.integers(-3, 3),
)
seqs = st.lists(
    near_a_boundary | st.integers(1, 300) | st.integers(1, 2**40), unique=True, min_size=1, max_size=60
)
statuses = st.sampled_from(["pending", "pending", "pending", "leased", "leased", "done", "dead"])
dues = st.sampled_from([NOW - 50, NOW - 1, NOW, NOW + 1, NOW + 50])
deadlines = st.sampled_from([NOW + 99, NOW + 99, NOW + 99, NOW + 1, NOW, NOW - 1])


@st.composite
def tables(draw):
    names = draw(st.sampled_from([["default"], ["a", "b"], ["a", "b", "c", "Z-9"]]))
    priorities = draw(st.sampled_from([[0], [0, 1], [-32_768, -1, 0, 7, 32_767]]))
    rows = [
        Row(
            seq,
            draw(statuses),
            draw(st.sampled_from(priorities)),
            draw(st.sampled_from(names)),
            draw(dues),
            draw(deadlines),
            draw(st.sampled_from([1, 1, 2, 3])),
        )
        for seq in draw(seqs)
    ]
    # and a run of jobs that fills buckets, all alike but for their time
    start = draw(near_a_boundary)
    taken = {row.seq for row in rows}
    pattern = draw(st.lists(dues, min_size=1, max_size=4))
    run = [
        Row(seq, "pending", priorities[0], names[0], pattern[seq % len(pattern)], NOW + 99, 0)
        for seq in range(start, start + draw(st.integers(0, 400)))
        if seq not in taken
    ]
    return rows + run


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    tables(),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.none() | st.lists(st.sampled_from(["default", "a", "b", "c", "none"]), max_size=3).map(tuple),
)
def test_claims_come_in_the_exact_order_of_the_model(harness, rows, limits, queues):
    harness.fresh()
    harness.clock._now_ms = NOW
    harness.raw.insert_jobs([row.as_row() for row in rows])
    left = sorted(
        (row for row in rows if row.is_eligible and (queues is None or row.queue in queues)),
        key=lambda row: (-row.priority, row.seq),
    )
    for limit in limits:
        claim = Claim("me", limit, 1_000, queues)
        leased = harness.run(harness.store.write(lambda transaction, claim=claim: transaction.claim(claim)))
        assert_lawful_claim([job.id for job in leased], left, limit, name_of=lambda row: f"j{row.seq}")
        assert {job.token for job in leased} <= {6}
        ids = {job.id for job in leased}
        left = [row for row in left if f"j{row.seq}" not in ids]
    dead = {row[0] for row in harness.raw.select("SELECT seq FROM jobs WHERE status = 'dead'")}
    assert dead == {row.seq for row in rows if row.is_doomed or row.status == "dead"}


def test_claim_of_one_is_the_first_of_a_bucket_whose_last_falls_due_first(harness):
    """Inside a bucket the index runs by time, not by seq: the pick must not follow it."""
    rows = [Row(FINE + n, "pending", 0, "default", NOW - n, NOW + 99, 0) for n in range(FINE)]
    harness.clock._now_ms = NOW
    harness.raw.insert_jobs([row.as_row() for row in rows])
    for n in range(FINE):
        (leased,) = harness.run(harness.store.write(lambda transaction: transaction.claim(Claim("me", 1, 1_000))))
        assert leased.id == f"j{FINE + n}"


QUEUES, LEVELS, KINDS = ("a", "b"), (7, 0, -2), ("job", "mail")
# Both ends of the first bucket, the next one, and two beside each other after a gap.
PLACES = (1, COARSE - FINE // 2, COARSE, 4 * COARSE, 5 * COARSE)


def waiting_everywhere(first_leased):
    """One job of each kind at each place of each level of each queue, none of them due; every second is leased."""
    return [
        Row(
            place + number,
            "leased" if (number + PLACES.index(place)) % 2 == first_leased else "pending",
            level,
            queue,
            NOW + 1_000,
            NOW + 9_999,
            1,
            kind,
        )
        for number, (queue, level, kind) in enumerate(product(QUEUES, LEVELS, KINDS))
        for place in PLACES
    ]


class Undone(Exception):
    pass


def looked_up(harness, limit, queues, kinds):
    """Return the ids that a claim takes, and undo it."""
    ids = []

    async def work(transaction):
        leased = await transaction.claim(Claim("me", limit, 1_000, queues, kinds))
        ids.extend(job.id for job in leased)
        raise Undone

    with pytest.raises(Undone):
        harness.run(harness.store.write(work))
    return ids


@pytest.mark.parametrize("first_leased", [0, 1])
def test_the_only_job_that_is_due_is_found_wherever_it_waits(harness, first_leased):
    harness.clock._now_ms = NOW
    rows = waiting_everywhere(first_leased)
    harness.raw.insert_jobs([row.as_row() for row in rows])
    for row in rows:
        time = "lease_until" if row.status == "leased" else "available_at"
        harness.raw.execute(f"UPDATE jobs SET {time} = {NOW} WHERE seq = {row.seq}")
        mine, my_kind = (row.queue,), (row.kind,)
        others, other_kind = tuple({*QUEUES} - {row.queue}), tuple({*KINDS} - {row.kind})
        for queues, kinds in ((None, None), (mine, None), (None, my_kind), (mine, my_kind), (QUEUES, KINDS)):
            assert looked_up(harness, 2, queues, kinds) == [f"j{row.seq}"]
            assert harness.run(harness.store.next_due_ms(queues, kinds)) == 0
        for queues, kinds in ((others, None), (None, other_kind), (others, my_kind), (mine, other_kind)):
            assert looked_up(harness, 2, queues, kinds) == []
            assert harness.run(harness.store.next_due_ms(queues, kinds)) == 1_000
        details = harness.run(harness.store.stats(detail=True)).details
        assert (details[mine[0]].next_due_ms, details[others[0]].next_due_ms) == (0, 1_000)
        harness.raw.execute(f"UPDATE jobs SET {time} = {row.due} WHERE seq = {row.seq}")


@pytest.mark.parametrize("first_leased", [0, 1])
def test_all_jobs_that_are_due_are_claimed_once_and_in_order_wherever_they_wait(harness, first_leased):
    harness.clock._now_ms = NOW
    rows = [replace(row, due=NOW) for row in waiting_everywhere(first_leased)]
    harness.raw.insert_jobs([row.as_row() for row in rows])
    for queues, kinds, limit in product((None, ("a",)), (None, ("job",), ("mail",), KINDS), (1, 7, 99)):
        eligible = sorted(
            (row for row in rows if row.queue in (queues or QUEUES) and row.kind in (kinds or KINDS)),
            key=lambda row: (-row.priority, row.seq),
        )
        taken = looked_up(harness, limit, queues, kinds)
        assert_lawful_claim(taken, eligible, limit, name_of=lambda row: f"j{row.seq}")
