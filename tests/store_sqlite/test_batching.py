"""Group commit: few transactions, own answers, withdrawn waiters, and an end that waits."""

import asyncio
import gc
import threading
from collections import deque

import pytest

from asyncqueue.errors import Conflict, InvalidJob, StoreBusy, StoreClosed
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue
from asyncqueue.stores.batching import Batch, Batcher

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
async def queue(path):
    async with Queue.open(path) as opened:
        yield opened


@pytest.fixture
def transactions(queue, monkeypatch):
    """Count the write transactions; `hold` keeps the next one from starting until it is set."""
    original = queue._store.write
    seen = {"count": 0, "hold": None, "error": None, "entered": asyncio.Event()}

    async def write(work, **options):
        seen["count"] += 1
        seen["entered"].set()
        if seen["hold"] is not None:
            await seen["hold"].wait()
        if seen["error"] is not None:
            raise seen["error"]
        return await original(work, **options)

    monkeypatch.setattr(queue._store, "write", write)
    return seen


def hold(transactions):
    transactions["hold"] = asyncio.Event()
    transactions["entered"].clear()
    return transactions["hold"]


@pytest.fixture
def begun(queue, monkeypatch):
    """Hold the next transaction just before its commit, in the driver's thread: (it is there, let it go)."""
    original = queue._store.write
    reached, go = threading.Event(), threading.Event()

    async def write(work, **options):
        async def held(transaction):
            answers = await work(transaction)
            reached.set()
            assert go.wait(20)
            return answers

        return await original(held, **options)

    monkeypatch.setattr(queue._store, "write", write)
    yield reached, go
    go.set()


async def test_a_thousand_callers_share_few_transactions_and_each_gets_its_own_answer(queue, transactions):
    calls = [queue.enqueue(f"j{n % 500}", 1 + (n == 777)) for n in range(1_000)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert answers[:500] == [True] * 500
    assert isinstance(answers[777], Conflict)
    assert [answer for n, answer in enumerate(answers) if n >= 500 and n != 777] == [False] * 499
    assert transactions["count"] <= 2


async def test_callers_of_different_verbs_share_a_transaction_and_reports_go_before_claims(queue, transactions):
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(4)])
    first, second, third = await queue.claim("w", limit=3)
    before = transactions["count"]
    claimed, released, finished, new, renewed = await asyncio.gather(
        queue.claim("w2", limit=9),
        queue.release(first),
        queue.finish(second, "ok"),
        queue.enqueue("late", 1),
        queue.renew(third, 90_000),
    )
    assert (released, finished, new) == (True, Status.DONE, True)
    assert renewed > third.lease_until
    assert [job.id for job in claimed] == ["j0", "j3", "late"]
    assert transactions["count"] == before + 1


async def test_error_of_the_transaction_reaches_every_caller_of_it_and_no_later_one(queue, transactions):
    transactions["error"] = StoreBusy("held")
    answers = await asyncio.gather(*(queue.enqueue(f"j{n}", 1) for n in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreBusy] * 5
    transactions["error"] = None
    assert await queue.enqueue("j0", 1)


async def test_waiter_cancelled_before_its_batch_began_is_withdrawn(queue, transactions):
    held = hold(transactions)
    first = asyncio.ensure_future(queue.enqueue("first", 1))
    await transactions["entered"].wait()
    waiting = [asyncio.ensure_future(queue.enqueue(name, 1)) for name in ("gone", "stays")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    held.set()
    assert await asyncio.gather(first, waiting[1]) == [True, True]
    assert waiting[0].cancelled()
    assert [job.id for job in await queue.list()] == ["first", "stays"]


async def test_caller_who_comes_while_the_transaction_waits_for_its_turn_is_taken_along(queue, transactions):
    held = hold(transactions)
    first = asyncio.ensure_future(queue.enqueue("first", 1))
    await transactions["entered"].wait()
    late = [asyncio.ensure_future(queue.enqueue(f"late-{n}", 1)) for n in range(3)]
    await asyncio.sleep(0)
    held.set()
    assert await asyncio.gather(first, *late) == [True] * 4
    assert transactions["count"] == 1


@pytest.mark.parametrize("late", [False, True], ids=["now", "late"])
async def test_claim_cancelled_when_its_batch_had_begun_gives_its_leases_back(queue, request, late):
    await queue.enqueue("a", 1)
    reached, go = request.getfixturevalue("begun")
    claiming = asyncio.ensure_future(queue.claim_late("w", lambda: 1) if late else queue.claim("w"))
    while not reached.is_set():
        await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait([claiming])
    go.set()
    await queue._batches._batcher.settle()
    found = await queue.get("a")
    assert (found.status, found.attempts, found.token) == (Status.PENDING, 0, 1)


async def test_claim_cancelled_between_its_answer_and_its_waking_gives_its_leases_back(queue):
    await queue.enqueue("a", 1)
    claiming = asyncio.ensure_future(queue.claim("w"))
    await asyncio.sleep(0)
    batcher = queue._batches._batcher
    entry_done = asyncio.Event()
    original = batcher._run_batch

    async def run_batch(batch):
        await original(batch)
        claiming.cancel()
        entry_done.set()

    batcher._run_batch = run_batch
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert entry_done.is_set()
    await batcher.settle()
    assert (await queue.get("a")).status == Status.PENDING


async def test_cancelled_claim_that_found_nothing_costs_no_transaction(queue, transactions):
    held = hold(transactions)
    claiming = asyncio.ensure_future(queue.claim("w"))
    await transactions["entered"].wait()
    claiming.cancel()
    held.set()
    await queue._batches._batcher.settle()
    assert claiming.cancelled()
    assert transactions["count"] == 1


async def test_close_waits_for_what_was_asked_before_and_refuses_what_comes_after(queue, transactions):
    held = hold(transactions)
    writing = [asyncio.ensure_future(queue.enqueue(f"j{n}", 1)) for n in range(3)]
    await transactions["entered"].wait()
    late = asyncio.ensure_future(queue.enqueue("in-time", 1))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(queue.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await queue.enqueue("after", 1)
    assert not closing.done()
    held.set()
    await closing
    assert await asyncio.gather(*writing, late) == [True] * 4


def test_loop_that_closes_in_the_middle_of_a_batch_tells_every_waiter(path, plain):
    cancelled = []

    async def caller(queue, name):
        try:
            await queue.enqueue(name, 1)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def main():
        queue = await Queue.open(path)
        reached = asyncio.Event()

        async def work(transaction):
            await transaction.enqueue([NewJob("half", 1)])
            reached.set()
            await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(queue._store.write(work))]
        tasks += [asyncio.ensure_future(caller(queue, name)) for name in "ab"]
        await reached.wait()
        closer = asyncio.ensure_future(_close_at_the_end(queue))
        await asyncio.sleep(0)
        return tasks, closer

    asyncio.run(main())
    assert sorted(cancelled) == ["a", "b"]
    probe = plain(path)
    probe.execute("BEGIN EXCLUSIVE")
    assert probe.execute("SELECT count(*) FROM jobs WHERE id != 'half'").fetchone() == (0,)


async def _close_at_the_end(queue):
    try:
        await asyncio.Event().wait()
    finally:
        await queue.close()


async def test_transaction_that_is_repeated_asks_once(queue):
    """A bad item beside them undoes the transaction; then each call gets one of its own."""
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(6)])
    (leased,) = await queue.claim("w")
    asked = []

    def room():
        asked.append("room")
        return 2

    def reports():
        asked.append("reports")
        return [Report(leased, "ok")]

    bad = queue._batches.enqueue([NewJob("bad", 1, kind={"a", "set"})])
    claimed, answers, failure = await asyncio.gather(
        queue.claim_late("w", room), queue.finish_late(reports), bad, return_exceptions=True
    )
    assert [job.id for job in claimed] == ["j1", "j2"]
    assert answers == [Status.DONE]
    assert isinstance(failure, InvalidJob)
    assert sorted(asked) == ["reports", "room"]


# --- the batcher alone -------------------------------------------------------------------------------


async def batches_of(weights, weight_max):
    batches = []

    async def run(batch):
        requests = batch.close()
        batches.append(list(requests))
        await asyncio.sleep(0)
        return [request * 10 for request in requests]

    batcher = Batcher(run, weight_max)
    answers = await asyncio.gather(*(batcher.submit(n, weight) for n, weight in enumerate(weights)))
    assert answers == [n * 10 for n in range(len(weights))]
    return batches


@pytest.mark.parametrize(
    ("weights", "batches"),
    [
        ([1, 1, 1], [[0, 1, 2]]),
        ([2, 2, 2], [[0, 1], [2]]),
        ([9, 1, 1], [[0], [1, 2]]),
        ([1, 9, 1], [[0], [1], [2]]),
        ([4, 1, 3], [[0], [1, 2]]),
        ([0, 4, 0, 1], [[0, 1, 2], [3]]),
    ],
)
async def test_batches_are_split_by_weight_in_order_of_arrival(weights, batches):
    assert await batches_of(weights, 4) == batches


async def test_answers_that_are_errors_are_raised_to_their_own_caller_only():
    async def run(batch):
        requests = batch.close()
        return [ValueError(request) if request == 1 else request for request in requests]

    batcher = Batcher(run)
    answers = await asyncio.gather(*(batcher.submit(n) for n in range(3)), return_exceptions=True)
    assert [answers[0], answers[2]] == [0, 2]
    assert isinstance(answers[1], ValueError)


async def test_posted_request_runs_without_a_waiter_and_its_error_is_nobodys():
    ran = []

    async def run(batch):
        ran.extend(batch.close())
        raise OSError("no")

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    batcher = Batcher(run)
    batcher.post("x")
    await batcher.settle()
    del batcher  # which remembers its youngest batch
    gc.collect()
    assert ran == ["x"]
    assert complaints == [], "asyncio was left with an error that nobody retrieved"


async def test_posted_request_whose_batch_is_cancelled_is_nobodys():
    closed = asyncio.Event()

    async def run(batch):
        batch.close()
        closed.set()
        await asyncio.Event().wait()

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    batcher = Batcher(run)
    batcher.post("x")
    (lane,) = batcher._lanes
    await closed.wait()
    lane.cancel()
    await batcher.settle()
    await asyncio.sleep(0)  # the callbacks of the answer
    del batcher, lane
    gc.collect()
    assert complaints == []


class Runs:
    """Batches of a batcher, each held before it is closed and again before it is answered."""

    def __init__(self):
        self.batcher = Batcher(self.run)
        self.began = []  # batches in order
        self.closed = []  # their requests
        self.close = asyncio.Semaphore(0)
        self.answer = asyncio.Semaphore(0)

    async def run(self, batch):
        self.began.append(batch)
        await self.close.acquire()
        requests = batch.close()
        self.closed.append(list(requests))
        await self.answer.acquire()
        return [request.upper() for request in requests]

    def submit(self, *requests):
        return [asyncio.ensure_future(self.batcher.submit(request)) for request in requests]


@pytest.fixture
async def runs():
    return Runs()


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_batch_takes_whoever_waits_when_it_is_closed_and_nobody_later(runs):
    first = runs.submit("a", "b")
    await turns()
    assert len(runs.began) == 1
    second = runs.submit("c", "d")
    await turns()
    second[0].cancel()  # before it is closed: withdrawn
    await turns()
    runs.close.release()
    await turns()
    assert runs.closed == [["a", "b", "d"]]
    first[0].cancel()  # after it: too late
    later = runs.submit("e")
    await turns()
    runs.answer.release()
    assert await asyncio.gather(first[1], second[1]) == ["B", "D"]
    assert runs.closed == [["a", "b", "d"]]
    assert runs.began[0].close() == ["a", "b", "d"]
    runs.close.release()
    runs.answer.release()
    assert await asyncio.gather(*later) == ["E"]


async def test_next_batch_lines_up_while_one_runs_and_no_third(runs):
    first = runs.submit("a")
    await turns()
    runs.close.release()
    await turns()
    second = runs.submit("b")
    await turns()
    assert len(runs.began) == 2  # although the first is not answered
    runs.close.release()
    await turns()
    third = runs.submit("c")
    await turns()
    assert len(runs.began) == 2
    runs.answer.release()
    runs.answer.release()
    assert await asyncio.gather(*first, *second) == ["A", "B"]
    runs.close.release()
    runs.answer.release()
    assert await asyncio.gather(*third) == ["C"]
    await runs.batcher.settle()
    assert runs.closed == [["a"], ["b"], ["c"]]


async def test_batch_that_fails_before_it_began_fails_only_those_who_were_there_when_it_was_formed():
    go = asyncio.Event()
    closed = []

    async def run(batch):
        if not go.is_set():
            await go.wait()
            raise StoreBusy("held")
        closed.append(batch.close())
        return closed[-1]

    batcher = Batcher(run)
    founders = [asyncio.ensure_future(batcher.submit(name)) for name in "ax"]
    await turns()
    late = [asyncio.ensure_future(batcher.submit(name)) for name in "bc"]
    await turns()
    go.set()
    assert await asyncio.gather(*late) == ["b", "c"]
    answers = await asyncio.gather(*founders, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreBusy] * 2
    assert closed == [["b", "c"]]


async def test_batch_whose_callers_have_all_left_is_not_run(runs):
    leavers = runs.submit("a", "b")
    await asyncio.sleep(0)
    for task in leavers:
        task.cancel()
    await runs.batcher.settle()
    assert runs.began == []
    stays = runs.submit("c")
    runs.close.release()
    runs.answer.release()
    assert await asyncio.gather(*stays) == ["C"]


async def test_batches_closed_in_another_thread_lose_and_double_nobody():
    """The transaction closes its batch in its own thread, while callers come and go in the loop's."""
    taken = []

    async def run(batch):
        requests = await asyncio.to_thread(batch.close)
        assert batch.close() == requests
        taken.extend(requests)
        return requests

    batcher = Batcher(run, weight_max=7)
    answered = []

    async def caller(number):
        for n in range(50):
            request = number * 1000 + n
            try:
                async with asyncio.timeout(0 if n % 7 == 3 else 20):
                    answered.append(await batcher.submit(request))
            except TimeoutError:
                pass

    await asyncio.gather(*(caller(number) for number in range(20)))
    await batcher.settle()
    assert len(set(taken)) == len(taken)
    assert set(answered) <= set(taken)
    assert len(answered) == 20 * 50 - 20 * 7


async def test_leases_of_a_claim_cancelled_while_the_queue_closes_are_given_back(queue, transactions):
    await queue.enqueue("a", 1)
    held = hold(transactions)
    claiming = asyncio.ensure_future(queue.claim("w"))
    await transactions["entered"].wait()
    closing = asyncio.ensure_future(queue.close())
    await asyncio.sleep(0)
    claiming.cancel()
    held.set()
    await closing
    async with Queue.open(queue._store._database.path) as again:
        assert (await again.get("a")).status == Status.PENDING


async def test_caller_who_comes_as_every_lane_has_just_ended_finds_one():
    """Its answer wakes it before the event loop tells that the lanes' tasks are over."""
    go = asyncio.Event()
    begun = []

    async def run(batch):
        begun.append(batch.close())
        await go.wait()
        return batch.close()

    batcher = Batcher(run)

    async def twice():
        return [await batcher.submit("first"), await batcher.submit("again")]

    async with asyncio.timeout(20):
        first = asyncio.ensure_future(twice())
        while len(begun) < 1:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(batcher.submit("second"))
        while len(begun) < 2:
            await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(first, second) == [["first", "again"], "second"]


@pytest.mark.parametrize("begun", [False, True])
async def test_batch_whose_own_task_is_cancelled_cancels_whoever_waits(begun):
    running = asyncio.Event()

    async def run(batch):
        if begun:
            batch.close()
        running.set()
        await asyncio.Event().wait()

    batcher = Batcher(run)
    calling = [asyncio.ensure_future(batcher.submit(n)) for n in range(2)]
    batcher.post(2)  # nobody waits for it: nobody is told
    await running.wait()
    lanes = tuple(batcher._lanes)
    assert {lane.get_name() for lane in lanes} == {"asyncqueue-batches"}  # what a listing of tasks shows
    for lane in lanes:
        lane.cancel()
    await asyncio.wait((*calling, *lanes))
    assert all(task.cancelled() for task in (*calling, *lanes))


async def test_claim_cancelled_when_its_batch_had_begun_and_found_nothing_gives_nothing_back(
    queue, begun, monkeypatch
):
    posted = []
    monkeypatch.setattr(queue._batches._batcher, "post", posted.append)
    reached, go = begun
    claiming = asyncio.ensure_future(queue.claim("w"))
    while not reached.is_set():
        await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait([claiming])
    go.set()
    await queue._batches._batcher.settle()
    assert posted == []


async def test_late_reports_that_name_nothing_are_answered_with_nothing(queue):
    assert await asyncio.gather(queue.finish_late(list), queue.enqueue("a", 1)) == [[], True]


async def test_a_request_weighs_one_unless_it_is_said():
    batches = []

    async def run(batch):
        batches.append(batch.close())
        return batches[-1]

    batcher = Batcher(run, weight_max=2)
    batcher.post("posted")
    assert await asyncio.gather(batcher.submit("a"), batcher.submit("b"), batcher.submit("c")) == ["a", "b", "c"]
    assert batches == [["posted", "a"], ["b", "c"]]


async def test_what_arrives_within_a_few_turns_of_the_loop_comes_along():
    batches = []

    async def run(batch):
        batches.append(batch.close())
        return batches[-1]

    batcher = Batcher(run)
    batcher.post("first")
    await asyncio.sleep(0)
    batcher.post("second")
    await batcher.settle()
    assert batches == [["first", "second"]]


async def test_a_run_that_answers_too_few_is_an_error_for_those_left_out():
    async def run(batch):
        return batch.close()[:1]

    batcher = Batcher(run)
    first, second = await asyncio.gather(batcher.submit("a"), batcher.submit("b"), return_exceptions=True)
    assert first == "a"
    assert isinstance(second, ValueError)


async def test_a_bad_item_that_is_alone_in_its_batch_is_tried_once(queue, transactions):
    with pytest.raises(InvalidJob):
        await queue._batches.enqueue([NewJob("bad", 1, kind={"a", "set"})])
    assert transactions["count"] == 1


async def test_caller_that_is_cancelled_as_its_answer_arrives_is_cancelled_and_no_more():
    cancelled = []

    async def run(batch):
        asked = batch.close()
        asyncio.get_running_loop().call_soon(
            lambda: cancelled.append(task.cancel())
        )  # after the answer, before its waiter
        return asked

    task = asyncio.ensure_future(Batcher(run).submit("a"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True]


@pytest.mark.parametrize(("answer", "given_back"), [("yes", ["yes"]), (ValueError("no"), [])])
async def test_answer_that_finds_its_caller_cancelled_is_given_back_unless_it_is_an_error(answer, given_back):
    async def run(batch):
        batch.close()
        asyncio.get_running_loop().call_soon(task.cancel)  # after the answer, before its waiter
        return [answer]

    undelivered = []
    task = asyncio.ensure_future(Batcher(run).submit("a", undelivered=undelivered.append))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undelivered == given_back


async def test_batches_whose_task_was_cancelled_before_it_began_are_not_waited_for():
    """As by an event loop that ends: everything in it is cancelled, then the queue is closed."""

    async def run(batch):
        return batch.close()

    batcher = Batcher(run)
    batcher.post("a")
    (lane,) = [task for task in asyncio.all_tasks() if task.get_name() == "asyncqueue-batches"]
    lane.cancel()
    async with asyncio.timeout(5):
        await batcher.settle()
    assert lane.cancelled()


async def test_whoever_waits_for_a_task_that_was_cancelled_before_it_began_is_cancelled_and_the_next_is_served():
    async def run(batch):
        return [[request] for request in batch.close()]

    batcher = Batcher(run)
    waiting = asyncio.create_task(batcher.submit("a"))
    await asyncio.sleep(0)
    (lane,) = batcher._lanes
    lane.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await batcher.submit("b") == ["b"]


def test_what_waits_can_be_looked_at_while_another_batch_takes_it():
    """A SQLite transaction takes its batch in its own thread, at any moment."""

    class Entry:
        @property
        def request(self):
            waiting.clear()  # the other thread
            return "one"

    waiting = deque([Entry(), Entry()])
    assert Batch(waiting, 10).waiting == ["one", "one"]
    assert not waiting
