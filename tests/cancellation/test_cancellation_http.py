"""FAULTS 44 and 29: the inbox's handlers and the sender of batches, cancelled at their every await."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from asyncqueue import HttpSender, wire
from asyncqueue.retry import Verdict
from receiver.app import DOOR, create_app
from tests.cancellation.course import Course, at_rest, every_await, resources, writes_at_once
from tests.cancellation.stepping import Awaits, cancelled_at
from tests.roles import QUEUE

pytestmark = [pytest.mark.timeout(120), pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])]

ONE = json.dumps({"id": "one", "qty": 3}).encode()
MANY = json.dumps([{"id": "many1", "qty": 1}, {"id": "many2", "qty": 1}, {"id": "bad id", "qty": 1}]).encode()
REQUESTS = {
    ("POST", "/inbox"): ("/inbox", ONE),
    ("POST", "/inbox/batch"): ("/inbox/batch", MANY),
    ("GET", "/inbox/{id}"): ("/inbox/kept", b""),
    ("GET", "/totals"): ("/totals", b""),
    ("GET", "/readyz"): ("/readyz", b""),
}
WITHOUT_WAITING = {"/livez", "/openapi.json", "/{path}"}


class Inbox:
    """An inbox on a real socket, whose handlers are followed."""

    def __init__(self, app, port):
        self.door, self.port = app[DOOR], port
        self.awaits = Awaits()

    @web.middleware
    async def follow(self, request, handler):
        return await self.awaits.follow(handler(request))

    async def ask(self, method, path, body, awaits=None):
        """Send a request, its body in two parts; return status and body of the answer, None if cut off."""
        self.awaits = awaits or Awaits()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        try:
            writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + body[:5])
            async with asyncio.timeout(10):
                while body and not self.awaits.count:  # the handler waits for the rest of the body
                    await asyncio.sleep(0)
                writer.write(body[5:])
                answer = await reader.read()
        except ConnectionError:
            return None
        finally:
            writer.close()
        if not answer:
            return None
        top, _, content = answer.partition(b"\r\n\r\n")
        return int(top.split()[1]), json.loads(content)

    async def deserted(self):
        """Wait until nobody is inside; then nothing of any body is held."""
        async with asyncio.timeout(10):
            await self.door.emptied()
        assert self.door.bytes_inside == 0


@asynccontextmanager
async def an_inbox(path):
    app = create_app(path)
    inbox = Inbox(app, 0)
    app.middlewares.append(inbox.follow)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        inbox.port = runner.addresses[0][1]
        yield inbox
    finally:
        await runner.cleanup()


def test_no_handler_is_left_out(twice, tmp_path):
    app = create_app(tmp_path / "inbox.db")
    paths = {(route.method, route.resource.canonical) for route in app.router.routes()}
    assert {route for route in paths if route[0] in {"GET", "POST"} and route[1] not in WITHOUT_WAITING} == {
        *REQUESTS
    }


@pytest.mark.parametrize("route", REQUESTS, ids=" ".join)
async def test_handler(route, twice, tmp_path):
    path, body = REQUESTS[route]

    async def trial(number):
        file = tmp_path / f"{number}.db"
        async with an_inbox(file) as inbox:
            await inbox.ask("POST", "/inbox", b'{"id": "kept", "qty": 1}')
            tasks = asyncio.all_tasks()
            before = resources()
            awaits = Awaits.at(number, twice=twice)
            answer = await inbox.ask(route[0], path, body, awaits)
            assert (answer is None) == (awaits.hits > 0), "an answer if and only if it was not cancelled"
            await inbox.deserted()
            await at_rest(before)
            async with asyncio.timeout(10):
                while any(task.get_name() == "asyncqueue-batches" for task in asyncio.all_tasks() - tasks):
                    await asyncio.sleep(0)
            writes_at_once(file, patience_s=10.0 if route[0] == "GET" else 0.0)
            status, said = await inbox.ask(route[0], path, body)
            assert status == 200
            once = {"POST /inbox": (2, 4), "POST /inbox/batch": (3, 3)}.get(" ".join(route), (1, 1))
            _, totals = await inbox.ask("GET", "/totals", b"")
            assert (totals["messages"], totals["quantity"], totals["conflicts"]) == (*once, 0)
            if body == ONE:
                assert said["result"] in {wire.ACCEPTED, wire.DUPLICATE}
        return awaits.hits > 0

    await every_await(trial)


@pytest.mark.parametrize("others", [0, 2])
async def test_sender_of_batches(others, twice, tmp_path):
    """Whoever leaves a request of many costs the others nothing, and is sent again as if nothing had been."""
    course = Course(QUEUE, 3, tmp_path)
    await course.prepare()
    async with course.open() as queue:
        job, *rest = await queue.claim("w", queues=["default"], limit=1 + others)

    async def trial(number):
        async with an_inbox(tmp_path / f"{others}{number}.db") as inbox:
            before = resources()
            async with HttpSender(f"http://127.0.0.1:{inbox.port}/inbox", batch=10) as sender:
                along = [asyncio.ensure_future(sender.send(one)) for one in rest]
                reached = await cancelled_at(lambda: sender.send(job), number, twice=twice)
                assert [(await one).verdict for one in along] == [Verdict.OK] * others
                assert (await sender.send(job)).verdict is Verdict.OK
                async with asyncio.timeout(10):
                    while sender._gatherer._rides or sender._session.connector._acquired:
                        await asyncio.sleep(0)
                assert not sender._gatherer._waiting
            await at_rest((before[0] + 1, before[1] + 2))
            assert (await inbox.door.open_inbox().totals()).quantity == 1 + others
        return reached

    await every_await(trial)
