"""The ring of queues: once round from the one after the last that was served, in however many steps."""

import asyncio

import pytest

from asyncqueue.stores import ring as ring_module
from asyncqueue.stores.ring import Ring, Served

NAMES = ["a", "b", "c", "d", "e"]


async def named(after, until, count):
    return [name for name in NAMES if after < name and (until is None or name <= until)][:count]


async def steps(served, counts):
    ring = Ring(named, served)
    return [await ring.next(count) for count in counts]


@pytest.mark.parametrize("served", ["", "a", "b", "bb", "e", "z"])
@pytest.mark.parametrize("counts", [(1,) * 5, (2, 2, 1), (1, 3, 1), (4, 1), (3, 2), (5,), (9,)], ids=str)
def test_ring_goes_once_round_and_ends_in_whatever_steps_it_is_asked(served, counts):
    found = asyncio.run(steps(served, (*counts, 1)))
    assert [len(names) for names in found] == [*(min(count, 5) for count in counts), 0]
    once_round = [name for name in NAMES if name > served] + [name for name in NAMES if name <= served]
    assert [name for names in found for name in names] == once_round


def test_level_that_is_forgotten_is_the_one_whose_turn_is_longest_ago(monkeypatch):
    monkeypatch.setattr(ring_module, "_LEVELS_MAX", 2)
    served = Served()
    for level, name in ((1, "a"), (2, "a"), (1, "b"), (3, "a")):
        served.note(level, name)
    assert served == {1: "b", 3: "a"}
