"""Real processes: signals, kills in flight, poison, restarts under the same name."""

import signal
from collections import Counter

import pytest
from dispatch_support import Hands, child, drained, ended, fill, lines, until

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.lifecycle import Reason, Status


@pytest.fixture
def log(tmp_path):
    return tmp_path / "starts"


def starts(log) -> Counter[str]:
    return Counter(line.split()[1] for line in lines(log))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_process_with_zero_and_nothing_leased(queue, path, log, number):
    await fill(queue, 40, kind="slow")
    with child(path, log, "concurrency=4") as process:
        await until(lambda: len(lines(log)) >= 6)
        process.send_signal(number)
        assert await ended(process) == 0
    stats = await queue.stats()
    assert stats.leased == 0
    assert stats.done == len(lines(log))
    assert stats.done + stats.pending == 40
    assert {job.attempts for job in await queue.list(status="pending")} == {0}


async def test_a_second_signal_ends_it_at_once(queue, path, log):
    await fill(queue, 2, kind="hang")
    with child(path, log, "grace_ms=60000") as process:
        await until(lambda: len(lines(log)) == 2)
        process.send_signal(signal.SIGTERM)
        await until(log.with_suffix(".stopping").exists)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await ended(process, 5) == 0
    assert (await queue.stats()).leased == 2


async def test_a_stubborn_handler_and_a_busy_store_bound_the_exit(queue, path, raw, log):

    await fill(queue, 2, kind="stubborn")
    with child(path, log, "grace_ms=100", "patience_ms=500") as process:
        await until(lambda: len(lines(log)) == 2)
        with raw.held():
            process.send_signal(signal.SIGTERM)
            code = await ended(process, 12)
    assert code == 0


@pytest.mark.parametrize(("kind", "code"), [("exit", 3), ("interrupt", 130)])
async def test_an_exit_or_interrupt_from_a_handler_ends_the_process_loudly(queue, path, log, kind, code):
    await fill(queue, 3)
    await queue.enqueue("bad", 1, kind=kind, priority=-1)
    with child(path, log, "concurrency=4") as process:
        assert await ended(process) in (code, -signal.SIGINT if kind == "interrupt" else code)
        told = process.stderr.read()
    if kind == "interrupt":
        assert "KeyboardInterrupt" in told
    assert (await queue.get("bad")).status is Status.LEASED


async def test_a_kill_during_the_last_attempt_makes_a_dead_letter__kind_14_crash_on_the_last_attempt(
    queue, path, log
):
    await queue.enqueue("doomed", 1, kind="kill", max_attempts=3)
    for attempt in (1, 2, 3):
        with child(path, log, "lease_ms=300") as process:
            assert await ended(process) == -signal.SIGKILL
        assert starts(log)["doomed"] == attempt
    with child(path, log, "lease_ms=300", "drain=1") as process:
        assert await ended(process) == 0
    job = await queue.get("doomed")
    assert (job.status, job.reason, job.attempts) == (Status.DEAD, Reason.EXHAUSTED, 3)
    assert job.last_error == "lease lost on last attempt"
    assert starts(log)["doomed"] == 3


async def test_a_poison_job_dies_after_its_attempts_and_others_run_between__kind_15_poison_job(queue, path, log):
    await queue.enqueue("poison", 1, kind="poison", max_attempts=3)
    await fill(queue, 12)
    codes = []
    for _ in range(12):
        with child(path, log, "lease_ms=2000", "concurrency=2", "drain=1") as process:
            codes.append(await ended(process))
        if codes[-1] == 0:
            break
    assert codes == [9, 9, 9, 0]
    job = await queue.get("poison")
    assert (job.status, job.reason, job.last_error) == (
        Status.DEAD,
        Reason.EXHAUSTED,
        "lease lost on last attempt",
    )
    assert starts(log)["poison"] == 3
    assert (await queue.stats()).done == 12
    order = [line.split()[1] for line in lines(log)]
    last = len(order) - 1 - order[::-1].index("poison")
    assert set(order[:last]) - {"poison"}


async def test_a_restart_under_the_same_name_rescues_its_predecessors_leases__kind_8_worker_identity_reused(
    queue, path, log
):
    await fill(queue, 3, kind="hang")
    with child(path, log, "lease_ms=500", "owner_prefix=node-1") as process:
        await until(lambda: len(lines(log)) == 3)
        process.kill()
    owners = {job.owner for job in await queue.list()}
    with child(path, log, "lease_ms=500", "owner_prefix=node-1") as process:
        await until(lambda: len(lines(log)) == 6)
        process.kill()
    jobs = await queue.list()
    assert {job.attempts for job in jobs} == {2}
    assert owners.isdisjoint({job.owner for job in jobs})
    assert all(job.owner.startswith("node-1-") for job in jobs)


async def test_two_processes_one_of_them_killed_in_flight_lose_nothing__kind_2(queue, path, log):
    ids = await fill(queue, 300)
    settings = ("lease_ms=500", "concurrency=8", "drain=1")
    await fill(queue, 8, "slow", kind="slow", priority=1)
    with child(path, log, *settings) as victim:
        await until(lambda: len(lines(log)) >= 8)
        with child(path, log, *settings) as survivor:
            victim.kill()
            assert await ended(survivor) == 0
    stats = await queue.stats()
    assert (stats.done, stats.total) == (308, 308)
    assert set(starts(log)) >= set(ids)


async def test_two_processes_do_each_job_once_and_the_counts_add_up(queue, path, log):
    ids = await fill(queue, 600)
    dispatcher = Dispatcher(queue, Hands(held=False), concurrency=8)
    with child(path, log, "concurrency=8", "drain=1") as one, child(path, log, "concurrency=8", "drain=1") as two:
        await drained(dispatcher)
        assert await ended(one) == await ended(two) == 0
    assert dispatcher.counts.done + len(lines(log)) == 600
    assert max(starts(log).values(), default=1) == 1
    assert {job.status for job in await queue.list(limit=1_000)} == {Status.DONE}
    assert {job.attempts for job in await queue.list(limit=1_000)} == {1}
    assert len(ids) == 600
