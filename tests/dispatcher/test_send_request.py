"""What the sender says, and what it refuses to be told in its constructor."""

import math
import re

import pytest
from send_servers import ACK, FAR_MS, JOB, answer, other_job, raw_server, silent

from asyncqueue.clock import ManualClock
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import ConfigError
from asyncqueue.retry import ACCEPTED, Certainty, Verdict

pytestmark = pytest.mark.usefixtures("way")

SECRET = "hunter2"


async def test_the_request_is_what_the_contract_says():
    async with raw_server(answer()) as server, HttpSender(server.url("/in%20box?a=b%26c")) as sender:
        assert await sender.send(JOB) == ACCEPTED
    (request,) = server.requests
    assert request.head.startswith("POST /in%20box?a=b%26c HTTP/1.1\r\n")
    assert request.body == b'{"id":"order-41","qty":3,"payload":{"sku":7}}'
    assert request.names == [
        "accept",
        "accept-encoding",
        "asyncqueue-attempt",
        "asyncqueue-token",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "user-agent",
    ]
    assert request.header("content-type") == ["application/json"]
    assert request.header("accept-encoding") == ["identity"]
    assert request.header("idempotency-key") == ["order-41"]
    assert request.header("asyncqueue-token") == ["17"]
    assert request.header("asyncqueue-attempt") == ["2"]
    assert re.fullmatch(r"asyncqueue/[0-9.]+", request.header("user-agent")[0])


async def test_a_job_without_payload_has_no_member_for_it():
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        assert await sender.send(other_job("order-41", payload=None)) == ACCEPTED
    assert server.requests[0].body == b'{"id":"order-41","qty":3}'


async def test_one_connection_serves_many_jobs():
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        for _ in range(20):
            assert await sender.send(JOB) == ACCEPTED
    assert (server.connections, len(server.requests)) == (1, 20)


async def test_cookies_are_not_sent_back():
    cookie = "Set-Cookie: session=1; Path=/"
    async with raw_server(answer(ACK, "200 OK", cookie)) as server, HttpSender(server.url()) as sender:
        assert [await sender.send(JOB) for _ in range(3)] == [ACCEPTED] * 3
    assert [request.header("cookie") for request in server.requests] == [[], [], []]


async def test_proxies_of_the_environment_are_ignored(monkeypatch):
    async with raw_server(answer()) as proxy, raw_server(answer()) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(""))
        monkeypatch.setenv("NO_PROXY", "")
        async with HttpSender(server.url()) as sender:
            assert await sender.send(JOB) == ACCEPTED
    assert (proxy.connections, server.connections) == (0, 1)


async def test_nothing_is_sent_at_or_after_the_deadline():
    clock = ManualClock(1_000)
    async with raw_server(answer()) as server, HttpSender(server.url(), clock=clock) as sender:
        for deadline in (1_000, 999, 0):
            outcome = await sender.send(other_job("late", deadline=deadline))
            assert (outcome.verdict, outcome.certainty) == (Verdict.RETRY, Certainty.NOT_SENT)
            assert outcome.error == "deadline passed"
    assert server.connections == 0


async def test_a_send_is_cut_short_at_the_deadline():
    clock = ManualClock(1_000)
    async with raw_server(silent) as server, HttpSender(server.url(), timeout_ms=60_000, clock=clock) as sender:
        outcome = await sender.send(other_job("soon", deadline=1_100))
    assert (outcome.verdict, outcome.certainty) == (Verdict.RETRY, Certainty.UNKNOWN)
    assert len(server.requests) == 1


async def test_a_sender_that_is_not_open_burns_no_job():
    async with raw_server(answer()) as server:
        sender = HttpSender(server.url())
        before = await sender.send(JOB)
        async with sender:
            assert await sender.send(JOB) == ACCEPTED
        after = await sender.send(JOB)
    assert before == after
    assert (before.verdict, before.certainty) == (Verdict.HOLD, Certainty.NOT_SENT)


async def test_a_sender_is_opened_once():
    async with HttpSender("http://127.0.0.1:1/") as sender:
        with pytest.raises(RuntimeError, match="already open"):
            await sender.__aenter__()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "inbox",
        "/inbox",
        "//host/inbox",
        "http://",
        "http:///inbox",
        "http:inbox",
        "http://host:99999/",
        "http://host:0/",
        "http://host:port/",
        "http://[::1/",
        f"ftp://host/{SECRET}",
        f"file:///{SECRET}",
        f"ws://host/{SECRET}",
        f"http://user:{SECRET}@host/",
        f"http://{SECRET}@host/",
        f"http://:{SECRET}@host/",
        "http://@host/",
        f"http://host/#{SECRET}",
        "http://host/#",
        None,
        b"http://host/",
        41,
    ],
)
def test_an_unusable_url_is_refused_in_one_line_without_it(url):
    with pytest.raises(ConfigError) as caught:
        HttpSender(url)
    assert SECRET not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("url", ["http://h", "HTTPS://h:8443/a?b=c", "http://[::1]:80/", "http://bücher.example/"])
def test_a_usable_url_is_taken(url):
    assert HttpSender(url).timeout_ms == 10_000


@pytest.mark.parametrize(
    "settings",
    [
        {"ack": "yes"},
        {"timeout_ms": 0},
        {"timeout_ms": 1.5},
        {"timeout_ms": True},
        {"timeout_ms": FAR_MS},
        {"connect_timeout_ms": 0},
        {"timeout_ms": 1_000, "connect_timeout_ms": 1_001},
    ],
)
def test_a_setting_outside_its_range_is_refused(settings):
    with pytest.raises(ConfigError, match="send: "):
        HttpSender("http://host/", **settings)


def test_a_short_timeout_needs_no_connect_timeout_beside_it():
    assert HttpSender("http://host/", timeout_ms=200)._timeout_of(200).connect == 0.2
    assert HttpSender("http://host/", timeout_ms=9_000)._timeout_of(9_000).connect == 3.0


@pytest.mark.parametrize(("total_ms", "connect_s"), [(60_000, 3.0), (5_001, 3.0), (3_000, 3.0), (1, 0.001)])
def test_timeouts_are_not_rounded_up_to_whole_seconds(total_ms, connect_s):
    timeout = HttpSender("http://host/", timeout_ms=60_000)._timeout_of(total_ms)
    assert (timeout.total, timeout.connect) == (total_ms / 1000, connect_s)
    assert timeout.ceil_threshold == math.inf  # aiohttp would let 5.001 s be 6 s, and pass the deadline
