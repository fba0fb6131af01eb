"""Queues on PostgreSQL, each drained by its own worker, 64 jobs under way at most."""

import asyncio
import logging
import time
from typing import Any, ClassVar

from benchmarks.peers.base import needed

__all__ = ["Chancy", "PgQueuer", "Procrastinate"]

CONCURRENCY = 64
SET = 1_000


class Counter:
    """Counts jobs that were run, and tells when all were."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self.all = asyncio.Event()
        self.ended_at = 0.0

    def one(self) -> None:
        """Take note of a job."""
        self._left -= 1
        if not self._left:
            self.ended_at = time.perf_counter()
            self.all.set()


class Procrastinate:
    """procrastinate: its worker with 64 jobs at a time, until nothing is left."""

    name: ClassVar[str] = "procrastinate"

    def __init__(self, url: str) -> None:
        library = needed("procrastinate")
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self._app: Any = library.App(connector=library.PsycopgConnector(conninfo=url, min_size=4, max_size=10))
        self._task: Any = self._app.task(name="nothing")(self._nothing)

    @staticmethod
    async def _nothing(sku: int) -> None:
        """Stand for a job."""

    async def prepare(self, count: int) -> None:
        """Apply its schema and defer in batches."""
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        for first in range(0, count, SET):
            await self._task.batch_defer_async(*({"sku": n} for n in range(first, min(count, first + SET))))

    async def drain(self, _count: int) -> float:
        """Run its worker until it has caught up."""
        started = time.perf_counter()
        try:
            await self._app.run_worker_async(wait=False, concurrency=CONCURRENCY, install_signal_handlers=False)
            return time.perf_counter() - started
        finally:
            await self._app.close_async()


class PgQueuer:
    """pgqueuer: batches of 64."""

    name: ClassVar[str] = "pgqueuer"

    def __init__(self, url: str) -> None:
        self._library, self._asyncpg = needed("pgqueuer"), needed("asyncpg")
        self._drivers, self._types = needed("pgqueuer.db"), needed("pgqueuer.types")
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        self._url = url
        self._connection: Any = None
        self._queuer: Any = None

    async def prepare(self, count: int) -> None:
        """Install its schema and enqueue in batches."""
        self._connection = await self._asyncpg.connect(self._url)
        driver = self._drivers.AsyncpgDriver(self._connection)
        self._queuer = self._library.PgQueuer(driver)
        queries = self._library.Queries(driver)
        await queries.install()
        for first in range(0, count, SET):
            size = min(SET, count - first)
            await queries.enqueue(["nothing"] * size, [b"7"] * size, [0] * size)

    async def drain(self, count: int) -> float:
        """Run its queue manager in drain mode."""
        counter = Counter(count)

        async def nothing(_job: Any) -> None:
            counter.one()

        self._queuer.qm.entrypoint("nothing")(nothing)
        started = time.perf_counter()
        await self._queuer.qm.run(batch_size=CONCURRENCY, mode=self._types.QueueExecutionMode.drain)
        await self._connection.close()
        if not counter.all.is_set():
            raise SystemExit("pgqueuer left jobs behind")
        return counter.ended_at - started


_chancy: list[Counter] = []


async def nothing() -> None:
    """Stand for a job of chancy, which finds it by its name."""
    _chancy[0].one()


class Chancy:
    """chancy: its asyncio executor, 64 jobs at a time, eager polling."""

    name: ClassVar[str] = "chancy"

    def __init__(self, url: str) -> None:
        self._library = needed("chancy")
        log = logging.getLogger("benchmarks.chancy")
        log.setLevel(logging.ERROR)
        self._app: Any = self._library.Chancy(url, log=log)

    async def prepare(self, count: int) -> None:
        """Migrate, declare the queue and push in batches."""
        await self._app.__aenter__()
        await self._app.migrate()
        executor = self._library.Chancy.Executor.Async
        settings = {"polling_interval": 1, "eager_polling": True, "executor": executor}
        await self._app.declare(self._library.Queue("default", concurrency=CONCURRENCY, **settings))
        job = self._library.Job.from_func(nothing)
        async for _references in self._app.push_many([job] * count):
            pass

    async def drain(self, count: int) -> float:
        """Run its worker until the last job was run."""
        _chancy[:] = [Counter(count)]
        started = time.perf_counter()
        worker = self._library.Worker(self._app, register_signal_handlers=False, shutdown_timeout=5)
        async with worker, asyncio.timeout(60):
            await _chancy[0].all.wait()
        await self._app.__aexit__(None, None, None)
        return _chancy[0].ended_at - started
