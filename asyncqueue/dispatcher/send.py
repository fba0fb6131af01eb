"""Jobs over HTTP to one receiver, one a request or many. What answers and failures mean stands in `meaning`."""

import asyncio
import math
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal, Self
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from asyncqueue import wire, wire_batch
from asyncqueue.clock import Clock, SystemClock
from asyncqueue.dispatcher.batch import Offer, outcomes_of, refuses_batches
from asyncqueue.dispatcher.exchange import Answer, Header, open_exchange
from asyncqueue.dispatcher.gather import Answered, Gatherer, Seat
from asyncqueue.dispatcher.meaning import meaning_of, meaning_of_failure, quoted_body, reason
from asyncqueue.dispatcher.timeouts import Timeouts
from asyncqueue.errors import ConfigError
from asyncqueue.events import Events
from asyncqueue.job import LeasedJob, Range, check_int, printable
from asyncqueue.retry import ACCEPTED, Certainty, Outcome, Verdict

__all__ = ["Ack", "HttpSender"]

Ack = Literal["echo", "status"]

TIMEOUT_MS: Final = Range(1, 24 * 3600 * 1000)
CONNECT_TIMEOUT_MS: Final = 3_000
BATCH: Final = Range(1, wire_batch.ITEMS_MAX)
_PATIENCE_PART: Final = 0.1  # of the timeout: the longest that a job waits for company
# An idle connection is dropped well before the receiver drops it (15 s and up), so that a POST rarely meets a
# connection that is just being closed (FAULTS 41).
KEEPALIVE_S: Final = 10.0
_SUCCESS: Final = range(200, 300)

_DEADLINE_PASSED: Final = Outcome(Verdict.RETRY, Certainty.NOT_SENT, "deadline passed")
_NO_TIME_LEFT: Final = Outcome(Verdict.RETRY, Certainty.NOT_SENT, "no time left after the batch was refused")
_NOT_OPEN: Final = Outcome(Verdict.HOLD, Certainty.NOT_SENT, "the sender is not open")

_HOST_CHARS_MAX: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")


class HttpSender:
    """Send jobs to one URL over one aiohttp session; use it as an async context manager.

    `url` is http or https with a host, without credentials and fragment. `ack="echo"` acknowledges only a 2xx
    that echoes id and qty (`wire.is_ack`), `ack="status"` any 2xx. `timeout_ms` 1 ms to 24 h is for the whole
    exchange, `connect_timeout_ms` 1..timeout_ms for name lookup, connect and TLS (None: 3000, or less if
    `timeout_ms` is). `clock` is for a queue that was given one: the same; without it, deadlines are reckoned from
    the lease, by the store's clock. Concurrency is the caller's: nothing here waits for a free connection.

    With `batch` above 1 (to 1000; only with `ack="echo"`), jobs that wait at the same moment go together, up to so
    many and 1 MiB in one POST to `<url>/batch`; each still has its own outcome, deadline and cancellation. A job
    that waits alone goes as without `batch`, and so do all for a minute after the endpoint refused a batch as such
    (404, 405, or what would otherwise kill every job in it); `events`, or else the log, is told of that.

    Raises `ConfigError` (one line, without the URL) for anything else.

    Guarantees: redirects are not followed, proxies of the environment are not used, cookies are not kept,
    replies are never decompressed and not read past `wire.REPLY_BYTES_MAX`, and aiohttp does not send again
    by itself (POST is not idempotent to it).
    """

    def __init__(  # noqa: PLR0913 - settings, all but one by name
        self,
        url: str,
        *,
        ack: Ack = "echo",
        timeout_ms: int = 10_000,
        connect_timeout_ms: int | None = None,
        clock: Clock | None = None,
        batch: int = 1,
        events: Events | None = None,
    ) -> None:
        self._url = _checked_url(url)
        self._endpoint = str(self._url.origin())
        if ack not in ("echo", "status"):
            raise ConfigError('send: ack must be "echo" or "status"')
        self._echo = ack == "echo"
        self._timeout_ms = _checked("timeout_ms", timeout_ms, TIMEOUT_MS)
        connect_ms = min(CONNECT_TIMEOUT_MS, timeout_ms) if connect_timeout_ms is None else connect_timeout_ms
        self._connect_ms = _checked("connect_timeout_ms", connect_ms, Range(1, timeout_ms))
        self._clock = clock or SystemClock()
        self._judges_deadlines = clock is not None
        self._timeout = self._timeout_of(timeout_ms)
        self._session: aiohttp.ClientSession | None = None
        self._batch = _checked("batch", batch, BATCH)
        if batch > 1 and not self._echo:  # any page below any path would acknowledge jobs that nobody read
            raise ConfigError('send: batch needs ack="echo"')
        self._batch_url = self._url.with_path(
            f"{self._url.raw_path.rstrip('/')}/{wire_batch.PATH}", encoded=True, keep_query=True
        )
        self._offer = Offer(self._endpoint, events)
        self._gatherer = None if batch == 1 else self._new_gatherer(batch)

    def _new_gatherer(self, batch: int) -> Gatherer:
        patience_s = self._timeout_ms / 1000 * _PATIENCE_PART
        return Gatherer(self._post_batch, jobs_max=batch, bytes_max=wire.REQUEST_BYTES_MAX, patience_s=patience_s)

    @property
    def timeout_ms(self) -> int:
        """The longest that one send may take, in milliseconds; a lease must be longer."""
        return self._timeout_ms

    @property
    def batch(self) -> int:
        """The most jobs in one request."""
        return self._batch

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
        self._timeouts = Timeouts(self._timeout_ms / 1000)
        self._alone = open_exchange(self._session, self._url)
        self._together = open_exchange(self._session, self._batch_url)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        session, self._session = self._session, None
        try:
            if self._gatherer is not None:
                await self._gatherer.close()
        finally:
            if session is not None:
                await session.close()

    async def send(self, job: LeasedJob) -> Outcome:
        """Post `job` once and return what came of it; never past its deadline, never longer than `timeout_ms`.

        Raises nothing but `CancelledError`, which passes at once; the connection is then closed. Everything
        else, a bug included, is an `Outcome`. The effect of a send that was cancelled is unknown.
        """
        if self._gatherer is None or self._session is None or not self._offer.stands():
            return await self.send_alone(job)
        left_ms = self._left_ms(job)
        if left_ms <= 0:
            return _DEADLINE_PASSED
        began_at = asyncio.get_running_loop().time()
        ends_at = began_at + min(left_ms, self._timeout_ms) / 1000
        is_early = left_ms < self._timeout_ms
        outcome = await self._gatherer.send(job, _item(job), ends_at, ends_early=is_early)
        if outcome is not None:
            return outcome
        return await self.send_alone(job, asyncio.get_running_loop().time() - began_at)

    def board(self, jobs: Iterable[tuple[LeasedJob, Answered]]) -> list[Seat | None]:
        """Do for each job what `send` does, in requests of many, and tell its `answered`: no task for each.

        None for a job that must go by itself now; `answered(None)` if that turns out later: then `send_alone`.
        """
        gatherer = self._gatherer
        if gatherer is None or self._session is None or not self._offer.stands():
            return [None for _job in jobs]
        now = asyncio.get_running_loop().time()
        seats: list[Seat | None] = []
        for job, answered in jobs:
            left_ms = self._left_ms(job)
            if left_ms <= 0:
                seats.append(None)
                continue
            is_early = left_ms < self._timeout_ms
            ends_at = now + (left_ms if is_early else self._timeout_ms) / 1000
            seats.append(gatherer.board(job, _item(job), ends_at, answered, ends_early=is_early))
        return seats

    async def send_alone(self, job: LeasedJob, gone_s: float = 0.0) -> Outcome:
        """Do what `send` does in a request for this job only; `gone_s` of its time, in seconds, is used up."""
        if self._session is None:
            return _NOT_OPEN
        status = None
        try:
            left_ms = min(self._left_ms(job), self._timeout_ms) - round(gone_s * 1000)
            if left_ms <= 0:
                return _NO_TIME_LEFT if gone_s else _DEADLINE_PASSED
            timeout = self._timeout if left_ms >= self._timeout_ms else self._timeout_of(left_ms)
            with self._timeouts.limit(timeout.total):
                body = wire.encode_body(job.id, job.qty, job.payload)
                answer = await self._alone.post(body, _job_headers(job), timeout)
                status = answer.status
                reply = await answer.read(wire.REPLY_BYTES_MAX)
            if status in _SUCCESS and (not self._echo or _echoes(reply, job)):
                return ACCEPTED
            return self._not_acknowledged(answer, reply)
        except Exception as error:  # noqa: BLE001 - an unknown error is recorded and tried again, never silent
            return self._failed(error, status)

    async def _post_batch(self, seats: Sequence[Seat], timeout_s: float) -> Sequence[Outcome | None]:
        """Post many jobs once; all None if they must go one by one. Raises nothing but `CancelledError`."""
        if self._session is None:
            return [_NOT_OPEN] * len(seats)
        status = None
        try:
            timeout = self._timeout_of(timeout_s * 1000)
            reply_bytes_max = wire_batch.reply_bytes_max(len(seats))
            async with asyncio.timeout(timeout.total):
                answer = await self._together.post(b"[%b]" % b",".join([seat.item for seat in seats]), (), timeout)
                status = answer.status
                reply = await answer.read(reply_bytes_max)
            if status in _SUCCESS and len(reply) <= reply_bytes_max:
                outcomes = outcomes_of([seat.job for seat in seats], status, reply)
                if outcomes is not None:
                    self._offer.kept()
                    return outcomes
            whole = self._not_acknowledged(answer, reply)
        except Exception as error:  # noqa: BLE001 - as for a single send: every job of it has this outcome
            return [self._failed(error, status)] * len(seats)
        if refuses_batches(status, whole.verdict):
            self._offer.withdrawn(status, whole.error)
            return [None] * len(seats)
        return [whole] * len(seats)

    def _left_ms(self, job: LeasedJob) -> int:
        """Return the time to the job's deadline; it goes out as soon as it is claimed.

        Reckoned from the lease, whose span the store told: the store's clock may be another host's.
        """
        if self._judges_deadlines:
            return job.deadline - self._clock.now_ms()
        return job.deadline - job.lease_until + job.lease_ms

    def _not_acknowledged(self, answer: Answer, body: bytes) -> Outcome:
        meaning = meaning_of(answer.status, body)
        text = f"{answer.status} {meaning.text}: {quoted_body(body)}"
        wishes = answer.headers.getall("Retry-After", ())
        return Outcome(
            meaning.verdict,
            meaning.certainty,
            printable(text),
            answer.status,
            self._longest_wish(wishes),
        )

    def _longest_wish(self, values: "tuple[str, ...] | list[str]") -> int | None:
        """Return the longest of repeated Retry-After headers, in milliseconds from now."""
        now_ms = self._clock.now_ms()
        wishes = (wire.parse_retry_after(value, now_ms) for value in values)
        return max((wish for wish in wishes if wish is not None), default=None)

    def _failed(self, error: Exception, status: int | None) -> Outcome:
        meaning = meaning_of_failure(error)
        why = reason(error)
        for url in (self._batch_url, self._url):
            why = why.replace(str(url), self.endpoint).replace(url.path_qs, "/")
        text = f"{meaning.text}: {type(error).__name__}{why} ({self.endpoint})"
        return Outcome(meaning.verdict, meaning.certainty, printable(text), status)

    def _timeout_of(self, total_ms: float) -> aiohttp.ClientTimeout:
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


def _checked(name: str, value: int, allowed: Range) -> int:
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


def _item(job: LeasedJob) -> bytes:
    return wire_batch.encode_item(job.id, job.qty, job.payload, job.token, job.attempt)


def _job_headers(job: LeasedJob) -> tuple[Header, ...]:
    return (
        (wire.IDEMPOTENCY_HEADER, job.id),
        (wire.TOKEN_HEADER, str(job.token)),
        (wire.ATTEMPT_HEADER, str(job.attempt)),
    )


def _echoes(body: bytes, job: LeasedJob) -> bool:
    """Tell whether a whole reply is the acknowledgement of `job`; one that had to be cut off never is."""
    return len(body) <= wire.REPLY_BYTES_MAX and wire.is_ack(body, job.id, job.qty)
