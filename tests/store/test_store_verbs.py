"""The law of `stores.base`, verb by verb: answers item by item, boundaries, stale tickets, history."""

import asyncio
import dataclasses

import pytest

from asyncqueue.errors import Conflict, InvalidJob, NotDead, StoreClosed
from asyncqueue.job import FailedAttempt, NewJob, Note, Redrive, Release, Renew, Report, Ticket, encode_payload
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores.base import Claim, JobFilter

LEASE_MS = 1_000


def job(job_id="a", qty=1, **fields):
    return NewJob(job_id, qty, **fields)


async def put(store, *jobs):
    return await store.write(lambda transaction: transaction.enqueue(jobs))


async def take(store, limit=1, owner="w1", lease_ms=LEASE_MS, queues=None):
    return await store.write(lambda transaction: transaction.claim(Claim(owner, limit, lease_ms, queues)))


async def report(store, *reports):
    return await store.write(lambda transaction: transaction.finish(reports))


async def renew(store, *renewals):
    return await store.write(lambda transaction: transaction.renew(renewals))


async def release(store, *releases):
    return await store.write(lambda transaction: transaction.release(releases))


async def redrive(store, *redrives):
    return await store.write(lambda transaction: transaction.redrive(redrives))


async def sweep(store, limit=100):
    return await store.write(lambda transaction: transaction.sweep(limit))


async def row(store, job_id="a"):
    return (await store.get([job_id]))[0]


def ticket_of(leased):
    return Ticket(leased.id, leased.qty, leased.owner, leased.token, leased.attempt, leased.lease_until)


STALE = {
    "wrong token": {"token": 2},
    "older token": {"token": 0},
    "wrong owner": {"owner": "w2"},
    "wrong quantity": {"qty": 2},
    "wrong attempt": {"attempt": 2},
    "unknown id": {"id": "b"},
}

# --- enqueue -----------------------------------------------------------------------------------------


async def test_enqueue_answers_item_by_item_and_seq_rises_in_the_order_given(store):
    assert await put(store, job("c"), job("a"), job("b")) == [True, True, True]
    assert [found.id for found in await store.list_jobs(JobFilter())] == ["c", "a", "b"]
    assert await put(store, job("a"), job("d"), job("b")) == [False, True, False]
    assert [found.id for found in await store.list_jobs(JobFilter())] == ["c", "a", "b", "d"]


async def test_enqueue_writes_every_field_of_the_row(store, clock):
    fields = {"payload": '{"x":1}', "queue": "q", "kind": "k", "priority": -3}
    await put(store, job(qty=7, delay_ms=5, ttl_ms=50, max_attempts=4, **fields))
    found = await row(store)
    assert dataclasses.asdict(found) == {
        "seq": 1,
        "id": "a",
        "qty": 7,
        "status": "pending",
        "attempts": 0,
        "max_attempts": 4,
        "token": 0,
        "available_at": clock.now_ms() + 5,
        "deadline": clock.now_ms() + 50,
        "owner": None,
        "lease_until": None,
        "reason": None,
        "created_at": clock.now_ms(),
        "finished_at": None,
        "last_error": None,
        **fields,
    }


async def test_duplicates_in_one_set_are_answered_in_order_and_the_first_one_counts(store):
    answers = await put(store, job(qty=1), job(qty=1), job(qty=2), job("b"), job(qty=1))
    assert answers[:2] == [True, False]
    assert isinstance(answers[2], Conflict)
    assert answers[3:] == [True, False]
    assert (await row(store)).qty == 1


async def test_same_job_again_changes_nothing_whatever_budget_it_offers(store, clock):
    await put(store, job())
    before = await row(store)
    clock.advance(10)
    assert await put(store, job(ttl_ms=9, max_attempts=1, priority=9, delay_ms=3)) == [False]
    assert await row(store) == before


@pytest.mark.parametrize(
    ("offered", "fields"),
    [
        ({"qty": 2}, ("qty",)),
        ({"queue": "other"}, ("queue",)),
        ({"kind": "other"}, ("kind",)),
        ({"payload": "1.0"}, ("payload",)),
        ({"payload": "true"}, ("payload",)),
        ({"payload": '"1"'}, ("payload",)),
        ({"payload": None}, ("payload",)),
        ({"qty": 2, "kind": "x", "payload": "2"}, ("qty", "kind", "payload")),
    ],
)
async def test_conflict_names_the_fields_that_differ_and_fails_no_other_item(store, offered, fields):
    await put(store, job(payload="1"))
    before = await row(store)
    conflict, other = await put(store, job(**{"payload": "1", **offered}), job("b"))
    assert isinstance(conflict, Conflict)
    assert (conflict.job_id, conflict.fields, other) == ("a", fields, True)
    assert all(name in str(conflict) for name in fields)
    assert await row(store) == before


@pytest.mark.parametrize(
    "payload", [{"b": 1, "a": [None, "é\u2028\u0000\\", 1e300]}, "", 0, False, [], "\U0001f600"]
)
async def test_payload_comes_back_as_it_was_enqueued(queue, payload):
    assert await queue.enqueue("a", 1, payload=payload)
    assert not await queue.enqueue("a", 1, payload=payload)
    (leased,) = await queue.claim("w")
    assert leased.payload == encode_payload(payload) == (await queue.get("a")).payload


async def test_ids_that_look_alike_are_different_jobs(queue):
    alike = ["a", "A", "1", "01", "1-0", "_", "-", "a" * 64]
    assert [await queue.enqueue(job_id, 1) for job_id in alike] == [True] * len(alike)
    assert [(await queue.get(job_id)).id for job_id in alike] == alike


# --- claim -------------------------------------------------------------------------------------------


async def test_claim_writes_state_token_attempt_owner_and_lease_together(store, clock):
    await put(store, job(qty=3, payload="[1]", queue="q", kind="k", priority=2, max_attempts=5, ttl_ms=9_000))
    (leased,) = await take(store)
    assert dataclasses.asdict(leased) == {
        "id": "a",
        "qty": 3,
        "owner": "w1",
        "token": 1,
        "attempt": 1,
        "lease_until": clock.now_ms() + LEASE_MS,
        "queue": "q",
        "kind": "k",
        "payload": "[1]",
        "priority": 2,
        "max_attempts": 5,
        "deadline": clock.now_ms() + 9_000,
        "lease_ms": LEASE_MS,
    }
    found = await row(store)
    assert (found.status, found.token, found.attempts, found.owner) == (Status.LEASED, 1, 1, "w1")
    assert found.lease_until == leased.lease_until


async def test_job_is_claimed_from_the_millisecond_it_is_due(store, clock):
    await put(store, job(delay_ms=10))
    clock.advance(9)
    assert await take(store) == []
    clock.advance(1)
    assert [leased.id for leased in await take(store)] == ["a"]


async def test_lease_covers_no_waiting_time_of_a_delayed_job(store, clock):
    """FAULTS 7: nobody leases a far-future job early."""
    await put(store, *(job(f"j{n}", delay_ms=3_600_000) for n in range(3)))
    for _ in range(3):
        clock.advance(1_199_999)
        assert await take(store, 10) == []
    clock.advance(3)
    assert len(await take(store, 10)) == 3
    assert await take(store, 10) == []


async def test_lease_is_another_holders_until_the_millisecond_it_ends(store, clock):
    await put(store, job())
    await take(store)
    clock.advance(LEASE_MS - 1)
    assert await take(store, owner="w2") == []
    clock.advance(1)
    (again,) = await take(store, owner="w2")
    assert (again.token, again.attempt, again.owner) == (2, 2, "w2")


async def test_lease_of_a_claim_never_passes_the_deadline(store, clock):
    await put(store, job(ttl_ms=500))
    (leased,) = await take(store, lease_ms=LEASE_MS)
    assert leased.lease_until == leased.deadline == clock.now_ms() + 500


async def test_job_dies_of_its_deadline_at_that_millisecond(store, clock):
    await put(store, job(ttl_ms=500), job("b", ttl_ms=501))
    clock.advance(500)
    assert [leased.id for leased in await take(store, 5)] == ["b"]
    found = await row(store)
    assert (found.status, found.reason, found.finished_at) == (Status.DEAD, Reason.DEADLINE, clock.now_ms())
    assert found.token == found.attempts == 0


async def test_lease_that_ends_with_the_deadline_is_no_lost_last_attempt(store, clock):
    await put(store, job(ttl_ms=500))
    await take(store)
    clock.advance(500)
    assert await sweep(store) == 1
    found = await row(store)
    assert (found.reason, found.last_error) == (Reason.DEADLINE, None)


async def test_crash_on_the_last_attempt_makes_a_dead_letter_not_an_eternal_lease(store, clock):
    """FAULTS 14: nobody reports on the third attempt; there is no fourth."""
    await put(store, job(max_attempts=3))
    for attempt in (1, 2, 3):
        (leased,) = await take(store)
        assert leased.attempt == attempt
        clock.advance(LEASE_MS)
    assert await take(store) == []
    found = await row(store)
    assert (found.status, found.reason, found.attempts, found.token) == (Status.DEAD, Reason.EXHAUSTED, 3, 3)
    assert found.last_error == "lease lost on last attempt"
    assert (found.owner, found.lease_until) == (None, None)


async def test_lost_last_lease_is_told_although_an_earlier_attempt_had_an_error(store, clock):
    await put(store, job(max_attempts=2))
    (leased,) = await take(store)
    await report(store, Report.retry(leased, 0, FailedAttempt("503")))
    assert (await row(store)).last_error == "503"
    await take(store)
    clock.advance(LEASE_MS)
    assert await sweep(store) == 1
    assert (await row(store)).last_error == "lease lost on last attempt"


async def test_lease_that_ends_with_the_deadline_is_no_lost_attempt_and_keeps_the_error_before_it(store, clock):
    await put(store, job(ttl_ms=500))
    (leased,) = await take(store)
    await report(store, Report.retry(leased, 0, FailedAttempt("503")))
    await take(store)
    clock.advance(500)
    assert await sweep(store) == 1
    found = await row(store)
    assert (found.reason, found.finished_at, found.last_error) == (Reason.DEADLINE, clock.now_ms(), "503")


async def test_poison_job_is_dead_after_its_attempts_and_others_run_between(store, clock):
    """FAULTS 15: attempts are counted by the claim, so a worker that dies each time uses them up."""
    await put(store, job("poison", max_attempts=4), job("good"))
    starts = []
    for _ in range(6):
        leased = await take(store, 2)
        starts += [one.id for one in leased]
        await report(store, *(Report.ok(one) for one in leased if one.id == "good"))
        clock.advance(LEASE_MS)
    assert starts.count("poison") == 4
    assert starts.count("good") == 1
    assert (await row(store, "poison")).reason == Reason.EXHAUSTED


async def test_claim_takes_at_most_its_limit_and_only_from_its_queues(store):
    await put(store, *(job(f"{queue}{n}", queue=queue) for n in range(4) for queue in ("x", "y", "z")))
    assert {leased.id for leased in await take(store, 2, queues=("z", "x"))} == {"x0", "z0"}
    assert [leased.id for leased in await take(store, 9, queues=("y", "y", "none"))] == ["y0", "y1", "y2", "y3"]
    assert await take(store, 9, queues=()) == []
    assert len(await take(store, 99)) == 6


async def test_claim_answers_highest_priority_first_over_all_queues(store):
    await put(
        store, job("a", queue="q2"), job("b", priority=5, queue="q1"), job("c", priority=6, queue="q3"), job("d")
    )
    assert [leased.id for leased in await take(store, 9)][:2] == ["c", "b"]


async def test_claim_buries_a_bounded_number_of_dead_jobs_and_still_finds_the_living(store, clock):
    await put(store, *(job(f"old{n}", ttl_ms=10) for n in range(9_000)), job("young"))
    clock.advance(10)
    assert [leased.id for leased in await take(store)] == ["young"]
    dead = (await store.stats()).dead
    assert 0 < dead < 9_000
    await take(store)
    await take(store)
    assert (await store.stats()).dead == 9_000


async def test_job_without_attempts_left_is_never_claimed_though_too_many_are_to_be_buried_at_once(
    store, raw, clock
):
    await put(store, *(job(f"spent{n}", max_attempts=1) for n in range(9_000)), job("fresh"))
    raw.execute("UPDATE jobs SET attempts = 1 WHERE id LIKE 'spent%'")
    assert [leased.id for leased in await take(store, 9)] == ["fresh"]


async def test_paused_queue_is_passed_over(store, raw):
    await put(store, job("a", queue="held"), job("b"))
    raw.execute("INSERT INTO queues (name, paused) VALUES ('held', true)")
    assert [leased.id for leased in await take(store, 5)] == ["b"]
    raw.execute("UPDATE queues SET paused = false")
    assert [leased.id for leased in await take(store, 5)] == ["a"]


# --- finish ------------------------------------------------------------------------------------------


async def test_ok_makes_the_job_done_and_clears_the_lease(store, clock):
    await put(store, job())
    (leased,) = await take(store)
    clock.advance(5)
    assert await report(store, Report.ok(leased)) == [Status.DONE]
    found = await row(store)
    assert (found.status, found.reason, found.owner, found.lease_until) == (Status.DONE, None, None, None)
    assert (found.finished_at, found.token, found.attempts) == (clock.now_ms(), 1, 1)


async def test_retry_waits_for_its_delay_and_counts_on(store, clock):
    await put(store, job())
    (leased,) = await take(store)
    assert await report(store, Report.retry(leased, 50, FailedAttempt("boom"))) == [Status.PENDING]
    found = await row(store)
    assert (found.reason, found.available_at, found.finished_at) == (Reason.RETRY, clock.now_ms() + 50, None)
    assert (found.last_error, found.owner) == ("boom", None)
    clock.advance(50)
    (again,) = await take(store)
    assert (again.token, again.attempt) == (2, 2)
    assert (await row(store)).reason is None


@pytest.mark.parametrize(("delay_ms", "status"), [(499, Status.PENDING), (500, Status.DEAD), (501, Status.DEAD)])
async def test_retry_that_would_miss_the_deadline_is_dead(store, delay_ms, status):
    await put(store, job(ttl_ms=500))
    (leased,) = await take(store, lease_ms=100)
    assert await report(store, Report.retry(leased, delay_ms)) == [status]
    assert (await row(store)).reason == (Reason.RETRY if status == Status.PENDING else Reason.DEADLINE)


async def test_retry_of_the_last_attempt_is_exhausted_even_past_its_time(store):
    await put(store, job(max_attempts=1, ttl_ms=500))
    (leased,) = await take(store)
    assert await report(store, Report.retry(leased, 9_999)) == [Status.DEAD]
    assert (await row(store)).reason == Reason.EXHAUSTED


async def test_permanent_is_dead_at_once(store):
    await put(store, job())
    (leased,) = await take(store)
    assert await report(store, Report.permanent(leased, FailedAttempt("422"))) == [Status.DEAD]
    found = await row(store)
    assert (found.reason, found.last_error, found.attempts) == (Reason.PERMANENT, "422", 1)


@pytest.mark.parametrize("wrong", STALE.values(), ids=STALE.keys())
@pytest.mark.parametrize("verb", ["ok", "retry", "permanent", "renew", "release"])
async def test_stale_ticket_changes_nothing_and_fails_no_other_item(store, verb, wrong):
    await put(store, job("a"), job("z"))
    mine, other = await take(store, 2)
    stale = dataclasses.replace(ticket_of(mine), **wrong)
    before = await row(store, "a")
    answers = await _say(store, verb, stale, other)
    assert not answers[0]
    assert answers[1]
    assert await row(store, "a") == before


async def _say(store, verb, *tickets):
    if verb == "renew":
        return await renew(store, *(Renew(ticket, 5_000) for ticket in tickets))
    if verb == "release":
        return await release(store, *(Release(ticket) for ticket in tickets))
    return await report(store, *(Report(ticket, verb) for ticket in tickets))


@pytest.mark.parametrize("verb", ["ok", "retry", "permanent", "renew", "release"])
async def test_report_is_taken_in_the_last_millisecond_of_the_lease_and_not_after(store, clock, verb):
    await put(store, job("a"), job("b"))
    first, second = await take(store, 2)
    clock.advance(LEASE_MS - 1)
    assert all(await _say(store, verb, first))
    clock.advance(1)
    before = await row(store, "b")
    assert not any(await _say(store, verb, second))
    assert await row(store, "b") == before


@pytest.mark.parametrize("status", ["pending", "done", "dead"])
@pytest.mark.parametrize("verb", ["ok", "retry", "permanent", "renew", "release"])
async def test_report_on_a_job_that_is_not_leased_is_stale(store, verb, status):
    await put(store, job())
    (leased,) = await take(store)
    last = {"pending": Report.retry(leased, 0), "done": Report.ok(leased), "dead": Report.permanent(leased)}[
        status
    ]
    await report(store, last)
    before = await row(store)
    assert not any(await _say(store, verb, leased))
    assert await row(store) == before


async def test_lease_until_of_a_ticket_is_not_compared_since_renewals_move_it(store):
    await put(store, job())
    (leased,) = await take(store)
    await renew(store, Renew(leased, 9_000))
    assert await report(store, Report.ok(leased)) == [Status.DONE]


async def test_late_report_is_taken_in_late_mode_while_nobody_took_over(late_store, clock):
    await put(late_store, job("a"), job("b"), job("c"))
    a, b, c = await take(late_store, 3)
    clock.advance(LEASE_MS)
    assert await report(late_store, Report.ok(a)) == [Status.DONE]
    assert await report(late_store, Report.retry(b, 10)) == [Status.PENDING]
    (taken,) = await take(late_store, owner="w2")
    assert taken.id == "c"
    assert await report(late_store, Report.ok(c)) == [None]
    assert await report(late_store, Report.ok(taken)) == [Status.DONE]


async def test_late_mode_takes_an_ok_after_the_deadline_but_not_after_the_sweep(late_store, clock):
    await put(late_store, job("a", ttl_ms=500), job("b", ttl_ms=500))
    a, b = await take(late_store, 2)
    clock.advance(500)
    assert await report(late_store, Report.ok(a)) == [Status.DONE]
    assert await sweep(late_store) == 1
    assert await report(late_store, Report.ok(b)) == [None]
    assert (await row(late_store, "b")).reason == Reason.DEADLINE


async def test_two_finishes_of_one_job_in_one_set_give_one_outcome(store, raw):
    """FAULTS 2: two final outcomes for one job."""
    await put(store, job())
    (leased,) = await take(store)
    answers = await report(store, Report.permanent(leased, FailedAttempt("x")), Report.ok(leased))
    assert answers == [Status.DEAD, None]
    assert (await row(store)).status == Status.DEAD
    assert raw.select("SELECT outcome FROM attempts") == [("permanent",)]


@pytest.mark.parametrize("verb", ["ok", "retry", "permanent", "renew", "release"])
async def test_stale_report_in_the_same_set_does_not_hide_the_holders_own(store, clock, verb):
    """FAULTS 2: group commit puts the old holder's report and the new holder's into one set."""
    await put(store, job())
    (old,) = await take(store, owner="w1")
    clock.advance(LEASE_MS)
    (new,) = await take(store, owner="w2")
    answers = await _say(store, verb, old, new)
    assert not answers[0]
    assert answers[1]


async def test_forged_ticket_with_the_right_token_in_the_same_set_does_not_hide_the_holders_own(store):
    await put(store, job())
    (leased,) = await take(store)
    forged = dataclasses.replace(ticket_of(leased), owner="thief")
    assert await report(store, Report.permanent(forged), Report.ok(leased)) == [None, Status.DONE]


async def test_late_finish_of_a_stale_holder_and_the_new_holders_outcome_give_one_outcome(store, clock, raw):
    """FAULTS 2, over two transactions."""
    await put(store, job())
    (old,) = await take(store, owner="w1")
    clock.advance(LEASE_MS)
    (new,) = await take(store, owner="w2")
    assert await report(store, Report.ok(old)) == [None]
    assert await report(store, Report.permanent(new, FailedAttempt("no"))) == [Status.DEAD]
    assert await report(store, Report.ok(old)) == [None]
    assert raw.select("SELECT token, outcome FROM attempts ORDER BY seq") == [(1, "lost"), (2, "permanent")]
    stats = await store.stats()
    assert (stats.total, stats.dead) == (1, 1)


async def test_reports_with_and_without_effects_in_one_set_are_answered_in_their_order(store):
    await put(store, *(job(name) for name in "abcde"))
    a, b, c, d, e = await take(store, 5)
    seen = []

    async def effect(_connection):
        seen.append("ran")

    answers = await report(
        store, Report.ok(a), Report.permanent(b), Report.ok(c, effect), Report.retry(d, 0), Report.ok(e, effect)
    )
    assert answers == [Status.DONE, Status.DEAD, Status.DONE, Status.PENDING, Status.DONE]
    assert seen == ["ran"] * 2


# --- renew -------------------------------------------------------------------------------------------


async def test_renew_pushes_the_lease_out_from_now_but_never_past_the_deadline_nor_back(store, clock):
    await put(store, job(ttl_ms=5_000))
    (leased,) = await take(store)
    start = clock.now_ms()
    clock.advance(500)
    assert await renew(store, Renew(leased, 1_000)) == [start + 1_500]
    assert await renew(store, Renew(leased, 10)) == [start + 1_500]
    assert await renew(store, Renew(leased, 99_999)) == [start + 5_000]
    found = await row(store)
    assert (found.lease_until, found.token, found.attempts) == (found.deadline, 1, 1)


async def test_two_renewals_of_one_job_in_one_set_are_both_answered(store, clock):
    await put(store, job())
    (leased,) = await take(store)
    now = clock.now_ms()
    assert await renew(store, Renew(leased, 2_000), Renew(leased, 3_000), Renew(leased, 1)) == [
        now + 2_000,
        now + 3_000,
        now + 3_000,
    ]


# --- release -----------------------------------------------------------------------------------------


async def test_release_refunds_the_attempt_but_not_the_token(store, clock):
    await put(store, job(max_attempts=1))
    for token in (1, 2, 3):
        (leased,) = await take(store)
        assert (leased.token, leased.attempt) == (token, 1)
        assert await release(store, Release(leased, 10)) == [True]
        found = await row(store)
        assert (found.status, found.attempts, found.token, found.reason) == (Status.PENDING, 0, token, None)
        assert found.available_at == clock.now_ms() + 10
        assert await take(store) == []
        clock.advance(10)


async def test_two_releases_of_one_job_in_one_set_refund_one_attempt(store, raw):
    await put(store, job())
    (leased,) = await take(store)
    answers = await release(store, Release(leased, 0, FailedAttempt("held", "not-sent", 404)), Release(leased))
    assert answers == [True, False]
    assert (await row(store)).attempts == 0
    assert raw.select("SELECT outcome, certainty, error, http_status FROM attempts") == [
        ("release", "not-sent", "held", 404)
    ]


# --- cancel ------------------------------------------------------------------------------------------


async def test_cancel_answers_each_of_a_set_with_what_it_found_there(store):
    await put(store, job("running"), job("ended"), job("waiting"))
    _running, ended = await take(store, 2)
    await report(store, Report.ok(ended))
    ids = ["waiting", "ended", "ghost", "running"] * 2
    answers = await store.write(lambda transaction: transaction.cancel(ids))
    assert answers[:4] == [Status.PENDING, Status.DONE, None, Status.LEASED]
    assert answers[4:] == [Status.DEAD, Status.DONE, None, Status.DEAD]


# --- redrive -----------------------------------------------------------------------------------------


async def dead_job(store, job_id="a", **fields):
    await put(store, job(job_id, **fields))
    (leased,) = await take(store)
    await report(store, Report.permanent(leased, FailedAttempt("no")))
    return leased


async def test_redrive_gives_a_fresh_budget_keeps_the_token_and_is_audited(store, clock, raw):
    leased = await dead_job(store, max_attempts=1)
    clock.advance(77)
    assert await redrive(store, Redrive("a", 900, "fixed", "ops")) == [True]
    found = await row(store)
    assert (found.status, found.reason, found.attempts, found.token) == (Status.PENDING, None, 0, 1)
    assert (found.available_at, found.deadline) == (clock.now_ms(), clock.now_ms() + 900)
    assert found.finished_at is None
    assert raw.select("SELECT id, token, at_ms, note, actor, reason_before, attempts_before FROM redrives") == [
        ("a", 1, clock.now_ms(), "fixed", "ops", "permanent", 1)
    ]
    (again,) = await take(store)
    assert (again.token, again.attempt) == (2, 1)
    assert await report(store, Report.ok(leased)) == [None]
    assert await report(store, Report.ok(again)) == [Status.DONE]


async def test_two_redrives_of_one_job_in_one_set_write_one_audit_row(store):
    await dead_job(store)
    first, second, unknown = await redrive(
        store, Redrive("a", 100, "one"), Redrive("a", 200, "two"), Redrive("zz", 1, "n")
    )
    assert first is True
    assert isinstance(second, NotDead)
    assert isinstance(unknown, NotDead)
    assert (await store.stats()).redrives == 1
    assert (await row(store)).deadline - (await row(store)).available_at == 100


@pytest.mark.parametrize("status", ["pending", "leased", "done"])
async def test_only_dead_jobs_are_redriven(store, status):
    await put(store, job())
    if status != "pending":
        (leased,) = await take(store)
    if status == "done":
        await report(store, Report.ok(leased))
    before = await row(store)
    (answer,) = await redrive(store, Redrive("a", 100, "n"))
    assert isinstance(answer, NotDead)
    assert await row(store) == before
    assert (await store.stats()).redrives == 0


# --- sweep and history -------------------------------------------------------------------------------


async def test_sweep_is_bounded_and_leaves_running_leases_alone(store, clock):
    await put(store, *(job(f"j{n}", ttl_ms=10) for n in range(5)), job("held", max_attempts=1))
    held = [one for one in await take(store, 6, lease_ms=10_000) if one.id == "held"]
    clock.advance(10)
    assert [await sweep(store, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert await report(store, Report.ok(held[0])) == [Status.DONE]


@pytest.mark.parametrize("outcome", ["retry", "permanent"])
async def test_failed_attempt_leaves_one_history_row(store, clock, raw, outcome):
    await put(store, job())
    (leased,) = await take(store)
    clock.advance(3)
    failure = FailedAttempt("503 from there", "refused", 503)
    await report(store, Report(leased, outcome, 0, failure))
    columns = "id, token, attempt, owner, at_ms, outcome, certainty, error, http_status"
    assert raw.select(f"SELECT {columns} FROM attempts") == [
        ("a", 1, 1, "w1", clock.now_ms(), outcome, "refused", "503 from there", 503)
    ]


async def test_success_and_plain_release_leave_no_history_row(store, raw):
    await put(store, job("a"), job("b"))
    a, b = await take(store, 2)
    await report(store, Report.ok(a))
    await release(store, Release(b))
    assert raw.select("SELECT count(*) FROM attempts") == [(0,)]


async def test_lease_taken_over_and_lease_swept_leave_a_lost_row_each(store, clock, raw):
    await put(store, job("a"), job("b", max_attempts=1))
    await take(store, 2)
    clock.advance(LEASE_MS)
    await take(store, 2, owner="w2")
    assert raw.select("SELECT id, token, attempt, owner, outcome FROM attempts ORDER BY id") == [
        ("a", 1, 1, "w1", "lost"),
        ("b", 1, 1, "w1", "lost"),
    ]


async def test_history_that_cannot_be_written_never_undoes_a_report(store, raw):
    """FAULTS 19: bookkeeping failure causes no resend."""
    await put(store, job("a"), job("b"), job("c"))
    a, b, c = await take(store, 3)
    raw.break_history()
    assert await report(store, Report.retry(a, 0, FailedAttempt("x")), Report.ok(b)) == [
        Status.PENDING,
        Status.DONE,
    ]
    assert await release(store, Release(c, 0, FailedAttempt("x"))) == [True]


async def test_history_that_cannot_be_written_stops_neither_claim_nor_sweep(store, raw, clock):
    """FAULTS 19: nor may a broken log keep lost leases from being taken over or buried."""
    await put(store, job("a"), job("b", max_attempts=1))
    await take(store, 2)
    raw.break_history()
    clock.advance(LEASE_MS)
    assert await sweep(store) == 1
    assert [leased.token for leased in await take(store, 2)] == [2]


async def test_one_bad_history_row_does_not_cost_the_rows_beside_it(store, raw):
    """FAULTS 19: one bad log row does not fail its batch."""
    await put(store, job("a"), job("b"))
    a, b = await take(store, 2)
    bad, good = FailedAttempt("x", "no such certainty"), FailedAttempt("y")
    assert await report(store, Report.retry(a, 0, bad), Report.retry(b, 0, good)) == [Status.PENDING] * 2
    assert raw.select("SELECT id, error FROM attempts") == [("b", "y")]


async def test_stored_errors_are_printable_and_short(store, raw):
    await put(store, job())
    (leased,) = await take(store)
    await report(store, Report.retry(leased, 0, FailedAttempt("a\nb\x00\x1b[31m\u202e\ud800" + "x" * 9_999)))
    last_error = (await row(store)).last_error
    assert last_error.isprintable()
    assert len(last_error) == 500
    assert last_error.startswith(r"a\nb\x00\x1b[31m\u202e\ud800x")
    assert raw.select("SELECT error FROM attempts") == [(last_error,)]


# --- transactions and reading ------------------------------------------------------------------------


async def test_verbs_of_one_transaction_commit_together_or_not_at_all(store):
    class BoomError(Exception):
        pass

    async def fails(transaction):
        await transaction.enqueue([job("a"), job("b")])
        assert [leased.id for leased in await transaction.claim(Claim("w", 1, 100))] == ["a"]
        raise BoomError

    with pytest.raises(BoomError):
        await store.write(fails)
    assert (await store.stats()).total == 0

    async def works(transaction):
        await transaction.enqueue([job("a")])
        (leased,) = await transaction.claim(Claim("w", 1, 100))
        return await transaction.finish([Report.ok(leased)])

    assert await store.write(works) == [Status.DONE]


async def test_empty_sets_are_answered_with_empty_lists(store):
    for verb in (put, report, renew, release, redrive):
        assert await verb(store) == []
    assert await store.get([]) == []


async def test_get_answers_in_the_order_asked_with_none_for_the_unknown(store):
    await put(store, job("a"), job("b"))
    found = await store.get(["b", "nope", "a", "b"])
    assert [one and one.id for one in found] == ["b", None, "a", "b"]


async def test_list_pages_through_all_jobs_that_meet_every_condition(store):
    await put(store, *(job(f"j{n}", queue="q" if n % 2 else "r", kind="k" if n % 3 else "m") for n in range(30)))
    await report(store, *(Report.permanent(leased) for leased in await take(store, 10)))
    wanted = {"status": Status.DEAD, "queue": "q", "kind": "k", "reason": Reason.PERMANENT}
    seen, after = [], 0
    while page := await store.list_jobs(JobFilter(**wanted, after_seq=after, limit=2)):
        assert len(page) <= 2
        seen += [found.id for found in page]
        after = page[-1].seq
    assert seen == [f"j{n}" for n in range(10) if n % 2 and n % 3]


async def test_count_is_that_of_the_jobs_of_a_status_or_of_all(store):
    await put(store, job("a"), job("b"), job("c"))
    (leased,) = await take(store)
    await report(store, Report.permanent(leased))
    counts = [await store.count(JobFilter(status=status)) for status in (None, Status.PENDING, Status.DEAD)]
    assert counts == [3, 2, 1]


async def test_note_about_a_lease_that_was_given_back_changes_no_row(store):
    await put(store, job())
    (leased,) = await take(store)
    await release(store, Release(leased))
    await store.write(lambda transaction: transaction.note([Note(leased, FailedAttempt("too late"))]))
    assert (await row(store)).last_error is None


async def test_stats_add_up_and_tell_ready_expired_and_oldest(store, clock):
    await put(store, job("a"), job("b"), job("c"), job("d", delay_ms=500), job("e", queue="q"))
    a, b, _c = await take(store, 3, lease_ms=100, queues=("default",))
    await report(store, Report.ok(a), Report.permanent(b))
    clock.advance(100)
    stats = await store.stats(detail=True)
    assert (stats.pending, stats.leased, stats.done, stats.dead) == (2, 1, 1, 1)
    assert (stats.ready, stats.expired, stats.lag_ms, stats.next_due_ms) == (1, 1, 100, 0)
    assert (stats.total, stats.live) == (5, 3)
    plain = await store.stats()
    assert (plain.ready, plain.expired, plain.details) == (None, None, {})
    assert stats.queues == {
        "default": {"pending": 1, "leased": 1, "done": 1, "dead": 1},
        "q": {"pending": 1, "leased": 0, "done": 0, "dead": 0},
    }


async def test_next_due_is_the_earliest_over_pending_and_leased(store, clock):
    assert await store.next_due_ms() is None
    await put(store, job("a", delay_ms=900, priority=3), job("b", delay_ms=700, queue="q"), job("c", delay_ms=5))
    assert await store.next_due_ms() == 5
    clock.advance(5)
    assert await store.next_due_ms() == 0
    (leased,) = await take(store, lease_ms=300)
    assert await store.next_due_ms() == 300
    await report(store, Report.ok(leased))
    assert await store.next_due_ms() == 695
    clock.advance(2_000)
    assert await store.next_due_ms() == 0


async def test_version_changes_with_each_commit_and_only_then(store):
    before = await store.version()
    assert await store.version() == before
    await put(store, job())
    assert await store.version() != before


async def test_closed_store_refuses_every_verb_and_closes_again(store):
    await store.close()
    for call in (
        lambda: put(store, job()),
        store.stats,
        store.next_due_ms,
        store.version,
        lambda: store.get(["a"]),
    ):
        with pytest.raises(StoreClosed):
            await call()
    await store.close()


# --- the queue over it -------------------------------------------------------------------------------


async def test_enqueue_many_answers_each_item_and_one_bad_item_never_fails_the_rest(queue):
    items = [
        job("a", payload=encode_payload({"x": 1})),
        job("bad id"),
        job("b", payload={"not": "text"}),
        job("c", payload="not json"),
        job("d", payload="NaN"),
        job("e", payload='{"b":1, "a":2}'),
        job("f", payload='"\ud800"'),
        job("g", payload=b"1"),
        job("k", kind={"a", "set"}),
        {"id": "l", "qty": 1},
        job("a", 2, payload=encode_payload({"x": 1})),
        job("h"),
    ]
    answers = await queue.enqueue_many(items)
    kinds = [True, *[InvalidJob] * 9, Conflict, True]
    assert all(a is True if k is True else isinstance(a, k) for a, k in zip(answers, kinds, strict=True)), answers
    assert (await queue.stats()).total == 2


BAD_VALUES = {"a set": {"a", "set"}, "a list of bytes": [b"x"], "a lone surrogate": "\ud800"}


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
async def test_call_with_a_value_that_no_check_foresaw_fails_alone(queue, value):
    await queue.enqueue("mine", 1)
    (leased,) = await queue.claim("w")
    calls = [
        *(queue.enqueue(f"j{n}", 1) for n in range(3)),
        queue._batches.enqueue([NewJob("beside", 1), NewJob("bad", 1, kind=value)]),
        queue.finish(dataclasses.replace(ticket_of(leased), owner=value), "ok"),
        queue.claim("w", limit=9),
    ]
    *good, bad_job, bad_ticket, claimed = await asyncio.gather(*calls, return_exceptions=True)
    assert good == [True] * 3
    assert [type(bad_job), type(bad_ticket)] == [InvalidJob] * 2
    assert [found.id for found in claimed] == ["j0", "j1", "j2"]
    assert await queue.get("beside") is None
    assert await queue.finish(leased, "ok") is Status.DONE


@pytest.mark.parametrize(
    "call",
    [
        lambda q, t: q.claim("w", queues="default"),
        lambda q, t: q.claim("w", queues=["no such name!"]),
        lambda q, t: q.claim("w", limit=0),
        lambda q, t: q.claim("w", limit=1025),
        lambda q, t: q.claim("", limit=1),
        lambda q, t: q.claim("w", lease_ms=0),
        lambda q, t: q.renew(t, 0),
        lambda q, t: q.renew_many([Renew(t, None)]),
        lambda q, t: q.release(t, delay_ms=-1),
        lambda q, t: q.release_many([Release(t, None)]),
        lambda q, t: q.finish(t, "unknown"),
        lambda q, t: q.finish(t, "retry", delay_ms=True),
        lambda q, t: q.finish_many([Report(t, "bogus")]),
        lambda q, t: q.finish_many([Report(t, "retry", None)]),
        lambda q, t: q.redrive("a", note="two words"),
        lambda q, t: q.sweep(-1),
        lambda q, t: q.list(limit=0),
        lambda q, t: q.list(after_seq=None),
        lambda q, t: q.list(status="lost"),
        lambda q, t: q.get("no id!"),
        lambda q, t: q.enqueue_many([job(f"j{n}") for n in range(10_001)]),
    ],
)
async def test_argument_out_of_range_is_refused_before_anything_changes(queue, call):
    await queue.enqueue("a", 1)
    (leased,) = await queue.claim("w")
    before = await queue.list()
    with pytest.raises(InvalidJob):
        await call(queue, leased)
    assert await queue.list() == before


async def test_queue_raises_what_the_store_answers(queue):
    assert await queue.enqueue("a", 1)
    with pytest.raises(Conflict, match="qty"):
        await queue.enqueue("a", 2)
    with pytest.raises(NotDead):
        await queue.redrive("a", note="n")
    (leased,) = await queue.claim("w")
    assert await queue.finish(leased, "permanent", error="no") is Status.DEAD
    assert await queue.finish(leased, "ok") is None
    assert await queue.redrive("a", note="n")


async def test_listeners_hear_of_work_that_became_due_and_of_nothing_else(queue):
    heard = []
    stop = queue.subscribe(lambda: heard.append(1))
    await queue.enqueue("a", 1)
    await queue.enqueue("a", 1)
    assert len(heard) == 1
    (leased,) = await queue.claim("w")
    await queue.release(leased)
    await queue.release(leased)
    assert len(heard) == 2
    stop()
    await queue.enqueue("b", 1)
    assert len(heard) == 2
