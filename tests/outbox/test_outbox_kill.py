"""A service that is SIGKILLed between any two statements of a request (FAULTS 21: non-atomic move)."""

import asyncio
import contextlib
import signal
import sqlite3
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.waiting import until

ROOT = Path(__file__).parents[2]
POINTS_MIN = 14  # both ends of the request, five statements and the commit, each before and after


class Warehouse:
    """An idempotent receiver: one effect per id, however often the job comes."""

    def __init__(self):
        self.effects = {}
        self.conflicts = []

    async def inbox(self, request):
        job = await request.json()
        new = job["id"] not in self.effects
        if self.effects.setdefault(job["id"], job["qty"]) != job["qty"]:
            self.conflicts.append(job)
        return web.json_response({**job, "result": "accepted" if new else "duplicate"})


@contextlib.asynccontextmanager
async def receiving():
    warehouse = Warehouse()
    app = web.Application()
    app.router.add_post("/inbox", warehouse.inbox)
    async with TestServer(app) as server:
        yield warehouse, str(server.make_url("/inbox"))


@contextlib.asynccontextmanager
async def service(path, inbox, fatal):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.outbox.orders_child", path, inbox, str(fatal), cwd=ROOT, stdout=-1
    )
    try:
        port = int(await child.stdout.readline())
        yield child, f"http://127.0.0.1:{port}/orders"
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await child.wait()


async def order(url, number):
    """Return the status of the answer, None if the service died before it answered."""
    try:
        job = {"id": f"order-{number:02}", "qty": number}
        async with aiohttp.ClientSession() as session, session.post(url, json=job) as answer:
            return answer.status
    except aiohttp.ClientError:
        return None


def stored(path):
    """Return the business rows and the jobs, each as {id: qty}."""
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")  # rolls back what the killed process has left half written
        return tuple(dict(connection.execute(f"SELECT id, qty FROM {table}")) for table in ("orders", "jobs"))


async def finished(path, count):
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection:
        done = "SELECT count(*) FROM jobs WHERE status = 'done'"
        await until(lambda: connection.execute(done).fetchone()[0] >= count, 60)
        return connection.execute("SELECT DISTINCT status FROM jobs").fetchall()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_kill_between_any_two_statements_leaves_both_row_and_job_or_neither(tmp_path):
    path = tmp_path / "orders.db"
    async with receiving() as (warehouse, inbox):
        point, answer, kept = 0, None, set()
        while answer is None:
            point += 1
            async with service(path, inbox, point) as (child, url):
                answer = await order(url, point)
                if answer is None:
                    async with asyncio.timeout(30):
                        assert await child.wait() == -signal.SIGKILL
            orders, jobs = stored(path)
            assert orders == jobs, f"killed at point {point}"
            kept |= {point} if f"order-{point:02}" in orders else set()
        assert point > POINTS_MIN
        assert answer == 201
        assert kept == set(range(min(kept), point + 1)), "stored from one point on: the commit"
        assert 1 not in kept

        async with service(path, inbox, 0) as (_child, url):  # a client that had no answer asks again
            assert [await order(url, n) for n in range(1, point)] == [
                200 if n in kept else 201 for n in range(1, point)
            ]
            assert await finished(path, point) == [("done",)]
        orders, jobs = stored(path)
        assert orders == jobs == warehouse.effects == {f"order-{n:02}": n for n in range(1, point + 1)}
        assert warehouse.conflicts == []
