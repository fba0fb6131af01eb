"""Turns between queues, as both stores take them: at each priority a ring of names, once round in a claim."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

__all__ = ["FIRST_AMONG", "Names", "Ring", "Served", "in_rounds"]

Row = TypeVar("Row")
Names = Callable[[str, str | None, int], Awaitable[list[str]]]
"""`names(after, until, count)` returns the next queues, by name, that have something due."""

FIRST_AMONG: Final = 64  # queues of which a level that never had a turn begins with an arbitrary one
_LEVELS_MAX: Final = 1_024  # for how many priorities the turn is remembered


class Served(dict[int, str]):
    """Whose turn was the last at each level; one per store, so that the rings go on over its claims."""

    def note(self, level: int, name: str) -> None:
        """Remember it, and forget the level that was noted longest ago if there are too many."""
        self.pop(level, None)
        self[level] = name
        if len(self) > _LEVELS_MAX:
            del self[next(iter(self))]


class Ring:
    """The queues of one level, by name, from the one after `served` once round."""

    def __init__(self, names: Names, served: str = "") -> None:
        self._names = names
        # as stretches: names after the first bound, up to the second
        self._stretches: list[tuple[str, str | None]] = [(served, None), ("", served)] if served else [("", None)]

    async def next(self, count: int) -> list[str]:
        """Return the next `count` queues with something due; fewer at the end of the round."""
        found: list[str] = []
        while self._stretches and len(found) < count:
            after, until = self._stretches.pop(0)
            found += await self._names(after, until, count - len(found))
            if len(found) == count:
                self._stretches.insert(0, (found[-1], until))
        return found


def in_rounds(lines: Mapping[str, Sequence[Row]]) -> list[tuple[str, Row]]:
    """Return the rows of all queues with their names: one of each in a round, those of one in their order."""
    rounds = [
        (rank, place, name, row)
        for place, (name, rows) in enumerate(lines.items())
        for rank, row in enumerate(rows)
    ]
    rounds.sort()  # by rank and place, which are together only once: rows are never compared
    return [(name, row) for _rank, _place, name, row in rounds]
