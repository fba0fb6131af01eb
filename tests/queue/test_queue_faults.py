"""Faults of other systems that concern a job's life as a whole."""

from asyncqueue.lifecycle import Reason, Status
from asyncqueue.retry import RetryPolicy

DAY_MS = 24 * 3600 * 1000


async def test_hidden_constant_does_not_end_a_retry_of_thirty_days__kind_24(queue, clock):
    """With capped backoff the attempts are counted right to the last day, and the job dies of its deadline."""
    policy = RetryPolicy(base_ms=1_000, cap_ms=3_600_000)
    await queue.enqueue("a", 1, ttl_ms=30 * DAY_MS, max_attempts=10_000)
    born = clock.now_ms()
    attempts = 0
    while claimed := await queue.claim("w"):
        attempts += 1
        assert (claimed[0].attempt, claimed[0].token) == (attempts, attempts)
        delay_ms = policy.delay_ms(attempts, 1.0)
        if await queue.finish(claimed[0], "retry", delay_ms=delay_ms) is Status.DEAD:
            break
        clock.advance(delay_ms)
    job = await queue.get("a")
    assert (job.status, job.reason, job.attempts) == (Status.DEAD, Reason.DEADLINE, attempts)
    assert attempts > 700
    assert clock.now_ms() - born > 29 * DAY_MS
