"""Whose turn it is among queues: at each priority a ring of their names, which goes on from claim to claim.

Only as many queues are asked as there are jobs wanted: a claim's cost is bounded by its limit, not by the queues
there are.
"""

import random
from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any

from asyncqueue.stores.ring import FIRST_AMONG, Names, Ring, Served, in_rounds

__all__ = ["Turns"]

Take = Callable[[dict[str, int]], Awaitable[list[Any]]]
"""`take(rooms)` leases up to so many jobs of each queue."""


class Turns:
    """Where the ring stands, for each priority; one per store, so that it goes on over its claims."""

    def __init__(self) -> None:
        self._served = Served()

    async def claim(self, level: int, limit: int, names: Names, take: Take) -> list[Any]:
        """Lease up to `limit` jobs of one level, one of each queue in a round, and note whose turn was the last.

        A level that never had a turn begins with an arbitrary queue, so that not all processes begin alike.
        """
        served = self._served.get(level)
        if served is None:
            first = await Ring(names).next(FIRST_AMONG)
            if not first:
                return []
            served = random.choice(first)  # noqa: S311 - not a secret
        taken = in_rounds(await _shared(limit, Ring(names, served), take))
        if taken:
            self._served.note(level, taken[-1][0])
        return [row for _name, row in taken]


async def _shared(limit: int, ring: Ring, take: Take) -> dict[str, list[Any]]:
    """Lease `limit` jobs, shared evenly by the queues that have enough, in the order of turns, then of seq."""
    lines: dict[str, list[Any]] = {}
    left = limit
    names = await ring.next(left)
    while names:
        share, more = divmod(left, len(names))
        rooms = {name: share + (place < more) for place, name in enumerate(names)}
        lines |= {name: lines.get(name, []) for name in names}
        given = dict.fromkeys(names, 0)
        for row in await take(rooms):
            lines[row["queue"]].append(row)
            given[row["queue"]] += 1
        left -= sum(given.values())
        if not left:
            break
        # who gave all that was asked for may have more, but those come first who were not asked yet
        names = await ring.next(left) or [name for name in names if given[name] == rooms[name]][:left]
    return {name: sorted(rows, key=itemgetter("seq")) for name, rows in lines.items()}
