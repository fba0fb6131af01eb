"""The endpoint's rest: nothing is burnt by a misconfigured endpoint, and one probe asks whether it is back."""

import asyncio

import pytest
from dispatch_support import OK, Log, Scripted, Verbs, drained, fill, passes, running, until

from asyncqueue.dispatcher import Dispatcher, rest
from asyncqueue.dispatcher.rest import EndpointRest
from asyncqueue.events import Held, Released
from asyncqueue.lifecycle import Status
from asyncqueue.retry import Certainty, Outcome, RetryPolicy, Verdict

HOLD = Outcome(Verdict.HOLD, Certainty.REFUSED, "401 Unauthorized", 401)
LEAVE = Outcome(Verdict.LEAVE, Certainty.UNKNOWN, "a login page")
RETRY = Outcome(Verdict.RETRY, Certainty.UNKNOWN, "500")
PERMANENT = Outcome(Verdict.PERMANENT, Certainty.REFUSED, "422")
QUICK = RetryPolicy(base_ms=1, cap_ms=1)


def asked(seconds: float) -> Outcome:
    return Outcome(Verdict.RETRY, Certainty.REFUSED, "503", 503, round(seconds * 1000))


@pytest.fixture(autouse=True)
def short_rests(monkeypatch):
    monkeypatch.setattr(rest, "_FIRST_PAUSE_S", 0.2)


async def test_a_held_job_goes_back_unburnt_and_claims_rest(queue):
    await fill(queue, 3)
    sender, log = Scripted(HOLD), Log()
    dispatcher = Dispatcher(queue, sender, concurrency=1, policy=QUICK, events=log.events)
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.released == 1)
        job = await queue.get(sender.sent[0][0])
        assert (job.status, job.attempts, job.token, job.last_error) == (Status.PENDING, 0, 1, "401 Unauthorized")
        verbs, rest_left = Verbs(queue, "claim_late"), dispatcher._lanes[0].rest.remaining_s
        left_at_claims: list[float] = []
        verbs.errors["claim_late"] = lambda: left_at_claims.append(rest_left())
        await queue.enqueue("nudge", 1)
        await passes(dispatcher, "claim")
        assert dispatcher.health().ok
        await until(lambda: dispatcher.counts.done == 4)
    assert left_at_claims
    assert not any(left_at_claims)
    (first, second, *_) = [at for _id, at in sender.sent]
    assert second - first >= 0.2
    assert [event.pause_ms for event in log.of(Held)] == [200]
    assert log.of(Released)


async def test_many_in_flight_start_one_rest_and_one_probe_follows_it(queue):
    await fill(queue, 20)
    all_eight, release = asyncio.Event(), asyncio.Event()
    sent, answers = [], [HOLD] * 9

    class Sender:
        async def send(self, job):
            sent.append(job.id)
            if len(sent) == 8:
                all_eight.set()
            await (all_eight if len(sent) <= 8 else release).wait()
            return answers.pop() if answers else OK

    log = Log()
    dispatcher = Dispatcher(queue, Sender(), concurrency=8, policy=QUICK, events=log.events)
    async with running(dispatcher):
        await until(lambda: len(sent) == 9)  # eight, a rest, then the probe
        await passes(dispatcher, "claim")
        assert len(sent) == 9  # one at a time while its answer is out
        assert dispatcher.in_flight == 1
        assert dispatcher.health().ok
        release.set()  # that probe is refused as well: a longer rest
        await until(lambda: len(log.of(Held)) == 2)
        await until(lambda: dispatcher.counts.done == 20)
    assert [event.pause_ms for event in log.of(Held)] == [200, 400]
    assert all(job.attempts == 1 for job in await queue.list(status="done"))


async def test_a_success_opens_all_slots_again(queue):
    await fill(queue, 12)
    sender = Scripted(HOLD)
    dispatcher = Dispatcher(queue, sender, concurrency=4, policy=QUICK)
    await drained(dispatcher)
    assert dispatcher._lanes[0].rest.limit(4, 0) == 4
    assert dispatcher.counts.done == 12


async def test_a_wish_rests_the_whole_endpoint(queue):
    await fill(queue, 4)
    sender, log = Scripted(asked(0.4)), Log()
    dispatcher = Dispatcher(queue, sender, concurrency=1, policy=QUICK, events=log.events)
    await drained(dispatcher)
    assert sender.sent[1][1] - sender.sent[0][1] >= 0.39
    assert [event.pause_ms for event in log.of(Held)] == [400]
    assert (dispatcher.counts.done, dispatcher.counts.retried) == (4, 1)


async def test_three_wrong_acks_in_a_row_rest_the_endpoint_and_leave_the_leases(queue):
    await fill(queue, 6)
    sender, log = Scripted(LEAVE, LEAVE, OK, LEAVE, LEAVE, LEAVE), Log()
    dispatcher = Dispatcher(queue, sender, concurrency=1, events=log.events)
    async with running(dispatcher):
        await until(lambda: log.of(Held))
        assert len(sender.sent) == 6
        stats = await queue.stats()
        assert (stats.leased, stats.done) == (5, 1)


async def test_rests_grow_to_a_cap_and_a_wish_is_clamped(monkeypatch):
    monkeypatch.setattr(rest, "_FIRST_PAUSE_S", 1.0)
    endpoint = EndpointRest()
    pauses = []
    for _ in range(12):
        pauses.append(endpoint.note(HOLD))
        endpoint._until = 0
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30]
    assert endpoint.note(asked(1e9)) == 60


async def test_faults_of_those_in_flight_do_not_prolong_a_rest_but_their_wishes_do():
    endpoint = EndpointRest()
    assert endpoint.note(HOLD) == 0.2
    assert endpoint.note(HOLD) is None
    assert endpoint.note(asked(0.01)) is None
    assert endpoint.note(asked(5)) == 5
    assert 4.9 < endpoint.remaining_s() <= 5
    assert endpoint._faults == 1


async def test_plain_retries_and_job_faults_rest_nobody():
    endpoint = EndpointRest()
    for outcome in (RETRY, PERMANENT, RETRY) * 5:
        assert endpoint.note(outcome) is None
    assert endpoint.limit(8, 0) == 8
