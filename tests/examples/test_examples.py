"""The examples run, and print what the programs printed whose results they reproduce."""

import asyncio
import os
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from asyncqueue.stores import open_side
from asyncqueue.stores.move import Mark
from tests.waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

RECEIPTS = """\
failed receipt rolled back
receipts: 1
pending: [('created-R-0041', 'R-0041')]
replay before acknowledgement: True
pending after acknowledgement: []
"""
LEASES = """\
first claim: 41
active lease: None
reclaimed: 41
stale ack: False
current ack: True
after ack: None
"""


@pytest.mark.parametrize(("name", "printed"), [("receipts.py", RECEIPTS), ("leases.py", LEASES)])
async def test_the_example_prints_what_it_promises(name, printed, capsys):
    await runpy.run_path(str(EXAMPLES / name))["main"]()
    assert capsys.readouterr().out == printed


@pytest.fixture
async def warehouse():
    """A receiver that acknowledges, and what it got."""
    got: asyncio.Queue = asyncio.Queue()

    async def inbox(request):
        job = await request.json()
        await got.put(job)
        return web.json_response({**job, "result": "accepted"})

    app = web.Application()
    app.router.add_post("/inbox", inbox)
    async with TestServer(app) as server:
        yield str(server.make_url("/inbox")), got


@pytest.fixture
async def service(tmp_path, warehouse):
    module = runpy.run_path(str(EXAMPLES / "orders_service.py"))
    async with TestClient(TestServer(module["create_app"](tmp_path / "orders.db", warehouse[0]))) as client:
        yield client


async def test_an_order_is_stored_and_told_to_the_warehouse(service, warehouse, tmp_path):
    answer = await service.post("/orders", json={"id": "order-41", "qty": 3})
    assert (answer.status, await answer.json()) == (201, {"id": "order-41", "new": True})
    async with asyncio.timeout(20):
        assert await warehouse[1].get() == {"id": "order-41", "qty": 3}
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        assert connection.execute("SELECT id, qty FROM orders").fetchall() == [("order-41", 3)]


async def test_a_request_may_be_repeated_but_not_with_another_quantity(service):
    assert (await service.post("/orders", json={"id": "order-41", "qty": 3})).status == 201
    again = await service.post("/orders", json={"id": "order-41", "qty": 3})
    assert (again.status, await again.json()) == (200, {"id": "order-41", "new": False})
    other = await service.post("/orders", json={"id": "order-41", "qty": 4})
    assert (other.status, await other.text()) == (409, "job order-41 exists with another qty")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("not JSON", 400),
        ("[]", 400),
        ("{}", 400),
        ('{"id": "a", "qty": 0}', 422),
        ('{"id": "a b", "qty": 1}', 422),
    ],
)
async def test_a_bad_order_is_refused_in_words_and_stores_nothing(service, tmp_path, body, status):
    answer = await service.post("/orders", data=body)
    assert answer.status == status
    assert await answer.text()
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (0,)


async def test_the_service_starts_again_on_its_own_file_and_sends_what_was_left(tmp_path, warehouse):
    create_app = runpy.run_path(str(EXAMPLES / "orders_service.py"))["create_app"]
    nobody = "http://127.0.0.1:9/inbox"
    async with TestClient(TestServer(create_app(tmp_path / "orders.db", nobody))) as client:
        assert (await client.post("/orders", json={"id": "left", "qty": 1})).status == 201
    async with TestServer(create_app(tmp_path / "orders.db", warehouse[0])), asyncio.timeout(30):
        assert await warehouse[1].get() == {"id": "left", "qty": 1}


@pytest.fixture
def process(tmp_path):
    """The service as a process of its own, which has begun to serve."""
    command = [sys.executable, str(EXAMPLES / "orders_service.py"), str(tmp_path / "orders.db")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "http://127.0.0.1:9/", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert b"Running on" in process.stdout.readline()
        yield process
        process.kill()


async def test_the_service_ends_with_its_dispatcher_when_its_queue_was_moved(process, tmp_path):
    side = await open_side(str(tmp_path / "orders.db"), create=False)
    await side.seal(Mark("a-move", "source", "elsewhere", "copying"), with_leases=True)
    await side.close()
    await until(lambda: process.poll() is not None)
    assert process.returncode == 1
    assert b"this queue was moved" in process.stderr.read()
