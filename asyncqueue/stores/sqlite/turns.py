"""Whose turn it is among queues, and the picks of a claim that concerns several queues or only some kinds.

Such a claim goes level by level: a level is one priority, the best first. At each level the queues that have
something due take turns in a ring of their names, which goes on from claim to claim where it stopped. Only as many
queues are asked as there are jobs wanted: a claim's cost is bounded by its limit, not by the queues there are.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from asyncqueue.job import DEFAULT_KIND
from asyncqueue.stores.base import Claim
from asyncqueue.stores.ring import FIRST_AMONG, Ring, Served, in_rounds
from asyncqueue.stores.sqlite import statements
from asyncqueue.stores.sqlite.offers import array

__all__ = ["Picked", "Turns"]

Ask = Callable[..., Awaitable[list[Any]]]
"""Runs a statement and returns its rows."""
Picked = tuple[int, int, str]
"""seq, priority, status."""


class Turns:
    """Where the ring of queues stands, for each priority; one per store, so that it goes on over its claims."""

    def __init__(self) -> None:
        self._served = Served()

    async def pick(self, claim: Claim, ask: Ask, ask_json: Ask, now_ms: int) -> list[Picked]:
        """Return up to `claim.limit` eligible jobs: best level first, turns between queues, order in each."""
        sources, levels = await _sources(claim, ask_json)
        picked: list[Picked] = []
        for level in levels:
            offer = _Offer([source for source, own in sources if level in own], level, claim, ask)
            served = self._served.get(level) or await self._anyone(offer, now_ms)
            if served is None:
                continue
            most = claim.limit - len(picked)
            taken = in_rounds(await offer.lines(served, most, ask_json))[:most]
            if taken:
                self._served.note(level, taken[-1][0])
                picked += [row for _name, row in taken]
            if len(picked) == claim.limit:
                break
        return picked

    @staticmethod
    async def _anyone(offer: "_Offer", now_ms: int) -> str | None:
        """Return an arbitrary queue with something due, by the time, so that not all processes begin alike."""
        names = await Ring(offer.names).next(FIRST_AMONG)
        return names[now_ms % len(names)] if names else None


class _Every:
    """The jobs of every kind, or of the default kind, which no index tells from the others."""

    def __init__(self, kinds: tuple[str, ...] | None) -> None:
        self._kinds = None if kinds is None else array(kinds)

    async def names(self, ask: Ask, level: int, **asked: Any) -> list[Any]:
        """Return queues that have something due at `level`."""
        return await ask(statements.RING_OF_LEVEL if level else statements.RING_OF_ZERO, level=level, **asked)

    async def pick(self, ask_json: Ask, **asked: Any) -> list[Any]:
        """Return the first eligible jobs of one queue and level."""
        return await ask_json(statements.PICK_OF_LEVEL_JSON, kinds=self._kinds, **asked)


class _Kind:
    """The jobs of one kind that is not the default."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def names(self, ask: Ask, level: int, **asked: Any) -> list[Any]:
        """Return queues that have something of this kind due at `level`."""
        return await ask(statements.RING_OF_KIND, kind=self._kind, level=level, **asked)

    async def pick(self, ask_json: Ask, **asked: Any) -> list[Any]:
        """Return the first eligible jobs of one queue and level."""
        return await ask_json(statements.PICK_OF_KIND_JSON, kind=self._kind, **asked)


async def _sources(claim: Claim, ask_json: Ask) -> tuple[list[tuple[_Every | _Kind, set[int]]], list[int]]:
    """Return where this claim finds jobs, each with its levels, and all levels, best first."""
    sources: list[tuple[_Every | _Kind, set[int]]] = []
    if claim.kinds is None or DEFAULT_KIND in claim.kinds:
        every = _Every(None if claim.kinds is None else (DEFAULT_KIND,))
        sources.append((every, {0, *await ask_json(statements.LEVELS)}))
    if claim.kinds is not None:
        of_kinds: dict[str, set[int]] = {}
        for kind, level in await ask_json(statements.LEVELS_OF_KINDS, kinds=array(set(claim.kinds))):
            of_kinds.setdefault(kind, set()).add(level)
        sources += [(_Kind(kind), levels) for kind, levels in of_kinds.items()]
    return sources, sorted(set().union(*(levels for _source, levels in sources)), reverse=True)


class _Offer:
    """What the queues of one level have for a claim."""

    def __init__(self, sources: Sequence[_Every | _Kind], level: int, claim: Claim, ask: Ask) -> None:
        self._sources = sources
        self._level = level
        self._queues = None if claim.queues is None else array(claim.queues)
        self._ask = ask

    async def names(self, after: str, until: str | None, count: int) -> list[str]:
        """Return the next queues with something due, whichever source has it; see `stores.ring.Names`."""
        asked = {"queues": self._queues, "after": after, "until": until, "count": count}
        names = {
            name for source in self._sources for (name,) in await source.names(self._ask, self._level, **asked)
        }
        return sorted(names)[:count]

    async def lines(self, served: str, wanted: int, ask_json: Ask) -> dict[str, list[Picked]]:
        """Return the jobs by queue, in the order of the ring: enough to take `wanted` of them in fair rounds."""
        ring = Ring(self.names, served)
        names = await ring.next(wanted)
        offers: dict[str, list[Picked]] = {}
        quota = -(-wanted // max(1, len(names)))
        while names:
            for name in names:
                if rows := await self._pick(name, quota, ask_json):
                    offers[name] = rows
            missing = _missing(offers, wanted)
            names = await ring.next(missing) if missing else []
        # no queue is left to ask: who gave all that was asked for may have more
        while missing := _missing(offers, wanted):
            full = [name for name, rows in offers.items() if len(rows) == quota]
            if not full:
                break
            quota = max(2 * quota, quota + -(-missing // len(full)))
            for name in full:
                offers[name] = await self._pick(name, quota, ask_json)
        return offers

    async def _pick(self, name: str, limit: int, ask_json: Ask) -> list[Picked]:
        rows: list[Picked] = []
        for source in self._sources:
            found = await source.pick(ask_json, queue=name, level=self._level, limit=limit)
            rows += [(seq, priority, status) for seq, priority, status in found]
        return sorted(rows)[:limit]


def _missing(offers: dict[str, list[Picked]], wanted: int) -> int:
    """Return how many jobs the offers are short of what is wanted."""
    return max(0, wanted - sum(map(len, offers.values())))
