"""The scripted receiver: every step of a script, seen by a real sender."""

import asyncio
import contextlib

import aiohttp
import pytest

from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.job import NewJob
from asyncqueue.testing import Drained, ScriptedReceiver, drain


@pytest.fixture
def send(asyncqueue_queue, asyncqueue_clock):
    """Enqueue a job and drain it to a receiver."""

    async def over_http(receiver, **settings):
        await asyncqueue_queue.enqueue_many([NewJob("a", 1)])
        return await drain(asyncqueue_queue, HttpSender(receiver.url, clock=asyncqueue_clock, **settings))

    return over_http


async def test_receiver_fails_so_often_then_accepts(send, asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver):
    asyncqueue_receiver.fail(times=2).fail(500)
    for _ in range(3):
        assert await send(asyncqueue_receiver) == Drained(retried=1)
        asyncqueue_clock.advance(60_000)
    assert await send(asyncqueue_receiver) == Drained(done=1)
    seen = asyncqueue_receiver.requests
    assert [(one.id, one.qty, one.token, one.attempt) for one in seen] == [("a", 1, n, n) for n in (1, 2, 3, 4)]
    assert asyncqueue_receiver.accepted == {"a": 1}
    errors = [row.http_status for row in await asyncqueue_queue.history("a")]
    assert errors == [503, 503, 500]


async def test_retry_after_of_the_receiver_is_heeded(
    send, asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver
):
    asyncqueue_receiver.fail(429, retry_after=120)
    await send(asyncqueue_receiver)
    assert 120_000 <= (await asyncqueue_queue.next_due_ms()) <= 121_000


async def test_wrong_ack_leaves_the_lease_to_run_out(
    send, asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver
):
    asyncqueue_receiver.wrong_ack()
    assert await send(asyncqueue_receiver) == Drained(left=1)
    assert asyncqueue_receiver.accepted == {}
    asyncqueue_clock.advance(30_000)
    assert await send(asyncqueue_receiver) == Drained(done=1)


async def test_reset_leaves_nobody_knowing_and_the_job_is_sent_again(
    send, asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver
):
    asyncqueue_receiver.reset()
    assert await send(asyncqueue_receiver) == Drained(retried=1)
    (row,) = await asyncqueue_queue.history("a")
    assert (row.certainty, row.http_status) == ("unknown", None)
    asyncqueue_clock.advance(60_000)
    assert await send(asyncqueue_receiver) == Drained(done=1)
    assert asyncqueue_receiver.ids == ["a", "a"]


async def test_hanging_request_waits_until_it_is_released(send, asyncqueue_receiver):
    asyncqueue_receiver.hang()
    sending = asyncio.create_task(send(asyncqueue_receiver))
    async with asyncio.timeout(20):
        (seen,) = await asyncqueue_receiver.seen()
    assert seen.id == "a"
    assert asyncqueue_receiver.accepted == {}
    assert not sending.done()
    asyncqueue_receiver.release()
    assert await sending == Drained(done=1)


async def test_hanging_request_meets_the_timeout_of_its_sender_and_does_not_hold_up_the_close(send):
    async with ScriptedReceiver() as receiver:
        receiver.hang()
        assert await send(receiver, timeout_ms=100, connect_timeout_ms=50) == Drained(retried=1)


async def test_accepting_is_what_an_inbox_does(asyncqueue_receiver):
    async with aiohttp.ClientSession() as session:

        async def post(body):
            async with session.post(asyncqueue_receiver.url, data=body) as answer:
                return answer.status, (await answer.json(content_type=None)).get("result")

        assert await post(b'{"id":"a","qty":1}') == (200, "accepted")
        assert await post(b'{"id":"a","qty":1}') == (200, "duplicate")
        assert await post(b'{"id":"a","qty":2}') == (409, None)
        assert await post(b"not json") == (400, None)
        assert await post(b'{"id":"a"}') == (422, None)
    assert asyncqueue_receiver.accepted == {"a": 1}
    assert asyncqueue_receiver.ids == ["a", "a", "a", "", ""]
    assert asyncqueue_receiver.requests[0].body == b'{"id":"a","qty":1}'


@pytest.mark.parametrize("leaves_by", ["end", "error"])
async def test_receiver_gives_its_port_back(leaves_by):
    with contextlib.suppress(ZeroDivisionError):
        async with ScriptedReceiver() as receiver:
            url = receiver.url
            assert leaves_by == "end" or 1 / 0
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.post(url)


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("fail", {"status": 200}, ValueError),
        ("fail", {"status": 299}, ValueError),
        ("fail", {"status": 600}, ValueError),
        ("fail", {"status": "503"}, ValueError),
        ("fail", {"times": 0}, ValueError),
        ("fail", {"retry_after": 1.5}, TypeError),
        ("wrong_ack", {"body": {"id": "a"}}, TypeError),
        ("wrong_ack", {"body": "<html>"}, TypeError),
        ("wrong_ack", {"times": 0}, ValueError),
        ("accept", {"times": -1}, ValueError),
        ("hang", {"times": True}, ValueError),
        ("reset", {"times": "2"}, ValueError),
    ],
)
async def test_a_step_that_cannot_be_is_refused_and_the_script_stays_as_it_was(
    send, asyncqueue_receiver, method, arguments, error
):
    with pytest.raises(error, match=str(next(iter(arguments.values())))):
        getattr(asyncqueue_receiver, method)(**arguments)
    assert await send(asyncqueue_receiver) == Drained(done=1)


async def test_the_widest_failures_are_answered(send, asyncqueue_receiver, asyncqueue_queue):
    asyncqueue_receiver.fail(300).fail(599)
    for _ in range(2):
        await send(asyncqueue_receiver)
    assert [row.http_status for row in await asyncqueue_queue.history("a")] == [300]
