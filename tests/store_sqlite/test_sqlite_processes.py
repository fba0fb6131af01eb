"""Real processes on one file: no job twice, none lost, no fresh claim reaped; clocks and time zones do no harm."""

import asyncio
import json
import time

import pytest

from asyncqueue.clock import SystemClock
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

CLAIMER = """
import asyncio, json, sys
from asyncqueue.job import Report
from asyncqueue.queue import Queue, new_owner
async def main():
    async with Queue.open(sys.argv[1], patience_ms=60_000) as queue:
        print("ready", flush=True)
        sys.stdin.readline()
        owner, got = new_owner(), []
        while leased := await queue.claim(owner, limit=25, lease_ms=600_000):
            got += [(job.id, job.token) for job in leased]
            assert all(await queue.finish_many([Report.ok(job) for job in leased]))
        print(json.dumps(got), flush=True)
asyncio.run(main())
"""


async def test_four_processes_claim_two_thousand_jobs_each_once(path, spawn):
    """FAULTS 28, in short form: and no `locked` reaches any of them."""
    async with Queue.open(path, patience_ms=60_000) as queue:
        jobs = [NewJob(f"j{n}", 1, priority=n % 3) for n in range(2_000)]
        await queue.enqueue_many(jobs)
        claimers = [spawn(CLAIMER, path) for _ in range(4)]
        for claimer in claimers:
            assert await asyncio.to_thread(claimer.stdout.readline) == "ready\n"
        for claimer in claimers:
            claimer.stdin.write("go\n")
            claimer.stdin.flush()
        outputs = [await asyncio.to_thread(claimer.communicate) for claimer in claimers]
        got = [tuple(pair) for output, _ in outputs for pair in json.loads(output)]
        assert len(got) == len(set(got)) == 2_000
        assert {job_id for job_id, _ in got} == {job.id for job in jobs}
        assert {token for _, token in got} == {1}
        stats = await queue.stats()
        assert (stats.done, stats.total) == (2_000, 2_000)


SWEEPER = """
import asyncio, sys, threading
from asyncqueue.queue import Queue
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
async def main():
    sweeps = 0
    async with Queue.open(sys.argv[1], patience_ms=60_000) as queue:
        while not stop.is_set():
            assert await queue.sweep() == 0
            sweeps += 1
            if sweeps == 1:
                print("sweeping", flush=True)
    print(sweeps, flush=True)
asyncio.run(main())
"""


async def test_ten_thousand_claims_racing_a_sweeper_are_never_reaped__kind_5_swept_at_the_moment_of_starting(
    path, spawn
):
    """FAULTS 5: swept at the moment of starting. Each is on its last attempt, so that a sweep would kill it."""
    sweeper = None
    async with Queue.open(path, patience_ms=60_000) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1, max_attempts=1) for n in range(10_000)])
        sweeper = spawn(SWEEPER, path)
        assert await asyncio.to_thread(sweeper.stdout.readline) == "sweeping\n"
        done = 0
        while leased := await queue.claim("w", limit=100, lease_ms=600_000):
            answers = await queue.finish_many([Report.ok(job) for job in leased])
            assert answers == [Status.DONE] * len(leased)
            done += len(leased)
        output, _ = await asyncio.to_thread(sweeper.communicate, "stop\n")
        assert done == 10_000
        assert int(output) > 10
        assert sweeper.returncode == 0
        assert (await queue.stats()).dead == 0


ZONED = """
import asyncio, os, sys, time
time.tzset()
from asyncqueue.clock import ManualClock
from asyncqueue.queue import Queue
start_ms = 1_710_054_000_000  # 2024-03-10 07:00 UTC: New York's clocks have just jumped from 2 to 3
async def main():
    told = []
    for start in (start_ms - 600_000, start_ms, 1_730_613_600_000):
        clock = ManualClock(start)
        async with Queue.open(f"{sys.argv[1]}-{start}", clock=clock) as queue:
            await queue.enqueue("a", 1, delay_ms=1_200_000, ttl_ms=7_200_000)
            clock.advance(1_199_999)
            told.append(len(await queue.claim("w", lease_ms=3_600_000)))
            clock.advance(1)
            (leased,) = await queue.claim("w", lease_ms=3_600_000)
            clock.advance(3_599_999)
            told.append(len(await queue.claim("v")))
            clock.advance(1)
            (again,) = await queue.claim("v", lease_ms=9_000_000)
            told.append(again.lease_until - start)
            clock.advance(2_400_000)
            told.append((await queue.sweep(), str((await queue.get("a")).reason)))
    print(told, time.strftime("%Z"), flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC"])
def test_lease_due_and_deadline_behave_in_every_time_zone_as_under_utc(path, spawn, monkeypatch, zone):
    """FAULTS 37, over the change to summer time and back."""
    monkeypatch.setenv("TZ", zone)
    told, _, _name = spawn(ZONED, path).communicate()[0].rpartition(" ")
    assert told == str([0, 0, 7_200_000, (1, "deadline")] * 3)


@pytest.fixture
def wall(monkeypatch):
    """The host's wall clock, to be stepped by hand."""
    state = {"ms": 1_700_000_000_000}
    monkeypatch.setattr(time, "time_ns", lambda: state["ms"] * 1_000_000)
    return state


HOUR_MS = 3_600_000


async def test_clock_stepped_back_delays_but_loses_nothing(path, wall, no_sync):
    """FAULTS 38: -1 h."""
    async with Queue.open(path, clock=SystemClock()) as queue:
        await queue.enqueue("a", 1)
        await queue.enqueue("b", 1, delay_ms=10)
        (leased,) = await queue.claim("w", lease_ms=1_000)
        wall["ms"] -= HOUR_MS
        assert await queue.next_due_ms() == 10  # this process's own clock stands still meanwhile
        assert await queue.claim("w") == []
        assert await queue.renew(leased, 1_000) == leased.lease_until
        assert await queue.finish(leased, "ok") == Status.DONE
        wall["ms"] += HOUR_MS + 10
        assert [job.id for job in await queue.claim("w")] == ["b"]


async def test_process_started_after_a_step_back_waits_at_most_for_that_hour(path, wall, no_sync):
    async with Queue.open(path, clock=SystemClock()) as queue:
        await queue.enqueue("a", 1)
    wall["ms"] -= HOUR_MS
    async with Queue.open(path, clock=SystemClock()) as queue:
        assert await queue.claim("w") == []
        assert await queue.next_due_ms() == HOUR_MS
        wall["ms"] += HOUR_MS
        assert len(await queue.claim("w")) == 1


async def test_clock_stepped_forward_ends_leases_early_and_the_fence_makes_the_late_report_harmless(
    path, wall, no_sync
):
    """FAULTS 38: +1 h."""
    async with Queue.open(path, clock=SystemClock()) as queue:
        await queue.enqueue("a", 1)
        (old,) = await queue.claim("w1", lease_ms=1_000)
        wall["ms"] += HOUR_MS
        (new,) = await queue.claim("w2", lease_ms=1_000)
        assert new.token == old.token + 1
        assert await queue.finish(old, "ok") is None
        assert await queue.finish(new, "ok") == Status.DONE
        assert (await queue.stats()).done == 1


async def test_returning_rows_are_read_to_the_end_and_claims_are_counted_by_rows(path, plain, no_sync):
    """FAULTS 30: an undrained RETURNING cursor would keep the write lock."""
    async with Queue.open(path) as queue:
        await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(300)])
        assert len(await queue.claim("w", limit=250)) == 250
        probe = plain(path)
        probe.execute("BEGIN EXCLUSIVE")
        assert probe.execute("SELECT count(*) FROM jobs WHERE status = 'leased'").fetchone() == (250,)
