"""What is listed and counted is what meets every condition that was given, and nothing else."""

import itertools
from dataclasses import dataclass

import pytest

from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import JobFilter

OLD_MS = 10


@dataclass(frozen=True)
class Row:
    seq: int
    status: str
    queue: str
    kind: str
    reason: str | None
    age_ms: int
    """Since its end, or since it fell due."""

    @property
    def id(self):
        return f"{'ab'[self.seq % 2]}_{self.seq}"

    def meets(self, wanted):
        return (
            (wanted.status is None or wanted.status == self.status)
            and (wanted.queue is None or wanted.queue == self.queue)
            and (wanted.kind is None or wanted.kind == self.kind)
            and (wanted.reason is None or wanted.reason == self.reason)
            and (wanted.id_prefix is None or self.id.startswith(wanted.id_prefix))
            and (wanted.older_than_ms is None or self.age_ms >= wanted.older_than_ms)
        )


STATUSES = [("pending", None), ("pending", "retry"), ("done", None), ("dead", "deadline"), ("dead", "permanent")]
ROWS = [
    Row(seq, status, queue, kind, reason, age_ms)
    for seq, (queue, kind, age_ms, (status, reason)) in enumerate(
        itertools.product("qr", "kl", (OLD_MS - 1, OLD_MS, OLD_MS + 1), STATUSES), start=1
    )
]
CONDITIONS = [
    {"status": Status.DEAD},
    {"status": Status.DONE},
    {"status": Status.PENDING},
    {"queue": "q"},
    {"kind": "k"},
    {"reason": "permanent"},
    {"id_prefix": "a_"},
    {"older_than_ms": OLD_MS},
]
WANTED = [
    {},
    *CONDITIONS,
    *(
        one | other
        for one, other in itertools.combinations(CONDITIONS, 2)
        if one.get("status") in {None, Status.DEAD}
    ),
    {name: value for condition in CONDITIONS for name, value in condition.items()} | {"status": Status.DEAD},
]


@pytest.fixture
def filled(store, raw, clock):
    now = clock.now_ms()
    raw.insert_jobs(
        [
            {
                "seq": row.seq,
                "id": row.id,
                "qty": 1,
                "status": row.status,
                "attempts": 1,
                "max_attempts": 3,
                "token": 1,
                "available_at": now - row.age_ms if row.status == "pending" else now - 99,
                "deadline": now + 1_000,
                "reason": row.reason,
                "queue": row.queue,
                "kind": row.kind,
                "finished_at": None if row.status == "pending" else now - row.age_ms,
            }
            for row in ROWS
        ]
    )
    return store


async def test_all_conditions_hold_of_what_is_listed_and_counted(filled):
    for conditions in WANTED:
        wanted = JobFilter(**conditions)
        expected = [row.id for row in ROWS if row.meets(wanted)]
        assert 0 < len(expected) <= wanted.limit, conditions
        assert [job.id for job in await filled.list_jobs(wanted)] == expected, conditions
        assert await filled.count(wanted) == len(expected), conditions


@pytest.mark.parametrize("status", [None, Status.DONE, Status.DEAD])
async def test_page_has_its_length_and_its_place_and_the_count_knows_neither(filled, status):
    wanted = JobFilter(status=status, after_seq=20, limit=3)
    met = [row for row in ROWS if row.meets(wanted)]
    assert [job.id for job in await filled.list_jobs(wanted)] == [row.id for row in met if row.seq > 20][:3]
    assert await filled.count(wanted) == len(met)
