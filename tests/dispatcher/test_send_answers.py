"""What each answer means: the whole status table, acknowledgements, redirects, sizes, Retry-After."""

import asyncio
import gzip

import pytest
from send_servers import ACK, JOB, answer, other_job, raw_server, silent

from asyncqueue import wire
from asyncqueue.dispatcher.meaning import meaning_of
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.retry import ACCEPTED, Certainty, Verdict
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("way")

OURS = wire.encode_problem(wire.CONFLICT, "qty is 5")
RETRY_REFUSED = (Verdict.RETRY, Certainty.REFUSED)
RETRY_UNKNOWN = (Verdict.RETRY, Certainty.UNKNOWN)
DEAD = (Verdict.PERMANENT, Certainty.REFUSED)
HELD = (Verdict.HOLD, Certainty.REFUSED)
MOVED = (Verdict.HOLD, Certainty.UNKNOWN)
LEFT = (Verdict.LEAVE, Certainty.UNKNOWN)

TABLE = [
    *((status, b"", DEAD) for status in (400, 413, 415, 422)),
    *((status, b"", RETRY_REFUSED) for status in (408, 425, 429)),
    *((status, b"", RETRY_UNKNOWN) for status in (500, 501, 502, 503, 504, 507, 511, 599)),
    *((status, b"", HELD) for status in (401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 414, 416, 417)),
    *((status, b"", HELD) for status in (418, 421, 423, 424, 426, 428, 431, 451, 499)),
    *((status, b"", MOVED) for status in (300, 301, 302, 303, 305, 307, 308)),
    *((status, b"{}", LEFT) for status in (200, 201, 202, 203, 206, 226)),
    *((status, b"", RETRY_UNKNOWN) for status in (600, 999)),
    (409, OURS, DEAD),
    (409, b"", RETRY_UNKNOWN),
    (409, b'{"type":"about:blank"}', RETRY_UNKNOWN),
    (409, b'{"type":["' + wire.CONFLICT.type.encode() + b'"]}', RETRY_UNKNOWN),
    (404, OURS, HELD),
    (500, OURS, RETRY_UNKNOWN),
]


async def outcome_of(reply, **settings):
    async with raw_server(reply) as server, HttpSender(server.url(), **settings) as sender:
        return await sender.send(JOB)


@pytest.mark.parametrize(("status", "body", "expected"), TABLE)
async def test_each_status_has_its_meaning__kind_18_wrong_class_of_error(status, body, expected):
    outcome = await outcome_of(answer(body, f"{status} Words"))
    assert (outcome.verdict, outcome.certainty) == expected
    assert outcome.http_status == status
    assert outcome.error.startswith(f"{status} ")
    assert outcome.error.isprintable()


def test_no_status_is_without_meaning_and_only_some_kill():
    meanings = {status: meaning_of(status, b"") for status in range(1000)}
    assert {status for status, meaning in meanings.items() if meaning.verdict is Verdict.PERMANENT} == {
        400,
        413,
        415,
        422,
    }
    assert Verdict.OK not in {meaning.verdict for meaning in meanings.values()}


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "299 Odd"])
@pytest.mark.parametrize("ack", ["echo", "status"])
async def test_any_2xx_with_the_ack_is_ok(status, ack):
    assert await outcome_of(answer(ACK, status), ack=ack) == ACCEPTED


@pytest.mark.parametrize(
    "body",
    [
        b"<!doctype html><title>Sign in</title>",
        b"",
        b"ok",
        b"[" * 60_000,
        ACK.replace(b"order-41", b"order-42"),
        ACK.replace(b'"qty":3', b'"qty":4'),
        ACK.replace(b"accepted", b"perhaps"),
        ACK + b" " * wire.REPLY_BYTES_MAX + b"x",
        ACK + b" " * wire.REPLY_BYTES_MAX,
    ],
)
async def test_a_wrong_ack_is_left_to_the_lease(body):
    outcome = await outcome_of(answer(body))
    assert (outcome.verdict, outcome.certainty, outcome.http_status) == (*LEFT, 200)
    assert "BadAck" in outcome.error
    assert await outcome_of(answer(body), ack="status") == ACCEPTED


async def test_no_content_is_no_echo():
    reply = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert (await outcome_of(reply)).verdict is Verdict.LEAVE
    assert await outcome_of(reply, ack="status") == ACCEPTED


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("ack", ["echo", "status"])
async def test_a_redirect_is_never_success_and_never_followed__kind_42_redirect_taken_as_success(status, ack):
    async with raw_server(answer()) as elsewhere:
        reply = answer(ACK, f"{status} Moved", f"Location: {elsewhere.url('/new')}")
        outcome = await outcome_of(reply, ack=ack)
    assert (outcome.verdict, outcome.certainty, outcome.http_status) == (*MOVED, status)
    assert (elsewhere.connections, elsewhere.requests) == (0, [])


async def test_early_hints_are_not_the_answer():
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 3
    assert await outcome_of(hints + answer()) == ACCEPTED


async def test_an_upgrade_nobody_asked_for_closes_the_connection():
    reply = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with raw_server(reply) as server, HttpSender(server.url()) as sender:
        outcome = await sender.send(JOB)
        await until(server.gone.is_set)
    assert (outcome.verdict, outcome.certainty, outcome.http_status) == (*RETRY_UNKNOWN, 101)


async def test_a_gzip_bomb_is_not_decompressed():
    bomb = gzip.compress(bytes(40 * 1024 * 1024))
    assert len(bomb) < wire.REPLY_BYTES_MAX
    outcome = await outcome_of(answer(bomb, "200 OK", "Content-Encoding: gzip"))
    assert (outcome.verdict, outcome.certainty) == LEFT
    zipped_ack = answer(gzip.compress(ACK), "200 OK", "Content-Encoding: gzip")
    assert (await outcome_of(zipped_ack)).verdict is Verdict.LEAVE


ENDLESS = {
    "length": (b"Content-Length: 1000000000000", b"x" * 65_536),
    "chunked": (b"Transfer-Encoding: chunked", b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
    "until close": (b"Connection: close", b"x" * 65_536),
    "tiny chunks": (b"Transfer-Encoding: chunked", b"1\r\nx\r\n" * 5_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize(("status", "expected"), [(200, LEFT), (500, RETRY_UNKNOWN), (400, DEAD)])
async def test_an_endless_reply_is_not_read(kind, status, expected):
    header, chunk = ENDLESS[kind]

    async def pour(server, _request, writer):
        writer.write(b"HTTP/1.1 %d Words\r\n%b\r\n\r\n" % (status, header))
        while not writer.is_closing():
            writer.write(chunk)
            server.bytes_sent += len(chunk)
            await writer.drain()

    async with raw_server(pour) as server, HttpSender(server.url(), timeout_ms=60_000) as sender:
        outcome = await sender.send(JOB)
        await until(server.gone.is_set)  # the sender hung up
    assert (outcome.verdict, outcome.certainty, outcome.http_status) == (*expected, status)
    assert server.bytes_sent < 32 * 1024 * 1024  # what the kernel's buffers swallow, not more


async def test_a_long_refusal_is_quoted_shortly_on_one_line():
    outcome = await outcome_of(answer(b"\x1b[31m\r\n\xff\xe2\x80\xae " + b"word " * 10_000, "400 Bad"))
    assert outcome.error.isprintable()
    assert len(outcome.error) < 260


async def test_the_detail_of_a_problem_is_quoted():
    outcome = await outcome_of(answer(OURS, "409 Conflict"))
    assert outcome.error == "409 conflict: qty is 5"


@pytest.mark.parametrize(
    ("headers", "wish_ms"),
    [
        ([], None),
        (["Retry-After: -1"], None),
        (["Retry-After: 0"], 0),
        (["Retry-After: 1e9"], None),
        (["Retry-After: " + "9" * 400], wire.RETRY_AFTER_MS_MAX),
        (["Retry-After: nan"], None),
        (["Retry-After:  5 "], 5_000),
        (["Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"], 0),
        (["Retry-After: Wed, 21 Oct 2999 07:28:00 GMT"], wire.RETRY_AFTER_MS_MAX),
        (["Retry-After: \u0665"], None),
        (["Retry-After: \udcff"], None),
        (["Retry-After: 5", "Retry-After: 7", "retry-after: soon"], 7_000),
    ],
)
@pytest.mark.parametrize("status", ["503 Busy", "429 Slow", "404 Gone"])
async def test_a_retry_after_counts_only_when_it_makes_sense__kind_17_retry_after_trusted(
    headers, wish_ms, status
):
    outcome = await outcome_of(answer(b"", status, *headers))
    assert outcome.retry_after_ms == wish_ms


async def test_concurrent_sends_do_not_mix_their_answers():
    async def echo(_server, request, writer):
        writer.write(answer(wire.encode_ack(request.header("idempotency-key")[0], 3, wire.ACCEPTED)))

    async with raw_server(echo) as server, HttpSender(server.url()) as sender:
        sends = (sender.send(other_job(f"job-{number}")) for number in range(200))
        assert await asyncio.gather(*sends) == [ACCEPTED] * 200
    assert len(server.requests) == 200


async def test_half_an_answer_then_silence_is_unknown():
    async def half(server, request, writer):
        writer.write(answer()[:-5])
        await silent(server, request, writer)

    outcome = await outcome_of(half, timeout_ms=200, connect_timeout_ms=200)
    assert (outcome.verdict, outcome.certainty, outcome.http_status) == (*RETRY_UNKNOWN, 200)
    assert "in time" in outcome.error
