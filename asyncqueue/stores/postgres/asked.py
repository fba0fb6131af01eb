"""What statements are asked with, as it travels to the server, and what comes back of a claim."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from asyncqueue.errors import InvalidJob
from asyncqueue.job import FailedAttempt, LeasedJob
from asyncqueue.stores.base import Claim
from asyncqueue.stores.postgres.floor import Floor

__all__ = ["LOST", "TICKET", "columns", "leased_jobs", "wanted"]

TICKET: Final = 5
"""The values of a ticket."""
LOST: Final = FailedAttempt("lease ran out without a report", "unknown")
"""What the history says of a lease that somebody else has taken over."""
_JOB: Final = 13  # of the columns of CLAIM and LEASED_BEFORE: the first, what a LeasedJob is made of
_VALUES: Final = (str, int, type(None))


def columns(rows: Iterable[Sequence[Any]], width: int, shortened: int = 0) -> list[list[Any]]:
    """Return a set as it travels: one list a column, `width` of them also if there are no rows.

    Of the first `shortened` columns all but the first, which counts the rows, are of one value if that is the same
    in all rows: the driver looks at each for long. The statement must know (`statements._same`).
    Raises `InvalidJob` for a value of another kind: the driver would take a collection for one more dimension.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    for kind in {kind for column in columns for kind in set(map(type, column))}:
        if not issubclass(kind, _VALUES):
            raise InvalidJob(f"a value has no place in its column: {kind.__name__}")
    for column in columns[1:shortened]:
        if column.count(column[0]) == len(column):
            del column[1:]
    return columns or [[] for _ in range(width)]


def wanted(level: int, rooms: dict[str, int], claim: Claim, floor: Floor | None) -> tuple[Any, ...]:
    """Return what CLAIM asks for: so many jobs of each queue at this level."""
    kinds = None if claim.kinds is None else list(claim.kinds)
    known = (None, None) if floor is None else (floor.bucket, floor.era)
    return ([*rooms], [*rooms.values()], kinds, claim.owner, claim.lease_ms, level, *known)


def leased_jobs(rows: Iterable[Sequence[Any]]) -> list[LeasedJob]:
    """Return the jobs of rows of CLAIM or LEASED_BEFORE."""
    return [LeasedJob(*row[:_JOB]) for row in rows]
