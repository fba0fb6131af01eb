"""Whose turn it is among queues: at each priority a ring of their names, which goes on from claim to claim."""

from bisect import bisect_right
from collections import Counter
from itertools import islice, zip_longest
from typing import Final

__all__ = ["Turns"]

_LEVELS_MAX: Final = 1_024  # for how many priorities the turn is remembered


class Turns:
    """Where the ring of queues stands, for each priority; one per store, so that it goes on over its claims."""

    def __init__(self) -> None:
        self._served: dict[int, str] = {}

    def take(self, offered: dict[str, Counter[int]], limit: int, start: int) -> list[str]:
        """Return whose the next `limit` jobs are, and note whose turn was the last.

        `offered` has, for each queue, how many jobs it could give at each priority. Higher priorities go first. A
        priority that never had a turn begins with an arbitrary queue (by `start`), so that not all processes begin
        alike.
        """
        taken: list[str] = []
        for level in sorted({level for counts in offered.values() for level in counts}, reverse=True):
            mine = list(islice(self._in_turns(offered, level, start), limit - len(taken)))
            if mine:
                self._served.pop(level, None)  # so that the level noted longest ago comes first
                self._served[level] = mine[-1]
                taken += mine
            if len(self._served) > _LEVELS_MAX:
                del self._served[next(iter(self._served))]
        return taken

    def _in_turns(self, offered: dict[str, Counter[int]], level: int, start: int) -> list[str]:
        names = sorted(name for name, counts in offered.items() if counts[level])
        served = self._served.get(level)
        first = start % len(names) if served is None else bisect_right(names, served)
        ring = names[first:] + names[:first]
        rounds = zip_longest(*([name] * offered[name][level] for name in ring))
        return [name for a_round in rounds for name in a_round if name is not None]
