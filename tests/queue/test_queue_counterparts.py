"""The rules that every lease queue must keep, one test a rule, in the words of this project.

What a teacher of such a queue would demonstrate beside the rules, and what demonstrates it here:

- race: benchmarks/bench_claim_race.py, test_four_processes_never_claim_the_same_job
- crash: tests/system/soak.py, tests/dispatcher/test_dispatch_processes.py
- zombie: examples/leases.py, test_ok_of_the_old_holder_is_stale_after_a_takeover
- effect: benchmarks/bench_effects.py, tests/queue/test_queue_effects.py
- heartbeat: tests/dispatcher/test_dispatch_leases.py, test_lease_that_is_kept_alive_outlasts_its_first_span_and_ends_when_the_renewals_do
- retries: test_retry_waits_for_the_full_backoff_when_the_jitter_is_one, test_backoff_stops_growing_at_its_cap
- poison: tests/dispatcher/test_dispatch_processes.py, test_lease_that_ends_on_the_last_attempt_is_a_dead_letter_that_says_so
- indexes: benchmarks/bench_claim.py, benchmarks/bench_queues.py, tests/store_sqlite/test_sqlite_plans.py
- throughput: benchmarks/bench_dispatch.py, benchmarks/bench_effects.py
- operations: asyncqueue/cli/demo/story.py, tests/cli/test_cli_verbs.py
- chaos: tests/system/chaos.py, tests/system/test_chaos.py
"""  # noqa: E501 - names are not broken

import asyncio
import re
from pathlib import Path

import pytest

from asyncqueue.job import FailedAttempt, NewJob, Report
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.retry import Outcome, RetryPolicy, Verdict, decide

LEASE_MS = 30_000
ROOT = Path(__file__).parents[2]


def test_every_demonstration_of_the_map_exists():
    lines = [line for line in __doc__.splitlines() if line.startswith("- ")]
    assert len(lines) == 11
    for line in lines:
        _what, _, shown = line.partition(": ")
        for name in shown.split(", "):
            assert name in globals() or (re.search("/.+[.]py$", name) and (ROOT / name).is_file()), name


async def lease(queue, owner="w1", job_id="a"):
    await queue.enqueue(job_id, 1)
    return (await queue.claim(owner, lease_ms=LEASE_MS))[0]


async def take_over(queue, clock):
    first = await lease(queue)
    clock.advance(LEASE_MS)
    (second,) = await queue.claim("w2", lease_ms=LEASE_MS)
    return first, second


async def test_jobs_are_claimed_first_in_first_out(queue):
    """Ascending seq."""
    for job_id in ("c", "a", "b"):
        await queue.enqueue(job_id, 1)
    assert [leased.id for leased in await queue.claim("w", limit=3)] == ["c", "a", "b"]


async def test_claim_of_many_takes_no_more_than_its_limit(queue):
    """A set claim is bounded, and the next one goes on where it ended."""
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(5)])
    assert [leased.id for leased in await queue.claim("w", limit=2)] == ["j0", "j1"]
    assert [leased.id for leased in await queue.claim("w", limit=10)] == ["j2", "j3", "j4"]


async def test_second_enqueue_of_an_id_changes_nothing(queue):
    """The id is the idempotency key."""
    assert await queue.enqueue("k", 1) is True
    assert await queue.enqueue("k", 1) is False
    assert (await queue.stats()).total == 1


async def test_delayed_job_is_due_at_its_millisecond(queue, clock):
    """Not claimed before `available_at`."""
    await queue.enqueue("a", 1, delay_ms=60_000)
    clock.advance(59_999)
    assert await queue.claim("w") == []
    clock.advance(1)
    assert len(await queue.claim("w")) == 1


async def test_claim_grants_a_lease_counts_the_attempt_and_raises_the_token(queue, clock):
    """All in one statement."""
    leased = await lease(queue)
    assert (leased.attempt, leased.token, leased.lease_until) == (1, 1, clock.now_ms() + LEASE_MS)
    row = await queue.get("a")
    assert (row.status, row.owner, row.token) == (Status.LEASED, "w1", leased.token)


async def test_leased_job_is_hidden_until_the_millisecond_its_lease_ends(queue, clock):
    """At `now >= lease_until` the lease is gone."""
    await lease(queue)
    clock.advance(LEASE_MS - 1)
    assert await queue.claim("w2") == []
    clock.advance(1)
    assert len(await queue.claim("w2")) == 1


async def test_takeover_counts_again_and_issues_a_higher_token(queue, clock):
    """The fence."""
    first, second = await take_over(queue, clock)
    assert second.attempt == 2
    assert second.token > first.token


async def test_late_ok_counts_while_nobody_took_over_in_late_mode(opening, clock):
    """`late="accept"`; the default refuses it."""
    async with opening() as strict, opening(late="accept") as late:
        leased = await lease(late)
        clock.advance(45_000)
        assert await strict.finish(leased, "ok") is None
        assert await late.finish(leased, "ok") is Status.DONE


@pytest.mark.parametrize("mode", ["strict", "accept"])
async def test_ok_of_the_old_holder_is_stale_after_a_takeover(opening, clock, mode):
    """Whatever the mode."""
    async with opening(late=mode) as queue:
        first, second = await take_over(queue, clock)
        assert await queue.finish(first, "ok") is None
        assert (await queue.get("a")).status is Status.LEASED
        assert await queue.finish(second, "ok") is Status.DONE


async def test_stale_retry_does_not_bring_a_done_job_back(queue, clock):
    """Done stays done."""
    first, second = await take_over(queue, clock)
    assert await queue.finish(second, "ok") is Status.DONE
    assert await queue.finish(first, "retry", error="boom") is None
    assert (await queue.get("a")).status is Status.DONE
    assert await queue.claim("w3") == []


async def test_effect_commits_together_with_the_finish(queue, ledger, pays):
    """One transaction."""
    leased = await lease(queue)
    assert await queue.finish(leased, "ok", effect=pays(leased)) is Status.DONE
    assert ledger() == [("a", 1)]


async def test_effect_does_not_run_once_the_lease_is_lost(queue, clock):
    """A stale ticket changes nothing, anywhere."""
    first, _second = await take_over(queue, clock)
    ran = []

    async def effect(_connection):
        ran.append(1)

    assert await queue.finish(first, "ok", effect=effect) is None
    assert ran == []


async def test_failing_effect_is_undone_and_the_lease_is_kept_for_a_retry(queue, ledger, pays):
    """An honest retry follows."""
    leased = await lease(queue)
    with pytest.raises(RuntimeError, match="downstream"):
        await queue.finish(leased, "ok", effect=pays(leased, RuntimeError("downstream")))
    assert ledger() == []
    assert (await queue.get("a")).status is Status.LEASED
    assert await queue.finish(leased, "retry", error="downstream") is Status.PENDING


async def test_renewal_pushes_the_lease_out(queue, clock):
    """From now, not from its old end."""
    leased = await lease(queue)
    clock.advance(20_000)
    assert await queue.renew(leased, LEASE_MS) == clock.now_ms() + LEASE_MS
    clock.advance(LEASE_MS - 1)
    assert await queue.claim("w2") == []


async def test_renewal_after_a_takeover_tells_the_old_holder(queue, clock):
    """None: the lease is somebody else's."""
    first, second = await take_over(queue, clock)
    assert await queue.renew(first) is None
    assert await queue.renew(second) is not None


async def test_retry_waits_for_the_full_backoff_when_the_jitter_is_one(queue, clock):
    """base * 2**(attempt-1)."""
    policy = RetryPolicy(base_ms=2_000, cap_ms=60_000)
    await queue.enqueue("a", 1)
    for delay_ms in (2_000, 4_000):
        (leased,) = await queue.claim("w1")
        report = decide(leased, Outcome(Verdict.RETRY, error="boom"), policy, lambda: 1.0)
        assert await queue.finish_many([report]) == [Status.PENDING]
        assert (await queue.get("a")).available_at == clock.now_ms() + delay_ms
        clock.advance(delay_ms)


async def test_backoff_stops_growing_at_its_cap(queue, clock):
    """Nine attempts in a row."""
    policy = RetryPolicy(base_ms=2_000, cap_ms=60_000)
    await queue.enqueue("a", 1, max_attempts=30)
    delays = []
    for _ in range(9):
        (leased,) = await queue.claim("w")
        await queue.finish_many([decide(leased, Outcome(Verdict.RETRY), policy, lambda: 1.0)])
        delays.append((await queue.get("a")).available_at - clock.now_ms())
        clock.advance(100_000)
    assert delays == [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000, 60_000]


async def test_retry_of_the_last_attempt_is_a_dead_letter_with_its_error(queue):
    """Reason `exhausted`."""
    await queue.enqueue("a", 1, max_attempts=3)
    for expected in (Status.PENDING, Status.PENDING, Status.DEAD):
        (leased,) = await queue.claim("w1")
        assert await queue.finish_many([Report.retry(leased, 0, FailedAttempt("boom"))]) == [expected]
    row = await queue.get("a")
    assert (row.reason, row.last_error) == (Reason.EXHAUSTED, "boom")


async def test_lease_that_ends_on_the_last_attempt_is_a_dead_letter_that_says_so(queue, clock):
    """A holder that crashes each time."""
    await queue.enqueue("a", 1, max_attempts=3)
    for _ in range(3):
        assert len(await queue.claim("w1", lease_ms=LEASE_MS)) == 1
        clock.advance(LEASE_MS)
    assert await queue.claim("w2") == []
    row = await queue.get("a")
    assert (row.status, row.attempts, row.last_error) == (Status.DEAD, 3, "lease lost on last attempt")


async def test_stats_tell_what_is_ready_what_expired_and_how_long_it_waits(queue, clock):
    """Pending and due; leased with its lease gone; the oldest one's wait."""
    await queue.enqueue_many([NewJob(f"j{n}", 1) for n in range(4)])
    await queue.enqueue("late", 1, delay_ms=600_000)
    (first,) = await queue.claim("w")
    await queue.finish(first, "ok")
    await queue.claim("w", lease_ms=LEASE_MS)
    clock.advance(LEASE_MS + 1_000)
    stats = await queue.stats(detail=True)
    assert (stats.pending, stats.leased, stats.dead, stats.done) == (3, 1, 0, 1)
    assert (stats.ready, stats.expired) == (2, 1)
    assert stats.lag_ms == LEASE_MS + 1_000


async def test_redrive_of_the_dead_gives_fresh_attempts(queue):
    """The token goes on."""
    await queue.enqueue("a", 1, max_attempts=1)
    (leased,) = await queue.claim("w1")
    await queue.finish(leased, "retry")
    assert await queue.redrive_many(note="again") == 1
    (again,) = await queue.claim("w1")
    assert (again.attempt, again.token) == (1, 2)


async def test_four_processes_never_claim_the_same_job(queue, url, spawn):
    """Three hundred jobs, each claimed once."""
    await queue.enqueue_many([NewJob(f"j{n:03}", 1, ttl_ms=10 * 366 * 24 * 3_600_000) for n in range(300)])
    code = """
        import asyncio, sys
        from asyncqueue import Queue
        from asyncqueue.clock import ManualClock
        async def main():
            async with Queue.open(sys.argv[1], clock=ManualClock()) as queue:
                print("ready", flush=True)
                sys.stdin.readline()
                mine = []
                while leased := await queue.claim(f"w{sys.argv[2]}", limit=int(sys.argv[2]) % 3 + 1):
                    mine += [job.id for job in leased]
                print(*mine, flush=True)
        asyncio.run(main())
        """
    children = [spawn(code, url, n) for n in range(4)]
    assert [child.stdout.readline() for child in children] == ["ready\n"] * 4
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    claims = [child.communicate()[0].split() for child in children]
    assert sorted(job_id for claimed in claims for job_id in claimed) == [f"j{n:03}" for n in range(300)]


async def test_lease_that_is_kept_alive_outlasts_its_first_span_and_ends_when_the_renewals_do(
    queue, opening, clock
):
    """Two and a half lease lengths, renewed every third."""
    leased = await lease(queue)
    async with opening() as other:
        for _ in range(8):
            clock.advance(LEASE_MS // 3)
            assert await other.claim("w2") == []
            assert await queue.renew(leased, LEASE_MS) is not None
        clock.advance(LEASE_MS - 1)
        assert await other.claim("w2") == []
        clock.advance(1)
        (taken,) = await other.claim("w2")
        assert taken.token == 2
    assert await queue.renew(leased) is None


async def test_two_holders_that_report_at_once_have_one_outcome(queue, clock):
    """FAULTS 2: exactly one of two final outcomes counts."""
    first, second = await take_over(queue, clock)
    answers = await asyncio.gather(queue.finish(first, "permanent", error="x"), queue.finish(second, "ok"))
    assert answers == [None, Status.DONE]
    assert await queue.history("a") == [row for row in await queue.history("a") if row.what == "lost"]
