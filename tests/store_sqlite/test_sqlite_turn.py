"""The turn on the write connection: one alone or several together, in order of arrival, never lost by a leaver."""

import asyncio

import pytest

from asyncqueue.stores.sqlite.turn import Turn


class Holders:
    """Tasks that take the turn and keep it until they are told to let go."""

    def __init__(self):
        self.turn = Turn()
        self.inside = []

    def start(self, name, way):
        go = asyncio.Event()

        async def hold():
            async with getattr(self.turn, way)():
                self.inside.append(name)
                try:
                    await go.wait()
                finally:
                    self.inside.remove(name)

        task = asyncio.ensure_future(hold())
        return task, go

    async def settled(self):
        for _ in range(10):
            await asyncio.sleep(0)
        return sorted(self.inside)


@pytest.fixture
async def holders():
    return Holders()


async def test_shared_ones_are_in_together_and_an_exclusive_one_alone(holders):
    (first, first_go), (second, second_go) = holders.start("s1", "shared"), holders.start("s2", "shared")
    assert await holders.settled() == ["s1", "s2"]
    alone, alone_go = holders.start("x", "exclusive")
    first_go.set()
    assert await holders.settled() == ["s2"]
    second_go.set()
    assert await holders.settled() == ["x"]
    after, after_go = holders.start("s3", "shared")
    assert await holders.settled() == ["x"]
    alone_go.set()
    assert await holders.settled() == ["s3"]
    after_go.set()
    await asyncio.gather(first, second, alone, after)


async def test_those_who_wait_are_served_in_order_of_arrival(holders):
    """A shared one does not pass an exclusive one that came first, although it would fit in."""
    ways = [("s1", "shared"), ("x1", "exclusive"), ("s2", "shared"), ("s3", "shared"), ("x2", "exclusive")]
    tasks = {name: holders.start(name, way) for name, way in ways}
    seen = []
    for group in (["s1"], ["x1"], ["s2", "s3"], ["x2"]):
        seen.append(await holders.settled())
        for name in group:
            tasks[name][1].set()
    assert seen == [["s1"], ["x1"], ["s2", "s3"], ["x2"]]
    await asyncio.gather(*(task for task, _go in tasks.values()))


async def test_waiter_that_is_cancelled_lets_those_behind_it_in(holders):
    holder, go = holders.start("s1", "shared")
    await holders.settled()
    waiter, _ = holders.start("x", "exclusive")
    behind, behind_go = holders.start("s2", "shared")
    last, last_go = holders.start("x2", "exclusive")
    assert await holders.settled() == ["s1"]
    waiter.cancel()
    assert await holders.settled() == ["s1", "s2"]
    go.set()
    behind_go.set()
    assert await holders.settled() == ["x2"]
    last_go.set()
    await asyncio.gather(holder, behind, last)
    assert waiter.cancelled()


async def test_waiter_cancelled_in_the_middle_of_the_line_is_passed_over(holders):
    holder, go = holders.start("x1", "exclusive")
    await holders.settled()
    leaver, _ = holders.start("x2", "exclusive")
    second, second_go = holders.start("s1", "shared")
    other, _ = holders.start("x3", "exclusive")
    third, third_go = holders.start("s2", "shared")
    await holders.settled()
    leaver.cancel()
    other.cancel()
    go.set()
    assert await holders.settled() == ["s1", "s2"]
    second_go.set()
    third_go.set()
    await asyncio.gather(holder, second, third)


async def test_waiter_cancelled_as_the_turn_arrives_hands_it_on(holders):
    holder, go = holders.start("x1", "exclusive")
    await holders.settled()
    waiter, _ = holders.start("x2", "exclusive")
    behind, behind_go = holders.start("x3", "exclusive")
    await holders.settled()
    go.set()
    await asyncio.sleep(0)  # the turn is given to `waiter`, which has not run yet
    assert not holders.inside
    waiter.cancel()
    assert await holders.settled() == ["x3"]
    behind_go.set()
    await asyncio.gather(holder, behind)
    assert waiter.cancelled()


@pytest.mark.parametrize("way", ["shared", "exclusive"])
async def test_error_inside_gives_the_turn_back(holders, way):
    with pytest.raises(LookupError):
        async with getattr(holders.turn, way)():
            raise LookupError
    task, go = holders.start("x", "exclusive")
    assert await holders.settled() == ["x"]
    go.set()
    await task
