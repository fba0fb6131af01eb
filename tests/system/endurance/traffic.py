"""The producer: new, repeated, conflicting and poisonous jobs, and messages that go straight to the inbox."""

import asyncio
import random
from collections import Counter, deque
from typing import Final

import aiohttp
import aiosqlite

from asyncqueue import Conflict, Queue, outbox, wire
from asyncqueue.errors import StoreError
from tests.system.endurance.books import Books
from tests.system.endurance.orders import (
    LARGE,
    MAX_ATTEMPTS,
    NEW,
    OUTBOX,
    POISON,
    is_deadly,
    job,
    message,
    payload,
    quantity,
)

STEP_S: Final = 0.25
NEW_A_STEP: Final = 12
OUTBOX_EVERY: Final = 4
LARGE_EVERY: Final = 8
REDRIVE_EVERY: Final = 20
POST_TIMEOUT_S: Final = 3.0
RECENT_MAX: Final = 200

# What every run must have done at least once to have shown anything.
KINDS: Final = (
    "new",
    "new by the outbox",
    "rolled back",
    "duplicate",
    "conflict",
    "409 poison",
    "413 poison",
    "redriven",
    "posted again",
    "posted with another quantity",
    "posted long after",
)

# The business table beside the queue: what the last committed transaction wrote.
MAKE_ORDERS: Final = "CREATE TABLE orders (id TEXT PRIMARY KEY)"
READ_ORDERS: Final = "SELECT id FROM orders"
CLEAR_ORDERS: Final = "DELETE FROM orders"
ADD_ORDER: Final = "INSERT INTO orders VALUES (?)"


class Producer:
    """Does its steps until it is told to stop; `done` counts what was answered as it must be."""

    def __init__(  # noqa: PLR0917 - what it talks to, each of another type
        self,
        queue: Queue,
        orders: aiosqlite.Connection,
        session: aiohttp.ClientSession,
        url: str,
        books: Books,
        rng: random.Random,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._queue = queue
        self._orders = orders
        self._session = session
        self._url = url
        self._books = books
        self._rng = rng
        self._numbers: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=RECENT_MAX)
        self._committed: set[str] = set()
        self._poison: str | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Go on until `stopping`, and then until the outcome of everything is known."""
        loop, step = asyncio.get_running_loop(), 0
        due = loop.time()
        while not stopping.is_set():
            await self._step(step)
            step += 1
            due = max(due + STEP_S, loop.time() - STEP_S)  # what a stall has cost is not made up for
            await asyncio.sleep(max(0.0, due - loop.time()))
        while self._poison is not None:  # half of it is done, perhaps
            await self._enqueue_poison()
            await asyncio.sleep(STEP_S)

    async def _step(self, step: int) -> None:
        await self._enqueue_new(step)
        if step % OUTBOX_EVERY == 0:
            await self._enqueue_by_outbox()
        async with self._books.lock:
            self._recent = deque((i for i in self._recent if i not in self._books.closed), RECENT_MAX)
            await self._enqueue_again()
            if step % REDRIVE_EVERY == 0:
                await self._redrive()
        await self._enqueue_poison()
        await self._post_again()

    def _new_id(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind}-{self._numbers[kind]}"

    def _acknowledge(self, job_id: str, what: str) -> None:
        self._books.promised.add(job_id)
        self._recent.append(job_id)
        self.done[what] += 1

    async def _enqueue_new(self, step: int) -> None:
        ids = [self._new_id(NEW) for _ in range(NEW_A_STEP)]
        if step % LARGE_EVERY == 0:
            ids.append(self._new_id(LARGE))
        try:
            answers = await self._queue.enqueue_many(map(job, ids))
        except StoreError:  # then nothing of it is visible: these ids must never be seen
            self.done["enqueues refused by the store"] += 1
            return
        for job_id, answer in zip(ids, answers, strict=True):
            if answer is not True:
                self._books.fault(f"a new job {job_id} was answered {answer!r}")
            self._acknowledge(job_id, "413 poison" if is_deadly(job_id) else "new")

    async def _enqueue_by_outbox(self) -> None:
        """Replace the business rows and enqueue their jobs, in one transaction; roll it back now and then."""
        ids = [self._new_id(OUTBOX) for _ in range(3)]
        try:
            await self._orders.execute("BEGIN IMMEDIATE")
            await self._write_orders(ids)
            if self._rng.random() < 1 / 4:
                await self._orders.rollback()
                self.done["rolled back"] += len(ids)
                return
            await self._orders.commit()
        except (aiosqlite.OperationalError, StoreError):  # others held the file for too long
            await self._orders.rollback()
            self.done["outbox transactions refused by the store"] += 1
            return
        self._committed = set(ids)
        for job_id in ids:
            self._acknowledge(job_id, "new by the outbox")

    async def _write_orders(self, ids: list[str]) -> None:
        found = {row[0] for row in await self._orders.execute_fetchall(READ_ORDERS)}
        if found != self._committed:
            self._books.fault(f"the business rows are {sorted(found)}, not {sorted(self._committed)}")
        await self._orders.execute_fetchall(CLEAR_ORDERS)
        for job_id in ids:
            await self._orders.execute_fetchall(ADD_ORDER, (job_id,))
            answer = await outbox.enqueue_async(
                self._orders, job_id, quantity(job_id), payload=payload(job_id), max_attempts=MAX_ATTEMPTS
            )
            if answer is not True:
                self._books.fault(f"a new job {job_id} was answered {answer!r} by the outbox")

    async def _enqueue_again(self) -> None:
        """Enqueue jobs of this moment's file once more: as they are, and with another quantity."""
        for job_id in self._some(2):
            try:
                (answer,) = await self._queue.enqueue_many([job(job_id)])
            except StoreError:
                continue
            if answer is not False:
                self._books.fault(f"the same job {job_id} again was answered {answer!r}")
            self.done["duplicate"] += 1
        for job_id in self._some(1):
            try:
                await self._queue.enqueue(job_id, quantity(job_id) + 1, payload=payload(job_id))
            except Conflict:
                self.done["conflict"] += 1
            except StoreError:
                continue
            else:
                self._books.fault(f"{job_id} with another quantity was taken")

    def _some(self, count: int) -> list[str]:
        return self._rng.sample(self._recent, min(count, len(self._recent)))

    async def _redrive(self) -> None:
        dead = sorted(job_id for job_id, row in self._books.rows.items() if row.status == "dead")
        if not dead:
            return
        job_id = self._rng.choice(dead)
        try:
            await self._queue.redrive(job_id, note="endurance")
        except StoreError:
            return
        self._books.redrive(job_id)
        self.done["redriven"] += 1

    async def _enqueue_poison(self) -> None:
        """Make the receiver accept an id with another quantity; only when it has, enqueue the job."""
        job_id = self._poison = self._poison or self._new_id(POISON)
        answer = await self._post(message(job_id, more=1))
        if answer is None:
            return  # the same one again at the next step, as nobody knows whether it was accepted
        if answer[0] != 200:
            self._books.fault(f"{job_id} was answered {answer}")
        # Its job carries other bytes and pieces than what was accepted.
        try:
            (taken,) = await self._queue.enqueue_many([job(job_id)])
        except StoreError:
            return
        if taken is not True:
            self._books.fault(f"a new job {job_id} was answered {taken!r}")
        self._poison = None
        self._acknowledge(job_id, "409 poison")

    async def _post_again(self) -> None:
        """Send the receiver what it has, or is about to get: as it is, and with another quantity."""
        done = [i for i, row in self._books.rows.items() if row.status == "done"]
        if not done:
            return
        job_id = self._rng.choice(done)
        await self._expect(message(job_id), "posted again", (200, "duplicate"))
        await self._expect(message(job_id, more=1), "posted with another quantity", (409, wire.CONFLICT.type))
        if self._books.delivered:  # the queue has forgotten it, the inbox must not
            await self._expect(
                message(self._rng.choice(self._books.delivered)), "posted long after", (200, "duplicate")
            )
        live = [i for i in self._recent if i not in self._books.rows and not is_deadly(i)]
        if live:
            fresh = self._rng.choice(live)
            await self._expect(message(fresh), "posted early", (200, "accepted"), (200, "duplicate"))

    async def _expect(self, body: dict[str, object], what: str, *right: tuple[int, str]) -> None:
        answer = await self._post(body)
        if answer is None:
            self.done["posts without an answer"] += 1
        elif answer in right:
            self.done[what] += 1
        else:
            self._books.fault(f"{body['id']} {what}: answered {answer}, not one of {right}")

    async def _post(self, body: dict[str, object]) -> tuple[int, str] | None:
        """Return the status, and the result or the problem; None if the receiver is dead, or dies, or is busy."""
        try:
            async with self._session.post(
                self._url, json=body, timeout=aiohttp.ClientTimeout(POST_TIMEOUT_S)
            ) as answer:
                if answer.status == 503:
                    return None
                told = await answer.json(content_type=None)
                return answer.status, told.get("result") or told.get("type")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
