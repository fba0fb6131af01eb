"""Every hot statement of the inbox uses its index. FAULTS 40: cost grows with history."""

import json
import sqlite3
from contextlib import closing

import pytest

from asyncqueue.stores.sqlite.schema import script
from receiver.stores.sqlite import statements

PARAMETERS = {
    "now": 1,
    "id": "m5",
    "ids": json.dumps(["m5"]),
    "items": json.dumps([["m5", 1, "1", 1, 1]]),
    "per_id_max": 16,
    "messages": 1,
    "quantity": 1,
    "duplicates": 1,
    "conflicts": 1,
}
HOT = ["KNOWN", "ACCEPT", "LEDGER", "JUDGE", "SEEN_AGAIN", "CONFLICT", "FORGET", "TOTALS_ADD", "GET", "TOTALS"]
SMALL = ("totals", "item", "json_each")  # one row, or as many as the request brought


@pytest.fixture
def connection():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        for statement in script("0001_inbox.sql", "receiver.stores.sqlite"):
            memory.execute(statement)
        yield memory


def fill(connection, rows):
    numbers = "WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
    connection.execute(
        f"{numbers} INSERT INTO inbox (id, qty, result, received_at) SELECT 'm' || i, 1, 'accepted', 1 FROM n",
        (rows,),
    )
    connection.execute(
        f"{numbers} INSERT INTO conflicts (id, kept_qty, qty, payload, first_at, last_at)"
        " SELECT 'm' || i, 1, 2, '', 1, 1 FROM n",
        (rows,),
    )


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_scans_no_table(connection, name):
    fill(connection, 1_000)
    connection.execute("ANALYZE")
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + getattr(statements, name), PARAMETERS)]
    scans = [line for line in plan if line.startswith("SCAN") and not line.split()[1].startswith(SMALL)]
    assert scans == []


@pytest.mark.parametrize(
    "name", ["KNOWN", "ACCEPT", "JUDGE", "SEEN_AGAIN", "CONFLICT", "FORGET", "TOTALS_ADD", "GET", "TOTALS"]
)
def test_a_statement_costs_the_same_beside_many_rows(connection, name):
    def steps():
        count = 0

        def step():
            nonlocal count
            count += 1

        connection.execute("SAVEPOINT trial")
        connection.set_progress_handler(step, 1)
        connection.execute(getattr(statements, name), PARAMETERS).fetchall()
        connection.set_progress_handler(None, 1)
        connection.execute("ROLLBACK TO trial")
        connection.execute("RELEASE trial")
        return count

    fill(connection, 10)
    few = steps()
    connection.execute("DELETE FROM inbox")
    connection.execute("DELETE FROM conflicts")
    fill(connection, 20_000)
    assert 0 < steps() <= few + 5
