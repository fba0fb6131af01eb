"""Queues on PostgreSQL, each drained by its own worker, so many jobs under way at most."""

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
    """procrastinate: its worker, until nothing is left."""

    name: ClassVar[str] = "procrastinate"

    def __init__(self, url: str, batch: int = CONCURRENCY) -> None:
        self._batch = batch
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
        try:
            await self._app.schema_manager.apply_schema_async()
            await self.bulk(count)
        except BaseException:  # a pool that is left open tries to connect for ever
            await self._app.close_async()
            raise

    async def bulk(self, count: int) -> None:
        """Defer in batches."""
        for first in range(0, count, SET):
            await self._task.batch_defer_async(*({"sku": n} for n in range(first, min(count, first + SET))))

    async def one_by_one(self, count: int) -> None:
        """Defer one by one."""
        for number in range(count):
            await self._task.defer_async(sku=number)

    async def close(self) -> None:
        """Close its connections."""
        await self._app.close_async()

    async def drain(self, _count: int) -> float:
        """Run its worker until it has caught up."""
        started = time.perf_counter()
        try:
            await self._app.run_worker_async(wait=False, concurrency=self._batch, install_signal_handlers=False)
            return time.perf_counter() - started
        finally:
            await self._app.close_async()


class PgQueuer:
    """pgqueuer: its queue manager in drain mode."""

    name: ClassVar[str] = "pgqueuer"

    def __init__(self, url: str, batch: int = CONCURRENCY) -> None:
        self._batch = batch
        self._library, self._asyncpg = needed("pgqueuer"), needed("asyncpg")
        self._drivers, self._types = needed("pgqueuer.db"), needed("pgqueuer.types")
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        self._url = url
        self._connection: Any = None
        self._queuer: Any = None
        self._queries: Any = None

    async def prepare(self, count: int) -> None:
        """Install its schema and enqueue in batches."""
        self._connection = await self._asyncpg.connect(self._url)
        driver = self._drivers.AsyncpgDriver(self._connection)
        self._queuer = self._library.PgQueuer(driver)
        self._queries = self._library.Queries(driver)
        await self._queries.install()
        await self.bulk(count)

    async def bulk(self, count: int) -> None:
        """Enqueue in batches."""
        for first in range(0, count, SET):
            size = min(SET, count - first)
            await self._queries.enqueue(["nothing"] * size, [b"7"] * size, [0] * size)

    async def one_by_one(self, count: int) -> None:
        """Enqueue one by one."""
        for _ in range(count):
            await self._queries.enqueue("nothing", b"7")

    async def close(self) -> None:
        """Close its connection."""
        await self._connection.close()

    async def drain(self, count: int) -> float:
        """Run its queue manager in drain mode."""
        counter = Counter(count)

        async def nothing(_job: Any) -> None:
            counter.one()

        self._queuer.qm.entrypoint("nothing")(nothing)
        started = time.perf_counter()
        await self._queuer.qm.run(batch_size=self._batch, mode=self._types.QueueExecutionMode.drain)
        await self._connection.close()
        if not counter.all.is_set():
            raise SystemExit("pgqueuer left jobs behind")
        return counter.ended_at - started


_chancy: list[Counter] = []


async def nothing() -> None:
    """Stand for a job of chancy, which finds it by its name."""
    _chancy[0].one()


class Chancy:
    """chancy: its asyncio executor, eager polling."""

    name: ClassVar[str] = "chancy"

    def __init__(self, url: str, batch: int = CONCURRENCY) -> None:
        self._batch = batch
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
        await self._app.declare(self._library.Queue("default", concurrency=self._batch, **settings))
        await self.bulk(count)

    async def bulk(self, count: int) -> None:
        """Push in batches."""
        async for _references in self._app.push_many([self._library.Job.from_func(nothing)] * count):
            pass

    async def one_by_one(self, count: int) -> None:
        """Push one by one."""
        job = self._library.Job.from_func(nothing)
        for _ in range(count):
            await self._app.push(job)

    async def close(self) -> None:
        """Close its connections."""
        await self._app.__aexit__(None, None, None)

    async def drain(self, count: int) -> float:
        """Run its worker until the last job was run."""
        _chancy[:] = [Counter(count)]
        started = time.perf_counter()
        worker = self._library.Worker(self._app, register_signal_handlers=False, shutdown_timeout=5)
        async with worker, asyncio.timeout(60):
            await _chancy[0].all.wait()
        await self._app.__aexit__(None, None, None)
        return _chancy[0].ended_at - started
