"""Whose turn it is among queues: at each priority a ring of their names, which goes on from claim to claim.

Only as many queues are asked as there are jobs wanted: a claim's cost is bounded by its limit, not by the queues
there are.
"""

import heapq
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
    hungry: list[str] = []  # gave all that was asked of them, so they may have more
    left = limit
    while left:
        names = [*await ring.next(left), *hungry]
        if not names:
            break
        lines |= {name: lines.get(name, []) for name in names}
        rooms = _rooms(left, {name: len(lines[name]) for name in names})
        given = dict.fromkeys(names, 0)
        for row in await take(rooms):
            lines[row["queue"]].append(row)
            given[row["queue"]] += 1
        left -= sum(given.values())
        hungry = [name for name in names if given[name] == rooms.get(name, 0)]
    return {name: sorted(rows, key=itemgetter("seq")) for name, rows in lines.items()}


def _rooms(count: int, had: dict[str, int]) -> dict[str, int]:
    """Return how many of `count` jobs each queue may give, so that all have as many in the end, or one more."""
    heap = [(number, place, name) for place, (name, number) in enumerate(had.items())]
    heapq.heapify(heap)
    for _ in range(count):
        number, place, name = heap[0]
        heapq.heapreplace(heap, (number + 1, place, name))
    return {name: number - had[name] for number, _place, name in heap if number > had[name]}
