"""Every kind of connection that the outbox takes, behind one small face, so that each test runs on all of them."""

import sqlite3

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from asyncqueue import outbox
from tests.store.raw import schema_of, server_of

ROW = "INSERT INTO orders (id) VALUES ('{}')"


class Sqlite3:
    """`sqlite3`, with the transaction begun in words."""

    async def open(self, path):
        self.connection = sqlite3.connect(path, isolation_level=None)
        return self

    async def begin(self):
        self.connection.execute("BEGIN IMMEDIATE")

    async def insert(self, job_id):
        self.connection.execute(ROW.format(job_id))

    async def enqueue(self, *args, **fields):
        return outbox.enqueue(self.connection, *args, **fields)

    async def commit(self):
        self.connection.commit()

    async def rollback(self):
        self.connection.rollback()

    async def close(self):
        self.connection.close()


class Sqlite3Legacy(Sqlite3):
    """`sqlite3` as it comes: a transaction begins with the first row that is written."""

    async def open(self, path):
        self.connection = sqlite3.connect(path)
        return self

    async def begin(self):
        self.connection.execute("UPDATE orders SET id = id WHERE false")


class Aiosqlite(Sqlite3):
    async def open(self, path):
        self.connection = await aiosqlite.connect(path, isolation_level=None)
        return self

    async def begin(self):
        await self.connection.execute_fetchall("BEGIN IMMEDIATE")

    async def insert(self, job_id):
        await self.connection.execute_fetchall(ROW.format(job_id))

    async def enqueue(self, *args, **fields):
        return await outbox.enqueue_async(self.connection, *args, **fields)

    async def commit(self):
        await self.connection.commit()

    async def rollback(self):
        await self.connection.rollback()

    async def close(self):
        await self.connection.close()


class Alchemy(Sqlite3):
    """A SQLAlchemy Connection; the driver begins late, at the first row that is written."""

    async def open(self, path):
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.connection = self.engine.connect()
        return self

    async def begin(self):
        self.connection.begin()

    async def insert(self, job_id):
        self.connection.execute(sa.text(ROW.format(job_id)))

    async def close(self):
        self.connection.close()
        self.engine.dispose()


class AlchemyImmediate(Alchemy):
    """The documented recipe: SQLAlchemy says BEGIN IMMEDIATE."""

    async def open(self, path):
        await super().open(path)
        self.connection.close()
        sa.event.listen(self.engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        sa.event.listen(self.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        self.engine.dispose()
        self.connection = self.engine.connect()
        return self


class AlchemySession(Alchemy):
    async def open(self, path):
        await super().open(path)
        self.connection.close()
        self.connection = Session(self.engine)
        return self


class AlchemyAsync(Aiosqlite):
    async def open(self, path):
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        self.connection = await self.engine.connect()
        return self

    async def begin(self):
        await self.connection.begin()

    async def insert(self, job_id):
        await self.connection.execute(sa.text(ROW.format(job_id)))

    async def close(self):
        await self.connection.close()
        await self.engine.dispose()


class AlchemyAsyncSession(AlchemyAsync):
    async def open(self, path):
        await super().open(path)
        await self.connection.close()
        self.connection = AsyncSession(self.engine)
        return self


class _InSchema:
    async def enqueue(self, *args, **fields):
        return outbox.enqueue(self.connection, *args, schema=self.schema, **fields)


class _AsyncInSchema:
    async def enqueue(self, *args, **fields):
        return await outbox.enqueue_async(self.connection, *args, schema=self.schema, **fields)


class Asyncpg(_AsyncInSchema, Aiosqlite):
    async def open(self, url):
        self.schema = schema_of(url)
        self.connection = await asyncpg.connect(server_of(url), server_settings={"search_path": self.schema})
        return self

    async def begin(self):
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def insert(self, job_id):
        await self.connection.execute(ROW.format(job_id))

    async def commit(self):
        await self.transaction.commit()

    async def rollback(self):
        await self.transaction.rollback()


class Psycopg(_InSchema, Sqlite3):
    """psycopg as it comes: a transaction begins with the first statement."""

    async def open(self, url):
        self.schema = schema_of(url)
        self.connection = psycopg.connect(server_of(url), options=f"-csearch_path={self.schema}")
        return self

    async def begin(self):
        pass


class AsyncPsycopg(_AsyncInSchema, Aiosqlite):
    async def open(self, url):
        self.schema = schema_of(url)
        options = f"-csearch_path={self.schema}"
        self.connection = await psycopg.AsyncConnection.connect(server_of(url), options=options)
        return self

    async def begin(self):
        pass

    async def insert(self, job_id):
        await self.connection.execute(ROW.format(job_id))


class AlchemyPsycopg(_InSchema, Alchemy):
    async def open(self, url):
        self.schema = schema_of(url)
        self.engine = sa.create_engine(
            server_of(url).replace("postgresql:", "postgresql+psycopg:"),
            connect_args={"options": f"-csearch_path={self.schema}"},
        )
        self.connection = self.engine.connect()
        return self


class AlchemyPsycopgSession(AlchemyPsycopg):
    async def open(self, url):
        await super().open(url)
        self.connection.close()
        self.connection = Session(self.engine)
        return self


class AlchemyAsyncpg(_AsyncInSchema, AlchemyAsync):
    async def open(self, url):
        self.schema = schema_of(url)
        self.engine = create_async_engine(
            server_of(url).replace("postgresql:", "postgresql+asyncpg:"),
            connect_args={"server_settings": {"search_path": self.schema}},
        )
        self.connection = await self.engine.connect()
        return self


class AlchemyAsyncpgSession(AlchemyAsyncpg):
    async def open(self, url):
        await super().open(url)
        await self.connection.close()
        self.connection = AsyncSession(self.engine)
        return self


SQLITE = (
    Sqlite3,
    Sqlite3Legacy,
    Aiosqlite,
    Alchemy,
    AlchemyImmediate,
    AlchemySession,
    AlchemyAsync,
    AlchemyAsyncSession,
)
POSTGRES = (
    Asyncpg,
    Psycopg,
    AsyncPsycopg,
    AlchemyPsycopg,
    AlchemyPsycopgSession,
    AlchemyAsyncpg,
    AlchemyAsyncpgSession,
)
KINDS = (*SQLITE, *POSTGRES)
