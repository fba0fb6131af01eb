"""One POST and its answer over the connections of an aiohttp session.

`session.post` is made for everything that HTTP can be asked; for a small body whose answer is a small body, most
of what it costs is preparing for the rest (`python -m benchmarks run --only send`). So `Direct` writes the bytes
of a request to a connection of the session's pool itself, in one piece and at once, and reads the answer by
aiohttp's own parser. The pool, name lookup, TLS, timeouts of connecting, parsing and the errors stay aiohttp's.

How a connection is taken and asked is documented only in part, so `Direct` is for the releases of aiohttp that it
was tested with; with any other, `Posted` does the same by `session.post`.
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import aiohttp
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

if TYPE_CHECKING:  # inner parts of aiohttp, which another release may have elsewhere
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import BaseConnector, Connection
    from aiohttp.http import RawResponseMessage

__all__ = ["Answer", "Direct", "Exchange", "Header", "Posted", "fits", "open_exchange"]

Header = tuple[str, str]
"""Name and value."""

_TRIES: Final = 3  # connections that may turn out to be out of step before a request is given up
# The releases of aiohttp whose inner parts are known to fit together as `Direct` puts them.
_TESTED: Final = "3.14."


class Answer(Protocol):
    """The head of an answer; its body comes when it is read."""

    @property
    def status(self) -> int:
        """The status code; 100 to 199 never, except 101."""
        ...

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """All headers."""
        ...

    async def read(self, bytes_max: int) -> bytes:
        """Return the body, or of a longer one its first `bytes_max` + 1 bytes and no more; to be called once.

        Then the connection is in the pool again if it was read to the end of the answer, and closed otherwise (a
        longer body, an error, a cancellation): none is ever left half-read.
        """
        ...


class Exchange(Protocol):
    """POSTs to one URL."""

    async def post(self, body: bytes, headers: Sequence[Header], limits: aiohttp.ClientTimeout) -> Answer:
        """Send `body` once, under the session's headers and these, and return the head of the answer.

        Raises `aiohttp.ClientError` or `TimeoutError`, both when connecting, and `ValueError` for a header that
        cannot be sent. Keeps to `limits.connect`; `limits.total` is the caller's to keep, since it is for the
        body of the answer, too.
        """
        ...


def open_exchange(session: aiohttp.ClientSession, url: URL) -> Exchange:
    """Return the fastest way to post to `url` with this release of aiohttp."""
    connector = session.connector
    if connector is None or not fits(aiohttp.__version__):
        return Posted(session, url)
    return Direct(session, connector, url)


def fits(release: str) -> bool:
    """Tell whether `Direct` was tested with this release of aiohttp."""
    return release.startswith(_TESTED)


class Posted:
    """By `session.post`."""

    def __init__(self, session: aiohttp.ClientSession, url: URL) -> None:
        self._session = session
        self._url = url

    async def post(self, body: bytes, headers: Sequence[Header], limits: aiohttp.ClientTimeout) -> Answer:
        """See `Exchange`."""
        response = await self._session.post(
            self._url, data=body, headers=CIMultiDict(headers), allow_redirects=False, timeout=limits
        )
        return _PostedAnswer(response)


class _PostedAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers

    async def read(self, bytes_max: int) -> bytes:
        """See `Answer`."""
        response = self._response
        try:
            body = await _read_capped(response.content, bytes_max)
        except BaseException:
            response.close()
            raise
        if not response.closed:  # read to its end it has gone back to the pool by itself
            response.close()
        return body


class Direct:
    """By the bytes of the request, written to a connection of the session's pool."""

    def __init__(self, session: aiohttp.ClientSession, connector: "BaseConnector", url: URL) -> None:
        self._connector = connector
        # Tells the connector where to connect, no more; what is sent is put together here.
        self._destination = aiohttp.ClientRequest("POST", url, loop=asyncio.get_running_loop(), session=session)
        constant = [("Host", url.host_port_subcomponent or ""), *session.headers.items()]
        self._head = f"POST {url.raw_path_qs} HTTP/1.1\r\n{_lines(constant)}".encode("ascii")

    async def post(self, body: bytes, headers: Sequence[Header], limits: aiohttp.ClientTimeout) -> Answer:
        """See `Exchange`."""
        request = b"%b%bContent-Length: %d\r\n\r\n%b" % (
            self._head,
            _lines(headers).encode("ascii"),
            len(body),
            body,
        )
        connection = await self._connected(limits)
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None:
                raise aiohttp.ClientConnectionResetError("the connection was lost before the request")  # noqa: TRY301
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            transport.write(request)
            return _DirectAnswer(connection, *await self._answered(protocol))
        except BaseException:
            _cut(connection)
            raise

    async def _connected(self, limits: aiohttp.ClientTimeout) -> "Connection":
        """Return a connection on which nothing was said yet that would pass for the answer to what comes."""
        for _ in range(_TRIES):
            try:
                connection = await self._connector.connect(self._destination, [], limits)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError("connect timed out") from error
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("the server spoke before it was asked")

    async def _answered(self, protocol: "ResponseHandler") -> "tuple[RawResponseMessage, aiohttp.StreamReader]":
        """Return the final answer; what may come before it (RFC 9110, 15.2) is none."""
        try:
            while True:
                message, content = await protocol.read()
                if not _is_interim(message.code):
                    return message, content
        except HttpProcessingError as error:
            raise aiohttp.ClientResponseError(
                self._destination.request_info, (), status=error.code, message=error.message
            ) from error


class _DirectAnswer:
    def __init__(
        self, connection: "Connection", message: "RawResponseMessage", content: aiohttp.StreamReader
    ) -> None:
        self._connection = connection
        self._content = content
        self.status = message.code
        self.headers = message.headers

    async def read(self, bytes_max: int) -> bytes:
        """See `Answer`."""
        connection = self._connection
        try:
            body = await _read_capped(self._content, bytes_max)
        except BaseException:
            _cut(connection)
            raise
        if self.status == HTTPStatus.SWITCHING_PROTOCOLS or _unsent(connection):
            _cut(connection)  # answered before it had the whole request: the rest must not go out as another one
        else:
            connection.release()  # closes it, too, if it cannot serve again
        return body


def _unsent(connection: "Connection") -> int:
    """Return how many bytes of the request have not left this process; of a lost connection 0."""
    transport = connection.transport
    return 0 if transport is None else transport.get_write_buffer_size()


def _cut(connection: "Connection") -> None:
    """Close a connection at once; what was not sent by now is not."""
    if connection.transport is not None:
        connection.transport.abort()
    connection.close()


def _is_interim(status: int) -> bool:
    return status // 100 == 1 and status != HTTPStatus.SWITCHING_PROTOCOLS


def _lines(headers: Sequence[Header]) -> str:
    """Return the lines of these headers. Raises `ValueError` for one that would break out of its line."""
    if not all(name.isprintable() and value.isprintable() for name, value in headers):
        raise ValueError("a header holds control characters")
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


async def _read_capped(content: aiohttp.StreamReader, bytes_max: int) -> bytes:
    body = await content.readany()
    if content.at_eof():
        return body[: bytes_max + 1]
    longer = bytearray(body)
    while not content.at_eof() and len(longer) <= bytes_max:
        longer += await content.readany()
    return bytes(longer[: bytes_max + 1])
