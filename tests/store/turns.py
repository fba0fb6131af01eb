"""The law of a claim over several queues, checked against a list of what was eligible."""

from collections import Counter


def assert_lawful_claim(taken, eligible, limit, name_of):
    """Check the ids that a claim took, in its order, against all eligible jobs (best first, with queue, priority).

    As many as there are, up to the limit; higher priorities first; each queue's own jobs in exact order; and
    within one priority no queue gets two more than another one that still had jobs to give.
    """
    by_id = {name_of(job): job for job in eligible}
    assert len(taken) == len(set(taken)) == min(limit, len(eligible))
    assert set(taken) <= set(by_id), "something was taken that was not eligible"
    jobs = [by_id[job_id] for job_id in taken]
    priorities = [job.priority for job in jobs]
    assert priorities == [job.priority for job in eligible][: len(taken)], (
        "a lower priority went before a higher one"
    )
    for name in {job.queue for job in eligible}:
        mine = [name_of(job) for job in jobs if job.queue == name]
        assert mine == [name_of(job) for job in eligible if job.queue == name][: len(mine)], "out of order"
    for priority in set(priorities):
        had = Counter(job.queue for job in eligible if job.priority == priority)
        got = Counter(job.queue for job in jobs if job.priority == priority)
        hungry = [got[name] for name in had if got[name] < had[name]]
        if hungry:
            assert max(got.values()) - min(hungry) <= 1, f"a queue was passed over: {got} of {had}"
