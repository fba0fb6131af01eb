"""A finish, and the claim that refills its slots, as one statement that commits by itself.

It is what a busy dispatcher asks for all day, and costs one exchange with the server instead of three or four. It
is committed before its answer is on the way: if the connection breaks, nobody knows whether it was done, nor the
number of its transaction. But it can be read back:

- It claims nothing unless it has settled one of its reports at least. Whoever repeats it settles them first: if
  that finds one to settle, the lost one has claimed nothing; and it will not later, as it finds none then.
- What it has changed carries its transaction's number (`xmin`) until somebody else changes it. A job that is done
  under our own ticket tells that number, and the leases that it gave, which nobody was told of, are found by it.
- It may still be done after its caller was told that the server is away: a server that stood still goes on. So the
  store remembers what it asked until the same reports are answered.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import asyncpg

from asyncqueue.job import LeasedJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.stores.base import Claim, Rules
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.asked import LOST, TICKET, columns, leased_jobs, wanted
from asyncqueue.stores.postgres.connection import Connection
from asyncqueue.stores.postgres.floor import Floor, Sight, Signs
from asyncqueue.stores.sets import STATUSES, ticket_row

__all__ = ["Alone", "Lost", "LostAnswers", "NeedsTransaction", "key_of"]

_LOST_MAX: Final = 10_000  # of those whose callers gave up, and never came back with their reports


class NeedsTransaction(Exception):
    """What is asked for takes more than one statement; nothing was done, but for what `Alone` takes note of."""


class Lost(NamedTuple):
    """A statement that was asked and not answered, or not yet.

    It began at `floor`, after everything of the transactions up to number `after` was told.
    """

    floor: Floor
    after: int

    def may_be(self, number: int) -> bool:
        """Tell whether this is the statement whose transaction has these last 32 bits of a number."""
        return 0 < (number - self.after) % 2**32 < 2**31


LostAnswers = dict[tuple[str, int], Lost]
"""By the id and the token of each report; kept by the store until these are answered, however long that takes."""


def key_of(report: Report) -> tuple[str, int]:
    """Return by what a report is known."""
    return report.ticket.id, report.ticket.token


class Alone:
    """Stands in for a transaction in which nothing but `finish_and_claim` is asked for, once.

    `lost` takes note of what was asked until it is answered; for reports that stand there, for any other verb and
    for whatever the statement is not made for, `NeedsTransaction` is raised. `after` is the largest number of a
    transaction that was answered. `claim_rest` claims in a transaction of its own.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - made in one place
        self,
        connection: Connection,
        now_ms: int | None,
        rules: Rules,
        sight: Sight,
        render: Callable[[str], str],
        lost: LostAnswers,
        after: int,
        claim_rest: Callable[[Claim], Awaitable[list[LeasedJob]]],
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._rules = rules
        self._before = sight.decided
        self.sight = sight
        self._render = render
        self._lost = lost
        self.after = after
        self._claim_rest = claim_rest

    def __getattr__(self, verb: str) -> Any:
        raise NeedsTransaction(verb)

    async def finish_and_claim(
        self, reports: Sequence[Report], claim: Claim
    ) -> tuple[list[Status | Exception | None], list[LeasedJob]]:
        """See `stores.base.Transaction`."""
        floor = self.sight.floor
        if floor is None or not (floor.serves(claim.queues) and _are_plain(reports)):
            raise NeedsTransaction("finish_and_claim")
        keys = [key_of(report) for report in reports]
        if not self._lost.keys().isdisjoint(keys):
            raise NeedsTransaction("finish_and_claim")
        items = [ticket_row(report.ticket) for report in reports]
        asked = wanted(floor.level, {floor.queue: claim.limit}, claim, floor)
        tickets = columns(sorted(items, key=itemgetter(0)), TICKET, TICKET)
        while len(self._lost) > _LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost.update(dict.fromkeys(keys, Lost(floor, self.after)))
        try:
            rows = await self._connection.fetch(
                self._render(statements.FINISH_AND_CLAIM),
                self._now_ms,
                *asked,
                *tickets,
                self._rules.accept_late,
                LOST.error,
            )
        except asyncpg.PostgresError as error:  # told in the transaction, if it is not about the statement's form
            raise NeedsTransaction("finish_and_claim") from error
        for key in keys:
            self._lost.pop(key, None)  # a transaction that met it may have been answered meanwhile
        finished = {row["id"]: STATUSES[row["signs"]] for row in rows if row["seq"] is None}
        taken = sorted((row for row in rows if row["seq"] is not None), key=itemgetter("seq"))
        if taken:
            signs = Signs.of(taken)
            decided = self._before.after(signs)
            self.after = max(self.after, signs.xact)
            self.sight = Sight(floor.raised(signs, decided), decided)
        leased = leased_jobs(taken)
        if len(leased) < claim.limit:
            self.sight = self.sight._replace(floor=None)
            leased += await self._rest(replace(claim, limit=claim.limit - len(leased)))
        return [finished.get(item[0]) for item in items], leased

    async def _rest(self, claim: Claim) -> list[LeasedJob]:
        """Lease what is missing from wherever it is; the others are leased, whatever comes of it."""
        try:
            return await self._claim_rest(claim)
        except Exception:  # noqa: BLE001 - the next claim meets it again
            return []


def _are_plain(reports: Sequence[Report]) -> bool:
    """Tell whether these are successes without effects, of a job each."""
    are_ok = all(report.outcome == "ok" and report.effect is None for report in reports)
    return are_ok and 0 < len({report.ticket.id for report in reports}) == len(reports)
