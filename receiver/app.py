"""The HTTP face of the inbox. Every refusal is `application/problem+json`; no bytes of a client cause a 500."""

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from typing import Final

from aiohttp import HttpVersion11, hdrs, web

from asyncqueue import wire, wire_batch
from asyncqueue.errors import AsyncQueueError
from asyncqueue.wire import WireError
from receiver.answers import BUG, NO_EXPECTATION, NO_METHOD, NO_PATH, Grumble, refusal, refused_for
from receiver.batch import post_batch
from receiver.door import DOOR, Door
from receiver.inbox import Inbox
from receiver.openapi import PATH as OPENAPI_PATH
from receiver.openapi import description
from receiver.stores import open_inbox
from receiver.stores.base import Effect
from receiver.stores.sqlite.store import Journal

__all__ = ["DOOR", "create_app"]

log = logging.getLogger("receiver")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ACK_HEADERS: Final = {hdrs.CONTENT_TYPE: wire.JSON_TYPE}
_COUNT_DIGITS_MAX: Final = 15
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # no other id is ever accepted


def create_app(  # noqa: PLR0913 - settings, all but one by name
    url: str | os.PathLike[str],
    *,
    effect: Effect | None = None,
    journal: Journal = "delete",
    force_wal: bool = False,
    body_bytes_max: int = wire.REQUEST_BYTES_MAX,
    body_timeout_s: float = 10.0,
    concurrency_max: int = 4_096,
    patience_ms: int = 10_000,
) -> web.Application:
    """Return an application that takes messages at `POST /inbox` and, many at once, `POST /inbox/batch`.

    It answers `GET` at `/inbox/{id}`, `/totals`, `/livez`, `/readyz` and `/openapi.json`.

    The inbox at `url` (the path of a SQLite file, made if missing, or `postgresql://…`, which many receivers may
    share) is opened when the application starts and closed when it is cleaned up. `effect(connection, message)`
    runs once per accepted message, in its dedup row's transaction (so it must not send to this inbox: that would
    wait for it); without one, a ledger of quantities per id is kept. Bodies above `body_bytes_max` are refused
    (413), those that take longer than `body_timeout_s` too (408); more than `concurrency_max` requests at once are
    answered 503, as is everything while the database is busy or away for more than `patience_ms`, full or failing.
    Raises `ConfigError` for a limit that admits nothing; starting raises `NotAQueue`, `NewerSchema`,
    `ConfigError`, `StoreBusy`, and with PostgreSQL `StoreUnreachable`, `StoreDenied`.
    """
    door = Door(body_bytes_max, body_timeout_s, concurrency_max, Grumble(log))

    async def keep_open(_app: web.Application) -> AsyncIterator[None]:
        store = await open_inbox(url, effect=effect, journal=journal, force_wal=force_wal, patience_ms=patience_ms)
        door.inbox = inbox = Inbox(store)
        yield
        door.is_stopping, door.inbox = True, None
        await inbox.close()

    app = web.Application()
    app[DOOR] = door
    app.cleanup_ctx.append(keep_open)
    app.on_shutdown.append(_stop)
    _add_routes(app)
    return app


def _add_routes(app: web.Application) -> None:
    routes: tuple[tuple[str, str, Handler], ...] = (
        (hdrs.METH_POST, "/inbox", post_message),
        (hdrs.METH_POST, f"/inbox/{wire_batch.PATH}", post_batch),
        (hdrs.METH_GET, "/inbox/{id}", get_message),
        (hdrs.METH_GET, "/totals", get_totals),
        (hdrs.METH_GET, "/livez", get_livez),
        (hdrs.METH_GET, "/readyz", get_readyz),
        (hdrs.METH_GET, OPENAPI_PATH, get_openapi),
    )
    for method, path, handler in routes:
        app.router.add_route(method, path, _guarded(handler), expect_handler=_expect)
        if method == hdrs.METH_GET:
            app.router.add_route(hdrs.METH_HEAD, path, _guarded(handler), expect_handler=_expect)
        if handler is not post_batch:  # a message may be called "batch": all but POST is for /inbox/{id}
            app.router.add_route(hdrs.METH_ANY, path, _refuse_method(method), expect_handler=_expect)
    app.router.add_route(hdrs.METH_ANY, "/{path:.*}", refuse_path, expect_handler=_expect)


async def post_message(request: web.Request) -> web.StreamResponse:
    """Take one message; `asyncqueue.wire` is the contract. Answers when it is on the disk, not before."""
    door = request.app[DOOR]
    door.enter()
    held_bytes = 0
    try:
        body = await door.read_body(request)
        held_bytes = len(body)
        door.bytes_inside += held_bytes
        message = wire.parse_message(body)
        headers = request.headers
        key = headers.get(wire.IDEMPOTENCY_HEADER)
        if key is not None and key != message.id:
            raise WireError(wire.OUT_OF_RANGE, "Idempotency-Key and id differ")
        token, attempt = _count(headers.get(wire.TOKEN_HEADER)), _count(headers.get(wire.ATTEMPT_HEADER))
        result = await door.open_inbox().receive(message, token, attempt)
    finally:
        door.leave(held_bytes)
    if refused := refused_for(result, message.id):
        return refusal(*refused)
    return web.Response(body=wire.encode_ack(message.id, message.qty, result), headers=_ACK_HEADERS)


async def get_message(request: web.Request) -> web.StreamResponse:
    """Show what is kept of one message."""
    message_id = request.match_info["id"]
    is_possible = _ID.fullmatch(message_id) is not None
    kept = await request.app[DOOR].open_inbox().get(message_id) if is_possible else None
    if kept is None:
        return refusal(wire.UNKNOWN_ID, "this id was never accepted here")
    return web.Response(body=kept.as_json(), headers=_ACK_HEADERS)


async def get_totals(request: web.Request) -> web.StreamResponse:
    """Show the counts."""
    totals = await request.app[DOOR].open_inbox().totals()
    return web.json_response({**asdict(totals), "requests": totals.requests})


async def get_livez(_request: web.Request) -> web.StreamResponse:
    """Answer as long as the loop runs."""
    return web.json_response({"status": "alive"})


async def get_readyz(request: web.Request) -> web.StreamResponse:
    """Answer 200 only if messages can be taken: the store answers, lets us write, and no stop is under way."""
    door = request.app[DOOR]
    if door.is_stopping:
        return refusal(wire.BUSY, "stopping")
    await door.open_inbox().check_ready()
    return web.json_response({"status": "ready"})


async def get_openapi(request: web.Request) -> web.StreamResponse:
    """Describe this inbox for machines."""
    return web.json_response(description(request.app[DOOR].body_bytes_max))


async def refuse_path(_request: web.Request) -> web.StreamResponse:
    """Answer for every path that is not ours."""
    paths = "/inbox, /inbox/batch, /inbox/{id}, /totals, /livez, /readyz and /openapi.json"
    return refusal(NO_PATH, f"the paths are {paths}")


def _refuse_method(method: str) -> Handler:
    """Return what answers for a path of ours with another method."""
    taken = (hdrs.METH_GET, hdrs.METH_HEAD) if method == hdrs.METH_GET else (method,)

    async def refuse_method(request: web.Request) -> web.StreamResponse:
        is_batch = request.match_info.get("id") == wire_batch.PATH  # two paths of ours in one
        allowed = ", ".join((*taken, hdrs.METH_POST) if is_batch else taken)
        return refusal(NO_METHOD, f"this path takes {allowed}", {hdrs.ALLOW: allowed})

    return refuse_method


def _guarded(handler: Handler) -> Handler:
    """Turn what a handler raises into its problem; a bug is logged and answered without its text."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except WireError as error:
            return refusal(error.problem, error.detail)
        except AsyncQueueError as error:
            request.app[DOOR].grumble.say(f"answered 503: {error}")
            return refusal(wire.BUSY, "the store cannot take it now")
        except Exception:
            log.exception("answered 500: a bug")
            return refusal(BUG, "nothing is known of its effect; sending it again is safe")

    return guarded


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Ask for the body of a client that waits to be asked; refuse every other expectation in our own words."""
    if request.version < HttpVersion11:
        return None
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        return refusal(NO_EXPECTATION, "Expect can only be 100-continue")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # an answer has not begun by it
    return None


async def _stop(app: web.Application) -> None:
    app[DOOR].is_stopping = True


def _count(text: str | None) -> int | None:
    """Return a header that counts, or None: it is kept for operators and decides nothing."""
    if text is None or len(text) > _COUNT_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text)
