"""What each failure means: before the request left, after it may have arrived, and what a cancellation leaves."""

import asyncio
import contextlib
import socket
import ssl
import struct
import subprocess

import pytest
from send_servers import ACK, JOB, answer, other_job, raw_server, silent

from asyncqueue.dispatcher.meaning import FAILURES
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.retry import ACCEPTED, Certainty, Verdict
from tests.postgres_server import free_port
from tests.waiting import until

RETRY_UNKNOWN = (Verdict.RETRY, Certainty.UNKNOWN)
RETRY_NOT_SENT = (Verdict.RETRY, Certainty.NOT_SENT)
HOLD_NOT_SENT = (Verdict.HOLD, Certainty.NOT_SENT)
SECRET = "hunter2"
pytestmark = pytest.mark.usefixtures("way")


async def send_to(url, job=JOB, **settings):
    async with HttpSender(url, **settings) as sender:
        return await sender.send(job)


def verdict(outcome):
    assert outcome.error.isprintable()
    assert SECRET not in outcome.error
    return outcome.verdict, outcome.certainty


async def close(_server, _request, writer):
    writer.close()


async def reset(_server, _request, writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close_mid_body(_server, _request, writer):
    writer.write(answer()[:-5])
    writer.close()


async def reset_mid_body(server, request, writer):
    writer.write(answer()[:-5])
    await writer.drain()
    await reset(server, request, writer)


async def close_mid_head(_server, _request, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    writer.close()


async def close_mid_chunk(_server, _request, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + ACK)
    writer.close()


@pytest.mark.parametrize("behave", [close, reset, close_mid_body, reset_mid_body, close_mid_head, close_mid_chunk])
@pytest.mark.parametrize("ack", ["echo", "status"])
async def test_a_lost_connection_leaves_the_effect_unknown__kind_18(behave, ack):
    async with raw_server(behave) as server:
        outcome = await send_to(server.url(f"/?key={SECRET}"), ack=ack)
    assert verdict(outcome) == RETRY_UNKNOWN
    assert len(server.requests) == 1  # aiohttp did not send again by itself


@pytest.mark.parametrize(
    "noise",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_unknown_and_never_kills(noise):
    async with raw_server(noise) as server:
        outcome = await send_to(server.url(f"/?key={SECRET}"))
    assert verdict(outcome) == RETRY_UNKNOWN


async def test_a_keep_alive_race_is_a_retry_with_the_same_id__kind_41_outcome_unknown():
    async def serve_one_then_hang_up(server, _request, writer):
        if len(server.requests) == 2:
            writer.close()  # it had read the second request: nobody can tell what became of it
        else:
            writer.write(answer())

    async with raw_server(serve_one_then_hang_up) as server, HttpSender(server.url()) as sender:
        outcomes = [await sender.send(JOB) for _ in range(3)]
    assert outcomes[0] == outcomes[2] == ACCEPTED
    assert verdict(outcomes[1]) == RETRY_UNKNOWN
    assert [request.header("idempotency-key") for request in server.requests] == [[JOB.id]] * 3
    assert server.connections == 2


async def test_a_server_that_closes_idle_connections_costs_a_retry_at_most__kind_41():
    async def answer_and_close(_server, _request, writer):
        writer.write(answer())
        writer.close()

    async with raw_server(answer_and_close) as server, HttpSender(server.url()) as sender:
        outcomes = [await sender.send(JOB) for _ in range(20)]
    assert outcomes[0] == ACCEPTED
    assert all(outcome == ACCEPTED or verdict(outcome) == RETRY_UNKNOWN for outcome in outcomes)
    assert outcomes.count(ACCEPTED) <= server.connections


async def test_a_refused_connect_was_not_sent():
    outcome = await send_to(f"http://127.0.0.1:{free_port()}/?key={SECRET}")
    assert verdict(outcome) == RETRY_NOT_SENT
    assert "refused" in outcome.error


async def test_an_unknown_host_was_not_sent__kind_18_wrong_class_of_error():
    outcome = await send_to(f"http://does-not-exist.invalid/?key={SECRET}", timeout_ms=20_000)
    assert verdict(outcome) == RETRY_NOT_SENT


async def test_a_connect_timeout_was_not_sent():
    with socket.socket() as full, contextlib.ExitStack() as clients:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # fill the backlog: the kernel drops the next SYN
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/?key={SECRET}"
        outcome = await send_to(url, connect_timeout_ms=200)
    assert verdict(outcome) == RETRY_NOT_SENT
    assert outcome.error.startswith("connect timed out")


async def test_a_tls_handshake_that_hangs_was_not_sent():
    async with raw_server(silent) as server:
        url = server.url(f"/?key={SECRET}", scheme="https")
        outcome = await send_to(url, connect_timeout_ms=200)
    assert verdict(outcome) == RETRY_NOT_SENT


async def test_tls_to_a_plain_server_was_not_sent():
    async def shout(_reader, writer):
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        outcome = await send_to(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/?key={SECRET}")
    assert verdict(outcome) == RETRY_NOT_SENT


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost"], cwd=folder, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_a_self_signed_certificate_holds_the_endpoint(certificate):
    async with raw_server(answer(), ssl=certificate) as server:
        outcome = await send_to(server.url(f"/?key={SECRET}", scheme="https"))
    assert verdict(outcome) == HOLD_NOT_SENT
    assert outcome.error.startswith("certificate refused")
    assert server.requests == []


async def test_silence_is_unknown():
    async with raw_server(silent) as server:
        url = server.url(f"/?key={SECRET}")
        outcome = await send_to(url, timeout_ms=200, connect_timeout_ms=200)
    assert verdict(outcome) == RETRY_UNKNOWN
    assert len(server.requests) == 1


async def test_a_large_body_that_nobody_reads_is_no_leak_of_the_url():
    async def hang_up(_reader, writer):
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    big = other_job("big", payload='"' + "x" * 250_000 + '"')
    async with server:
        outcome = await send_to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?key={SECRET}", big)
    assert verdict(outcome) == RETRY_UNKNOWN


@pytest.mark.parametrize("error", [RuntimeError, KeyError, OSError, UnicodeError])
async def test_an_unknown_error_is_a_retry_and_never_silent__kind_18(monkeypatch, error):
    url = f"http://127.0.0.1:1/in?key={SECRET}"
    async with HttpSender(url) as sender:

        def broken(*_args, **_kwargs):
            raise error(f"no way to {url}\n")

        monkeypatch.setattr(type(sender._alone), "post", broken)
        outcome = await sender.send(JOB)
    assert verdict(outcome) == RETRY_UNKNOWN
    assert error.__name__ in outcome.error


async def test_a_job_that_cannot_be_written_is_a_retry_too():
    outcome = await send_to("http://127.0.0.1:1/", other_job("é"))
    assert verdict(outcome) == RETRY_UNKNOWN
    assert "UnicodeEncodeError" in outcome.error


def test_the_table_of_failures_ends_with_everything_and_hides_nothing__kind_18():
    kinds = [kind for kind, _ in FAILURES]
    assert kinds[-1] is Exception
    for place, kind in enumerate(kinds):
        assert not any(issubclass(kind, earlier) for earlier in kinds[:place]), f"{kind} is never reached"


async def half_then_silence(server, request, writer):
    writer.write(answer()[:-5])
    await writer.drain()
    await silent(server, request, writer)


@pytest.mark.parametrize("behave", [silent, half_then_silence])
async def test_a_cancellation_passes_at_once_and_leaves_nothing_half_read(behave):
    async def first_hangs(server, request, writer):
        if len(server.requests) > 1:
            writer.write(answer())
            return
        hang = asyncio.ensure_future(behave(server, request, writer))
        await asyncio.wait([hang, asyncio.ensure_future(_closed(writer))], return_when="FIRST_COMPLETED")
        hang.cancel()

    async with raw_server(first_hangs) as server, HttpSender(server.url()) as sender:
        task = asyncio.create_task(sender.send(JOB))
        await until(server.arrived.is_set)
        for _ in range(20):  # let what the server said arrive
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert not sender._session.connector._acquired, f"{cancelled} left its connection to the garbage collector"
        assert await sender.send(JOB) == ACCEPTED
    assert server.connections == 2


async def _closed(writer):
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_cancelled_at_any_moment_the_sender_goes_on():
    async with raw_server(answer()) as server, HttpSender(server.url()) as sender:
        cancelled = 0
        for steps in range(40):
            task = asyncio.create_task(sender.send(JOB))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                assert await task == ACCEPTED
            except asyncio.CancelledError:
                cancelled += 1
            assert await sender.send(JOB) == ACCEPTED
    assert cancelled > 0
