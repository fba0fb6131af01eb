"""What the tests of the PostgreSQL store share: a server that may be stopped, and a proxy before it."""

import pytest

from asyncqueue.stores.postgres.connection import Profile
from asyncqueue.stores.postgres.store import PostgresStore
from tests import postgres_server
from tests.postgres_server import Server
from tests.store_postgres.proxy import Proxy


@pytest.fixture(scope="module")
def own_server():
    """A server for one module, which its tests may stop and start."""
    postgres_server.needed()
    server = Server.made().start()
    yield server
    server.remove()


@pytest.fixture
def own_url(own_server):
    """A fresh schema of that server."""
    schema = postgres_server.new_schema()
    return f"{own_server.url}?schema={schema}&search_path={schema}"


@pytest.fixture
async def proxy(own_server):
    async with Proxy(own_server.port) as opened:
        yield opened


@pytest.fixture
async def opened(own_url):
    """`await opened(url, **profile)` opens a store; all of them are closed after the test."""
    stores = []

    async def open_one(url=own_url, *, rules=None, clock=None, **profile):
        stores.append(await PostgresStore.open(url, profile=Profile(**profile), rules=rules, clock=clock))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()
