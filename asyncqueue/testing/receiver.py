"""A receiver that does what a test tells it: a real server on the loopback interface."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from asyncqueue import wire
from asyncqueue.job import decode_payload

__all__ = ["ScriptedReceiver", "Seen"]

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # linger on, for no time: the peer gets a reset
_FAILING = range(300, 600)

Step = Callable[[web.Request, wire.Message], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came; `id` is empty and `qty` 0 where the body was no message."""

    id: str
    qty: int
    payload: Any
    token: int | None
    attempt: int | None
    headers: dict[str, str]
    body: bytes = field(repr=False)


class ScriptedReceiver:
    """An inbox on 127.0.0.1 that follows a script, one step a request, and accepts when the script is over.

    Steps are added by `accept`, `fail`, `wrong_ack`, `hang` and `reset`; each returns the receiver, so they chain:
    `receiver.fail(times=2).accept()`. What cannot be a step raises `ValueError` or `TypeError`. Accepting is what
    a real inbox does: the first time `accepted`, then `duplicate`, and 409 for the same id with another quantity
    or payload. An async context manager.
    """

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.accepted: dict[str, int] = {}
        self._messages: dict[str, wire.Message] = {}
        self._script: deque[Step] = deque()
        self._released = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where to send: the address for `HttpSender`."""
        return f"http://127.0.0.1:{self._port}/inbox"

    @property
    def ids(self) -> list[str]:
        """The ids of all requests, in the order they came."""
        return [seen.id for seen in self.requests]

    def accept(self, times: int = 1) -> Self:
        """Accept the next `times` requests."""
        return self._then(self._accept, times)

    def fail(self, status: int = 503, *, times: int = 1, retry_after: int | str | None = None) -> Self:
        """Answer the next `times` requests with `status` (300-599), and with `Retry-After` if given."""
        if status not in _FAILING:
            raise ValueError(
                f"fail takes a status from 300 to 599, not {status!r}: accept() and wrong_ack() answer 200"
            )
        if retry_after is not None and type(retry_after) not in (int, str):
            raise TypeError(f"retry_after must be seconds or the text of a date, not {retry_after!r}")
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

        async def step(_request: web.Request, _message: wire.Message) -> web.StreamResponse:
            return web.Response(status=status, headers=headers)

        return self._then(step, times)

    def wrong_ack(self, body: bytes = b"<html>log in</html>", *, times: int = 1) -> Self:
        """Answer 200 with a body that acknowledges nothing, as a proxy or a login page does."""
        if not isinstance(body, bytes):
            raise TypeError(f"wrong_ack takes the body as bytes, not {body!r}")

        async def step(_request: web.Request, _message: wire.Message) -> web.StreamResponse:
            return web.Response(body=body)

        return self._then(step, times)

    def hang(self, times: int = 1) -> Self:
        """Let the next `times` requests wait until `release()`, then accept them."""

        async def step(request: web.Request, message: wire.Message) -> web.StreamResponse:
            await self._released.wait()
            return await self._accept(request, message)

        return self._then(step, times)

    def release(self) -> None:
        """Let go of all requests that hang, now and later."""
        self._released.set()

    def reset(self, times: int = 1) -> Self:
        """Cut the connection of the next `times` requests after reading them: nobody knows what became of them."""

        async def step(request: web.Request, _message: wire.Message) -> web.StreamResponse:
            transport = request.transport
            if transport is not None:
                peer = transport.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                transport.abort()
            return web.Response()

        return self._then(step, times)

    async def seen(self, count: int = 1) -> list[Seen]:
        """Wait until at least `count` requests came, and return all of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=wire.REQUEST_BYTES_MAX)
        app.router.add_post("/inbox", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        self._runner = runner
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._port = runner.addresses[0][1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.release()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _then(self, step: Step, times: int) -> Self:
        if type(times) is not int or times < 1:
            raise ValueError(f"times must be an integer of at least 1, not {times!r}")
        self._script.extend([step] * times)
        return self

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            message = wire.parse_message(body)
        except wire.WireError as error:
            await self._note(request, body, None)
            return _refused(error.problem, error.detail)
        await self._note(request, body, message)
        step = self._script.popleft() if self._script else self._accept
        return await step(request, message)

    async def _note(self, request: web.Request, body: bytes, message: wire.Message | None) -> None:
        self.requests.append(
            Seen(
                id=message.id if message else "",
                qty=message.qty if message else 0,
                payload=decode_payload(message.payload) if message else None,
                token=_number(request.headers.get(wire.TOKEN_HEADER)),
                attempt=_number(request.headers.get(wire.ATTEMPT_HEADER)),
                headers=dict(request.headers),
                body=body,
            )
        )
        async with self._arrived:
            self._arrived.notify_all()

    async def _accept(self, _request: web.Request, message: wire.Message) -> web.StreamResponse:
        before = self._messages.setdefault(message.id, message)
        if before != message:
            return _refused(wire.CONFLICT, f"{message.id} was accepted with another quantity or payload")
        result = wire.DUPLICATE if message.id in self.accepted else wire.ACCEPTED
        self.accepted[message.id] = message.qty
        return web.Response(body=wire.encode_ack(message.id, message.qty, result), content_type=wire.JSON_TYPE)


def _refused(problem: wire.Problem, detail: str) -> web.Response:
    body = wire.encode_problem(problem, detail)
    return web.Response(status=problem.status, body=body, content_type=wire.PROBLEM_TYPE)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
