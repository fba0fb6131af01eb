"""Who is next among several queues."""

from operator import itemgetter

__all__ = ["Turns"]


class Turns:
    """Whose turn it is among queues whose jobs have equal priority: that of the queue served longest ago.

    One per store, so that the turns go on from claim to claim, however many jobs each takes.
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._serial = 0

    def merge(
        self, offered: dict[str, list[tuple[int, int, str]]], limit: int, now_ms: int
    ) -> list[tuple[int, int, str]]:
        """Return the first `limit` of what the queues offer (seq, priority, status; best first), and note them.

        Priority beats turns. Queues that were never served start from an arbitrary one of them (by the time), so
        that of many short-lived processes not all begin with the same.
        """
        names = list(offered)
        if len(names) > 1:
            start = now_ms % len(names)
            names = sorted(names[start:] + names[:start], key=lambda name: self._served.get(name, 0))
        ranked: list[tuple[int, int, int, str, tuple[int, int, str]]] = []
        for order, name in enumerate(names):
            rank: dict[int, int] = {}
            for row in offered[name]:
                rank[row[1]] = rank.get(row[1], 0) + 1
                ranked.append((-row[1], rank[row[1]], order, name, row))
        ranked.sort(key=itemgetter(0, 1, 2))
        for *_key, name, _row in ranked[:limit]:
            self._serial += 1
            self._served[name] = self._serial
        return [row for *_key, row in ranked[:limit]]
