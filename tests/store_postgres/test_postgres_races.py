"""A sweep has chosen its jobs when another transaction changes them: it looks again before it buries one."""

import asyncio
import secrets
import time

import pytest

from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from tests.store.raw import PostgresRaw, schema_of
from tests.waiting import until

HOUR_MS = 3_600_000


@pytest.fixture
async def queue(postgres_url):
    async with Queue.open(postgres_url) as opened:
        await opened.enqueue_many([NewJob(job_id, 1, max_attempts=1) for job_id in "ab"])
        yield opened


@pytest.fixture
def raw(postgres_url):
    return PostgresRaw(postgres_url)


class Held:
    """The server's clock, for which statements wait that have their snapshot already; by an advisory lock."""

    def __init__(self, connection, schema):
        self._connection = connection
        self._key = secrets.randbelow(2**31)
        connection.execute("SELECT pg_advisory_lock(%s)", (self._key,))
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS bigint LANGUAGE plpgsql STABLE"
            f" AS 'BEGIN PERFORM pg_advisory_xact_lock_shared({self._key});"
            " RETURN floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint; END'"
        )

    def is_waited_for(self):
        locks = f"SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = {self._key} AND NOT granted"
        return self._connection.execute(locks).fetchall() != []

    def let_go(self):
        self._connection.execute("SELECT pg_advisory_unlock(%s)", (self._key,))


@pytest.fixture
def held(raw, postgres_url):
    with raw.connect() as connection:
        yield Held(connection, schema_of(postgres_url))


CHANGES = {
    "renewed": "lease_until = {later}",
    "given back": "status = 'pending', attempts = 0, owner = NULL, lease_until = NULL",
    "finished": "status = 'done', owner = NULL, lease_until = NULL",
    "cancelled": "status = 'dead', owner = NULL, lease_until = NULL, reason = 'cancelled'",
    "put back": "status = 'pending', attempts = 0, owner = NULL, lease_until = NULL, deadline = {later}",
}


@pytest.mark.parametrize("doom", ["spent", "late"])
@pytest.mark.parametrize("change", CHANGES)
async def test_job_that_was_changed_since_a_sweep_has_chosen_it_is_buried_only_if_it_still_must_die(
    queue, raw, held, change, doom
):
    doomed = "attempts = 1" if doom == "spent" else "attempts = 0, deadline = 2"
    raw.execute(f"UPDATE jobs SET status = 'leased', owner = 'w', lease_until = 1, token = 1, {doomed}")
    sweeping = asyncio.create_task(queue.sweep())
    await until(held.is_waited_for)
    later = int(time.time() * 1_000) + HOUR_MS
    raw.execute(f"UPDATE jobs SET {CHANGES[change].format(later=later)} WHERE id = 'a'")
    before = raw.select("SELECT * FROM jobs WHERE id = 'a'")
    held.let_go()
    still = change == "given back" and doom == "late"  # its deadline has passed all the same
    assert await sweeping == 1 + still
    assert (raw.select("SELECT * FROM jobs WHERE id = 'a'") == before) is not still
    assert (await queue.get("b")).status == "dead"
