"""Plans and costs: every hot statement uses its index, and a claim's cost does not grow with what surrounds it.

FAULTS 40: cost grows with history. Costs are counted in steps of SQLite's virtual machine, not in time.
"""

import contextlib
import json
import sqlite3

import pytest

from asyncqueue.stores.base import Claim, Rules
from asyncqueue.stores.sqlite import schema, statements
from asyncqueue.stores.sqlite.store import SqliteTransaction

NOW = 1_000_000
ROWS = 100_000
PARAMETERS = {
    "now": NOW,
    "late": False,
    "limit": 64,
    "id": "j1",
    "queues": None,
    "kind": "mail",
    "kinds": None,
    "level": 0,
    "after": "",
    "until": None,
    "count": 64,
    "reason": None,
    "prefix": None,
    "status": "dead",
    "before": NOW,
    "after_seq": 0,
    "names": json.dumps(["default"]),
    "paused": 1,
    "sweep": 256,
    "queue": "default",
    "owner": "w",
    "lease_ms": 1_000,
    "seqs": json.dumps([1, 2]),
    "ids": json.dumps(["j1", "j2"]),
    "jobs": json.dumps([["new", 1, 3, 0, 500, "default", "job", None, 0]]),
    "items": json.dumps([["j1", 1, 1, "w", 1, "ok", 0, None]]),
    "rows": json.dumps([["j1", 1, 1, "w", "retry", "unknown", "x", None]]),
}


def connect():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for _lacks, name in schema.SCRIPTS:
        for statement in schema.script(name):
            connection.execute(statement)
    return connection


def fill(connection, *parts):
    """Insert runs of jobs: (count, status, due, priority, deadline, queue) each, in order of seq."""
    for count, status, due, priority, deadline, queue in parts:
        connection.execute(
            """
            WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
            INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, owner,
                              lease_until, priority, queue)
            SELECT 'j' || ((SELECT ifnull(max(seq), 0) FROM jobs) + i), 1, ?2, 1, 3, 1, ?3, ?5,
                   iif(?2 = 'leased', 'w', NULL), iif(?2 = 'leased', ?3, NULL), ?4, ?6
            FROM n
            """,
            (count, status, due, priority, deadline, queue),
        )


def run(count, status="pending", *, due=NOW, priority=0, deadline=NOW * 2):
    return count, status, due, priority, deadline, "default"


MIXED = [
    run(800, "done"),
    run(300),
    run(300, due=NOW + 500),
    run(300, "leased", due=NOW + 500),
    run(50, "leased", due=NOW - 1),
    run(100, "dead"),
    run(20, deadline=NOW - 1),
]


def parameters_of(statement):
    return {name: value for name, value in PARAMETERS.items() if f":{name}" in statement}


def plan(connection, statement):
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters_of(statement))]


HOT = {
    "ENQUEUE": set(),
    "EXISTING": {"sqlite_autoindex_jobs_1"},
    "SWEEPABLE": {"jobs_deadline", "jobs_spent"},
    "PICK": {"jobs_walk_coarse", "jobs_walk_fine"},
    "PICK_JSON": {"jobs_walk_coarse", "jobs_walk_fine"},
    "LOOK": {"jobs_walk_coarse", "jobs_deadline", "jobs_spent"},
    "CLAIM": {"INTEGER PRIMARY KEY"},
    "CLAIMED": {"INTEGER PRIMARY KEY"},
    "SWEEP": {"INTEGER PRIMARY KEY"},
    "LOST": {"INTEGER PRIMARY KEY"},
    "FINISH": {"sqlite_autoindex_jobs_1"},
    "VALID": {"sqlite_autoindex_jobs_1"},
    "FINISH_OK": {"sqlite_autoindex_jobs_1"},
    "RENEW": {"sqlite_autoindex_jobs_1"},
    "RELEASE": {"sqlite_autoindex_jobs_1"},
    "HISTORY_APPEND": set(),
    "REDRIVE_AUDIT": {"sqlite_autoindex_jobs_1"},
    "REDRIVE": {"sqlite_autoindex_jobs_1"},
    "GET": {"sqlite_autoindex_jobs_1"},
    "NEXT_DUE": {"jobs_walk_coarse"},
    "DUE_BY_QUEUE": {"jobs_walk_coarse"},
    "NEXT_DUE_OF_KINDS": {"jobs_kinds"},
    "NEXT_DUE_OF_DEFAULT": {"jobs_walk_coarse"},
    "LEVELS": {"jobs_levels"},
    "LEVELS_OF_KINDS": {"jobs_kinds"},
    "RING_OF_LEVEL": {"jobs_levels"},
    "RING_OF_ZERO": {"jobs_walk_coarse"},
    "RING_OF_KIND": {"jobs_kinds"},
    "PICK_OF_LEVEL": {"jobs_walk_coarse", "jobs_walk_fine"},
    "PICK_OF_LEVEL_JSON": {"jobs_walk_coarse", "jobs_walk_fine"},
    "PICK_OF_KIND": {"jobs_kinds"},
    "PICK_OF_KIND_JSON": {"jobs_kinds"},
    "NOTE": {"sqlite_autoindex_jobs_1"},
    "STATUS_OF": {"sqlite_autoindex_jobs_1"},
    "CANCEL": {"sqlite_autoindex_jobs_1"},
    "CANCELLED": {"sqlite_autoindex_jobs_1"},
    "LIST_DEAD": {"jobs_dead"},
    "COUNT_DEAD": {"jobs_dead"},
    "PAUSE": set(),
    "PURGEABLE": {"jobs_ended"},
    "PURGE": {"sqlite_autoindex_jobs_1"},
    "PURGE_HISTORY": {"attempts_by_id"},
    "HISTORY": {"attempts_by_id", "redrives_by_id"},
    "PENDING": set(),
    "QUEUES": set(),
    "STATS": set(),
    "REDRIVES": set(),
}


@pytest.mark.parametrize("is_analysed", [False, True], ids=["not analysed", "analysed"])
@pytest.mark.parametrize("name", HOT)
def test_hot_statement_uses_its_index_and_never_scans_the_jobs(name, is_analysed):
    with contextlib.closing(connect()) as connection:
        fill(connection, *MIXED)
        if is_analysed:
            connection.execute("ANALYZE")
        steps = plan(connection, getattr(statements, name))
        for step in steps:
            if step.startswith("SCAN") and ("jobs" in step.split()[:2] or step.split()[1] in ("j", "nxt")):
                # Walking a partial index from its best end, under LIMIT 1, is no scan; nor is a look at the dead.
                assert "USING" in step, steps
                known = ("jobs_walk", "jobs_spent", "jobs_dead", "jobs_levels")
                assert any(index in step for index in known), steps
        for index in HOT[name]:
            assert any(index in step for step in steps), (index, steps)
        # A walk follows its index; what is sorted at the end is the little that was found.
        sorts_once = name.startswith("PICK") or name in {"HISTORY", "QUEUES"}
        assert sum("ORDER BY" in step for step in steps) == sorts_once, steps


def test_every_statement_on_jobs_is_either_checked_here_or_known_to_be_cold():
    cold = {
        *("LIST", "COUNT", "BEGIN", "COMMIT", "DATA_VERSION", "SCHEMA_STATE", "SCHEMA_MARK", "PRAGMAS"),
        *("SCHEMA_NAMES", "PLACE", "SCHEMA_VERSION", "EFFECT_BEGIN", "EFFECT_UNDO", "EFFECT_END", "FORGET_PAGES"),
        *("CONDEMN", "CONDEMN_UNORDERED", "MOVED"),
    }
    rare = ("CONTRACT_", "MOVE_", "BACKUP_", "FENCE_")
    product = {name for name in statements.__all__ if not name.startswith(rare)}
    assert product == set(HOT) | cold


def steps_of(connection, statement, **extra):
    """Count the machine's steps (in tens) that `statement` takes, and return its rows too."""
    count = 0

    def tick():
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(tick, 10)
    rows = connection.execute(statement, {**parameters_of(statement), **extra}).fetchall()
    connection.set_progress_handler(None, 0)
    return count, rows


SHAPES = {
    "many done before few ready": [run(ROWS, "done"), run(1_000)],
    "many ready": [run(ROWS)],
    "many delayed before few ready": [run(ROWS, due=NOW + 500), run(1_000)],
    "half delayed before half ready": [run(ROWS // 2, due=NOW + 500), run(ROWS // 2)],
    "many leased before few ready": [run(ROWS, "leased", due=NOW + 500), run(1_000)],
    "many dead before few ready": [run(ROWS, "dead"), run(1_000)],
    "many of low priority after few ready": [run(ROWS, priority=-5), run(1_000)],
    "many delayed of high priority": [run(ROWS, due=NOW + 500, priority=5), run(1_000)],
}


@pytest.fixture(scope="module")
def bare_cost():
    """What a look and a pick cost among a thousand ready jobs and nothing else."""
    with contextlib.closing(connect()) as connection:
        fill(connection, run(1_000))
        return {
            name: steps_of(connection, getattr(statements, name), limit=1)[0]
            for name in ("LOOK", "PICK", "NEXT_DUE")
        }


@pytest.mark.parametrize("shape", SHAPES)
def test_cost_of_a_claim_is_flat_whatever_surrounds_the_ready_jobs__kind_40_cost_grows_with_history(
    shape, bare_cost
):
    with contextlib.closing(connect()) as connection:
        fill(connection, *SHAPES[shape])
        due = "SELECT seq FROM jobs WHERE status = 'pending' AND available_at <= ? ORDER BY priority DESC, seq"
        (ready,) = connection.execute(due, (NOW,)).fetchone()
        costs = {}
        for name in ("LOOK", "PICK", "NEXT_DUE"):
            costs[name], rows = steps_of(connection, getattr(statements, name), limit=1)
            if name == "PICK":
                assert [row[0] for row in rows] == [ready]
        # A bucket holds 16,384 jobs: six more of them to hop over, each of at most 128 small ranges.
        assert costs["LOOK"] <= 2 * bare_cost["LOOK"], (costs, bare_cost)
        assert costs["PICK"] <= 3 * bare_cost["PICK"] + 100, (costs, bare_cost)
        assert costs["NEXT_DUE"] <= 10 * bare_cost["NEXT_DUE"] + 100, (costs, bare_cost)


def test_sweep_finds_the_few_that_must_die_among_many_at_flat_cost(bare_cost):
    with contextlib.closing(connect()) as connection:
        fill(connection, run(ROWS), run(ROWS // 2, "done", deadline=NOW - 1), run(3, deadline=NOW - 1))
        cost, rows = steps_of(connection, statements.LOOK)
        assert len([seq for _name, seq in rows if seq is not None]) == 3
        assert cost <= 3 * bare_cost["LOOK"] + 10


def test_hundred_thousand_done_rows_do_not_make_a_report_dearer():
    costs = []
    for history in (0, ROWS):
        with contextlib.closing(connect()) as connection:
            if history:
                fill(connection, run(history, "done"))
            fill(connection, run(1, "leased", due=NOW + 500))
            job_id = connection.execute("SELECT id FROM jobs WHERE status = 'leased'").fetchone()[0]
            items = json.dumps([[job_id, 1, 1, "w", 1, "ok", 0, None]])
            cost, rows = steps_of(connection, statements.FINISH, items=items)
            assert rows == [(job_id, "done")]
            costs.append(cost)
    assert costs[1] <= 2 * costs[0] + 2


COUNTING = ("STATS", "PENDING", "REDRIVES", "QUEUES", "NEXT_DUE", "LOOK", "PICK")


@pytest.mark.parametrize("status", ["done", "dead"])
def test_counting_and_claiming_cost_the_same_after_a_thousand_and_a_hundred_thousand_ended_jobs__kind_40(status):
    costs = []
    for history in (1_000, ROWS):
        with contextlib.closing(connect()) as connection:
            fill(connection, run(history, status), run(100))
            costs.append({name: steps_of(connection, getattr(statements, name), limit=1)[0] for name in COUNTING})
            counted = connection.execute(statements.STATS).fetchall()
            assert sorted(counted) == sorted([("default", "pending", 100), ("default", status, history)])
    assert all(costs[1][name] <= 1.5 * costs[0][name] + 10 for name in COUNTING), costs


@pytest.mark.parametrize("name", ["STATS", "PENDING", "REDRIVES", "QUEUES"])
def test_counts_are_read_without_a_look_at_any_job(name):
    with contextlib.closing(connect()) as connection:
        fill(connection, *MIXED)
        steps = plan(connection, getattr(statements, name))
        assert steps
        assert not any("jobs" in step.split() for step in steps), steps


def test_claim_is_told_of_at_most_two_queues_and_of_none_that_is_paused_so_one_queue_needs_no_turns():
    with contextlib.closing(connect()) as connection:
        look = lambda **asked: steps_of(connection, statements.LOOK, **asked)[1]  # noqa: E731 - in two words
        assert look() == []
        fill(connection, run(3))
        assert look() == [("default", None)]
        fill(connection, *((2, "pending", NOW, 0, NOW * 2, queue) for queue in ("a", "b", "z")))
        assert look() == [("a", None), ("b", None)]
        assert look(queues=json.dumps(["z", "none"])) == [("z", None), ("none", None)]
        connection.execute("INSERT INTO queues (name, paused) VALUES ('a', 1), ('b', 0), ('default', 1), ('z', 1)")
        assert look() == [("b", None)]
        assert look(queues=json.dumps(["z"])) == []


# --- many queues, many kinds -------------------------------------------------------------------------


def spread(connection, queues, jobs, **columns):
    """Insert `jobs` due jobs in each of `queues` queues, with these columns (kind, priority, available_at)."""
    values = {"kind": "job", "priority": 0, "available_at": NOW, **columns}
    connection.execute(
        """
        WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1 * ?2)
        INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline, queue, kind,
                          priority)
        SELECT 'q' || ((SELECT ifnull(max(seq), 0) FROM jobs) + i), 1, 'pending', 0, 3, 0, ?3, ?4,
               'q' || printf('%06d', i % ?1), ?5, ?6 FROM n
        """,
        (queues, jobs, values["available_at"], NOW * 2, values["kind"], values["priority"]),
    )


async def claim_steps(connection, **wanted):
    """Return how many steps (in tens) a claim takes, and the jobs that it got."""
    count = 0

    def tick():
        nonlocal count
        count += 1
        return 0

    asked = {"limit": 64, "queues": None, "kinds": None, **wanted}
    claim = Claim("w", asked["limit"], 1_000, asked["queues"], asked["kinds"])
    transaction = SqliteTransaction(InlineConnectionOf(connection), NOW, Rules())
    connection.set_progress_handler(tick, 10)
    leased = await transaction.claim(claim)
    connection.set_progress_handler(None, 0)
    return count, leased


class InlineConnectionOf:
    """A plain connection with the driver's interface."""

    def __init__(self, connection):
        self._connection = connection
        self.in_transaction = True

    async def execute_fetchall(self, sql, parameters=()):
        return self._connection.execute(sql, parameters).fetchall()


@pytest.mark.parametrize(
    ("limit", "columns"),
    [(1, {}), (64, {}), (64, {"priority": 7}), (64, {"kind": "mail", "kinds": ("mail",)})],
    ids=["one job", "many jobs", "of a priority", "of a kind"],
)
async def test_claim_over_ten_thousand_queues_costs_what_it_costs_over_two_hundred(limit, columns):
    """FAULTS 26 and 40: the cost is bounded by the limit, not by how many queues there are."""
    costs = []
    kinds = columns.get("kinds")
    for queues in (200, 10_000):
        with contextlib.closing(connect()) as connection:
            spread(connection, queues, 1, **{name: columns[name] for name in columns if name != "kinds"})
            cost, leased = await claim_steps(connection, limit=limit, kinds=kinds)
            assert len({job.queue for job in leased}) == limit
            costs.append(cost)
    assert costs[1] <= 1.5 * costs[0] + 100, costs


async def test_claim_of_a_kind_costs_the_same_behind_a_hundred_thousand_jobs_of_another():
    costs = []
    for others in (10, ROWS):
        with contextlib.closing(connect()) as connection:
            spread(connection, 1, others, kind="fax")
            spread(connection, 1, 100, kind="mail")
            cost, leased = await claim_steps(connection, kinds=("mail", "post"))
            assert len(leased) == 64
            due = steps_of(connection, statements.NEXT_DUE_OF_KINDS, kinds='["mail"]', queues=None)
            assert due[1] == [(NOW,)]
            costs.append((cost, due[0]))
    (cost, due), (cost_behind, due_behind) = costs
    assert cost_behind <= 1.5 * cost + 100, costs
    assert due_behind <= 1.5 * due + 10, costs


async def test_claim_passes_over_a_thousand_queues_with_nothing_due_without_a_pick_in_each():
    with contextlib.closing(connect()) as connection:
        spread(connection, 1_000, 1, available_at=NOW + 1)
        idle, leased = await claim_steps(connection)
        assert leased == []
        once_round, found = steps_of(connection, statements.RING_OF_ZERO)
        assert found == []
        assert idle <= 1.2 * once_round + 100, (idle, once_round)
