"""The listening side of `python -m receiver`: bounds that aiohttp's server does not set by itself.

A connection is closed when it is idle, or stuck in the middle of a header, for `idle_s`; when its client does not
read what it is answered for as long; and at once when there are `connections_max` others.
"""

import asyncio
import socket
from typing import Any, Final

from aiohttp import web

from asyncqueue import wire
from receiver.answers import BAD_REQUEST, refusal

__all__ = ["BoundedSite"]

_BACKLOG: Final = 1024
_LINGER_S: Final = 2.0  # how long an unread body is read after its answer, so that the client sees the answer
_DETAIL_CHARS_MAX: Final = 200
_FULL_BODY: Final = wire.encode_problem(wire.BUSY, "too many connections")
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: %b\r\nContent-Length: %d\r\nRetry-After: 1\r\n"
    b"Connection: close\r\n\r\n%b" % (wire.PROBLEM_TYPE.encode("ascii"), len(_FULL_BODY), _FULL_BODY)
)


class _TurnedAway(asyncio.Protocol):
    """A connection for which there is no room: told so, and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(_FULL)
            transport.close()


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_patience",)

    def __init__(self, manager: web.Server, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._patience: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Give a client that does not read its answers as long as one that does not write its requests."""
        super().pause_writing()
        self._patience = asyncio.get_running_loop().call_later(self.keepalive_timeout, self._give_up)

    def resume_writing(self) -> None:
        """Forget it: the client reads again."""
        self._forget_patience()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it: the client is gone."""
        self._forget_patience()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not HTTP by a problem, without a traceback in the log: they are the client's."""
        if status != BAD_REQUEST.status or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        return refusal(BAD_REQUEST, (message or type(exc).__name__)[:_DETAIL_CHARS_MAX])

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log, except for bytes of a client that are no HTTP: reading past an answered body may meet them."""
        if not isinstance(kwargs.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **kwargs)

    def _give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _forget_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class BoundedSite(web.BaseSite):
    """Serves `runner`'s application on a bound socket, which it then owns. Times in seconds."""

    def __init__(
        self, runner: web.AppRunner, bound: socket.socket, *, connections_max: int, idle_s: float
    ) -> None:
        super().__init__(runner, backlog=_BACKLOG)
        self._bound = bound
        self._connections_max = connections_max
        self._idle_s = idle_s

    @property
    def name(self) -> str:
        """Return the URL of the site."""
        host, port = self._bound.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """Listen. Raises `OSError`."""
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=self._bound, backlog=_BACKLOG)

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or len(server.connections) >= self._connections_max:
            return _TurnedAway()
        return _Connection(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._idle_s,
            lingering_time=_LINGER_S,
        )
