"""The ring of queues: once round from the one after the last that was served, in however many steps."""

import asyncio

import pytest

from asyncqueue.stores.ring import Ring

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
