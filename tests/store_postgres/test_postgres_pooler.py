"""A real PgBouncer in transaction mode, with fewer connections to the server than the queues before it ask for.

Skipped where no `pgbouncer` is installed: it is no part of the gate, and comes from no Python package.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from asyncqueue import Dispatcher, NewJob, Queue
from asyncqueue.errors import ConfigError
from tests.postgres_server import free_port
from tests.waiting import until

POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = 3
"""

pytestmark = pytest.mark.skipif(POOLER is None, reason="no pgbouncer is installed")


@pytest.fixture
def pooler_url(own_server):
    """The URL of a pooler before the module's server."""
    folder = Path(tempfile.mkdtemp(prefix="asyncqueue-pooler-"))
    folder.chmod(0o755)  # it refuses to run as root, and is somebody else then
    port = free_port()
    users, settings = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text('"postgres" ""\n')
    settings.write_text(SETTINGS.format(server=own_server.port, port=port, users=users))
    user = "nobody" if os.geteuid() == 0 else None
    pooler = subprocess.Popen([POOLER, "-q", settings], user=user, stderr=subprocess.DEVNULL)
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    pooler.terminate()
    pooler.wait()
    shutil.rmtree(folder)


@pytest.fixture
async def pooled_url(pooler_url, own_url):
    """The URL of a fresh schema behind it, without the option that says so."""
    await until(lambda: answers(pooler_url))
    return f"{pooler_url}?{urlsplit(own_url).query.partition('&')[0]}"


def answers(url):
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_queues_share_the_few_connections_of_a_pooler_and_every_job_is_done_once(pooled_url):
    """What one transaction set or prepared must not be met by the next user of the session."""
    url = f"{pooled_url}&pgbouncer=true"
    seen = []

    async def handle(job):
        seen.append(job.id)
        return True

    async def drain():
        async with Queue.open(url) as queue, Dispatcher(queue, handle, concurrency=8) as dispatcher:
            await dispatcher.drain()

    async with Queue.open(url) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(200)])
        await asyncio.gather(*(drain() for _ in range(4)))
        assert sorted(seen) == sorted(f"j{n}" for n in range(200))
        assert (await queue.stats()).done == 200


async def test_idle_dispatcher_behind_a_pooler_sees_what_another_process_enqueues(pooled_url):
    url = f"{pooled_url}&pgbouncer=true"
    seen = asyncio.Event()

    async def handle(_job):
        seen.set()
        return True

    async with Queue.open(url) as queue, Queue.open(url) as other, Dispatcher(queue, handle) as dispatcher:
        running = asyncio.create_task(dispatcher.run())
        await until(lambda: dispatcher.health().ok)
        await other.enqueue("late", 1)
        async with asyncio.timeout(10):
            await seen.wait()
        dispatcher.stop()
        await running


async def test_a_pooler_that_nobody_spoke_of_is_named(pooled_url):
    with pytest.raises(ConfigError, match="add pgbouncer=true to the URL"):
        async with Queue.open(pooled_url):
            pass
