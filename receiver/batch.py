"""`POST /inbox/batch`: many messages in one request, one transaction, an answer for each."""

from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import hdrs, web

from asyncqueue import wire, wire_batch
from asyncqueue.wire import WireError
from asyncqueue.wire_batch import Arrival
from receiver.answers import refused_for
from receiver.door import DOOR
from receiver.inbox import Result

__all__ = ["post_batch"]

_HEADERS: Final = {hdrs.CONTENT_TYPE: wire.JSON_TYPE}


async def post_batch(request: web.Request) -> web.StreamResponse:
    """Take the messages of an array; `asyncqueue.wire_batch` is the contract.

    A bad item is refused alone. Answers when all the others are on the disk, not before; if the database cannot
    take them, none is, unless its answer was lost: all may be then.
    """
    door = request.app[DOOR]
    door.enter()
    held_bytes = 0
    try:
        body = await door.read_body(request)
        held_bytes = len(body)
        door.bytes_inside += held_bytes
        items = wire_batch.parse_batch(body)
        arrivals = [item for item in items if isinstance(item, Arrival)]
        results = await door.open_inbox().receive_many(arrivals) if arrivals else []
    finally:
        door.leave(held_bytes)
    return web.Response(body=b"[%b]" % b",".join(_answers(items, results)), headers=_HEADERS)


def _answers(items: Iterable[Arrival | WireError], results: Sequence[Result]) -> Iterable[bytes]:
    left = iter(results)
    for item in items:
        if isinstance(item, WireError):
            yield wire_batch.encode_item_problem(item.problem, item.detail, item.id)
        else:
            yield _answer(item.message, next(left))


def _answer(message: wire.Message, result: Result) -> bytes:
    refused = refused_for(result, message.id)
    if refused is None:
        return wire.encode_ack(message.id, message.qty, result)
    return wire_batch.encode_item_problem(*refused, message.id)
