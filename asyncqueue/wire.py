"""The HTTP contract between dispatcher and receiver: headers, bytes, acknowledgement, problem types.

Both sides import this module, so neither can drift. Pure: bytes and text in, records out.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

from asyncqueue.errors import AsyncQueueError, InvalidJob
from asyncqueue.job import PRODUCT, check_id, check_int, encode_payload

__all__ = [
    "ACCEPTED",
    "ATTEMPT_HEADER",
    "BUSY",
    "CONFLICT",
    "DUPLICATE",
    "EFFECT_FAILED",
    "IDEMPOTENCY_HEADER",
    "JSON_TYPE",
    "MALFORMED",
    "OUT_OF_RANGE",
    "PROBLEM_TYPE",
    "REPLY_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "REQUEST_TIMEOUT",
    "RETRY_AFTER_MS_MAX",
    "TOKEN_HEADER",
    "TOO_LARGE",
    "UNKNOWN_ID",
    "UNSUPPORTED",
    "Message",
    "Problem",
    "WireError",
    "acknowledges",
    "encode_ack",
    "encode_body",
    "encode_problem",
    "is_ack",
    "no_constant",
    "no_duplicates",
    "parse_message",
    "parse_retry_after",
    "problem_detail",
    "problem_type",
    "strict_object",
]

IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
TOKEN_HEADER: Final = "Asyncqueue-Token"  # noqa: S105 - the fence's claim number, not a secret
ATTEMPT_HEADER: Final = "Asyncqueue-Attempt"
JSON_TYPE: Final = "application/json"
PROBLEM_TYPE: Final = "application/problem+json"

REQUEST_BYTES_MAX: Final = 1024 * 1024
REPLY_BYTES_MAX: Final = 64 * 1024
RETRY_AFTER_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
_RETRY_AFTER_DIGITS_MAX: Final = 12

_PLAIN: Final = re.compile(rb'\{"id":"([A-Za-z0-9_-]{1,64})","qty":(0|[1-9][0-9]{0,15})\}')

ACCEPTED: Final = "accepted"
DUPLICATE: Final = "duplicate"


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of refusal (RFC 9457): HTTP status, stable type URI, title."""

    status: int
    type: str
    title: str


def _problem(status: int, name: str, title: str) -> Problem:
    return Problem(status, f"urn:asyncqueue:problem:{name}", title)


MALFORMED: Final = _problem(400, "malformed", "The body is not one JSON object in UTF-8")
UNKNOWN_ID: Final = _problem(404, "unknown-id", "No message with this id was accepted")
REQUEST_TIMEOUT: Final = _problem(408, "request-timeout", "The body did not arrive in time")
CONFLICT: Final = _problem(409, "conflict", "The id is taken by another quantity or payload")
TOO_LARGE: Final = _problem(413, "too-large", "The body is larger than this inbox takes")
UNSUPPORTED: Final = _problem(415, "unsupported-media", "Send application/json without a content encoding")
OUT_OF_RANGE: Final = _problem(422, "out-of-range", "A value of the message is missing or out of range")
EFFECT_FAILED: Final = _problem(500, "effect-failed", "The effect failed; nothing was recorded")
BUSY: Final = _problem(503, "busy", "The inbox cannot answer now; try again later")


class WireError(AsyncQueueError):
    """A message that the inbox refuses; `problem` says how, the text says why, `id` which one, if it is known."""

    def __init__(self, problem: Problem, detail: str, job_id: str | None = None) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.id = job_id


@dataclass(frozen=True, slots=True)
class Message:
    """One job as it arrived; `payload` is canonical JSON text, or None when there was none."""

    id: str
    qty: int
    payload: str | None


def encode_body(job_id: str, qty: int, payload: str | None) -> bytes:
    """Return the request body of a job; `payload` is its canonical JSON text, spliced in as it is.

    The id's alphabet needs no escaping, so equal jobs always give equal bytes: what is signed is what is sent.
    """
    if payload is None:
        return b'{"id":"%b","qty":%d}' % (job_id.encode("ascii"), qty)
    return b'{"id":"%b","qty":%d,"payload":%b}' % (job_id.encode("ascii"), qty, payload.encode())


def encode_ack(job_id: str, qty: int, result: str) -> bytes:
    """Return the 200 answer; `result` is `accepted` or `duplicate`."""
    return b'{"id":"%b","qty":%d,"result":"%b"}' % (job_id.encode("ascii"), qty, result.encode("ascii"))


def is_ack(body: bytes, job_id: str, qty: int) -> bool:
    """Tell whether `body` acknowledges exactly this job: it must echo id and qty and name a known result."""
    if body == encode_ack(job_id, qty, ACCEPTED):  # what our own receiver says, without reading it as JSON
        return True
    return acknowledges(_loads_or_none(body), job_id, qty)


def acknowledges(answer: Any, job_id: str, qty: int) -> bool:
    """Tell whether a decoded answer acknowledges exactly this job."""
    return (
        type(answer) is dict
        and answer.get("id") == job_id
        and type(answer.get("qty")) is int
        and answer["qty"] == qty
        and answer.get("result") in (ACCEPTED, DUPLICATE)
    )


def encode_problem(problem: Problem, detail: str) -> bytes:
    """Return the `application/problem+json` body of a refusal."""
    body = {"type": problem.type, "title": problem.title, "status": problem.status, "detail": detail}
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def problem_type(body: bytes) -> str | None:
    """Return the `type` of a problem body (RFC 9457), or None if it has none that is text. Never raises."""
    return _text_member(body, "type")


def problem_detail(body: bytes) -> str | None:
    """Return the `detail` of a problem body as it came, or None if it has none that is text. Never raises."""
    return _text_member(body, "detail")


def parse_message(body: bytes) -> Message:
    """Return the message in a request body.

    Raises `WireError`: MALFORMED for what is not one JSON object in UTF-8 without duplicate keys and
    non-finite numbers, OUT_OF_RANGE for missing, unknown or out-of-range members. `{"qty":1}`, `{"qty":1.0}`,
    `{"qty":true}` and `{"qty":"1"}` are four different things, and only the first is a quantity.
    """
    if plain := _PLAIN.fullmatch(body):  # what `encode_body` makes without a payload, without reading it as JSON
        members: dict[str, Any] = {"id": plain[1].decode("ascii"), "qty": int(plain[2])}
    else:
        members = strict_object(body)
    if not {"id", "qty"} <= members.keys() <= {"id", "qty", "payload"}:
        raise WireError(OUT_OF_RANGE, "the members are id, qty and optionally payload")
    try:
        check_id("id", members["id"])
        check_int("qty", members["qty"], PRODUCT.qty)
        payload = encode_payload(members.get("payload"))
    except InvalidJob as error:
        raise WireError(OUT_OF_RANGE, str(error)) from None
    return Message(members["id"], members["qty"], payload)


def parse_retry_after(value: str | None, now_ms: int) -> int | None:
    """Return a peer's Retry-After as milliseconds from now, 0..RETRY_AFTER_MS_MAX, or None if it says nothing.

    Whole seconds or an HTTP date (RFC 9110, 10.2.3); anything else is ignored. A date without a zone (the
    asctime form of RFC 9110, 5.6.7) is UTC, whatever the host's zone is. Never raises. It is a wish: the
    policy caps it.
    """
    text = value.strip() if value else ""
    if text.isascii() and text.isdigit():
        seconds = int(text) if len(text) <= _RETRY_AFTER_DIGITS_MAX else RETRY_AFTER_MS_MAX
        return min(seconds * 1000, RETRY_AFTER_MS_MAX)
    try:
        moment = parsedate_to_datetime(text)
        at_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(at_ms - now_ms, 0), RETRY_AFTER_MS_MAX)


def _text_member(body: bytes, name: str) -> str | None:
    answer = _loads_or_none(body)
    value = answer.get(name) if type(answer) is dict else None
    return value if type(value) is str else None


def _loads_or_none(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def strict_object(body: bytes) -> dict[str, Any]:
    """Return one JSON object without duplicate keys and non-finite numbers; raises `WireError` (MALFORMED)."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(MALFORMED, f"not JSON: {type(error).__name__}") from None
    if type(value) is not dict:
        raise WireError(MALFORMED, "the body must be one JSON object")
    return value


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict, for `object_pairs_hook`; raises `ValueError` if a key comes twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members


def no_constant(name: str) -> Any:
    """Refuse NaN and the infinities, for `parse_constant`; raises `ValueError`."""
    raise ValueError(f"{name} is not JSON")
