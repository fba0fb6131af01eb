"""One timer for all sends of a sender: to each of them it is what `asyncio.timeout` would be."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from asyncqueue.dispatcher.timeouts import Timeouts
from tests.waiting import until

SPAN_S = 10.0


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is put forward."""

    ahead_s = 0.0
    timers = 0

    def time(self):
        return super().time() + self.ahead_s

    def call_at(self, when, callback, *args, context=None):
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)

    def pending(self):
        return [timer for timer in self._scheduled if not timer.cancelled()]


async def moved(seconds):
    """Put the clock forward, once everything has begun, and let what falls due by it happen."""
    await asyncio.sleep(0)
    asyncio.get_running_loop().ahead_s += seconds
    for _ in range(5):
        await asyncio.sleep(0)


def asyncio_way():
    return asyncio.timeout


def shared_way():
    timeouts = Timeouts(SPAN_S)

    @asynccontextmanager
    async def limit(seconds):
        with timeouts.limit(None if seconds == SPAN_S else seconds):
            yield

    return limit


@pytest.fixture(params=[asyncio_way, shared_way])
def way(request):
    return request.param


@pytest.fixture
def run():
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        yield runner.run


async def sleeper(limit, seconds, log, name):
    with pytest.raises(TimeoutError) as caught:
        async with limit(seconds):
            await asyncio.Event().wait()
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert asyncio.current_task().cancelling() == 0
    log.append(name)


def test_each_ends_when_its_own_time_is_over(way, run):
    async def main():
        limit, log = way(), []
        first = asyncio.create_task(sleeper(limit, SPAN_S, log, "first"))
        await moved(4)
        second = asyncio.create_task(sleeper(limit, SPAN_S, log, "second"))
        await moved(5.5)
        assert log == []
        await moved(0.6)
        assert log == ["first"]
        third = asyncio.create_task(sleeper(limit, SPAN_S, log, "third"))
        await moved(3)
        assert log == ["first"]
        await moved(1)
        assert log == ["first", "second"]
        await moved(6)
        assert log == ["first", "second", "third"]
        await asyncio.gather(first, second, third)
        assert not asyncio.get_running_loop().pending()

    run(main())


def test_a_shorter_span_is_over_before_those_that_began_earlier(way, run):
    async def main():
        limit, log = way(), []
        long = asyncio.create_task(sleeper(limit, SPAN_S, log, "long"))
        await moved(1)
        short = asyncio.create_task(sleeper(limit, 2.0, log, "short"))
        await moved(2.1)
        assert log == ["short"]
        await moved(7)
        assert log == ["short", "long"]
        await asyncio.gather(long, short)

    run(main())


def test_what_is_done_in_time_is_left_alone(way, run):
    async def main():
        limit = way()
        for seconds in (SPAN_S, 2.0):
            async with limit(seconds):
                await moved(1.9)
            await moved(SPAN_S)
            assert asyncio.current_task().cancelling() == 0
        assert not asyncio.get_running_loop().pending()

    run(main())


def test_a_cancellation_by_somebody_else_passes(way, run):
    async def main():
        limit, log = way(), []
        task = asyncio.create_task(sleeper(limit, SPAN_S, log, "late"))
        await moved(SPAN_S / 2)
        task.cancel()
        await until(task.done)
        assert task.cancelled()
        assert log == []
        assert not asyncio.get_running_loop().pending()

    run(main())


def test_both_in_one_turn_are_a_cancellation(way, run):
    async def main():
        limit, log = way(), []
        task = asyncio.create_task(sleeper(limit, SPAN_S, log, "late"))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + SPAN_S + 1, task.cancel)
        loop.ahead_s += SPAN_S + 2
        await until(task.done)
        assert task.cancelled()
        assert log == []

    run(main())


def test_another_error_of_the_block_passes_after_the_end(way, run):
    async def main():
        limit = way()

        async def fail():
            try:
                async with limit(SPAN_S):
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        raise KeyError("mine") from None
            except KeyError:
                return asyncio.current_task().cancelling()

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await moved(SPAN_S)
        assert await task == 0

    run(main())


def test_a_block_that_hides_its_end_goes_on(way, run):
    async def main():
        limit = way()

        async def hide():
            async with limit(SPAN_S):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            await asyncio.sleep(0)
            return asyncio.current_task().cancelling()

        task = asyncio.create_task(hide())
        await asyncio.sleep(0)
        await moved(SPAN_S)
        assert await task == 0

    run(main())


def test_many_share_one_timer(run):
    async def main():
        loop, timeouts, log = asyncio.get_running_loop(), Timeouts(SPAN_S), []

        async def send(name):
            try:
                with timeouts.limit():
                    await asyncio.Event().wait()
            except TimeoutError:
                log.append(name)

        for name in range(64):
            loop.create_task(send(name)).set_name(f"send {name}")
        await asyncio.sleep(0)
        assert (loop.timers, len(loop.pending())) == (1, 1)
        await moved(SPAN_S)
        assert log == [*range(64)]
        assert (loop.timers, loop.pending()) == (1, [])

    run(main())


def test_it_is_for_tasks(run):
    async def main():
        failed = []

        def callback():
            try:
                with Timeouts(SPAN_S).limit():
                    pass
            except RuntimeError as error:
                failed.append(str(error))

        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)
        assert failed == ["a timeout must be used inside a task"]
        assert not asyncio.get_running_loop().pending()

    run(main())
