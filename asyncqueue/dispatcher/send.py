"""One job over HTTP to one receiver, and what the answer means.

The request is section 7 of the design. What each answer and each failure means is data: `PROBLEMS`,
`STATUSES`, `CLASSES` and `FAILURES` below are the only places that say it. Rules are RFC 9110 unless noted.
"""

import math
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from asyncqueue import wire
from asyncqueue.clock import Clock, SystemClock
from asyncqueue.errors import ConfigError
from asyncqueue.job import LeasedJob, Range, check_int, printable
from asyncqueue.retry import ACCEPTED, Certainty, Outcome, Verdict

__all__ = ["CLASSES", "FAILURES", "PROBLEMS", "STATUSES", "Ack", "HttpSender", "Meaning", "meaning_of"]

Ack = Literal["echo", "status"]

TIMEOUT_MS: Final = Range(1, 24 * 3600 * 1000)
DETAIL_CHARS_MAX: Final = 200
# An idle connection is dropped well before the receiver drops it (15 s and up), so that a POST rarely meets a
# connection that is just being closed (FAULTS 41).
KEEPALIVE_S: Final = 10.0
_SUCCESS: Final = range(200, 300)


class Meaning(NamedTuple):
    """What an answer or a failure says about the job and about the effect at the other side."""

    verdict: Verdict
    certainty: Certainty
    text: str


_RETRY_REFUSED: Final = Meaning(Verdict.RETRY, Certainty.REFUSED, "refused for now")
_RETRY_UNKNOWN: Final = Meaning(Verdict.RETRY, Certainty.UNKNOWN, "failed at the other side")
_DEAD: Final = Meaning(Verdict.PERMANENT, Certainty.REFUSED, "job refused")
_HELD: Final = Meaning(Verdict.HOLD, Certainty.REFUSED, "endpoint refuses")
_BAD_ACK: Final = Meaning(Verdict.LEAVE, Certainty.UNKNOWN, "BadAck: not the acknowledgement of this job")
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
    2: _BAD_ACK,
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

_DEADLINE_PASSED: Final = Outcome(Verdict.RETRY, Certainty.NOT_SENT, "deadline passed")
_NOT_OPEN: Final = Outcome(Verdict.HOLD, Certainty.NOT_SENT, "the sender is not open")


def meaning_of(status: int, body: bytes) -> Meaning:
    """Return what an answer without the acknowledgement means; `body` is asked for its problem type."""
    special = PROBLEMS.get((status, wire.problem_type(body) or ""))
    return special or STATUSES.get(status) or CLASSES.get(status // 100, _UNEXPECTED)


_HOST_CHARS_MAX: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")


class HttpSender:
    """Send jobs to one URL over one aiohttp session; use it as an async context manager.

    `url` is http or https with a host, without credentials and fragment. `ack="echo"` acknowledges only a 2xx
    that echoes id and qty (`wire.is_ack`), `ack="status"` any 2xx. `timeout_ms` 1 ms to 24 h is for the whole
    exchange, `connect_timeout_ms` 1..timeout_ms for name lookup, connect and TLS. `clock` is for a queue that was
    given one: the same; without it, deadlines are reckoned from the lease, by the store's clock. Concurrency is
    the caller's: nothing here waits for a free connection.

    Raises `ConfigError` (one line, without the URL) for anything else.

    Guarantees: redirects are not followed, proxies of the environment are not used, cookies are not kept,
    replies are never decompressed and not read past `wire.REPLY_BYTES_MAX`, and aiohttp does not send again
    by itself (POST is not idempotent to it).
    """

    def __init__(
        self,
        url: str,
        *,
        ack: Ack = "echo",
        timeout_ms: int = 10_000,
        connect_timeout_ms: int = 3_000,
        clock: Clock | None = None,
    ) -> None:
        self._url = _checked_url(url)
        self._endpoint = str(self._url.origin())
        if ack not in ("echo", "status"):
            raise ConfigError('send: ack must be "echo" or "status"')
        self._echo = ack == "echo"
        self._timeout_ms = _checked_ms("timeout_ms", timeout_ms, TIMEOUT_MS)
        self._connect_ms = _checked_ms("connect_timeout_ms", connect_timeout_ms, Range(1, timeout_ms))
        self._clock = clock or SystemClock()
        self._judges_deadlines = clock is not None
        self._timeout = self._timeout_of(timeout_ms)
        self._session: aiohttp.ClientSession | None = None

    @property
    def timeout_ms(self) -> int:
        """The longest that one send may take, in milliseconds; a lease must be longer."""
        return self._timeout_ms

    @property
    def endpoint(self) -> str:
        """Scheme, host and port, for messages: path and query may hold secrets."""
        return self._endpoint

    async def __aenter__(self) -> Self:
        if self._session is not None:
            raise RuntimeError("the sender is already open")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            headers=_constant_headers(),
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, job: LeasedJob) -> Outcome:
        """Post `job` once and return what came of it; never past its deadline, never longer than `timeout_ms`.

        Raises nothing but `CancelledError`, which passes at once; the connection is then closed. Everything
        else, a bug included, is an `Outcome`. The effect of a send that was cancelled is unknown.
        """
        if self._session is None:
            return _NOT_OPEN
        status = None
        try:
            left_ms = self._left_ms(job)
            if left_ms <= 0:
                return _DEADLINE_PASSED
            response = await self._session.post(
                self._url,
                data=wire.encode_body(job.id, job.qty, job.payload),
                headers=_job_headers(job),
                allow_redirects=False,
                timeout=self._timeout if left_ms >= self._timeout_ms else self._timeout_of(left_ms),
            )
            status = response.status
            body = await _read_capped(response)
            if status in _SUCCESS and (not self._echo or _echoes(body, job)):
                return ACCEPTED
            return self._not_acknowledged(response, body)
        except Exception as error:  # noqa: BLE001 - an unknown error is recorded and tried again, never silent
            return self._failed(error, status)

    def _left_ms(self, job: LeasedJob) -> int:
        """Return the time to the job's deadline; it goes out as soon as it is claimed.

        Reckoned from the lease, whose span the store told: the store's clock may be another host's.
        """
        if self._judges_deadlines:
            return job.deadline - self._clock.now_ms()
        return job.deadline - job.lease_until + job.lease_ms

    def _not_acknowledged(self, response: aiohttp.ClientResponse, body: bytes) -> Outcome:
        meaning = meaning_of(response.status, body)
        text = f"{response.status} {meaning.text}: {_detail(body)}"
        wishes = response.headers.getall("Retry-After", ())
        return Outcome(
            meaning.verdict,
            meaning.certainty,
            printable(text),
            response.status,
            self._longest_wish(wishes),
        )

    def _longest_wish(self, values: "tuple[str, ...] | list[str]") -> int | None:
        """Return the longest of repeated Retry-After headers, in milliseconds from now."""
        now_ms = self._clock.now_ms()
        wishes = (wire.parse_retry_after(value, now_ms) for value in values)
        return max((wish for wish in wishes if wish is not None), default=None)

    def _failed(self, error: Exception, status: int | None) -> Outcome:
        meaning = next(meaning for kind, meaning in FAILURES if isinstance(error, kind))
        reason = _reason(error).replace(str(self._url), self.endpoint).replace(self._url.path_qs, "/")
        text = f"{meaning.text}: {type(error).__name__}{reason} ({self.endpoint})"
        return Outcome(meaning.verdict, meaning.certainty, printable(text), status)

    def _timeout_of(self, total_ms: int) -> aiohttp.ClientTimeout:
        """Return aiohttp's settings for `total_ms`; without its rounding up to whole seconds."""
        connect_s = min(self._connect_ms, total_ms) / 1000
        return aiohttp.ClientTimeout(total=total_ms / 1000, connect=connect_s, ceil_threshold=math.inf)


def _checked_url(text: str) -> URL:
    """Return the destination as yarl normalises it; no message repeats the text, since it may hold a secret."""
    try:
        url, authority = URL(text), urlsplit(text).netloc
        usable = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except (TypeError, ValueError):
        raise ConfigError("send: the URL cannot be parsed") from None
    if not usable:
        raise ConfigError("send: the URL must be http:// or https:// with a host and a port that is not 0")
    if "@" in authority:
        raise ConfigError("send: the URL must not hold credentials")
    if "#" in text:
        raise ConfigError("send: the URL must not have a fragment")
    if not _is_host(url.host or ""):
        raise ConfigError("send: the URL's host is neither a name nor an address")
    return url


def _is_host(host: str) -> bool:
    """Tell whether `host` can be looked up at all: an IP literal, or labels that DNS can carry."""
    if ":" in host:
        return True  # yarl takes only valid IPv6 literals
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:
        return False
    return len(name) <= _HOST_CHARS_MAX and all(map(_LABEL.fullmatch, name.removesuffix(".").split(".")))


def _checked_ms(name: str, value: int, allowed: Range) -> int:
    try:
        check_int(name, value, allowed)
    except ValueError as error:
        raise ConfigError(f"send: {error}") from None
    return value


def _constant_headers() -> CIMultiDict[str]:
    """Return what every request carries; all that aiohttp would add is named, so it adds nothing."""
    try:
        release = version("asyncqueue")
    except PackageNotFoundError:  # run from a source tree
        release = "0"
    return CIMultiDict(
        {
            "Content-Type": wire.JSON_TYPE,
            "Accept": f"{wire.JSON_TYPE}, {wire.PROBLEM_TYPE}",
            "Accept-Encoding": "identity",
            "User-Agent": f"asyncqueue/{release}",
        }
    )


def _job_headers(job: LeasedJob) -> CIMultiDict[str]:
    return CIMultiDict(
        (
            (wire.IDEMPOTENCY_HEADER, job.id),
            (wire.TOKEN_HEADER, str(job.token)),
            (wire.ATTEMPT_HEADER, str(job.attempt)),
        )
    )


def _echoes(body: bytes, job: LeasedJob) -> bool:
    """Tell whether a whole reply is the acknowledgement of `job`; one that had to be cut off never is."""
    return len(body) <= wire.REPLY_BYTES_MAX and wire.is_ack(body, job.id, job.qty)


async def _read_capped(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, or of a longer one its first `REPLY_BYTES_MAX` + 1 bytes and no more.

    Read to its end, the connection has gone back to the pool by itself. Otherwise (a longer body, an error, a
    cancellation, a 101) it is closed: no connection is ever left half-read.
    """
    content = response.content
    try:
        body = await content.readany()
        if not content.at_eof():
            body = await _read_on(content, body)
    except BaseException:
        response.close()
        raise
    if not response.closed:
        response.close()
    return body[: wire.REPLY_BYTES_MAX + 1]


async def _read_on(content: aiohttp.StreamReader, first: bytes) -> bytes:
    body = bytearray(first)
    while not content.at_eof() and len(body) <= wire.REPLY_BYTES_MAX:
        body += await content.readany()
    return bytes(body)


def _detail(body: bytes) -> str:
    """Return at most DETAIL_CHARS_MAX characters of what the other side says about its refusal."""
    detail = wire.problem_detail(body)
    if detail is None:
        detail = body[: 4 * DETAIL_CHARS_MAX].decode("utf-8", "replace")
    return printable(" ".join(detail[: 4 * DETAIL_CHARS_MAX].split()), DETAIL_CHARS_MAX) or "empty body"


def _reason(error: Exception) -> str:
    """Return the system's words for an error, if it has any.

    aiohttp's own texts (`str(error)`, and `strerror` outside of connecting) may hold the whole URL, query
    included, so they are not repeated.
    """
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorDNSError):
        reason = error.os_error.strerror or str(error.os_error)  # their numbers are not the system's
    elif isinstance(error, OSError):
        reason = os.strerror(error.errno) if error.errno else ""
    else:
        reason = "" if isinstance(error, aiohttp.ClientError) else str(error)
    return f": {reason}" if reason else ""
