"""A service that takes orders: the order's row and the job that tells the warehouse commit together.

    pip install 'asyncqueue[sqlalchemy]'
    python -m receiver inbox.db --port 8080            # the warehouse
    python examples/orders_service.py orders.db http://127.0.0.1:8080/inbox
    curl -d '{"id": "order-41", "qty": 3}' http://127.0.0.1:8081/orders

Whatever kills this process, and whenever: an order that is stored will be told, one that is not will not be.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from asyncqueue import Conflict, Dispatcher, HttpSender, InvalidJob, Queue, outbox

PATH = web.AppKey("PATH", Path)
INBOX = web.AppKey("INBOX", str)
QUEUE = web.AppKey("QUEUE", Queue)
SESSIONS = web.AppKey("SESSIONS", async_sessionmaker[AsyncSession])
ENGINE = web.AppKey("ENGINE", AsyncEngine)


class Base(DeclarativeBase):
    """The tables of this service."""


class Order(Base):
    """What a customer ordered."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    qty: Mapped[int]


def create_engine(path: Path) -> AsyncEngine:
    """Return an engine whose transactions begin with the write turn, and whose commits survive a power cut.

    The driver on its own begins late, as a reader; the turn from reader to writer is refused where another writer
    is about to commit. BEGIN IMMEDIATE waits for it instead.
    """
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")

    @event.listens_for(engine.sync_engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy says BEGIN, not the driver
        connection.execute("PRAGMA synchronous=EXTRA").close()

    @event.listens_for(engine.sync_engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


async def place_order(request: web.Request) -> web.Response:
    """Store an order and, in the same transaction, the job that tells of it. Repeating a request is harmless."""
    try:
        body = await request.json()
        order = Order(id=body["id"], qty=body["qty"])
    except (ValueError, KeyError, TypeError):
        raise web.HTTPBadRequest(text='send {"id": ..., "qty": ...}') from None
    try:
        new = await store(request.app, order)
    except Conflict as error:
        raise web.HTTPConflict(text=str(error)) from None
    except InvalidJob as error:
        raise web.HTTPUnprocessableEntity(text=str(error)) from None
    return web.json_response({"id": body["id"], "new": new}, status=201 if new else 200)


async def store(app: web.Application, order: Order) -> bool:
    """Put the order and its job into one transaction; False if both are there already."""
    async with app[SESSIONS].begin() as session:
        new = await outbox.enqueue_async(session, order.id, order.qty, via=app[QUEUE])
        if new:
            session.add(order)
    return new


async def with_queue(app: web.Application) -> AsyncIterator[None]:
    """Open the queue, which makes its tables; then the engine on the same file, and the service's own tables."""
    async with Queue.open(app[PATH]) as queue:
        app[QUEUE] = queue
        app[ENGINE] = engine = create_engine(app[PATH])
        app[SESSIONS] = async_sessionmaker(engine)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            yield
        finally:
            await engine.dispose()


async def with_dispatcher(app: web.Application) -> AsyncIterator[None]:
    """Send what is stored, for as long as the service runs, and what an earlier run has left."""
    sender = HttpSender(app[INBOX], timeout_ms=2_000, connect_timeout_ms=1_000)
    async with Dispatcher(app[QUEUE], sender, lease_ms=5_000) as dispatcher:
        running = asyncio.create_task(dispatcher.run())
        running.add_done_callback(end_with)
        yield
        dispatcher.stop()
        await running


def end_with(running: asyncio.Task[None]) -> None:
    """End the service with its dispatcher, as when the queue refuses for good: nobody would send its orders."""
    if not running.cancelled() and running.exception() is not None:
        raise web.GracefulExit


def create_app(path: Path, inbox: str) -> web.Application:
    """Return the service; its whole state is in the file `path`."""
    app = web.Application()
    app[PATH] = path
    app[INBOX] = inbox
    app.cleanup_ctx.extend((with_queue, with_dispatcher))
    app.router.add_post("/orders", place_order)
    return app


def main() -> None:
    """Run the service."""
    parser = argparse.ArgumentParser(description="Take orders by POST /orders and tell the warehouse of each.")
    parser.add_argument("database", type=Path)
    parser.add_argument("inbox", help="where the jobs go, for instance http://127.0.0.1:8080/inbox")
    parser.add_argument("--port", type=int, default=8081)
    arguments = parser.parse_args()
    web.run_app(create_app(arguments.database, arguments.inbox), host="127.0.0.1", port=arguments.port)


if __name__ == "__main__":
    main()
