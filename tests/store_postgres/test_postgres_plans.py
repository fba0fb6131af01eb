"""Hot statements stay on their indexes: in plans made once, for a table whose statistics know nothing of it."""

import json
import re

import asyncpg
import pytest

from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.connection import in_schema
from tests.store.raw import raw_of, schema_of, server_of

TICKETS = (["a"], [1], [1], ["w"], [1])
PLANS = {
    "CLAIM": (
        (None, ["default"], [5], None, "w", 1_000, 0, None, None),
        {"jobs_turn_coarse", "jobs_turn_fine", "totals_pkey"},
    ),
    "PICK": ((None, ["default"], [5], None), {"jobs_turn_coarse", "jobs_turn_fine"}),
    "LOOK": ((None,), {"jobs_deadline", "jobs_spent", "queues_pkey"}),
    "RING": ((None, 0, "", None, 5, None, None), {"jobs_turn_coarse", "queues_pkey"}),
    "SWEEP": ((None, 10), {"jobs_deadline", "jobs_spent", "jobs_pkey"}),
    "FINISH_OK": ((None, *TICKETS, False), {"jobs_id_key"}),
    "FINISH_AND_CLAIM": (
        (None, ["default"], [5], None, "w", 1_000, 0, None, None, *TICKETS, False, "x"),
        {"jobs_turn_coarse", "jobs_turn_fine", "totals_pkey", "jobs_id_key"},
    ),
    "DONE_BEFORE": ((["a"], [1]), {"jobs_id_key"}),
    "LEASED_BEFORE": ((None, 0, "default", 0, "w", ["1"], 5), {"jobs_turn_fine"}),
    "FINISH": ((None, *TICKETS, ["retry"], [0], [None], False), {"jobs_id_key"}),
    "RENEW": ((None, *TICKETS, [1_000]), {"jobs_id_key"}),
    "RELEASE": ((None, *TICKETS, [0], [None]), {"jobs_id_key"}),
    "CANCEL": ((None, ["a"]), {"jobs_id_key"}),
    "REDRIVE": ((None, ["a"], [1], ["n"], [None]), {"jobs_id_key"}),
    "NOTE": ((["a"], [1], ["x"]), {"jobs_id_key"}),
    "EXISTING": ((["a"],), {"jobs_id_key"}),
    "PURGE": ((None, "done", 0, 10), {"jobs_ended", "jobs_pkey"}),
    "PURGE_HISTORY": ((["a"],), {"attempts_by_id"}),
    "NEXT_DUE": ((None,), {"jobs_turn_coarse", "queues_pkey"}),
    "NEXT_DUE_OF_QUEUES": ((None, ["default"]), {"jobs_turn_coarse", "queues_pkey"}),
    "DUE_BY_QUEUE": ((), {"jobs_turn_coarse", "queues_pkey"}),
    "LIST": ((None, None, None, None, None, None, None, 0, 10), {"jobs_pkey"}),
    "LIST_DEAD": ((None, "dead", None, None, None, None, None, 0, 10), {"jobs_dead"}),
    "HISTORY": (("a", 10), {"attempts_by_id", "redrives_by_id"}),
}
# Of the due jobs of one fine bucket, of the lines of one job.
SORTS = {"CLAIM": 1, "FINISH_AND_CLAIM": 1, "PICK": 1, "HISTORY": 1}


def literal(value):
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "'{" + ",".join("NULL" if item is None else str(item) for item in value) + "}'"
    return f"'{value}'"


@pytest.fixture
async def explain(own_url):
    async with Queue.open(own_url) as queue:
        await queue.enqueue("a", 1)
    connection = await asyncpg.connect(server_of(own_url), server_settings=statements.settings(10_000))

    async def plan(name, arguments):
        """The generic plan, as the store's sessions make it; a plan of EXPLAIN itself would know the values."""
        sql = in_schema(getattr(statements, name), schema_of(own_url))
        await connection.execute(f"PREPARE planned AS {sql}")
        values = f"({', '.join(map(literal, arguments))})" if arguments else ""
        lines = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE planned {values}")]
        await connection.execute("DEALLOCATE planned")
        return "\n".join(lines)

    yield plan
    await connection.close()


@pytest.mark.parametrize("name", PLANS)
async def test_hot_statement_walks_its_indexes_and_no_table(explain, name):
    arguments, indexes = PLANS[name]
    plan = await explain(name, arguments)
    assert set(re.findall(r"(?:using|Scan on) (\w+_(?:\w+))", plan)) >= indexes, plan
    assert "Seq Scan on jobs" not in plan
    assert "Seq Scan on attempts" not in plan
    assert plan.count("Sort Key") == SORTS.get(name, 0), plan


async def test_next_due_of_some_queues_asks_no_other_ones(own_url):
    async with Queue.open(own_url) as queue:
        await queue.enqueue_many(
            [
                NewJob(f"j{n}", 1, queue=f"q{n:03}", priority=n % 3, delay_ms=3_600_000 + 1_000 * n)
                for n in range(300)
            ]
        )
        assert 3_600_000 < await queue.next_due_ms(["q100", "q200", "none"]) <= 3_700_000
    looks = await looks_at_jobs(own_url, "NEXT_DUE_OF_QUEUES", None, ["q100", "q200", "none"])
    assert sum(node["Actual Loops"] for node in looks) <= 16  # 4 for the levels, 9 for three queues, 2 behind jobs
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in looks) <= 5


# How many looks: one for each level, one for each coarse bucket of a queue and one behind the last of them. PICK
# looks once more in each whether something is due, and through the fine ones of that which has it.
WALKS = {
    "PICK": ((None, ["default"], [5], None), 2 + 9 + 8 + 1 + 127),
    "NEXT_DUE": ((None,), 17),
    "NEXT_DUE_OF_QUEUES": ((None, ["default"]), 2 + 9),
    "DUE_BY_QUEUE": ((), 17),
}


@pytest.mark.parametrize("name", WALKS)
async def test_walk_costs_a_look_for_each_coarse_bucket_whatever_is_in_it(own_url, name):
    async with Queue.open(own_url) as queue:
        await queue.enqueue("j0", 1, delay_ms=3_600_000)
        await put_behind(own_url, coarse=8, fine=50)
        await queue.cancel("j0")
    arguments, at_most = WALKS[name]
    looks = await looks_at_jobs(own_url, name, *arguments)
    assert sum(node["Actual Loops"] for node in looks) <= at_most
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in looks) <= at_most


async def put_behind(url, coarse, fine):
    """Two jobs like j0, due as late, in each of so many fine buckets of so many coarse ones behind its own.

    Beside them two of another queue that are due, and in the last coarse bucket one of its own queue that is.
    """
    connection = await asyncpg.connect(server_of(url))
    insert = """
        INSERT INTO asyncqueue.jobs
          (seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, queue)
        SELECT seq, 'k' || seq, 1, 'pending', 0, 1, 0, CASE WHEN n < 2 THEN available_at ELSE 0 END, deadline,
          CASE WHEN n IN (2, 3) THEN 'other' ELSE 'default' END
        FROM (
          SELECT c * 16384 + f * 128 + n AS seq, n
          FROM generate_series(1, $1) AS c, generate_series(1, $2) AS f, generate_series(0, 4) AS n
          WHERE n < 4 OR (c = $1 AND f = 1)) AS seqs,
        (SELECT available_at, deadline FROM asyncqueue.jobs WHERE id = 'j0') AS j0"""
    await connection.execute(in_schema(insert, schema_of(url)), coarse, fine)
    await connection.close()


async def looks_at_jobs(url, name, *arguments):
    """What the plan of a statement tells of its looks at the jobs, after it was run."""
    connection = await asyncpg.connect(server_of(url), server_settings=statements.settings(10_000))
    sql = in_schema(getattr(statements, name), schema_of(url))
    (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, TIMING off, FORMAT json) {sql}", *arguments)
    await connection.close()
    looks = [node for node in nodes(json.loads(row[0])[0]["Plan"]) if node.get("Relation Name") == "jobs"]
    assert looks
    return looks


def nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def test_claim_sorts_no_more_than_a_bucket(explain):
    """The order comes from the walk: a sort above it would touch every job that is due."""
    plan = await explain("CLAIM", PLANS["CLAIM"][0])
    (sort,) = re.findall(r"Sort Key: (.*)", plan)
    assert re.fullmatch(r"\(\(jobs_\d+\.seq \+ 0\)\)", sort)
    assert plan.index("LockRows") < plan.index("Sort Key")


@pytest.mark.parametrize(("gone", "other"), [("fine", "coarse"), ("coarse", "fine")])
@pytest.mark.parametrize("name", ["CLAIM", "FINISH_AND_CLAIM", "PICK"])
async def test_a_walk_cannot_be_planned_on_the_index_of_the_other_one(explain, own_url, name, gone, other):
    """Without statistics both cost the same: a matter of luck, at the price of a filter over all that is due."""
    with raw_of(own_url).connect() as connection:
        connection.execute(f"DROP INDEX jobs_turn_{gone}")
    plan = await explain(name, PLANS[name][0])
    filters = re.findall(rf"using jobs_turn_{other} .*\n(?:(?! *->).*\n)*? +Filter: (.*)", plan)
    assert filters or other == "coarse"
    assert not [text for text in filters if "seq >>" in text], plan


@pytest.mark.parametrize("name", ["CLAIM", "RING", "NEXT_DUE_OF_QUEUES"])
async def test_a_table_that_was_empty_when_it_was_analyzed_is_still_walked_by_seeks(explain, own_url, name):
    """Its pages are still there, so the planner takes it for empty, whatever has been enqueued since."""
    with raw_of(own_url).connect() as connection:
        connection.execute("DELETE FROM jobs")
        connection.execute("ANALYZE jobs")
    plan = await explain(name, PLANS[name][0])
    assert "Join Filter" not in plan, plan
    assert "jobs_pkey" not in plan
    looks = re.findall(r"Scan (?:using (\w+) )?on jobs\b.*\n +(.*)", plan)
    assert looks
    assert {index for index, below in looks if "Cond:" not in below} <= {"jobs_spent", "jobs_turn_coarse"}
