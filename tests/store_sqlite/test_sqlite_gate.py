"""The gate: the write turn goes round fairly, dies with its holder, and is never lost by a waiter that left."""

import asyncio
import fcntl
import os
import signal
import warnings

import anyio
import pytest

from asyncqueue.errors import StoreBusy
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import gate as gate_module
from asyncqueue.stores.sqlite.gate import Gate
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def gates(path):
    """Three gates on one database, each with a descriptor of its own, as three processes have."""
    opened = [Gate(path) for _ in range(3)]
    yield opened
    for gate in opened:
        gate.close()


async def test_only_one_holds_the_turn_and_leaving_hands_it_over(gates):
    first, second, _ = gates
    await first.enter()
    entering = asyncio.ensure_future(second.enter())
    await until(lambda: second._thread_waits)
    assert not entering.done()
    first.leave()
    await entering
    assert not first.try_enter()
    second.leave()
    assert first.try_enter()


@pytest.mark.parametrize("way", ["cancel", "timeout", "scope"])
async def test_waiter_that_leaves_while_its_thread_waits_does_not_keep_the_turn(gates, way):
    first, second, third = gates
    await first.enter()
    if way == "cancel":
        entering = asyncio.ensure_future(second.enter())
        await until(lambda: second._thread_waits)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
    elif way == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await second.enter()
    else:
        with anyio.move_on_after(0.01) as scope:
            await second.enter()
        assert scope.cancelled_caught
    assert second._thread_waits
    first.leave()
    await until(lambda: not second._thread_waits)
    assert third.try_enter()
    third.leave()
    await second.enter()
    assert not first.try_enter()


async def test_next_waiter_joins_the_thread_that_still_waits(gates):
    first, second, third = gates
    await first.enter()
    for _ in range(3):
        entering = asyncio.ensure_future(second.enter())
        await until(lambda: second._thread_waits)
        entering.cancel()
        await asyncio.wait([entering])
    entering = asyncio.ensure_future(second.enter())
    await asyncio.sleep(0)
    first.leave()
    await entering
    assert not third.try_enter()
    second.leave()
    assert third.try_enter()


async def test_waiter_cancelled_as_the_turn_arrives_hands_it_on(gates):
    first, second, third = gates
    await first.enter()
    entering = asyncio.ensure_future(second.enter())
    await until(lambda: second._thread_waits)
    first.leave()
    while second._thread_waits:  # without the loop: the turn has come, its waiter has not heard
        os.sched_yield()
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert third.try_enter()


async def test_gate_closed_while_its_thread_waits_is_closed_by_that_thread(gates, resources):
    first, second, third = gates
    await first.enter()
    entering = asyncio.ensure_future(second.enter())
    await until(lambda: second._thread_waits)
    threads, descriptors = resources()
    entering.cancel()
    await asyncio.wait([entering])
    second.close()
    first.leave()
    left = (threads - 1, descriptors - 1)
    assert resources(left) == left
    assert third.try_enter()


HOLDER = """
import asyncio, sys
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
async def main():
    async with Queue.open(sys.argv[1]) as queue:
        async def work(transaction):
            await transaction.enqueue([NewJob("half", 1)])
            print("holds", flush=True)
            await asyncio.Event().wait()
        await queue._store.write(work)
asyncio.run(main())
"""


async def test_turn_of_a_killed_holder_is_free_again_and_its_transaction_gone(path, spawn):
    async with Queue.open(path) as queue:
        holder = spawn(HOLDER, path)
        assert await asyncio.to_thread(holder.stdout.readline) == "holds\n"
        writing = asyncio.ensure_future(queue.enqueue("a", 1))
        await until(lambda: queue._store._database._gate._thread_waits)
        assert not writing.done()
        holder.send_signal(signal.SIGKILL)
        assert await writing is True
        assert [job.id for job in await queue.list()] == ["a"]


async def test_gate_held_for_longer_than_the_patience_makes_store_busy_and_is_usable_after(path, gates):
    async with Queue.open(path, patience_ms=50) as queue:
        await gates[0].enter()
        with pytest.raises(StoreBusy, match="write turn"):
            await queue.enqueue("a", 1)
        gates[0].leave()
        assert await queue.enqueue("a", 1)


IMPATIENT = """
import asyncio, sys
from asyncqueue.errors import StoreBusy
from asyncqueue.queue import Queue
async def main():
    async with Queue.open(sys.argv[1], patience_ms=50) as queue:
        try:
            await queue.enqueue("a", 1)
        except StoreBusy:
            print("busy", flush=True)
asyncio.run(main())
"""


async def test_process_that_gave_up_its_wait_may_exit_while_another_one_holds_the_turn(path, gates, spawn):
    async with Queue.open(path):
        pass
    assert gates[0].try_enter()
    child = spawn(IMPATIENT, path)
    assert await asyncio.to_thread(child.stdout.readline) == "busy\n"
    await until(lambda: child.poll() is not None)
    assert child.returncode == 0


async def test_child_that_was_forked_does_not_keep_the_turn_of_a_parent_that_died(gates):
    parent, other, _ = gates
    assert parent.try_enter()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the test ends
        os._exit(parent.works)  # a number that is closed may be another file's by now
    try:
        parent.close()  # without a word, as a process dies
        await until(other.try_enter)
    finally:
        os.close(read)
        os.close(write)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


async def test_where_flock_is_refused_there_is_no_gate_and_all_works(path, monkeypatch, resources):
    async with Queue.open(path):
        pass
    before = resources()

    def refused(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refused)
    async with Queue.open(path) as one, Queue.open(path) as two:
        assert await one.enqueue("a", 1)
        assert await two.enqueue("b", 1)
        assert not one._store._database._gate.works
        assert one._store._database._gate.try_enter(), "where there is no gate nobody waits for one"
        assert len(await two.claim("w", limit=9)) == 2
    assert resources(before) == before


async def test_where_there_is_no_flock_at_all_there_is_no_side_file_and_all_works(path, monkeypatch):
    monkeypatch.setattr(gate_module, "_HAS_FLOCK", False)
    async with Queue.open(path) as queue:
        assert await queue.enqueue("a", 1)
        assert not queue._store._database._gate.works
    assert [where.name for where in path.parent.iterdir()] == [path.name]


def test_turn_that_comes_when_its_waiters_loop_is_closed_is_handed_on(gates):
    first, second, third = gates
    assert first.try_enter()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(second.enter())
    while not second._thread_waits:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    first.leave()
    while second._thread_waits or not third.try_enter():
        os.sched_yield()
    waiting._log_destroy_pending = False
    waiting.get_coro().close()


@pytest.mark.parametrize("obstacle", ["directory", "link"])
async def test_side_file_that_cannot_be_had_is_done_without(path, tmp_path, obstacle):
    side = tmp_path / "jobs.db-gate"
    side.mkdir() if obstacle == "directory" else side.symlink_to(tmp_path / "victim")
    async with Queue.open(path) as queue:
        assert await queue.enqueue("a", 1)
        assert not queue._store._database._gate.works
    assert not (tmp_path / "victim").exists()


WRITER = """
import asyncio, sys
from asyncqueue.queue import Queue
async def main(path, name, turns):
    async with Queue.open(path, patience_ms=60_000) as queue:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(turns):
            await queue.enqueue(f"{name}-{n}", 1)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_two_processes_writing_back_to_back_take_turns(path, spawn, plain):
    """FAULTS 28: without the gate one of them waits for as long as the other goes on."""
    turns = 200
    writers = [spawn(WRITER, path, name, turns) for name in ("x", "y")]
    assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait() for writer in writers] == [0, 0]
    order = [job_id[0] for (job_id,) in plain(path).execute("SELECT id FROM jobs ORDER BY seq")]
    assert len(order) == 2 * turns
    until_one_ends = order[: min(max(n for n, who in enumerate(order) if who == name) for name in "xy") + 1]
    shares = [until_one_ends.count(name) for name in "xy"]
    assert min(shares) > turns // 3, f"unfair: {shares}"


async def test_tasks_of_one_process_share_the_turn(path):
    async with Queue.open(path) as queue:

        async def writes(name):
            for n in range(20):
                await queue._store.write(lambda transaction, n=n: transaction.enqueue([NewJob(f"{name}{n}", 1)]))

        await asyncio.gather(*(writes(name) for name in "abc"))
        order = [job.id[0] for job in await queue.list()]
        assert order == list("abc") * 20
