"""Moving a queue from one store to another: everything is kept, and at no moment can both be used.

The source is sealed first: from then on its tables refuse every writer, old ones included. Then its tables are
copied page by page in the order of their keys, each page in one transaction of the target, which is sealed too. At
the end both are read again and compared row by row; only then is the target opened for use. The source stays
sealed for good. Whenever the mover dies, the next one finds by the marks and by the last keys where to go on.
"""

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from asyncqueue.clock import time_text
from asyncqueue.errors import ConfigError, StoreBusy, StoreError
from asyncqueue.stores.extra import has_table

__all__ = [
    "FIRST",
    "FLOOR",
    "TABLES",
    "Key",
    "Mark",
    "Moved",
    "Row",
    "Side",
    "Told",
    "abandon",
    "check_empty",
    "check_leases",
    "check_mark",
    "check_place",
    "has_marks",
    "move",
]

Row = tuple[Any, ...]
Key = int | str
Told = Callable[[str, int, int], None]
"""`told(what, done, of)`: rows copied or compared so far, and how many there are."""

FLOOR: Final = "tokens"
TABLES: Final = ("queues", "jobs", "redrives", "attempts")
FIRST: Final[dict[str, Key]] = {"queues": "", **dict.fromkeys(("jobs", "redrives", "attempts"), -(2**63))}
_ROWS_MAX: Final = 4_096
_ROWS_MIN: Final = 16
_PAGE_CHARS: Final = 2_000_000
_MARK_COLUMNS: Final = ("one", "move", "role", "peer", "stage", "is_open")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a store stands in a move. `move` names the move; `peer` is the other side, as messages show it."""

    move: str
    role: Literal["source", "target"]
    peer: str
    stage: Literal["copying", "done"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved: rows and a checksum (SHA-256 over all rows in the order of their keys) of each table."""

    rows: dict[str, int]
    checksums: dict[str, str]
    was_done: bool = False


class Side(Protocol):
    """A store, as one side of a move. A row has the columns of the SQLite store's table, in its order."""

    @property
    def shown(self) -> str:
        """How messages call it; without a password."""
        ...

    async def mark(self) -> Mark | None:
        """Return where it stands, None for a store that never moved."""
        ...

    async def seal(self, mark: Mark, *, with_leases: bool) -> None:
        """Mark and seal a source, in one transaction. Raises `StoreBusy` for live leases, unless `with_leases`."""
        ...

    async def fill(self, mark: Mark) -> None:
        """Mark and seal a target, in one transaction. Raises `ConfigError` if it holds anything."""
        ...

    async def done(self, mark: Mark) -> None:
        """Set the stage to `done`; a target is opened for use, a source stays sealed."""
        ...

    async def unseal(self, move: str) -> None:
        """Open a store for use and forget the move, if it is this one and not done."""
        ...

    async def count(self, table: str) -> int:
        """Return how many rows there are."""
        ...

    async def last(self, table: str) -> Key | None:
        """Return the largest key, None without rows."""
        ...

    async def page(self, table: str, after: Key, limit: int) -> Sequence[Row]:
        """Return the next rows after a key, in the order of their keys."""
        ...

    async def put(self, mark: Mark, table: str, after: Key, rows: Sequence[Row]) -> None:
        """Add a page to a target, in one transaction. Raises `StoreBusy` if somebody else went on from `after`."""
        ...

    async def numbers(self) -> dict[str, int]:
        """Return the last seq that was ever given out in each table, and the FLOOR of tokens; 0 for none."""
        ...

    async def number(self, mark: Mark, numbers: dict[str, int]) -> None:
        """Let a target go on with these numbers, so that no seq and no token comes twice."""
        ...

    async def empty(self, move: str, table: str, limit: int) -> int:
        """Delete up to `limit` rows of a half-filled target; return how many."""
        ...

    async def close(self) -> None:
        """Close it; may be called again."""
        ...


async def move(source: Side, target: Side, told: Told, *, with_leases: bool = False) -> Moved:
    """Move everything, or go on where an earlier run ended.

    Raises `ConfigError` for a source that has moved elsewhere and for a target that holds anything else than a
    half-done copy of this source, `StoreBusy` for live leases, and what the stores raise. After any of these the
    same call goes on; `abandon` gives the source back.
    """
    mark = await _begin(source, target, with_leases=with_leases)
    there = await target.mark()
    if there is not None and there.stage == "done":
        return Moved(*await _counts(target), was_done=True)
    counts = {table: await source.count(table) for table in TABLES}
    total = sum(counts.values())
    done = 0
    for table in TABLES:
        async for count in _copy(source, target, mark, table):
            done += count
            told("copied", done, total)
    await target.number(mark, await source.numbers())
    try:
        moved = await _compared(source, target, total, told)
    except StoreError:
        await _check_under_way(source, target, mark)  # rows that go while they are compared are no wrong copy
        raise
    await source.done(Mark(mark.move, "source", target.shown, "done"))
    await target.done(Mark(mark.move, "target", source.shown, "done"))
    return moved


async def abandon(source: Side, target: Side | None) -> bool:
    """Give a source back whose move is not done, and empty the half-filled target; False if that was not possible.

    Raises `ConfigError` if there is no such move, or if `target` is not where it goes.
    """
    mark = await source.mark()
    if mark is None or mark.role != "source" or mark.stage == "done":
        raise ConfigError(f"{source.shown}: no move of it is under way; nothing was changed")
    there = None if target is None else await target.mark()
    if there is not None and (there.move, there.role) != (mark.move, "target"):
        there = None  # that of another move
    if target is not None and there is None and target.shown != mark.peer:
        raise ConfigError(
            f"{source.shown}: is being moved to {mark.peer}, not to {target.shown}; nothing was changed"
        )
    if there is not None and there.stage == "done":  # so this is a copy of the source, of an earlier time
        raise ConfigError(f"{source.shown}: has been moved; the queue is in {mark.peer}; nothing was changed")
    await source.unseal(mark.move)
    if target is None or there is None:
        return False
    for table in TABLES:
        while await target.empty(mark.move, table, _ROWS_MAX):
            pass
    await target.unseal(mark.move)
    return True


async def _begin(source: Side, target: Side, *, with_leases: bool) -> Mark:
    """Return the target's mark of a move that has begun, on both sides."""
    given, taken = await source.mark(), await target.mark()
    if given is not None and given.role == "source":
        if taken is not None and taken.role == "target" and taken.move == given.move:
            return taken
        what = "was moved" if given.stage == "done" else "is being moved"
        hint = "" if given.stage == "done" else "; finish that, or give it up by --abandon"
        raise ConfigError(f"{source.shown}: {what} to {given.peer} already{hint}")
    if given is not None and given.stage == "copying":
        raise ConfigError(f"{source.shown}: is itself being filled from {given.peer}; finish that first")
    if source.shown == target.shown:
        raise _same(source)
    name = uuid.uuid4().hex
    mark = Mark(name, "target", source.shown, "copying")
    await target.fill(mark)
    try:
        _check_apart(source, await source.mark(), name)
        await source.seal(Mark(name, "source", target.shown, "copying"), with_leases=with_leases)
    except BaseException:
        await target.unseal(name)
        raise
    return mark


def _check_apart(source: Side, mark: Mark | None, move: str) -> None:
    if mark is not None and mark.move == move:  # the same by another name
        raise _same(source)


def _same(source: Side) -> ConfigError:
    return ConfigError(f"{source.shown}: source and target are the same queue; nothing was changed")


async def _check_under_way(source: Side, target: Side, mark: Mark) -> None:
    """Raise `StoreBusy` if somebody has given up this move, or begun another one there."""
    for side, role in ((source, "source"), (target, "target")):
        there = await side.mark()
        if there is None or (there.move, there.role) != (mark.move, role):
            raise _overtaken(side.shown)


async def _copy(source: Side, target: Side, mark: Mark, table: str) -> AsyncIterator[int]:
    """Copy what is missing of one table; yield how many rows are there, page by page."""
    last = await target.last(table)
    after = FIRST[table]
    if last is not None:
        yield await target.count(table)
        after = last
    async for rows in _pages(source, table, after):
        await target.put(mark, table, after, rows)
        after = rows[-1][0]
        yield len(rows)


async def _pages(side: Side, table: str, after: Key) -> AsyncIterator[Sequence[Row]]:
    """Yield the rows after a key in pages of about two million characters."""
    limit = _ROWS_MIN
    while rows := await side.page(table, after, limit):
        yield rows
        after = rows[-1][0]
        chars = sum(len(value) for row in rows for value in row if isinstance(value, str))
        limit = max(_ROWS_MIN, min(_ROWS_MAX, 4 * limit, _PAGE_CHARS * len(rows) // max(1, chars)))


async def _compared(source: Side, target: Side, total: int, told: Told) -> Moved:
    """Read both sides again; raise for the first row that differs."""
    rows: dict[str, int] = {}
    checksums: dict[str, str] = {}
    done = 0
    for table in TABLES:
        digest = hashlib.sha256()
        count = 0
        after = FIRST[table]
        async for ours in _pages(source, table, after):
            theirs = await target.page(table, after, len(ours))
            _check_equal(table, ours, theirs, target.shown)
            _add(digest, ours)
            count += len(ours)
            after = ours[-1][0]
            told("compared", done + count, total)
        if more := await target.page(table, after, 1):
            raise StoreError(f"{target.shown}: {table} {more[0][0]!r} is in no row of the source; it is not used")
        done += count
        rows[table], checksums[table] = count, digest.hexdigest()
    if await source.numbers() != await target.numbers():
        raise StoreError(f"{target.shown}: the numbers of its rows do not go on where the source's end")
    return Moved(rows, checksums)


def _check_equal(table: str, ours: Sequence[Row], theirs: Sequence[Row], shown: str) -> None:
    if list(ours) == list(theirs):
        return
    wrong = next(n for n, row in enumerate(ours) if n >= len(theirs) or theirs[n] != row)
    raise StoreError(f"{shown}: {table} {ours[wrong][0]!r} differs from the source or is missing; it is not used")


async def _counts(side: Side) -> tuple[dict[str, int], dict[str, str]]:
    return {table: await side.count(table) for table in TABLES}, {}


def _add(digest: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        digest.update(json.dumps(row, separators=(",", ":")).encode() + b"\n")


def has_marks(columns: Sequence[str], shown: str) -> bool:
    """Tell whether a store has a table for marks; see `has_table`."""
    return has_table("moving", columns, _MARK_COLUMNS, "a move", shown)


def check_mark(found: Sequence[Any] | None, mark: Mark, shown: str) -> None:
    """Raise `StoreBusy` unless a store still stands where this mover left it."""
    if found is None or tuple(found) != (mark.move, mark.role, mark.peer, mark.stage):
        raise _overtaken(shown)


def _overtaken(shown: str) -> StoreBusy:
    return StoreBusy(f"{shown}: another migrate-store has changed the move meanwhile; look, then try again")


def check_place(last: Key | None, table: str, after: Key, shown: str) -> None:
    """Raise `StoreBusy` unless a target still ends where the next page begins."""
    if (FIRST[table] if last is None else last) != after:
        raise StoreBusy(f"{shown}: another migrate-store is filling it too; wait for its end")


def check_leases(count: int, until_ms: int | None, shown: str) -> None:
    """Raise `StoreBusy` for leases that somebody still holds."""
    if count:
        raise StoreBusy(
            f"{shown}: {count} jobs are leased, the last until {time_text(until_ms)}; stop the dispatchers and "
            "wait, or move them as they are by --with-leases"
        )


def check_empty(last: Sequence[Key | None], there: Sequence[Any] | None, shown: str) -> None:
    """Raise `ConfigError` unless nothing is in a target."""
    if any(key is not None for key in last):
        what = "holds a half-done copy of another queue" if there and there[3] == "copying" else "is not empty"
        raise ConfigError(f"{shown}: {what}; give a new file, or another schema by ?schema=name")
    if there is not None and there[1] == "source":
        raise ConfigError(f"{shown}: was moved to {there[2]} and stays closed; give a new file, or another schema")
