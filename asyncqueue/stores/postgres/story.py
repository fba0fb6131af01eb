"""The outbox's part on PostgreSQL, told once for every driver: what is asked, and what the answers mean.

`telling` yields statements and gets rows; `put` and `put_async` tell it to a caller's connection. None of the
statements fails where all is well, so a refusal (a conflict, a full queue, a missing schema) leaves the
transaction usable; an error of the database itself aborts it, as always on PostgreSQL, and the error says so.
"""

import re
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from asyncqueue.errors import (
    Conflict,
    NewerSchema,
    NotAQueue,
    NoTransaction,
    StoreClosed,
    StoreError,
    UnsupportedConnection,
)
from asyncqueue.job import NewJob
from asyncqueue.stores.base import Terms
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.address import check_schema
from asyncqueue.stores.postgres.connection import by_state, in_schema, judged
from asyncqueue.stores.postgres.schema import QUEUE
from asyncqueue.stores.sets import compared, full, new_row

__all__ = ["Execute", "failure", "put", "put_async", "telling", "with_names"]

T = TypeVar("T")
Story = Generator[tuple[str, tuple[Any, ...]], list[Any] | None, T]
"""Yields a statement and its arguments, gets the rows."""
Execute = Callable[[str, tuple[Any, ...]], list[Any]]
"""Runs one statement with its arguments in order, and returns all its rows."""
ExecuteAsync = Callable[[str, tuple[Any, ...]], Awaitable[list[Any]]]

_WHERE: Final = "the database of this connection"
_BEGIN: Final = (
    "the connection has no open transaction that the job could join: begin one, by the driver's transaction() or "
    "by leaving its autocommit mode"
)
_ELSEWHERE: Final = f"{_WHERE} is not that of `via`: give the queue of the same database and schema, or none"
_ABORTED: Final = "; the transaction is aborted, roll it back"
_NUMBER: Final = re.compile(r"\$(\d+)")


def put(execute: Execute, in_transaction: Callable[[], bool], job: NewJob, terms: Terms) -> bool:
    """Insert `job` by `execute`; the law of `stores.base.SyncOutbox`.

    `in_transaction` is asked after a first statement that stores nothing.
    """
    story = telling(job, terms, in_transaction)
    rows: list[Any] | None = None
    while True:
        try:
            sql, arguments = story.send(rows)
        except StopIteration as end:
            return bool(end.value)
        rows = execute(sql, arguments)


async def put_async(execute: ExecuteAsync, in_transaction: Callable[[], bool], job: NewJob, terms: Terms) -> bool:
    """Do as `put` does, by an async driver."""
    story = telling(job, terms, in_transaction)
    rows: list[Any] | None = None
    while True:
        try:
            sql, arguments = story.send(rows)
        except StopIteration as end:
            return bool(end.value)
        rows = await execute(sql, arguments)


def failure(error: BaseException) -> Exception:
    """Return the typed error for an error of asyncpg or psycopg; any other error comes back as it is."""
    state = getattr(error, "sqlstate", None)
    if state:
        typed = by_state(state, error, _WHERE).error
        return type(typed)(f"{typed}{_ABORTED}")
    trouble = judged(error, _WHERE)
    if trouble is not None or type(error).__module__.partition(".")[0] == "psycopg":
        text = str(error).partition("\n")[0] or type(error).__name__
        return (StoreClosed if "closed" in text else StoreError)(f"{_WHERE}: {text}")
    return error if isinstance(error, Exception) else StoreError(str(error))


def with_names(sql: str, arguments: tuple[Any, ...], form: str) -> tuple[str, dict[str, Any]]:
    """Return a statement whose arguments have names instead of numbers; `form` is how a name is written."""
    names = {f"p{number}": argument for number, argument in enumerate(arguments, start=1)}
    return _NUMBER.sub(lambda found: form.format(f"p{found[1]}"), sql), names


def telling(job: NewJob, terms: Terms, in_transaction: Callable[[], bool]) -> Story[bool]:
    """Ask what is there, then insert; return whether the job is new, or raise what speaks against it."""
    check_schema(terms.schema)
    now_ms = yield from _look(terms, in_transaction)
    while True:  # again only if a row that was in the way has just been purged
        there = yield _ours(terms, statements.EXISTING, [job.id])
        if there:
            return _answer(job, there[0])
        if terms.max_pending is not None:
            yield _ours(terms, statements.PENDING_TURN)
            waiting = (yield _ours(terms, statements.PENDING)) or [(0,)]
            if waiting[0][0] >= terms.max_pending:
                raise full(terms.max_pending)
        if (yield _ours(terms, statements.ENQUEUE, now_ms, *([value] for value in new_row(job)))):
            return True


def _look(terms: Terms, in_transaction: Callable[[], bool]) -> Story[int]:
    """Return the time; raise unless a transaction is open and there is a queue of this version."""
    state = yield _ours(terms, statements.SCHEMA_STATE, terms.schema, QUEUE.table)
    if not in_transaction():  # drivers that begin late have begun by now, and in autocommit nothing has happened
        raise NoTransaction(_BEGIN)
    if not state or not state[0][1] or not state[0][2]:
        if terms.place is not None:
            raise UnsupportedConnection(_ELSEWHERE)
        raise NotAQueue(
            f"{_WHERE}: no queue in schema {terms.schema}; open it once by Queue.open, or name the queue by `via`"
        )
    found = (yield _ours(terms, statements.OUTBOX_LOOK, QUEUE.name)) or [(0, None, 0)]
    version, place, now_ms = found[0]
    if version > QUEUE.version:
        raise NewerSchema(f"{_WHERE}: version {version} is newer than {QUEUE.version}: upgrade asyncqueue")
    if version < QUEUE.version:
        raise NotAQueue(f"{_WHERE}: version {version} of the queue is old; open it once by Queue.open")
    if terms.place is not None and terms.place != place:
        raise UnsupportedConnection(_ELSEWHERE)
    return int(now_ms) if terms.clock is None else terms.clock.now_ms()


def _ours(terms: Terms, sql: str, *arguments: Any) -> tuple[str, tuple[Any, ...]]:
    return in_schema(sql, terms.schema), arguments


def _answer(job: NewJob, there: Any) -> bool:
    answer = compared(job, there[1:])
    if isinstance(answer, Conflict):
        raise answer
    return answer
