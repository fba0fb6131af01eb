"""Many jobs in one request: each has its own outcome, deadline and cancellation; else single sends."""

import asyncio
import json
import logging
import re

import pytest
from send_servers import FAR_MS, answer, other_job, raw_server, silent

from asyncqueue import wire
from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher import batch as batch_module
from asyncqueue.dispatcher.gather import UNDER_WAY_MAX
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import ConfigError
from asyncqueue.events import BatchRefused, Events
from asyncqueue.retry import ACCEPTED, Certainty, Verdict
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("way")

LEFT = (Verdict.LEAVE, Certainty.UNKNOWN)
SHORT = {"timeout_ms": 1_000, "connect_timeout_ms": 1_000}
JOBS = [other_job(f"job-{number}", payload=None) for number in range(5)]


def is_batch(request):
    return request.head.split(" ")[1].split("?")[0].endswith("/batch")


def ack(item):
    return json.loads(wire.encode_ack(item["id"], item["qty"], wire.ACCEPTED))


def problem(item, status, kind="about:blank", **more):
    return {"id": item["id"], "type": kind, "status": status, "detail": "so it is", **more}


def answering(change=lambda replies, items: replies, status="200 OK"):
    """Return a receiver of batches and single jobs; `change` may spoil the replies to a batch."""

    async def behave(_server, request, writer):
        said = json.loads(request.body)
        if isinstance(said, list):
            body = change([ack(item) for item in said], said)
            writer.write(answer(body if isinstance(body, bytes) else json.dumps(body).encode(), status))
        else:
            writer.write(answer(wire.encode_ack(said["id"], said["qty"], wire.ACCEPTED)))

    return behave


def refusing(reply):
    """Return a receiver that says `reply` to every batch and takes single jobs."""

    async def behave(server, request, writer):
        if is_batch(request):
            writer.write(reply)
        else:
            await answering()(server, request, writer)

    return behave


async def send_all(sender, jobs=JOBS):
    return await asyncio.gather(*map(sender.send, jobs))


async def outcomes_of(behave, jobs=JOBS, **settings):
    async with raw_server(behave) as server, HttpSender(server.url(), batch=10, **settings) as sender:
        return await send_all(sender, jobs), server.requests


async def ended(sender):
    """Wait until the sender has no request under way and no connection in use."""
    await until(lambda: not (sender._gatherer._rides or sender._session.connector._acquired))


def of_each(outcomes):
    return [(outcome.verdict, outcome.certainty) for outcome in outcomes]


async def test_jobs_that_wait_together_go_in_one_request():
    jobs = [other_job("a", token=7, attempt=1), other_job("b", payload=None), other_job("c", payload='"é"')]
    async with raw_server(answering()) as server, HttpSender(server.url("/in/?x=%26"), batch=10) as sender:
        assert await send_all(sender, jobs) == [ACCEPTED] * 3
    (request,) = server.requests
    assert request.head.startswith("POST /in/batch?x=%26 HTTP/1.1\r\n")
    assert json.loads(request.body) == [
        {"id": "a", "qty": 3, "payload": {"sku": 7}, "token": 7, "attempt": 1},
        {"id": "b", "qty": 3, "token": 17, "attempt": 2},
        {"id": "c", "qty": 3, "payload": "é", "token": 17, "attempt": 2},
    ]
    assert request.header("content-type") == ["application/json"]
    assert request.header("idempotency-key") == []


async def test_a_job_that_waits_alone_goes_as_without_batches():
    outcomes, (request,) = await outcomes_of(answering(), JOBS[:1])
    assert outcomes == [ACCEPTED]
    assert request.head.startswith("POST /inbox HTTP/1.1\r\n")
    assert request.header("idempotency-key") == ["job-0"]


async def test_no_request_has_more_jobs_than_asked_for():
    jobs = [other_job(f"job-{number}") for number in range(105)]
    outcomes, requests = await outcomes_of(answering(), jobs)
    assert outcomes == [ACCEPTED] * 105
    assert sorted(len(json.loads(request.body)) for request in requests) == [5] + [10] * 10


async def test_no_request_has_more_bytes_than_a_receiver_takes():
    jobs = [
        other_job(f"job-{number}", payload=json.dumps("é" * 120_000, ensure_ascii=False)) for number in range(9)
    ]
    outcomes, requests = await outcomes_of(answering(), jobs)
    assert outcomes == [ACCEPTED] * 9
    assert sorted(len(json.loads(request.body)) for request in requests if is_batch(request)) == [4, 4]
    assert max(len(request.body) for request in requests) <= wire.REQUEST_BYTES_MAX


async def test_few_requests_are_under_way_and_the_rest_goes_together():
    release = asyncio.Event()

    async def held(server, request, writer):
        await release.wait()
        await answering()(server, request, writer)

    async with (
        raw_server(held) as server,
        HttpSender(server.url(), batch=100) as sender,
        asyncio.TaskGroup() as group,
    ):
        for turn in range(UNDER_WAY_MAX + 5):
            for number in range(3):
                group.create_task(sender.send(other_job(f"job-{turn}-{number}")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await until(lambda: len(server.requests) >= UNDER_WAY_MAX)
        release.set()
    assert [len(json.loads(request.body)) for request in server.requests] == [3] * UNDER_WAY_MAX + [15]


async def test_a_receiver_that_hangs_does_not_keep_others_from_leaving():
    async with raw_server(silent) as server, HttpSender(server.url(), batch=100, **SHORT) as sender:
        sends = []
        for _ in range(UNDER_WAY_MAX + 1):
            sends += [asyncio.create_task(sender.send(job)) for job in JOBS]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*sends)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.RETRY}
    assert len(server.requests) == UNDER_WAY_MAX + 1


PROBLEMS = [
    (409, wire.CONFLICT.type, (Verdict.PERMANENT, Certainty.REFUSED)),
    (409, "about:blank", (Verdict.RETRY, Certainty.UNKNOWN)),
    (400, wire.MALFORMED.type, (Verdict.PERMANENT, Certainty.REFUSED)),
    (413, wire.TOO_LARGE.type, (Verdict.PERMANENT, Certainty.REFUSED)),
    (415, "x", (Verdict.PERMANENT, Certainty.REFUSED)),
    (422, wire.OUT_OF_RANGE.type, (Verdict.PERMANENT, Certainty.REFUSED)),
    (408, "x", (Verdict.RETRY, Certainty.REFUSED)),
    (425, "x", (Verdict.RETRY, Certainty.REFUSED)),
    (429, "x", (Verdict.RETRY, Certainty.REFUSED)),
    (500, wire.EFFECT_FAILED.type, (Verdict.RETRY, Certainty.UNKNOWN)),
    (503, wire.BUSY.type, (Verdict.RETRY, Certainty.UNKNOWN)),
    (401, "x", (Verdict.HOLD, Certainty.REFUSED)),
    (404, "x", (Verdict.HOLD, Certainty.REFUSED)),
    (302, "x", (Verdict.HOLD, Certainty.UNKNOWN)),
]


@pytest.mark.parametrize(("status", "kind", "expected"), PROBLEMS)
async def test_a_problem_means_for_its_job_what_it_means_by_itself(status, kind, expected):
    def change(replies, items):
        return [*replies[:2], problem(items[2], status, kind), *replies[3:]]

    outcomes, requests = await outcomes_of(answering(change))
    assert outcomes[:2] + outcomes[3:] == [ACCEPTED] * 4
    assert (*of_each(outcomes[2:3])[0], outcomes[2].http_status) == (*expected, status)
    assert outcomes[2].error.endswith(": so it is")
    assert len(requests) == 1


WRONG = {
    "not an object": lambda r, _i: [r[0], 1, *r[2:]],
    "an ack of another job": lambda r, _i: [r[0], {**r[1], "id": "job-9"}, *r[2:]],
    "an ack of another quantity": lambda r, _i: [r[0], {**r[1], "qty": 4}, *r[2:]],
    "a quantity that is no integer": lambda r, _i: [r[0], {**r[1], "qty": 3.0}, *r[2:]],
    "an unknown result": lambda r, _i: [r[0], {**r[1], "result": "perhaps"}, *r[2:]],
    "doubled": lambda r, _i: [r[0], r[0], *r[2:]],
    "a problem of another job": lambda r, i: [r[0], problem(i[2], 422), *r[2:]],
    "a problem of nobody": lambda r, _i: [r[0], {"status": 422}, *r[2:]],
    "a status that is true": lambda r, i: [r[0], problem(i[1], True), *r[2:]],
    "a status that is a fraction": lambda r, i: [r[0], problem(i[1], 422.0), *r[2:]],
    "a status of success": lambda r, i: [r[0], problem(i[1], 200), *r[2:]],
    "a status that is text": lambda r, i: [r[0], problem(i[1], "422"), *r[2:]],
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_answer_is_left_to_the_lease_for_its_job_only(kind):
    outcomes, _requests = await outcomes_of(answering(WRONG[kind]))
    assert outcomes[:1] + outcomes[2:] == [ACCEPTED] * 4
    assert of_each(outcomes)[1] == LEFT
    assert "BadAck" in outcomes[1].error


@pytest.mark.parametrize(
    ("change", "acked"),
    [
        (lambda r, _i: r[:3], [0, 1, 2]),
        (lambda r, _i: [*r, r[0]], [0, 1, 2, 3, 4]),
        (lambda r, _i: r[1:], []),
        (lambda r, _i: [r[1], r[0], *r[2:]], [2, 3, 4]),
        (lambda r, _i: [], []),
        (lambda r, _i: {}, []),
        (lambda r, _i: r[0], []),
        (lambda r, _i: b"<html>sign in</html>", []),
        (lambda r, _i: b"[" * 60_000, []),
        (lambda r, _i: json.dumps(r).encode() + b" " * 80_000, []),
    ],
)
async def test_answers_of_a_wrong_number_or_order_count_by_place_and_name(change, acked):
    outcomes, requests = await outcomes_of(answering(change))
    assert [number for number, outcome in enumerate(outcomes) if outcome == ACCEPTED] == acked
    assert {one for one in of_each(outcomes) if one[0] is not Verdict.OK} <= {LEFT}
    assert len(requests) == 1


async def test_words_of_the_other_side_are_made_harmless():
    def change(_replies, items):
        return [problem(item, 422, detail="\x1b[31m\r\n\u202e" + "word " * 5_000) for item in items]

    outcomes, _requests = await outcomes_of(answering(change))
    for outcome in outcomes:
        assert outcome.error.isprintable()
        assert len(outcome.error) < 260


WHOLE = [
    ("401 No", (Verdict.HOLD, Certainty.REFUSED)),
    ("403 No", (Verdict.HOLD, Certainty.REFUSED)),
    ("410 No", (Verdict.HOLD, Certainty.REFUSED)),
    ("302 No", (Verdict.HOLD, Certainty.UNKNOWN)),
    ("408 No", (Verdict.RETRY, Certainty.REFUSED)),
    ("409 No", (Verdict.RETRY, Certainty.UNKNOWN)),
    ("429 No", (Verdict.RETRY, Certainty.REFUSED)),
    ("500 No", (Verdict.RETRY, Certainty.UNKNOWN)),
    ("503 No", (Verdict.RETRY, Certainty.UNKNOWN)),
    ("200 OK", LEFT),
]


@pytest.mark.parametrize(("status", "expected"), WHOLE)
async def test_an_answer_to_the_whole_means_for_each_what_it_means_for_one(status, expected):
    outcomes, requests = await outcomes_of(refusing(answer(b"{}", status, "Retry-After: 7")))
    assert of_each(outcomes) == [expected] * 5
    assert {outcome.retry_after_ms for outcome in outcomes} == {7_000}
    assert len(requests) == 1


async def test_a_lost_connection_and_a_timeout_are_everybodys():
    async def hang_up(_server, _request, writer):
        writer.close()

    for behave, word in ((hang_up, "connection lost"), (silent, "in time")):
        outcomes, _requests = await outcomes_of(behave, timeout_ms=200, connect_timeout_ms=200)
        assert of_each(outcomes) == [(Verdict.RETRY, Certainty.UNKNOWN)] * 5
        assert word in outcomes[4].error


@pytest.mark.parametrize("status", ["404 Not Found", "405 No", "400 Bad", "413 Large", "415 Type", "422 Range"])
async def test_where_batches_are_not_offered_each_job_goes_by_itself_and_nobody_dies(status, caplog):
    told = []
    refusal = answer(b"no such thing", status)
    events = Events(told.append)
    async with (
        raw_server(refusing(refusal)) as server,
        HttpSender(server.url(), batch=10, events=events) as sender,
    ):
        for _ in range(3):
            assert await send_all(sender) == [ACCEPTED] * 5
    assert [is_batch(request) for request in server.requests] == [True] + [False] * 15
    assert told == [BatchRefused(int(status[:3]), told[0].error, 60_000)]
    assert caplog.records == []


async def test_a_refused_batch_is_tried_again_later_and_told_once(monkeypatch, caplog):
    offers = iter([False, False, True, False])  # one batch a time

    async def behave(server, request, writer):
        offered = not is_batch(request) or next(offers)
        await (answering() if offered else refusing(answer(b"", "404 Not Found")))(server, request, writer)

    monkeypatch.setattr(batch_module, "RETRY_S", 0.0)
    with caplog.at_level(logging.WARNING, "asyncqueue"):
        async with raw_server(behave) as server, HttpSender(server.url("/x?key=s3cret"), batch=10) as sender:
            for _ in range(4):
                assert await send_all(sender) == [ACCEPTED] * 5
    assert [is_batch(request) for request in server.requests].count(True) == 4
    assert [record.message.count("takes no batches") for record in caplog.records] == [
        1,
        1,
    ]  # again after a success
    assert "s3cret" not in caplog.text


async def test_a_slow_refusal_leaves_no_more_than_the_rest_of_the_time():
    async def slow(server, request, writer):
        if is_batch(request):
            await asyncio.sleep(0.3)  # time that passes is what is tested: it is taken from what is left
            writer.write(answer(b"", "404 Not Found"))
        else:
            await silent(server, request, writer)

    async with raw_server(slow) as server, HttpSender(server.url(), batch=10, **SHORT) as sender:
        timeouts = []
        timeout_of, sender._timeout_of = sender._timeout_of, lambda ms: (timeouts.append(ms), timeout_of(ms))[1]
        outcomes = await send_all(sender)
    assert of_each(outcomes) == [(Verdict.RETRY, Certainty.UNKNOWN)] * 5
    assert len(timeouts) == 6
    assert max(timeouts[1:]) <= 1_000 - 300


async def test_one_that_is_cancelled_leaves_alone_and_at_once():
    release = asyncio.Event()

    async def held(server, request, writer):
        await release.wait()
        await answering()(server, request, writer)

    async with raw_server(held) as server, HttpSender(server.url(), batch=10) as sender:
        sends = [asyncio.create_task(sender.send(job)) for job in JOBS]
        await until(server.arrived.is_set)
        sends[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await sends[2]
        assert not any(sends[number].done() for number in (0, 1, 3, 4))
        release.set()
        assert [await sends[number] for number in (0, 1, 3, 4)] == [ACCEPTED] * 4
    assert len(json.loads(server.requests[0].body)) == 5


async def test_when_all_have_left_the_request_ends():
    async with raw_server(silent) as server, HttpSender(server.url(), batch=10) as sender:
        sends = [asyncio.create_task(sender.send(job)) for job in JOBS]
        await until(server.arrived.is_set)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        await ended(sender)
        assert all(send.cancelled() for send in sends)


async def test_one_that_left_before_its_request_is_not_in_it():
    async with raw_server(answering()) as server, HttpSender(server.url(), batch=10) as sender:
        sends = [asyncio.create_task(sender.send(job)) for job in JOBS]
        await asyncio.sleep(0)  # all have taken their seats, none has left
        sends[0].cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert outcomes[1:] == [ACCEPTED] * 4
    assert [item["id"] for item in json.loads(server.requests[0].body)] == [job.id for job in JOBS[1:]]


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_every_turn_nobody_else_is_harmed(turns):
    async with raw_server(answering()) as server, HttpSender(server.url(), batch=10) as sender:
        sends = [asyncio.create_task(sender.send(job)) for job in JOBS]
        for _ in range(turns):
            await asyncio.sleep(0)
        sends[0].cancel()
        sends[3].cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [outcomes[number] for number in (1, 2, 4)] == [ACCEPTED] * 3
        assert await send_all(sender) == [ACCEPTED] * 5
    assert sender._gatherer._rides == set()


async def test_no_send_passes_its_deadline_and_the_others_go_on():
    clock = ManualClock(1_000)
    release = asyncio.Event()

    async def held(server, request, writer):
        await release.wait()
        await answering()(server, request, writer)

    jobs = [other_job("late", deadline=1_000), other_job("soon", deadline=1_100), *JOBS[:2]]
    async with raw_server(held) as server, HttpSender(server.url(), batch=10, clock=clock) as sender:
        sends = [asyncio.create_task(sender.send(job)) for job in jobs]
        late, soon = await sends[0], await sends[1]
        assert not sends[2].done()
        release.set()
        assert [await sends[2], await sends[3]] == [ACCEPTED] * 2
    assert (late.verdict, late.certainty) == (Verdict.RETRY, Certainty.NOT_SENT)
    assert (soon.verdict, soon.certainty) == (Verdict.RETRY, Certainty.UNKNOWN)
    assert [item["id"] for item in json.loads(server.requests[0].body)] == ["soon", "job-0", "job-1"]


async def test_when_every_deadline_has_passed_the_request_ends():
    clock = ManualClock(1_000)
    async with raw_server(silent) as server, HttpSender(server.url(), batch=10, clock=clock) as sender:
        jobs = [other_job(f"soon-{number}", deadline=1_050 + 50 * number) for number in range(3)]
        outcomes = await send_all(sender, jobs)
        await ended(sender)
    assert of_each(outcomes) == [(Verdict.RETRY, Certainty.UNKNOWN)] * 3


async def test_closing_the_sender_ends_every_wait():
    async with raw_server(silent) as server:
        async with HttpSender(server.url(), batch=10) as sender:
            under_way = [asyncio.create_task(sender.send(job)) for job in JOBS]
            await until(server.arrived.is_set)
            waiting = [asyncio.create_task(sender.send(job)) for job in JOBS]
            await asyncio.sleep(0)
        assert of_each(await asyncio.gather(*under_way)) == [(Verdict.RETRY, Certainty.UNKNOWN)] * 5
        assert of_each(await asyncio.gather(*waiting)) == [(Verdict.HOLD, Certainty.NOT_SENT)] * 5
        assert (await sender.send(JOBS[0])).verdict is Verdict.HOLD


async def test_a_bug_is_everybodys_error_and_nobody_hangs():
    async with raw_server(answering()) as server, HttpSender(server.url(), batch=10) as sender:
        sender._gatherer._post = lambda _seats, _timeout_s: asyncio.sleep(0, result=[])
        outcomes = await asyncio.gather(*map(sender.send, JOBS), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 5


@pytest.mark.parametrize(
    "settings", [{"batch": 0}, {"batch": 1_001}, {"batch": True}, {"batch": 2, "ack": "status"}]
)
def test_a_batch_outside_its_range_is_refused(settings):
    with pytest.raises(ConfigError, match=re.escape("send: batch")):
        HttpSender("http://host/", **settings)


async def test_a_connection_that_cannot_be_made_is_told_without_the_url():
    async with HttpSender("http://127.0.0.1:1/x?key=s3cret", batch=10) as sender:
        outcomes = await send_all(sender, [other_job(f"j{n}", deadline=FAR_MS) for n in range(3)])
    assert of_each(outcomes) == [(Verdict.RETRY, Certainty.NOT_SENT)] * 3
    assert "s3cret" not in outcomes[0].error
