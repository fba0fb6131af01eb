"""Raw servers for the sender's tests: they say exactly the bytes that a test wants said."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from asyncqueue.job import LeasedJob
from asyncqueue.wire import ACCEPTED, encode_ack

FAR_MS = 4 * 10**12
JOB = LeasedJob(
    id="order-41",
    qty=3,
    owner="me",
    token=17,
    attempt=2,
    lease_until=FAR_MS,
    queue="default",
    kind="job",
    payload='{"sku":7}',
    priority=0,
    max_attempts=20,
    deadline=FAR_MS,
    lease_ms=30_000,
)
ACK = encode_ack(JOB.id, JOB.qty, ACCEPTED)


def other_job(job_id: str, **changes: object) -> LeasedJob:
    return replace(JOB, id=job_id, **changes)


def answer(body: bytes = ACK, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


@dataclass
class Request:
    head: str
    body: bytes

    def header(self, name: str) -> list[str]:
        return re.findall(rf"(?im)^{name}: *(.*?)\r?$", self.head)

    @property
    def names(self) -> list[str]:
        return sorted(line.split(":")[0].lower() for line in self.head.split("\r\n")[1:] if line)


Behaviour = Callable[["RawServer", Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """Reads whole requests and lets `behave` answer them; remembers everything."""

    behave: Behaviour
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    bytes_sent: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/inbox", scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await self._read(reader)) is not None:
                self.requests.append(request)
                self.arrived.set()
                await self.behave(self, request, writer)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.gone.set()
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        length = int(re.search(r"(?i)content-length: *(\d+)", head)[1])
        return Request(head, await reader.readexactly(length))


@contextlib.asynccontextmanager
async def raw_server(behave: Behaviour | bytes, **kwargs):
    """Serve on a free port; `behave` is bytes to say to every request, or a coroutine function."""
    raw = RawServer(says(behave) if isinstance(behave, bytes) else behave)
    tasks: set[asyncio.Task] = set()

    async def handle(reader, writer):
        task = asyncio.current_task()
        tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            await raw.serve(reader, writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **kwargs)
    raw.port = server.sockets[0].getsockname()[1]
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def says(text: bytes) -> Behaviour:
    async def behave(_server, _request, writer):
        writer.write(text)

    return behave


async def silent(_server, _request, _writer):
    """Never answers; ends when the test does."""
    await asyncio.Event().wait()
