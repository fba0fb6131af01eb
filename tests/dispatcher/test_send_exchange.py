"""The two ways of a request: the same bytes, and no connection that serves again after half of anything."""

import asyncio
import contextlib

import aiohttp
import pytest
from send_servers import ACK, JOB, answer, other_job, raw_server

from asyncqueue.dispatcher import exchange
from asyncqueue.dispatcher.exchange import Direct, Posted, fits
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.retry import ACCEPTED, Certainty, Verdict
from tests.waiting import until

MIB = 1024 * 1024
LIMITS = aiohttp.ClientTimeout(connect=1.0)


def test_the_pinned_release_of_aiohttp_is_one_that_the_fast_way_was_tested_with():
    assert fits(aiohttp.__version__)


@pytest.mark.parametrize("release", ["3.13.9", "3.15.0", "3.140.1", "4.0.0", "4.0.0a1", "", "3.14"])
def test_no_other_release_is_trusted(release):
    assert not fits(release)


async def test_the_release_decides_the_way(way):
    async with HttpSender("http://127.0.0.1:1/") as sender:
        assert {type(sender._alone), type(sender._together)} == {Direct if way == "direct" else Posted}


@pytest.mark.parametrize("path", ["", "/", "/in%20box?a=b%26c&d", "/a/../b/%E2%82%AC", "?only=query"])
@pytest.mark.parametrize("payload", [None, '"' + "é" * 1000 + '"'])
async def test_both_ways_send_the_same(path, payload, monkeypatch):
    sent = []
    for is_direct in (True, False):
        monkeypatch.setattr(exchange, "fits", lambda _release, chosen=is_direct: chosen)
        async with raw_server(answer()) as server, HttpSender(server.url(path)) as sender:
            assert await sender.send(other_job("order-41", payload=payload)) == ACCEPTED
        (request,) = server.requests
        first, *lines = request.head.replace(str(server.port), "PORT").strip().split("\r\n")
        sent.append((first, sorted(line.lower() for line in lines), request.body))
    assert sent[0] == sent[1]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("value", ["a\r\nX: y", "a\n", "\r", "\0"])
async def test_a_header_never_breaks_out_of_its_line(value):
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        with pytest.raises(ValueError, match=r"(?i)header|character"):
            await sender._alone.post(b"{}", [("Idempotency-Key", value)], LIMITS)
        assert await sender.send(JOB) == ACCEPTED
    assert len(server.requests) == 1


@pytest.mark.usefixtures("way")
@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_an_answer_before_the_end_of_the_request_ends_the_connection():
    """What was not read of the body must not reach the server as the beginning of another request."""
    connections = 0
    writers = []

    async def refuse_unread(reader, writer):
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(answer(b"{}", "413 Too Large"))
        writers.append(writer)

    server = await asyncio.start_server(refuse_unread, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    big = b"x" * (16 * MIB)  # more than the kernel takes
    async with server, HttpSender(f"http://127.0.0.1:{port}/") as sender:
        for _ in range(2):
            async with asyncio.timeout(10):
                reply = await sender._alone.post(big, (), LIMITS)
                assert (reply.status, await reply.read(100)) == (413, b"{}")
        await until(lambda: not sender._session.connector._acquired)
        for writer in writers:  # from 3.12 on a server waits for its connections
            writer.transport.abort()
    assert connections == 2


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_connection_that_was_lost_before_the_request_is_told(is_known, monkeypatch):
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        connect = type(sender._session.connector).connect

        async def lose(*args, **kwargs):
            connection = await connect(*args, **kwargs)
            connection.transport.close()
            while is_known and connection.transport is not None:
                await asyncio.sleep(0)
            return connection

        with monkeypatch.context() as patch:
            patch.setattr(type(sender._session.connector), "connect", lose)
            outcome = await sender.send(JOB)
        assert (outcome.verdict, outcome.certainty) == (Verdict.RETRY, Certainty.UNKNOWN)
        assert outcome.error.startswith("connection lost")
        assert await sender.send(JOB) == ACCEPTED
        assert not sender._session.connector._acquired
    assert len(server.requests) == 1


@pytest.mark.usefixtures("way")
async def test_the_connection_is_free_again_with_the_last_byte_of_the_answer():
    head, _, _ = answer().partition(b"\r\n\r\n")

    async def in_two_parts(_server, _request, writer):
        writer.write(head + b"\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(ACK)

    async with raw_server(in_two_parts) as server, HttpSender(server.url()) as sender:
        for _ in range(3):
            assert await sender.send(JOB) == ACCEPTED
            assert not sender._session.connector._acquired
    assert server.connections == 1


@pytest.mark.usefixtures("way")
async def test_bytes_that_nobody_asked_for_end_the_connection():
    async with raw_server(answer() + answer()) as server, HttpSender(server.url()) as sender:
        assert [await sender.send(JOB) for _ in range(3)] == [ACCEPTED] * 3
    assert server.connections == 3


@pytest.mark.usefixtures("way")
async def test_an_answer_may_end_with_its_connection():
    async def until_the_end(_server, _request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + ACK)
        writer.close()

    async with raw_server(until_the_end) as server, HttpSender(server.url()) as sender:
        assert [await sender.send(JOB) for _ in range(2)] == [ACCEPTED] * 2
    assert server.connections == 2


@pytest.mark.usefixtures("way")
async def test_of_a_longer_body_one_byte_more_than_asked_for_is_told():
    async with raw_server(answer(b"12345")) as server, HttpSender(server.url()) as sender:
        read = [await (await sender._alone.post(b"{}", (), LIMITS)).read(most) for most in (3, 4, 5, 6)]
    assert read == [b"1234", b"12345", b"12345", b"12345"]


@pytest.fixture
def direct(monkeypatch):
    monkeypatch.setattr(exchange, "fits", lambda _release: True)


def idle_in_step(sender):
    """The connections in the pool on which nothing has come that nobody asked for."""
    return [one for queue in sender._session.connector._conns.values() for one, _ in queue if not one.should_close]


STRAY = [answer(b"{}", "400 Bad Request"), answer(), b"HTTP/1.1 103 Early Hints\r\n\r\n"]


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("stray", STRAY, ids=["refusal", "ack", "interim"])
async def test_what_comes_on_an_idle_connection_is_nobodys_answer(stray):
    """Else every later answer on it would be taken for that of the next job."""
    writers = []

    async def one_more(_server, _request, writer):
        writers.append(writer)
        writer.write(answer())

    async with raw_server(one_more) as server, HttpSender(server.url()) as sender:
        for number in range(1, 4):
            assert await sender.send(JOB) == ACCEPTED
            assert server.connections == len(writers) == number
            writers[-1].write(stray)
            await until(lambda: not idle_in_step(sender))


@pytest.mark.usefixtures("direct")
@pytest.mark.filterwarnings("error::ResourceWarning")  # of a connection that is left to the garbage collector
async def test_a_server_that_speaks_before_it_is_asked_gets_no_job(monkeypatch):
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        connect = type(sender._session.connector).connect

        async def told_something(*args, **kwargs):
            connection = await connect(*args, **kwargs)
            connection.protocol.set_response_params()
            connection.protocol.data_received(answer())
            return connection

        with monkeypatch.context() as patch:
            patch.setattr(type(sender._session.connector), "connect", told_something)
            outcome = await sender.send(JOB)
        assert outcome.verdict is Verdict.RETRY
        assert not server.requests
        assert not sender._session.connector._acquired
        assert await sender.send(JOB) == ACCEPTED


@pytest.mark.usefixtures("direct")
async def test_a_bare_101_ends_its_connection():
    async with (
        raw_server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n") as server,
        HttpSender(server.url()) as sender,
    ):
        for number in range(1, 4):
            assert (await sender.send(JOB)).http_status == 101
            assert server.connections == number


@pytest.mark.usefixtures("direct")
async def test_what_was_not_sent_when_a_send_is_given_up_never_is():
    received = asyncio.Queue()
    go = asyncio.Event()

    async def late_reader(reader, writer):
        writer.transport.pause_reading()
        await go.wait()
        writer.transport.resume_reading()
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(MIB):
                received.put_nowait(len(chunk))
        writer.close()
        received.put_nowait(0)

    server = await asyncio.start_server(late_reader, "127.0.0.1", 0, limit=1024)
    size = 32 * MIB  # more than the kernel takes
    async with server, HttpSender(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/") as sender:
        sending = asyncio.ensure_future(sender._alone.post(b"x" * size, (), LIMITS))
        await until(lambda: sender._session.connector._acquired and not sending.done())
        await until(lambda: any(one.transport.get_write_buffer_size() for one in acquired(sender)))
        sending.cancel()
        await asyncio.wait([sending])
        assert not sender._session.connector._acquired
        go.set()
        total = 0
        async with asyncio.timeout(20):
            while length := await received.get():
                total += length
    assert total < size


def acquired(sender):
    """The connections in use, without those that are still being made."""
    return [one for one in sender._session.connector._acquired if one.transport is not None]
