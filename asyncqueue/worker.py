"""The contract layer: one job at a time over a borrowed connection, to the letter of the contract.

All times are integer milliseconds on one baseline, 0 to 10**15-60000. The connection belongs to the caller:
it has no transaction when a function is called, is never closed here, and yields plain rows or
`sqlite3.Row`. Calls that share a connection take turns, a transaction each.

What every function guarantees (contract, "data contract"):

- A wrong type or range is a `ValueError` before anything changes; inputs are never modified.
- Selection and change happen in one `BEGIN IMMEDIATE` transaction. An error before COMMIT (a fault hook, a
  driver error, a busy COMMIT) rolls all of it back and is raised as it was; after COMMIT the change stands.
- A cancelled call leaves no open transaction. Once its transaction has begun, it is ended first, and the
  caller learns by `CancelledError` only that the outcome is unknown.
- `fault(point)` is called at the named points of a path that changes a job, and never on one that does not.
"""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

import aiosqlite

from asyncqueue.errors import BadAck, Conflict, InvalidJob, NotAQueue, NotDead, Permanent, Retryable
from asyncqueue.job import CONTRACT, TIME_MS_MAX, TOKEN_MAX, Range, brief, check_id, check_int
from asyncqueue.retry import check_jitter, retry_delay
from asyncqueue.stores.shield import shielded
from asyncqueue.stores.sqlite import schema, statements

__all__ = [
    "BadAck",
    "Conflict",
    "Permanent",
    "Retryable",
    "claim",
    "enqueue",
    "finish",
    "open_queue",
    "redrive",
    "retry_delay",
    "run_file",
    "run_once",
]

T = TypeVar("T")
Fault = Callable[[str], object]
Send = Callable[[dict[str, Any]], Awaitable[object]]

_BUSY_TIMEOUT_S: Final = 1
_THREAD_POLL_S: Final = 0.001
_PRIVATE: Final = 0o600
_NOW_MS: Final = Range(0, TIME_MS_MAX)
_TOKEN: Final = Range(1, TOKEN_MAX)
_LEASE_UNTIL: Final = Range(1, 10**15)
_RETRY_BASE_MS: Final = 100
_RETRY_CAP_MS: Final = 1_000
_EVENT_KEYS: Final = ("id", "qty")
_TICKET_KEYS: Final = ("id", "qty", "owner", "token", "attempt", "lease_until")  # as CONTRACT_CLAIM returns them
_OUTCOMES: Final = ("ok", "retry", "permanent")

_turns: WeakKeyDictionary[aiosqlite.Connection, asyncio.Lock] = WeakKeyDictionary()


# --- the transaction -----------------------------------------------------------------------------------


async def _transaction(
    con: aiosqlite.Connection, work: Callable[[], Awaitable[T]], fault: Fault | None = None
) -> T:
    """Run `work` in one write transaction of its own and return its result.

    Waiting for the connection's turn can be cancelled; from BEGIN on, the transaction ends before a
    cancellation is raised. `fault("after-commit")` is called if `work` returned something true.
    """
    async with _turns.setdefault(con, asyncio.Lock()):
        return await shielded(_immediate(con, work, fault))


async def _immediate(con: aiosqlite.Connection, work: Callable[[], Awaitable[T]], fault: Fault | None) -> T:
    if con.in_transaction:  # not ours: a failed BEGIN must not roll it back
        raise sqlite3.OperationalError("the connection has an open transaction: end it before this call")
    changes = con.total_changes
    try:
        await con.execute_fetchall(statements.BEGIN)
        result = await work()
        if result or con.total_changes != changes:  # a sweep counts although its claim found nothing
            await con.execute_fetchall(statements.COMMIT)
        else:  # COMMIT would wait for every reader to leave, only to write nothing
            await con.rollback()
    except BaseException as error:
        await _roll_back(con, error)
        raise
    if result:
        _reach(fault, "after-commit")
    return result


async def _roll_back(con: aiosqlite.Connection, error: BaseException) -> None:
    """Roll back what is open, if anything is; a failure to do so is noted on `error`, which stays the one raised.

    The driver's queue is first in, first out, so the rollback follows a statement whose wait was cancelled.
    """
    try:
        await _insist(con.rollback)
        if isinstance(error, sqlite3.Error):
            await _insist(lambda: con.execute_fetchall(statements.FORGET_PAGES))
    except (sqlite3.Error, ValueError) as second:
        error.add_note(f"the rollback failed as well: {second}")


async def _insist(step: Callable[[], Awaitable[object]]) -> None:
    """Repeat a step until once it was not cancelled; doing it twice must be the same as doing it once.

    Only for the end of a task of our own: a loop that shuts down cancels that too, but once.
    """
    while True:
        try:
            await step()
        except asyncio.CancelledError:
            continue
        return


async def _first_row(con: aiosqlite.Connection, sql: str, values: dict[str, Any]) -> Any | None:
    """Return the first row or None. All rows are fetched: unread RETURNING rows would make COMMIT fail."""
    return next(iter(await con.execute_fetchall(sql, values)), None)


def _reach(fault: Fault | None, point: str) -> None:
    if fault is not None:
        fault(point)


# --- opening -------------------------------------------------------------------------------------------


async def open_queue(path: str | os.PathLike[str]) -> aiosqlite.Connection:
    """Open the queue file at `path` and return a connection that the caller closes (contract, step 2).

    Autocommit, a busy timeout of 1 s, journal_mode=DELETE, synchronous=FULL. A missing file is made,
    private to its user (0600); missing tables are made in one transaction; existing rows are kept.

    Raises `ValueError` for a path that names no file (empty, `:memory:`, a URI), `NotAQueue` for one that is
    not an ordinary file with one name, and the driver's or the system's error for what cannot be opened.
    On any failure or cancellation the connection is closed first.
    """
    name = _file_name(path)
    _create_private(name)
    return await _open_existing(name)


async def _open_existing(name: str) -> aiosqlite.Connection:
    _check_ordinary(name, os.stat(name))  # noqa: PTH116 - a stat, since opening and closing would drop our locks
    # mode=rw: should the file vanish just now, SQLite does not make an empty one in its place.
    uri = f"file://{quote(os.fsencode(name))}?mode=rw"
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(
            sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        )
        return opened[0]

    con = aiosqlite.Connection(connect, iter_chunk_size=64)
    try:
        await shielded(_initialise(con))
    except BaseException:
        await shielded(_close(con, opened))
        raise
    return con


async def _close(con: aiosqlite.Connection, opened: Iterable[sqlite3.Connection] = ()) -> None:
    """Close a connection in whatever state, and see its thread end.

    After a failed or cancelled connect the driver stops its thread but does not wait for it (a loop that is
    closed meanwhile would make the thread end with a traceback), and it forgets what the thread had opened.
    """

    async def close() -> None:
        await con.close()
        thread = con._thread  # noqa: SLF001 - there is no public way to wait for it
        while thread.is_alive():  # noqa: ASYNC110 - a thread of the driver sets no event of ours
            await asyncio.sleep(_THREAD_POLL_S)

    await _insist(close)
    for raw in opened:
        raw.close()


async def _initialise(con: aiosqlite.Connection) -> None:
    await con
    for pragma in statements.CONTRACT_PRAGMAS:
        await con.execute_fetchall(pragma)

    async def make_tables() -> bool:
        present = await tables()
        for statement in schema.script(schema.CONTRACT_SCRIPT):
            await con.execute_fetchall(statement)
        if "jobs" not in present:
            await con.execute_fetchall(statements.CONTRACT_LIVE_INDEX)
        return True

    async def tables() -> set[str]:
        return {name for (name,) in await con.execute_fetchall(statements.CONTRACT_TABLES)}

    if await tables() != {"jobs", "redrives"}:  # else a busy writer need not be waited for
        await _immediate(con, make_tables, None)


def _file_name(path: str | os.PathLike[str]) -> str:
    """Return the absolute name, or raise `ValueError` for what SQLite would not keep in a file."""
    name = os.fsdecode(path)
    if not name or name == ":memory:" or name.startswith("file:") or "\0" in name:
        raise ValueError(f"a queue is an ordinary file, and {brief(name)} does not name one")
    return os.path.abspath(name)  # noqa: PTH100 - resolve() would follow links that may dangle


def _create_private(name: str) -> None:
    """Make an empty 0600 file unless something is there already."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, _PRIVATE))
    except FileExistsError:
        return


def _check_ordinary(name: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAQueue(f"{name}: not an ordinary file")
    if found.st_nlink > 1:
        raise NotAQueue(f"{name}: has {found.st_nlink} hard links; its locks and journal would be split")


# --- the verbs -----------------------------------------------------------------------------------------


async def enqueue(
    con: aiosqlite.Connection, event: dict[str, Any], now_ms: int, ttl_ms: int, max_attempts: int = 3
) -> bool:
    """Take in a job: True if it is new, False if the same id and qty are there already (contract, step 3).

    `event` is an exact dict of `id` (1-64 of A-Z a-z 0-9 _ -) and `qty` 1-1000; `ttl_ms` 1-60000;
    `max_attempts` 1-16. An existing row is kept whole, also if its budget differs. Raises `Conflict` if the
    id is there with another qty, `ValueError` for a wrong argument; nothing is changed then.
    """
    _check_keys("event", event, _EVENT_KEYS)
    check_id("id", event["id"])
    check_int("qty", event["qty"], CONTRACT.qty)
    check_int("now_ms", now_ms, _NOW_MS)
    check_int("ttl_ms", ttl_ms, CONTRACT.ttl_ms)
    check_int("max_attempts", max_attempts, CONTRACT.max_attempts)
    values = {**event, "now": now_ms, "ttl_ms": ttl_ms, "max_attempts": max_attempts}

    async def take_in() -> bool:
        row = await _first_row(con, statements.CONTRACT_QTY, values)
        if row is not None and row[0] == values["qty"]:
            return False
        if row is not None:
            message = f"job {values['id']} is there already with qty {row[0]}, not {values['qty']}"
            raise Conflict(message, job_id=values["id"], fields=("qty",))
        await con.execute_fetchall(statements.CONTRACT_ENQUEUE, values)
        return True

    return await _transaction(con, take_in)


async def claim(
    con: aiosqlite.Connection, owner: str, now_ms: int, lease_ms: int = 1000, fault: Fault | None = None
) -> dict[str, Any] | None:
    """Lease the first eligible job by seq and return its ticket, or None if there is none (contract, step 4).

    First every pending job, and every leased one whose lease is over, dies if `deadline <= now_ms`
    (`deadline`) or its attempts are used up (`exhausted`); that is committed also when None is returned.
    Eligible is what is left and due: pending with `available_at <= now_ms`, or leased with
    `lease_until <= now_ms`. attempts and token rise by 1; the lease ends at
    `min(now_ms + lease_ms, deadline)`, `lease_ms` 1-60000.

    Hook points, on a claim only: `after-claim` before COMMIT, `after-commit` after it.
    """
    check_id("owner", owner)
    check_int("now_ms", now_ms, _NOW_MS)
    check_int("lease_ms", lease_ms, CONTRACT.lease_ms)
    values = {"owner": owner, "now": now_ms, "lease_ms": lease_ms}

    async def take() -> dict[str, Any] | None:
        await con.execute_fetchall(statements.CONTRACT_SWEEP, values)
        row = await _first_row(con, statements.CONTRACT_CLAIM, values)
        if row is None:
            return None
        _reach(fault, "after-claim")
        return dict(zip(_TICKET_KEYS, row, strict=True))

    return await _transaction(con, take, fault)


async def finish(  # noqa: PLR0913, PLR0917 - the contract names the arguments and their order
    con: aiosqlite.Connection,
    ticket: dict[str, Any],
    outcome: str,
    now_ms: int,
    delay_ms: int = 0,
    fault: Fault | None = None,
) -> str | bool:
    """Report `ok`, `retry` or `permanent` under a ticket; return the new status, or False (contract, step 5).

    False, with no change, for a stale ticket: no such job, not leased, any of the six values differs, or
    `now_ms` has reached `lease_until` or the deadline. ok is `done`; permanent is `dead`; retry is `dead`
    (`exhausted`) after the last attempt, else `dead` (`deadline`) if `now_ms + delay_ms >= deadline`, else
    `pending` again at `now_ms + delay_ms`. `delay_ms` 0-60000.

    Hook points, on a change only: `after-finish` before COMMIT, `after-commit` after it.
    """
    _check_ticket(ticket)
    if type(outcome) is not str or outcome not in _OUTCOMES:
        raise InvalidJob(f"outcome must be ok, retry or permanent, not {brief(outcome)}")
    check_int("now_ms", now_ms, _NOW_MS)
    check_int("delay_ms", delay_ms, CONTRACT.delay_ms)
    values = {**ticket, "outcome": outcome, "now": now_ms, "delay_ms": delay_ms}

    async def report() -> str | bool:
        row = await _first_row(con, statements.CONTRACT_FINISH, values)
        if row is None:
            return False
        _reach(fault, "after-finish")
        return str(row[0])

    return await _transaction(con, report, fault)


async def redrive(  # noqa: PLR0913, PLR0917 - the contract names the arguments and their order
    con: aiosqlite.Connection, job_id: str, now_ms: int, ttl_ms: int, note: str, fault: Fault | None = None
) -> bool:
    """Put a dead job back with a fresh budget, and audit it in the same transaction (contract, step 6).

    Returns True. `note` is an identifier like `job_id`; `ttl_ms` 1-60000. qty, max_attempts and token stay.
    Raises `ValueError` for a wrong argument, a job that does not exist and one that is not dead.

    Hook points: `after-audit` and `after-redrive` before COMMIT, `after-commit` after it.
    """
    check_id("job_id", job_id)
    check_int("now_ms", now_ms, _NOW_MS)
    check_int("ttl_ms", ttl_ms, CONTRACT.ttl_ms)
    check_id("note", note)
    values = {"id": job_id, "now": now_ms, "ttl_ms": ttl_ms, "note": note}

    async def put_back() -> bool:
        if await _first_row(con, statements.CONTRACT_AUDIT, values) is None:
            raise NotDead(f"job {job_id} is not dead or does not exist: only a dead job can be redriven")
        _reach(fault, "after-audit")
        await con.execute_fetchall(statements.CONTRACT_REDRIVE, values)
        _reach(fault, "after-redrive")
        return True

    return await _transaction(con, put_back, fault)


# --- one delivery --------------------------------------------------------------------------------------


async def run_once(  # noqa: PLR0913, PLR0917 - the contract names the arguments and their order
    con: aiosqlite.Connection,
    owner: str,
    clock: Callable[[], int],
    send: Send,
    jitter: float,
    lease_ms: int = 1000,
) -> dict[str, Any] | None:
    """Claim a job, send it outside any transaction, finish it; None if there is none (contract, step 7).

    Returns `{"id", "token", "status"}`; the status is `stale` if the ticket no longer held at the second
    reading of `clock`. `send` gets a new dict of id and qty; only an exact True acknowledges. `Retryable`
    becomes a retry after `retry_delay(attempt, 100, 1000, jitter)`, `Permanent` a dead job. Any other
    error, and `BadAck` for any other answer, is raised and leaves the job leased until its lease runs out;
    so does a second clock reading that is invalid or smaller than the first (`ValueError`).
    """
    check_jitter(jitter)
    first_ms = clock()
    ticket = await claim(con, owner, first_ms, lease_ms)
    if ticket is None:
        return None
    outcome, delay_ms = await _deliver(ticket, send, jitter)
    second_ms = clock()
    check_int("clock()", second_ms, _NOW_MS)
    if second_ms < first_ms:
        raise ValueError(f"the clock ran backwards during the send: from {first_ms} to {second_ms}")
    status = await finish(con, ticket, outcome, second_ms, delay_ms)
    return {"id": ticket["id"], "token": ticket["token"], "status": status or "stale"}


async def _deliver(ticket: dict[str, Any], send: Send, jitter: float) -> tuple[str, int]:
    """Return the outcome of one send and the delay in ms; raise what cannot be classified."""
    try:
        answer = await send({"id": ticket["id"], "qty": ticket["qty"]})
    except Retryable:
        return "retry", retry_delay(ticket["attempt"], _RETRY_BASE_MS, _RETRY_CAP_MS, jitter)
    except Permanent:
        return "permanent", 0
    if answer is not True:
        raise BadAck(f"job {ticket['id']}: only True acknowledges it, not {brief(answer)}")
    return "ok", 0


async def run_file(  # noqa: PLR0913, PLR0917 - the contract names the arguments and their order
    path: str | os.PathLike[str],
    owner: str,
    clock: Callable[[], int],
    send: Send,
    jitter: float,
    lease_ms: int = 1000,
) -> dict[str, Any] | None:
    """Do `run_once` on the existing queue file at `path` and close it in every case (contract, step 8).

    Raises `FileNotFoundError` unless `path` is an existing ordinary file, and never makes one. Otherwise
    returns and raises as `open_queue` and `run_once` do.
    """
    name = _existing_name(path)
    check_jitter(jitter)
    con = await _open_existing(name)
    try:
        return await run_once(con, owner, clock, send, jitter, lease_ms)
    finally:
        await shielded(_close(con))


def _existing_name(path: str | os.PathLike[str]) -> str:
    """Return the absolute name of an existing ordinary file, or raise `FileNotFoundError`."""
    try:
        name = _file_name(path)
    except ValueError as error:
        raise FileNotFoundError(str(error)) from None
    if not os.path.isfile(name):  # noqa: PTH113 - a str all the way
        raise FileNotFoundError(f"{name}: there is no ordinary file to run")
    return name


# --- checks and shapes ---------------------------------------------------------------------------------


def _check_keys(name: str, value: object, keys: tuple[str, ...]) -> None:
    """Raise `InvalidJob` unless `value` is an exact dict with exactly `keys`, all of them exact str."""
    if type(value) is not dict or value.keys() != set(keys) or any(type(key) is not str for key in value):
        raise InvalidJob(f"{name} must be a dict with the keys {', '.join(keys)} and no others")


def _check_ticket(ticket: dict[str, Any]) -> None:
    """Raise `InvalidJob` unless `ticket` is what a claim returns, value by value in range."""
    _check_keys("ticket", ticket, _TICKET_KEYS)
    check_id("id", ticket["id"])
    check_int("qty", ticket["qty"], CONTRACT.qty)
    check_id("owner", ticket["owner"])
    check_int("token", ticket["token"], _TOKEN)
    check_int("attempt", ticket["attempt"], CONTRACT.max_attempts)
    check_int("lease_until", ticket["lease_until"], _LEASE_UNTIL)
