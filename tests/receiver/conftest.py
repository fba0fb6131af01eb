"""An inbox on a real socket, on either store: a new store is one more fixture id."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from receiver_tools import speak

from receiver.app import DOOR, create_app
from receiver.server import BoundedSite

_WRITES = ("_attempt", "_once", "write_inline")  # of PostgreSQL's database and of SQLite's


class Served:
    """An inbox that is being served: its port, its door, its application."""

    def __init__(self, app, runner, path, port):
        self.app, self.runner, self.path, self.port = app, runner, path, port

    @property
    def door(self):
        return self.app[DOOR]

    @property
    def store(self):
        return self.door.inbox._store

    @property
    def database(self):
        return self.store._database

    def wrap_writes(self, wrapper):
        """Put `await wrapper(write)` in the place of each transaction, which is `write()`; return the undoing."""
        database = self.database
        plain = {name: getattr(database, name) for name in _WRITES if hasattr(database, name)}
        for name, way in plain.items():
            wrapped = lambda *given, way=way, **named: wrapper(lambda: way(*given, **named))  # noqa: E731
            setattr(database, name, wrapped)
        return lambda: [setattr(database, name, way) for name, way in plain.items()]

    @asynccontextmanager
    async def statements(self):
        """Yield a list to which the first word of every statement of a transaction is added."""
        seen = []
        if hasattr(self.database, "_pool"):
            connections = [holder._con for holder in self.database._pool._holders if holder._con]
            note = lambda query: seen.append(query.query.split()[0].strip(";"))  # noqa: E731 - told apart by identity
            for connection in connections:
                connection.add_query_logger(note)
            yield seen
            await asyncio.sleep(0)  # the driver tells of a statement in the loop's next turn
            for connection in connections:
                connection.remove_query_logger(note)
        else:
            writer = self.database._writer
            await writer.set_trace_callback(lambda sql: seen.append(sql.split()[0]))
            yield seen
            await writer.set_trace_callback(None)

    @property
    def connections(self):
        return self.runner.server.connections

    async def speak(self, *parts):
        return await speak(self.port, *parts)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """The address of a fresh, empty inbox."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "inbox.db")


@pytest.fixture
def serve(url):
    """Return a context manager that serves an inbox with given settings, as `python -m receiver` does."""

    @asynccontextmanager
    async def serve(path=url, *, connections_max=500, idle_s=75.0, **settings):
        app = create_app(path, **settings)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            try:
                await runner.setup()
                site = BoundedSite(runner, bound, connections_max=connections_max, idle_s=idle_s)
                await site.start()
                yield Served(app, runner, path, bound.getsockname()[1])
            finally:
                await runner.cleanup()

    return serve


@pytest.fixture
async def inbox(serve):
    """Serve an inbox with its defaults."""
    async with serve() as served:
        yield served
