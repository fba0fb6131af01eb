"""An inbox on a real socket and a temporary file."""

import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from receiver_tools import speak

from receiver.app import DOOR, create_app
from receiver.server import BoundedSite


class Served:
    """An inbox that is being served: its port, its door, its application."""

    def __init__(self, app, runner, path, port):
        self.app, self.runner, self.path, self.port = app, runner, path, port

    @property
    def door(self):
        return self.app[DOOR]

    @property
    def database(self):
        return self.door.inbox._store._database

    @property
    def connections(self):
        return self.runner.server.connections

    async def speak(self, *parts):
        return await speak(self.port, *parts)


@pytest.fixture
def serve(tmp_path):
    """Return a context manager that serves an inbox with given settings, as `python -m receiver` does."""

    @asynccontextmanager
    async def serve(path=None, *, connections_max=500, idle_s=75.0, **settings):

        path = path or tmp_path / "inbox.db"
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
