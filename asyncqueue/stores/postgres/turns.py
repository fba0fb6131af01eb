"""Whose turn it is among queues: at each priority a ring of their names, which goes on from claim to claim.

Only as many queues are asked as there are jobs wanted: a claim's cost is bounded by its limit, not by the queues
there are.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

__all__ = ["Turns"]

Ring = Callable[[str, str | None, int], Awaitable[list[str]]]
"""`ring(after, until, count)` returns the next queues, by name, that have something due."""
Take = Callable[[dict[str, int]], Awaitable[list[Any]]]
"""`take(rooms)` leases up to so many jobs of each queue."""

_FIRST_AMONG: Final = 64
_LEVELS_MAX: Final = 1_024  # for how many priorities the turn is remembered


class Turns:
    """Where the ring of queues stands, for each priority; one per store, so that it goes on over its claims."""

    def __init__(self) -> None:
        self._served: dict[int, str] = {}

    async def claim(self, level: int, limit: int, ring: Ring, take: Take) -> list[Any]:
        """Lease up to `limit` jobs of one level, one of each queue in a round, and note whose turn was the last.

        A level that never had a turn begins with an arbitrary queue, so that not all processes begin alike.
        """
        served = self._served.get(level)
        if served is None:
            names = await ring("", None, _FIRST_AMONG)
            if not names:
                return []
            served = random.choice(names)  # noqa: S311 - not a secret
        taken = _in_rounds(await _shared(limit, _Round(ring, served), take))
        if taken:
            self._served.pop(level, None)  # so that the level noted longest ago comes first
            self._served[level] = taken[-1]["queue"]
            if len(self._served) > _LEVELS_MAX:
                del self._served[next(iter(self._served))]
        return taken


class _Round:
    """The queues of one level, by name, from the one after `served` once round."""

    def __init__(self, ring: Ring, served: str) -> None:
        self._ring = ring
        # as stretches: names after the first bound, up to the second
        self._stretches: list[tuple[str, str | None]] = [(served, None), ("", served)]

    async def next(self, count: int) -> list[str]:
        """Return the next `count` queues with something due; fewer at the end of the round."""
        found: list[str] = []
        while self._stretches and len(found) < count:
            after, until = self._stretches.pop(0)
            part = await self._ring(after, until, count - len(found))
            found += part
            if len(found) == count:
                self._stretches.insert(0, (part[-1], until))
        return found


async def _shared(limit: int, names_in_turn: _Round, take: Take) -> dict[str, list[Any]]:
    """Lease `limit` jobs, shared evenly by the queues that have enough; in the order of their turns."""
    lines: dict[str, list[Any]] = {}
    left = limit
    names = await names_in_turn.next(left)
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
        names = await names_in_turn.next(left) or [name for name in names if given[name] == rooms[name]][:left]
    return lines


def _in_rounds(lines: dict[str, list[Any]]) -> list[Any]:
    """Return the rows of all queues, one of each in a round, those of one queue in the order of their seq."""
    rounds = [
        (rank, place, row)
        for place, rows in enumerate(lines.values())
        for rank, row in enumerate(sorted(rows, key=lambda row: row["seq"]))
    ]
    rounds.sort(key=lambda each: each[:2])
    return [row for _rank, _place, row in rounds]
