"""What an answer or a failure means for a job: data, and the words that go with it.

`PROBLEMS`, `STATUSES`, `CLASSES` and `FAILURES` are the only places that say it. Rules are RFC 9110 unless noted.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp

from asyncqueue import wire
from asyncqueue.job import printable
from asyncqueue.retry import Certainty, Verdict

__all__ = [
    "BAD_ACK",
    "CLASSES",
    "FAILURES",
    "PROBLEMS",
    "STATUSES",
    "Meaning",
    "meaning_of",
    "meaning_of_failure",
    "meaning_of_problem",
    "quoted",
    "quoted_body",
    "reason",
]

DETAIL_CHARS_MAX: Final = 200


class Meaning(NamedTuple):
    """What an answer or a failure says about the job and about the effect at the other side."""

    verdict: Verdict
    certainty: Certainty
    text: str


_RETRY_REFUSED: Final = Meaning(Verdict.RETRY, Certainty.REFUSED, "refused for now")
_RETRY_UNKNOWN: Final = Meaning(Verdict.RETRY, Certainty.UNKNOWN, "failed at the other side")
_DEAD: Final = Meaning(Verdict.PERMANENT, Certainty.REFUSED, "job refused")
_HELD: Final = Meaning(Verdict.HOLD, Certainty.REFUSED, "endpoint refuses")
BAD_ACK: Final = Meaning(Verdict.LEAVE, Certainty.UNKNOWN, "BadAck: not the acknowledgement of this job")
_UNEXPECTED: Final = Meaning(Verdict.RETRY, Certainty.UNKNOWN, "unexpected status")

# Answers that are known by status and problem type (RFC 9457); looked at first.
PROBLEMS: Final[Mapping[tuple[int, str], Meaning]] = {
    (wire.CONFLICT.status, wire.CONFLICT.type): Meaning(Verdict.PERMANENT, Certainty.REFUSED, "conflict"),
}
# Answers that are known by status. A 409 that is not ours may mean that an earlier send is still being worked
# on (draft-ietf-httpapi-idempotency-key-header, 2.7), so its effect is unknown.
STATUSES: Final[Mapping[int, Meaning]] = {
    400: _DEAD,
    408: _RETRY_REFUSED,
    409: Meaning(Verdict.RETRY, Certainty.UNKNOWN, "conflict of another kind"),
    413: _DEAD,
    415: _DEAD,
    422: _DEAD,
    425: _RETRY_REFUSED,
    429: _RETRY_REFUSED,
}
# Everything else, by the first digit. A 2xx comes here only without its ack. A redirect is never followed, and
# a 303 may come after the work was done: unknown. Any other 4xx (401, 403, 404, 410, but also 405, 421, 431,
# 451) speaks about the endpoint's settings rather than about this job: no job is burnt for it. A 5xx may come
# from a proxy in front of a receiver that did the work: unknown.
CLASSES: Final[Mapping[int, Meaning]] = {
    2: BAD_ACK,
    3: Meaning(Verdict.HOLD, Certainty.UNKNOWN, "redirect, not followed"),
    4: _HELD,
    5: _RETRY_UNKNOWN,
}
# What aiohttp raises; the first class that fits decides. Certificate errors are a kind of TLS error, TLS and
# DNS errors a kind of connect error, connect timeouts a kind of timeout: the special ones stand first.
FAILURES: Final[tuple[tuple[type[Exception], Meaning], ...]] = (
    (aiohttp.InvalidURL, Meaning(Verdict.HOLD, Certainty.NOT_SENT, "URL refused")),
    (aiohttp.NonHttpUrlClientError, Meaning(Verdict.HOLD, Certainty.NOT_SENT, "URL refused")),
    (
        aiohttp.ClientConnectorCertificateError,
        Meaning(Verdict.HOLD, Certainty.NOT_SENT, "certificate refused"),
    ),
    (aiohttp.ClientConnectorDNSError, Meaning(Verdict.RETRY, Certainty.NOT_SENT, "host name not found")),
    (aiohttp.ClientSSLError, Meaning(Verdict.RETRY, Certainty.NOT_SENT, "TLS handshake failed")),
    (aiohttp.ClientConnectorError, Meaning(Verdict.RETRY, Certainty.NOT_SENT, "cannot connect")),
    (aiohttp.ConnectionTimeoutError, Meaning(Verdict.RETRY, Certainty.NOT_SENT, "connect timed out")),
    (TimeoutError, Meaning(Verdict.RETRY, Certainty.UNKNOWN, "no whole answer in time")),
    (aiohttp.ClientConnectionError, Meaning(Verdict.RETRY, Certainty.UNKNOWN, "connection lost")),
    (aiohttp.ClientPayloadError, Meaning(Verdict.RETRY, Certainty.UNKNOWN, "answer cut short")),
    (aiohttp.ClientResponseError, Meaning(Verdict.RETRY, Certainty.UNKNOWN, "answer is not HTTP")),
    (Exception, Meaning(Verdict.RETRY, Certainty.UNKNOWN, "unexpected error")),
)


def meaning_of(status: int, body: bytes) -> Meaning:
    """Return what an answer without the acknowledgement means; `body` is asked for its problem type."""
    return meaning_of_problem(status, wire.problem_type(body))


def meaning_of_problem(status: int, problem: str | None) -> Meaning:
    """Return what a refusal means by its status and its problem type, if it has one."""
    special = PROBLEMS.get((status, problem or ""))
    return special or STATUSES.get(status) or CLASSES.get(status // 100, _UNEXPECTED)


def meaning_of_failure(error: Exception) -> Meaning:
    """Return what an error of the HTTP client means."""
    return next(meaning for kind, meaning in FAILURES if isinstance(error, kind))


def quoted(detail: str) -> str:
    """Return at most DETAIL_CHARS_MAX characters, on one line, of what the other side says about its refusal."""
    return printable(" ".join(detail[: 4 * DETAIL_CHARS_MAX].split()), DETAIL_CHARS_MAX) or "empty body"


def quoted_body(body: bytes) -> str:
    """Return the detail of a problem body, or the beginning of any other body, as `quoted` does."""
    detail = wire.problem_detail(body)
    return quoted(body[: 4 * DETAIL_CHARS_MAX].decode("utf-8", "replace") if detail is None else detail)


def reason(error: Exception) -> str:
    """Return the system's words for an error, if it has any.

    aiohttp's own texts (`str(error)`, and `strerror` outside of connecting) may hold the whole URL, query
    included, so they are not repeated.
    """
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorDNSError):
        text = error.os_error.strerror or str(error.os_error)  # their numbers are not the system's
    elif isinstance(error, OSError):
        text = os.strerror(error.errno) if error.errno else ""
    else:
        text = "" if isinstance(error, aiohttp.ClientError) else str(error)
    return f": {text}" if text else ""
