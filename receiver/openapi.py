"""The inbox described for machines: OpenAPI 3.1, made from the same ranges and problems that the code uses."""

from typing import Any, Final

from asyncqueue import wire, wire_batch
from asyncqueue.job import ID_PATTERN, PRODUCT, TOKEN_MAX
from asyncqueue.wire import Problem
from receiver.answers import BAD_REQUEST, BUG, NO_EXPECTATION, NO_METHOD

__all__ = ["PATH", "description"]

PATH: Final = "/openapi.json"

_VERSION: Final = "1"  # of the HTTP contract, not of the package
_COUNT_MAX: Final = 2**63 - 1
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": _COUNT_MAX}
_ID: Final = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
_QTY: Final = {"type": "integer", "minimum": PRODUCT.qty.low, "maximum": PRODUCT.qty.high}
_RESULT: Final = {"enum": [wire.ACCEPTED, wire.DUPLICATE]}
_PAYLOAD: Final = f"The payload has at most {PRODUCT.payload_bytes_max} bytes as canonical JSON."
_ANY_REQUEST: Final = (BAD_REQUEST, NO_METHOD, NO_EXPECTATION, wire.BUSY, BUG)
_ANY_MESSAGE: Final = (
    wire.MALFORMED,
    wire.REQUEST_TIMEOUT,
    wire.CONFLICT,
    wire.TOO_LARGE,
    wire.UNSUPPORTED,
    wire.OUT_OF_RANGE,
    wire.EFFECT_FAILED,
)
# Of a request as a whole; each item of it has an answer of its own.
_ANY_BATCH: Final = (wire.MALFORMED, wire.REQUEST_TIMEOUT, wire.TOO_LARGE, wire.UNSUPPORTED)


def description(body_bytes_max: int) -> dict[str, Any]:
    """Return the OpenAPI document of an inbox that takes bodies of up to `body_bytes_max` bytes.

    What JSON Schema cannot say is said in words: the payload's size as canonical JSON, its depth, that an
    Idempotency-Key must equal the id, and that too many items are too large (413).
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "asyncqueue inbox",
            "version": _VERSION,
            "description": "A message sent twice has its effect once.",
        },
        "paths": {
            "/inbox": {"post": _post(body_bytes_max)},
            f"/inbox/{wire_batch.PATH}": {"post": _post_batch(body_bytes_max)},
            "/inbox/{id}": {"get": _get_message()},
            "/totals": {"get": _get("The counts", _totals())},
            "/livez": {"get": _get("The loop runs", _status("alive"))},
            "/readyz": {"get": _get("Messages can be taken", _status("ready"))},
            PATH: {"get": _get("This document", {"type": "object", "required": ["openapi", "paths"]})},
        },
        "components": {"schemas": {"Ack": _ack(), "Item": _item(), "Problem": _problem_schema()}},
    }


def _post(body_bytes_max: int) -> dict[str, Any]:
    message = _object({"id": _ID, "qty": _QTY}, {"payload": {}})
    message["description"] = _PAYLOAD
    return {
        "summary": "Take one message; the answer comes when it is on the disk",
        "parameters": [
            _header(wire.IDEMPOTENCY_HEADER, "Must equal the id of the message, if it is given."),
            _header(wire.TOKEN_HEADER, "The claim's number; kept for operators, decides nothing."),
            _header(wire.ATTEMPT_HEADER, "The attempt's number; kept for operators, decides nothing."),
        ],
        "requestBody": _body(body_bytes_max, message),
        "responses": _responses("Accepted, or known already", _schema("Ack"), (*_ANY_MESSAGE, *_ANY_REQUEST)),
    }


def _post_batch(body_bytes_max: int) -> dict[str, Any]:
    items = {"type": "array", "minItems": 1}
    refused = _object(
        {"type": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}}, {"id": _ID}
    )
    return {
        "summary": "Take many messages; the answer comes when all that are taken are on the disk",
        "description": f"At most {wire_batch.ITEMS_MAX} items, answered in order; a bad one is refused alone.",
        "requestBody": _body(body_bytes_max, {**items, "items": {"anyOf": [_schema("Item"), {}]}}),
        "responses": _responses(
            "An acknowledgement or a problem for each item",
            {**items, "items": {"anyOf": [_schema("Ack"), refused]}},
            (*_ANY_BATCH, *_ANY_REQUEST),
        ),
    }


def _body(bytes_max: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "required": True,
        "description": f"At most {bytes_max} bytes, without Content-Encoding.",
        "content": {wire.JSON_TYPE: {"schema": schema}},
    }


def _ack() -> dict[str, Any]:
    return _object({"id": _ID, "qty": _QTY, "result": _RESULT})


def _item() -> dict[str, Any]:
    number = {"type": "integer", "minimum": 0, "maximum": TOKEN_MAX}
    item = _object({"id": _ID, "qty": _QTY}, {"payload": {}, "token": number, "attempt": number})
    return {**item, "description": f"{_PAYLOAD} The claim's token and attempt are kept and decide nothing."}


def _schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _get_message() -> dict[str, Any]:
    kept = _object(
        {
            "id": _ID,
            "qty": _QTY,
            "result": {"const": wire.ACCEPTED},
            "received_at": {**_COUNT, "description": "Milliseconds since the epoch."},
            "token": {"type": ["integer", "null"]},
            "attempt": {"type": ["integer", "null"]},
            "times": _COUNT,
            "payload": {},
        }
    )
    return {
        "summary": "Show what is kept of one message",
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": _ID}],
        "responses": _responses("It was accepted", kept, (wire.UNKNOWN_ID, *_ANY_REQUEST)),
    }


def _get(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"summary": what, "responses": _responses(what, schema, _ANY_REQUEST)}


def _totals() -> dict[str, Any]:
    names = ("messages", "quantity", "duplicates", "conflicts", "requests")
    return _object(dict.fromkeys(names, _COUNT))


def _status(word: str) -> dict[str, Any]:
    return _object({"status": {"const": word}})


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": [*required],
        "additionalProperties": False,
    }


def _header(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": what}


def _responses(what: str, schema: dict[str, Any], problems: tuple[Problem, ...]) -> dict[str, Any]:
    """Return 200 and every refusal; problems that share a status share an entry."""
    answers: dict[str, Any] = {"200": {"description": what, "content": {wire.JSON_TYPE: {"schema": schema}}}}
    for problem in problems:
        entry = answers.setdefault(
            str(problem.status),
            {
                "description": problem.title,
                "content": {wire.PROBLEM_TYPE: {"schema": _schema("Problem")}},
            },
        )
        if entry["description"] != problem.title:
            entry["description"] += f". Or: {problem.title}"
    answers["503"]["headers"] = {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds to wait."}}
    return answers


def _problem_schema() -> dict[str, Any]:
    """Return the shape of a refusal (RFC 9457)."""
    kinds = sorted({problem.type for problem in (*_ANY_MESSAGE, *_ANY_REQUEST, wire.UNKNOWN_ID)})
    return _object(
        {
            "type": {"enum": kinds},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
        }
    )
