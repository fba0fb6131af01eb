"""The HTTP face of the inbox. Every refusal is `application/problem+json`; no bytes of a client cause a 500."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

from aiohttp import hdrs, web

from asyncqueue import wire
from asyncqueue.errors import AsyncQueueError, StoreError
from asyncqueue.wire import Problem, WireError
from receiver.inbox import Inbox, Result
from receiver.stores import open_inbox
from receiver.stores.base import Effect
from receiver.stores.sqlite.store import Journal

__all__ = ["DOOR", "Door", "create_app"]

log = logging.getLogger("receiver")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_RETRY_AFTER_S: Final = "1"
_ACK_HEADERS: Final = {hdrs.CONTENT_TYPE: wire.JSON_TYPE}
_COUNT_DIGITS_MAX: Final = 15
_NO_PATH: Final = Problem(404, "urn:asyncqueue:problem:no-such-path", "There is nothing at this path")
_NO_METHOD: Final = Problem(405, "urn:asyncqueue:problem:no-such-method", "This path does not take this method")


@dataclass(slots=True)
class Door:
    """The state of a mounted inbox; sizes in bytes, times in seconds."""

    body_bytes_max: int
    body_timeout_s: float
    concurrency_max: int
    inbox: Inbox | None = None
    inside: int = 0
    is_stopping: bool = False


DOOR: Final = web.AppKey("door", Door)


def create_app(  # noqa: PLR0913 - settings, all but one by name
    path: str | os.PathLike[str],
    *,
    effect: Effect | None = None,
    journal: Journal = "delete",
    force_wal: bool = False,
    body_bytes_max: int = wire.REQUEST_BYTES_MAX,
    body_timeout_s: float = 10.0,
    concurrency_max: int = 4_096,
) -> web.Application:
    """Return an application with `POST /inbox`, `GET /inbox/{id}`, `GET /totals`, `GET /livez`, `GET /readyz`.

    The inbox at `path` (a SQLite file, made if missing) is opened when the application starts and closed when it
    is cleaned up. `effect(connection, message)` runs once per accepted message, in its dedup row's transaction;
    without one, a ledger of quantities per id is kept. Bodies above `body_bytes_max` are refused, those that take
    longer than `body_timeout_s` too; more than `concurrency_max` requests at once are answered 503.
    """
    app = web.Application(client_max_size=body_bytes_max)
    app[DOOR] = door = Door(body_bytes_max, body_timeout_s, concurrency_max)

    async def keep_open(_app: web.Application) -> AsyncIterator[None]:
        door.inbox = Inbox(await open_inbox(path, effect=effect, journal=journal, force_wal=force_wal))
        yield
        door.is_stopping = True
        inbox, door.inbox = door.inbox, None
        await inbox.close()

    app.cleanup_ctx.append(keep_open)
    app.router.add_post("/inbox", _guarded(post_message))
    app.router.add_get("/inbox/{id}", _guarded(get_message))
    app.router.add_get("/totals", _guarded(get_totals))
    app.router.add_get("/livez", get_livez)
    app.router.add_get("/readyz", _guarded(get_readyz))
    for known in ("/inbox", "/inbox/{id}", "/totals", "/livez", "/readyz"):
        app.router.add_route("*", known, refuse_method)
    app.router.add_route("*", "/{path:.*}", refuse_path)
    return app


async def post_message(request: web.Request) -> web.StreamResponse:
    """Take one message; see DESIGN of the HTTP contract in `asyncqueue.wire`."""
    door = request.app[DOOR]
    if door.is_stopping or door.inbox is None or door.inside >= door.concurrency_max:
        return _refusal(wire.BUSY, "stopping" if door.is_stopping else "too many requests at once")
    door.inside += 1
    try:
        message = wire.parse_message(await _read_body(request, door))
        key = request.headers.get(wire.IDEMPOTENCY_HEADER)
        if key is not None and key != message.id:
            raise WireError(wire.OUT_OF_RANGE, "Idempotency-Key and id differ")
        token = _count(request.headers.get(wire.TOKEN_HEADER))
        result = await door.inbox.receive(message, token, _count(request.headers.get(wire.ATTEMPT_HEADER)))
    finally:
        door.inside -= 1
    if result is Result.CONFLICT:
        return _refusal(wire.CONFLICT, f"{message.id} was accepted with another quantity or payload")
    if result is Result.EFFECT_FAILED:
        return _refusal(wire.EFFECT_FAILED, f"the effect of {message.id} failed and was undone")
    return web.Response(body=wire.encode_ack(message.id, message.qty, result), headers=_ACK_HEADERS)


async def get_message(request: web.Request) -> web.StreamResponse:
    """Show what is kept of one message."""
    inbox = _open_inbox(request)
    kept = await inbox.get(request.match_info["id"])
    if kept is None:
        return _refusal(wire.UNKNOWN_ID, "this id was never accepted here")
    shown = asdict(kept)
    shown["payload"] = None if kept.payload is None else json.loads(kept.payload)
    return web.json_response(shown)


async def get_totals(request: web.Request) -> web.StreamResponse:
    """Show the counts."""
    totals = await _open_inbox(request).totals()
    return web.json_response({**asdict(totals), "requests": totals.requests})


async def get_livez(_request: web.Request) -> web.StreamResponse:
    """Answer as long as the loop runs."""
    return web.json_response({"status": "alive"})


async def get_readyz(request: web.Request) -> web.StreamResponse:
    """Answer 200 only if messages can be taken: the store can be read and no stop is under way."""
    if request.app[DOOR].is_stopping:
        return _refusal(wire.BUSY, "stopping")
    await _open_inbox(request).totals()
    return web.json_response({"status": "ready"})


async def refuse_path(_request: web.Request) -> web.StreamResponse:
    """Answer for every path that is not ours."""
    return _refusal(_NO_PATH, "the paths are /inbox, /inbox/{id}, /totals, /livez and /readyz")


async def refuse_method(_request: web.Request) -> web.StreamResponse:
    """Answer for a path of ours with another method."""
    return _refusal(_NO_METHOD, "POST to /inbox, GET everything else")


def _guarded(handler: Handler) -> Handler:
    """Turn what a handler raises on purpose into its problem."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except WireError as error:
            return _refusal(error.problem, error.detail)
        except StoreError as error:
            log.warning("answered 503: %s", error)
            return _refusal(wire.BUSY, "the store cannot take it now")
        except AsyncQueueError as error:
            return _refusal(wire.BUSY, str(error))

    return guarded


def _open_inbox(request: web.Request) -> Inbox:
    inbox = request.app[DOOR].inbox
    if inbox is None:
        raise WireError(wire.BUSY, "the inbox is not open")
    return inbox


async def _read_body(request: web.Request, door: Door) -> bytes:
    """Return the body, within its size and time. Content encodings are refused before a byte is unpacked."""
    if (
        request.content_type != wire.JSON_TYPE
        or request.headers.get(hdrs.CONTENT_ENCODING, "identity") != "identity"
    ):
        raise WireError(wire.UNSUPPORTED, "Content-Type must be application/json, without Content-Encoding")
    if (request.content_length or 0) > door.body_bytes_max:
        raise WireError(wire.TOO_LARGE, f"more than {door.body_bytes_max} bytes")
    body = b""
    try:
        async with asyncio.timeout(door.body_timeout_s):
            while chunk := await request.content.readany():
                body += chunk
                if len(body) > door.body_bytes_max:
                    raise WireError(wire.TOO_LARGE, f"more than {door.body_bytes_max} bytes")
    except TimeoutError:
        raise WireError(wire.REQUEST_TIMEOUT, f"the body took more than {door.body_timeout_s:g} s") from None
    return body


def _count(text: str | None) -> int | None:
    """Return a header that counts, or None: it is kept for operators and decides nothing."""
    if text is None or len(text) > _COUNT_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def _refusal(problem: Problem, detail: str) -> web.Response:
    headers = {hdrs.CONTENT_TYPE: wire.PROBLEM_TYPE}
    if problem is wire.BUSY:
        headers[hdrs.RETRY_AFTER] = _RETRY_AFTER_S
    response = web.Response(body=wire.encode_problem(problem, detail), status=problem.status, headers=headers)
    if problem in (wire.TOO_LARGE, wire.REQUEST_TIMEOUT):
        response.force_close()  # the rest of the body is not waited for
    return response
