"""Backpressure: `max_pending` is a typed refusal, exact in sets and between processes."""

import asyncio

import pytest

from asyncqueue.errors import Conflict, InvalidJob, QueueFull
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status


def jobs(*ids, **fields):
    return [NewJob(job_id, 1, **fields) for job_id in ids]


def shown(answers):
    return [answer if isinstance(answer, bool) else type(answer) for answer in answers]


async def test_enqueue_beyond_the_bound_is_refused_by_its_type_and_stores_nothing(opening, raw):
    async with opening(max_pending=2) as queue:
        assert await queue.enqueue("a", 1)
        assert await queue.enqueue("b", 1, queue="other")
        with pytest.raises(QueueFull, match="2 waiting jobs"):
            await queue.enqueue("c", 1)
        assert raw.select("SELECT id FROM jobs") == [("a",), ("b",)]


async def test_same_job_again_and_conflict_are_answered_as_ever_when_the_queue_is_full(opening):
    async with opening(max_pending=1) as queue:
        await queue.enqueue("a", 1)
        assert await queue.enqueue("a", 1) is False
        with pytest.raises(Conflict):
            await queue.enqueue("a", 2)
        answers = await queue.enqueue_many([*jobs("b", "a"), NewJob("a", 2), *jobs("c")])
        assert shown(answers) == [QueueFull, False, Conflict, QueueFull]


async def test_first_ones_of_a_set_fit_and_the_rest_is_refused(opening):
    async with opening(max_pending=4) as queue:
        await queue.enqueue_many(jobs("a", "b"))
        answers = await queue.enqueue_many([*jobs("a", "c", "c", "d", "e", "b", "e"), NewJob("no id!", 1)])
        assert shown(answers) == [False, True, False, True, QueueFull, False, QueueFull, InvalidJob]
        assert [job.id for job in await queue.list()] == ["a", "b", "c", "d"]


async def test_callers_that_share_a_commit_share_the_room(opening):
    async with opening(max_pending=3) as queue:
        answers = await asyncio.gather(*(queue.enqueue(f"j{n}", 1) for n in range(6)), return_exceptions=True)
        assert shown(answers) == [True] * 3 + [QueueFull] * 3


async def test_room_comes_back_with_each_claim_cancel_and_death(opening, clock):
    async with opening(max_pending=2) as queue:
        await queue.enqueue_many(jobs("a", "b", ttl_ms=50))
        await queue.claim("w")
        assert await queue.enqueue("c", 1)
        await queue.cancel("b")
        assert await queue.enqueue("d", 1, ttl_ms=50)
        with pytest.raises(QueueFull):
            await queue.enqueue("e", 1)
        clock.advance(50)
        assert await queue.sweep() == 2
        assert await queue.enqueue("e", 1)


async def test_retry_release_and_redrive_are_never_refused(opening):
    """Only what is new can be refused: a job that was taken in is never lost for want of room."""
    async with opening(max_pending=1) as queue:
        held = []
        for job_id in "abc":
            await queue.enqueue(job_id, 1)
            held += await queue.claim("w")
        a, b, c = held
        assert await queue.enqueue("d", 1)
        assert await queue.finish(a, "retry") is Status.PENDING
        assert await queue.release(b) is True
        await queue.finish(c, "permanent")
        assert await queue.redrive("c", note="n") is True
        assert (await queue.stats()).pending == 4
        with pytest.raises(QueueFull):
            await queue.enqueue("e", 1)


async def test_queue_without_a_bound_refuses_nothing_on_the_same_file(queue, opening):
    async with opening(max_pending=1) as bounded:
        await bounded.enqueue("a", 1)
        assert await queue.enqueue("b", 1)
        with pytest.raises(QueueFull):
            await bounded.enqueue("c", 1)


@pytest.mark.parametrize("max_pending", [0, -1, True, 1.5, "9"])
async def test_bound_that_is_none_is_refused_at_open(opening, max_pending):
    with pytest.raises(InvalidJob, match="max_pending"):
        async with opening(max_pending=max_pending):
            pass


async def test_two_processes_never_exceed_the_bound_together(queue, url, spawn):
    code = """
        import asyncio, sys
        from asyncqueue import Queue
        from asyncqueue.errors import QueueFull
        async def main():
            async with Queue.open(sys.argv[1], max_pending=50) as queue:
                print("ready", flush=True)
                sys.stdin.readline()
                taken = 0
                for n in range(60):
                    answers = await asyncio.gather(
                        *(queue.enqueue(f"{sys.argv[2]}-{n}-{m}", 1) for m in range(3)), return_exceptions=True
                    )
                    assert all(answer is True or isinstance(answer, QueueFull) for answer in answers), answers
                    taken += answers.count(True)
                print(taken, flush=True)
        asyncio.run(main())
        """
    children = [spawn(code, url, n) for n in range(2)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 2
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    taken = [int(child.communicate()[0]) for child in children]
    assert sum(taken) == 50
    assert (await queue.stats()).pending == 50
