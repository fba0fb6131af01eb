"""The door: who may come in, how much they may carry, how long they may take."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from aiohttp import StreamReader, hdrs, web
from aiohttp.http import HttpProcessingError

from asyncqueue import wire
from asyncqueue.errors import ConfigError
from asyncqueue.wire import WireError
from receiver.answers import Grumble
from receiver.inbox import Inbox

__all__ = ["BYTES_INSIDE_MAX", "DOOR", "Door"]

BYTES_INSIDE_MAX: Final = 64 * 1024 * 1024
# aiohttp's parser in Python tells a reader that waits already by an error of its own.
_BAD_CHUNKS: Final = (web.RequestPayloadError, HttpProcessingError)


@dataclass(slots=True, eq=False)
class Door:
    """The state of a mounted inbox. Sizes in bytes, times in seconds.

    `bytes_inside_max` bounds the bodies of all requests inside together: 4,096 requests of 1 MiB would be 4 GiB.
    """

    body_bytes_max: int
    body_timeout_s: float
    concurrency_max: int
    grumble: Grumble
    bytes_inside_max: int = BYTES_INSIDE_MAX
    inbox: Inbox | None = None
    inside: int = 0
    bytes_inside: int = 0
    is_stopping: bool = False
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if self.body_bytes_max < 1 or self.concurrency_max < 1 or not self.body_timeout_s > 0:
            raise ConfigError("body_bytes_max, concurrency_max and body_timeout_s must be above 0")
        self.bytes_inside_max = max(self.bytes_inside_max, self.body_bytes_max)

    def enter(self) -> None:
        """Take one of the places inside. Raises `WireError` (BUSY) if there is none or a stop is under way."""
        if self.is_stopping or self.inside >= self.concurrency_max or self.bytes_inside > self.bytes_inside_max:
            raise WireError(wire.BUSY, "stopping" if self.is_stopping else "too many requests at once")
        self.inside += 1

    def leave(self, held_bytes: int) -> None:
        """Give the place back, and the room of the body that was held."""
        self.bytes_inside -= held_bytes
        self.inside -= 1
        if not self.inside:
            self._emptied.set()

    async def emptied(self) -> None:
        """Return when nobody is inside."""
        while self.inside:
            self._emptied.clear()
            await self._emptied.wait()

    def open_inbox(self) -> Inbox:
        """Return the inbox. Raises `WireError` (BUSY) before it is opened and after it is closed."""
        if self.inbox is None:
            raise WireError(wire.BUSY, "the inbox is not open")
        return self.inbox

    async def read_body(self, request: web.Request) -> bytes:
        """Return the body, within its size and time; what is refused by its headers is not read at all."""
        headers = request.headers
        is_json = headers.get(hdrs.CONTENT_TYPE) == wire.JSON_TYPE or request.content_type == wire.JSON_TYPE
        if not is_json or hdrs.CONTENT_ENCODING in headers:
            raise WireError(wire.UNSUPPORTED, "Content-Type must be application/json, without Content-Encoding")
        content = request.content
        if not content.is_eof():
            if (request.content_length or 0) > self.body_bytes_max:
                raise self._too_large()
            return await self._read_slowly(content)
        try:
            body = content.read_nowait()  # all of it came with the headers: no wait, no timer
        except _BAD_CHUNKS:
            raise WireError(wire.MALFORMED, "the body's chunks cannot be read") from None
        if len(body) > self.body_bytes_max:
            raise self._too_large()
        return body

    async def _read_slowly(self, content: StreamReader) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_timeout_s):
                while chunk := await content.readany():
                    self.bytes_inside += len(chunk)
                    body += chunk
                    if len(body) > self.body_bytes_max:
                        raise self._too_large()
                    if self.bytes_inside > self.bytes_inside_max:
                        raise WireError(wire.BUSY, "too many bytes at once")
        except TimeoutError:
            raise WireError(wire.REQUEST_TIMEOUT, f"the body took more than {self.body_timeout_s:g} s") from None
        except _BAD_CHUNKS:
            raise WireError(wire.MALFORMED, "the body's chunks cannot be read") from None
        except ConnectionError:
            raise WireError(wire.MALFORMED, "the client left before the end of the body") from None
        finally:
            self.bytes_inside -= len(body)
        return bytes(body)

    def _too_large(self) -> WireError:
        return WireError(wire.TOO_LARGE, f"more than {self.body_bytes_max} bytes")


DOOR: Final = web.AppKey("door", Door)
