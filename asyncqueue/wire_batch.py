"""Many jobs in one request: the array that is sent, and the answer to each of its items.

Items are what single requests say, with the claim's token and attempt as members instead of headers; each answer
is an acknowledgement or a problem (RFC 9457) with the item's `id`, in the order of the items. Pure, as `wire` is.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from asyncqueue.errors import InvalidJob
from asyncqueue.job import PRODUCT, TOKEN_MAX, Range, check_id, check_int, encode_payload
from asyncqueue.wire import MALFORMED, OUT_OF_RANGE, TOO_LARGE, Message, Problem, WireError
from asyncqueue.wire import no_constant as _no_constant
from asyncqueue.wire import no_duplicates as _no_duplicates
from asyncqueue.wire import strict_object as _strict_object

__all__ = [
    "ITEMS_MAX",
    "PATH",
    "Arrival",
    "encode_item",
    "encode_item_problem",
    "parse_batch",
    "parse_replies",
    "reply_bytes_max",
]

PATH: Final = "batch"  # below the path of single requests
ITEMS_MAX: Final = 1_000
_REPLY_BYTES_PER_ITEM: Final = 1_024
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOKEN: Final = Range(0, TOKEN_MAX)
_REQUIRED: Final = frozenset(("id", "qty"))
_ALLOWED: Final = frozenset(("id", "qty", "payload", "token", "attempt"))


class Arrival(NamedTuple):
    """A message and the claim under which it was sent."""

    message: Message
    token: int | None
    attempt: int | None


def encode_item(job_id: str, qty: int, payload: str | None, token: int, attempt: int) -> bytes:
    """Return one job as an item of the array; `payload` is its canonical JSON text, spliced in as it is."""
    text = "" if payload is None else f',"payload":{payload}'
    return f'{{"id":"{job_id}","qty":{qty}{text},"token":{token},"attempt":{attempt}}}'.encode()


def parse_batch(body: bytes) -> list[Arrival | WireError]:
    """Return the items of a request body in order: each a message with its claim, or what is wrong with it.

    Raises `WireError` for the body as a whole: MALFORMED if it is no JSON array in UTF-8 or an empty one,
    TOO_LARGE for more than ITEMS_MAX items. `token` and `attempt` are optional and decide nothing; everything else
    of an item is judged as `wire.parse_message` judges a body.
    """
    try:
        items = json.loads(body.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return [_item_of_text(text) for text in _split(body)]
    _check_array(items)
    return [_item(item) for item in items]


def encode_item_problem(problem: Problem, detail: str, job_id: str | None) -> bytes:
    """Return the answer to an item that is refused; `job_id` is None for an item whose id cannot be read."""
    told = {} if job_id is None else {"id": job_id}
    body = {**told, "type": problem.type, "status": problem.status, "detail": detail}
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def parse_replies(body: bytes) -> list[Any] | None:
    """Return the answers of a reply, of whatever kind, or None if it is no JSON array. Never raises."""
    try:
        replies = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return replies if type(replies) is list else None


def reply_bytes_max(items: int) -> int:
    """Return how long the reply to so many items may be."""
    return 64 * 1024 + items * _REPLY_BYTES_PER_ITEM


def _check_array(items: Any) -> None:
    if type(items) is not list:
        raise WireError(MALFORMED, "the body must be one JSON array")
    _check_count(len(items))


def _check_count(count: int) -> None:
    if not count:
        raise WireError(MALFORMED, "the array is empty")
    if count > ITEMS_MAX:
        raise WireError(TOO_LARGE, f"more than {ITEMS_MAX} items")


def _item(members: Any) -> Arrival | WireError:
    if type(members) is not dict:
        return WireError(MALFORMED, "an item must be one JSON object")
    if not _REQUIRED <= members.keys() <= _ALLOWED:
        detail = "the members are id, qty and optionally payload, token, attempt"
        return WireError(OUT_OF_RANGE, detail, _known(members.get("id")))
    job_id, qty = members["id"], members["qty"]
    try:
        check_id("id", job_id)
        check_int("qty", qty, PRODUCT.qty)
        token, attempt = _count(members, "token"), _count(members, "attempt")
        payload = encode_payload(members["payload"]) if "payload" in members else None
    except InvalidJob as error:
        return WireError(OUT_OF_RANGE, str(error), _known(job_id))
    return Arrival(Message(job_id, qty, payload), token, attempt)


def _known(job_id: Any) -> str | None:
    """Return the id of a refused item if it is one: only what is a valid id is echoed."""
    try:
        check_id("id", job_id)
    except InvalidJob:
        return None
    return str(job_id)


def _count(members: dict[str, Any], name: str) -> int | None:
    if name not in members:
        return None
    check_int(name, members[name], _TOKEN)
    return int(members[name])


def _item_of_text(text: str) -> Arrival | WireError:
    try:
        return _item(_strict_object(text.encode()))
    except WireError as error:
        return error


def _split(body: bytes) -> Iterable[str]:
    """Return the texts of the items of an array with an item that only a lenient reader can pass over."""
    try:
        return _texts(body.decode("utf-8"))
    except (ValueError, RecursionError, IndexError) as error:
        raise WireError(MALFORMED, f"not JSON: {type(error).__name__}") from None


def _texts(text: str) -> list[str]:
    decoder = json.JSONDecoder(parse_int=str, parse_float=str)  # a number of any length: only its end matters here
    texts: list[str] = []
    place = _after_space(text, 0)
    if text[place] != "[":
        raise WireError(MALFORMED, "the body must be one JSON array")
    while text[place] != "]":
        start = _after_space(text, place + 1)
        end = decoder.raw_decode(text, start)[1]
        texts.append(text[start:end])
        place = _after_space(text, end)
        if text[place] not in ",]" or len(texts) > ITEMS_MAX:
            break
    _check_count(len(texts))
    if text[place] != "]" or _after_space(text, place + 1) != len(text):
        raise ValueError("not one array")
    return texts


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
