"""Queues in one SQLite file, all synchronous=FULL."""

import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.base import PAYLOAD, needed

__all__ = ["Huey", "LeaseTable", "LeaseTableSets", "LiteQueue", "PersistQueue"]

SETS = 64


class LeaseTable:
    """The usual lease queue on plain sqlite3, as one writes it in an afternoon.

    One table, one column that is both the time a job is due and the end of its lease, a random token per claim, a
    transaction for each claim and one for each completed job. It claims one job at a time.
    """

    name: ClassVar[str] = "plain lease table, 1 a claim"
    limit: ClassVar[int] = 1

    _TABLE: ClassVar[str] = """
    CREATE TABLE task (
      number INTEGER PRIMARY KEY, body TEXT NOT NULL, phase TEXT NOT NULL DEFAULT 'waiting',
      tries INTEGER NOT NULL DEFAULT 0, tries_max INTEGER NOT NULL DEFAULT 5, open_at REAL NOT NULL,
      fence TEXT, worker TEXT, error TEXT, same_as TEXT UNIQUE, made_at REAL NOT NULL, ended_at REAL);
    CREATE INDEX task_open ON task (open_at, number) WHERE phase IN ('waiting','held');
    CREATE INDEX task_spent ON task (open_at) WHERE phase = 'held' AND tries >= tries_max;
    CREATE INDEX task_dead ON task (number) WHERE phase = 'dead';
    """
    _PUT: ClassVar[str] = "INSERT OR IGNORE INTO task (body, open_at, made_at, same_as) VALUES (?, ?, ?, ?)"
    _BURY: ClassVar[str] = """
    UPDATE task SET phase = 'dead', fence = NULL, ended_at = :now, error = ifnull(error, 'lease ran out')
    WHERE phase = 'held' AND tries >= tries_max AND open_at <= :now
    """
    _TAKE: ClassVar[str] = """
    UPDATE task SET phase = 'held', tries = tries + 1, open_at = :now + 30, fence = :fence, worker = 'bench'
    WHERE number IN (SELECT number FROM task WHERE phase IN ('waiting','held') AND open_at <= :now
                     ORDER BY open_at, number LIMIT :limit)
    RETURNING number, body
    """
    _DONE: ClassVar[str] = """
    UPDATE task SET phase = 'done', ended_at = :now, fence = NULL
    WHERE number = :number AND fence = :fence AND phase = 'held'
    """

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "lease.db", isolation_level=None, timeout=30)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(self._TABLE)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def fill(self, count: int) -> None:
        """Put all in with one commit."""
        now = time.time()
        with self._transaction():
            self._connection.executemany(self._PUT, ((PAYLOAD, now, now, f"p{n}") for n in range(count)))

    def enqueue(self, count: int) -> None:
        """Commit after each."""
        for number in range(count):
            now = time.time()
            self._connection.execute(self._PUT, (PAYLOAD, now, now, f"e{number}"))

    def drain(self) -> int:
        """Claim, then complete one by one."""
        count = 0
        while True:
            fence = uuid.uuid4().hex
            now = time.time()
            with self._transaction():
                self._connection.execute(self._BURY, {"now": now})
                values = {"now": now, "limit": self.limit, "fence": fence}
                rows = self._connection.execute(self._TAKE, values).fetchall()
            if not rows:
                return count
            for number, body in rows:
                json.loads(body)
                done = {"now": time.time(), "number": number, "fence": fence}
                with self._transaction():
                    count += self._connection.execute(self._DONE, done).rowcount

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class LeaseTableSets(LeaseTable):
    """The same, 64 jobs a claim."""

    name: ClassVar[str] = "plain lease table, 64 a claim"
    limit: ClassVar[int] = SETS


class Huey:
    """huey with its SQLite storage; `fsync=True` is synchronous=FULL. A job taken is gone: there is no lease."""

    name: ClassVar[str] = "huey SqliteHuey"

    def __init__(self, folder: Path) -> None:
        self._huey: Any = needed("huey").SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=True)
        self._task: Any = self._huey.task()(_nothing)

    def fill(self, count: int) -> None:
        """Put them in one by one: it has no other way."""
        self.enqueue(count)

    def enqueue(self, count: int) -> None:
        """Commit after each."""
        for _ in range(count):
            self._task(7)

    def drain(self) -> int:
        """Do what its worker does for each task."""
        count = 0
        while (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)
            count += 1
        return count

    def close(self) -> None:
        """Close the file."""
        self._huey.storage.close()


def _nothing(_sku: int) -> None:
    """Stand for a job."""


class LiteQueue:
    """litequeue: pop, then done."""

    name: ClassVar[str] = "litequeue"

    def __init__(self, folder: Path) -> None:
        self._queue: Any = needed("litequeue").LiteQueue(str(folder / "lite.db"))
        self._queue.conn.execute("PRAGMA synchronous=FULL")

    def fill(self, count: int) -> None:
        """Put them in one by one: it has no other way."""
        self.enqueue(count)

    def enqueue(self, count: int) -> None:
        """Commit after each."""
        for _ in range(count):
            self._queue.put(PAYLOAD)

    def drain(self) -> int:
        """Pop and mark done, one by one."""
        count = 0
        while (message := self._queue.pop()) is not None:
            json.loads(message.data)
            self._queue.done(message.message_id)
            count += 1
        return count

    def close(self) -> None:
        """Close the file."""
        self._queue.conn.close()


class PersistQueue:
    """persist-queue's SQLiteAckQueue: get, then ack; its WAL connection keeps SQLite's default, FULL."""

    name: ClassVar[str] = "persist-queue SQLiteAckQueue"

    def __init__(self, folder: Path) -> None:
        self._library = needed("persistqueue")
        self._queue: Any = self._library.SQLiteAckQueue(str(folder / "persist"), auto_commit=True)

    def fill(self, count: int) -> None:
        """Put them in one by one: it has no other way."""
        self.enqueue(count)

    def enqueue(self, count: int) -> None:
        """Commit after each."""
        for _ in range(count):
            self._queue.put(PAYLOAD)

    def drain(self) -> int:
        """Get and acknowledge, one by one."""
        count = 0
        while True:
            try:
                item = self._queue.get(block=False, raw=True)
            except self._library.exceptions.Empty:
                return count
            json.loads(item["data"])
            self._queue.ack(item)
            count += 1

    def close(self) -> None:
        """Close the file."""
        self._queue.close()
