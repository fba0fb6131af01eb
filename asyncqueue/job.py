"""The records that cross the seams, and the ranges of every value in them.

Ranges are data: `CONTRACT` for the contract layer, `PRODUCT` (wider) for everything else. All records are
frozen; all times are integer milliseconds since the epoch.
"""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncqueue.errors import InvalidJob
from asyncqueue.lifecycle import Reason, Status

__all__ = [
    "CONTRACT",
    "DEFAULT_KIND",
    "DEFAULT_QUEUE",
    "ID_PATTERN",
    "PRODUCT",
    "TIME_MS_MAX",
    "TOKEN_MAX",
    "Effect",
    "EffectWork",
    "FailedAttempt",
    "HistoryRow",
    "Job",
    "LeasedJob",
    "Limits",
    "NewJob",
    "Note",
    "Range",
    "Redrive",
    "Release",
    "Renew",
    "Report",
    "Ticket",
    "brief",
    "check_id",
    "check_int",
    "decode_payload",
    "encode_payload",
    "printable",
]

DEFAULT_QUEUE: Final = "default"
DEFAULT_KIND: Final = "job"
TOKEN_MAX: Final = 10**15
TIME_MS_MAX: Final = 10**15 - 60_000

ID_PATTERN: Final = "[A-Za-z0-9_-]{1,64}"
_ID = re.compile(ID_PATTERN)


class Range(NamedTuple):
    """An inclusive range of integers."""

    low: int
    high: int

    def __contains__(self, value: object) -> bool:
        """Tell whether `value` is an exact int (no bool) within the range."""
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Limits:
    """What a layer accepts; times in milliseconds."""

    qty: Range
    ttl_ms: Range
    lease_ms: Range
    delay_ms: Range
    max_attempts: Range
    payload_bytes_max: int = 0


_YEAR_MS: Final = 366 * 24 * 3600 * 1000

CONTRACT: Final = Limits(
    qty=Range(1, 1000),
    ttl_ms=Range(1, 60_000),
    lease_ms=Range(1, 60_000),
    delay_ms=Range(0, 60_000),
    max_attempts=Range(1, 16),
)
PRODUCT: Final = Limits(
    qty=Range(1, 1_000_000_000),
    ttl_ms=Range(1, 10 * _YEAR_MS),
    lease_ms=Range(1, 7 * 24 * 3600 * 1000),
    delay_ms=Range(0, 10 * _YEAR_MS),
    max_attempts=Range(1, 10_000),
    payload_bytes_max=256 * 1024,
)
PRIORITY: Final = Range(-32_768, 32_767)
DEFAULT_TTL_MS: Final = 7 * 24 * 3600 * 1000
DEFAULT_MAX_ATTEMPTS: Final = 20
DEFAULT_LEASE_MS: Final = 30_000


def check_int(name: str, value: object, allowed: Range) -> None:
    """Raise `InvalidJob` unless `value` is an exact int (no bool) within `allowed`."""
    if value not in allowed:
        raise InvalidJob(f"{name} must be an integer from {allowed.low} to {allowed.high}, not {brief(value)}")


def check_id(name: str, value: object) -> None:
    """Raise `InvalidJob` unless `value` is an exact str of 1-64 ASCII letters, digits, `_` or `-`."""
    if type(value) is not str or not _ID.fullmatch(value):
        raise InvalidJob(f"{name} must be 1-64 characters of A-Z a-z 0-9 _ -, not {brief(value)}")


_SHOWN: Final = (str, int, float, bool, type(None))  # exact types: a subclass may print anything
_INT_BITS_SHOWN: Final = 128


def brief(value: object) -> str:
    """Return `value` as at most 60 printable ASCII characters, for messages."""
    if type(value) is int and value.bit_length() > _INT_BITS_SHOWN:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print a huge one
    text = ascii(value) if type(value) in _SHOWN else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - stated in the docstring


def printable(text: str, chars_max: int = 500) -> str:
    """Return `text` as one line: control, bidi and surrogate characters escaped, cut to `chars_max`."""
    clean = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:chars_max])
    return clean[:chars_max]


def encode_payload(payload: Any) -> str | None:
    """Return the canonical JSON text of a payload (sorted keys, no spaces), or None for None.

    Two payloads are the same if their canonical texts are: 1, 1.0, true and "1" all differ. Raises
    `InvalidJob` for what JSON cannot say (NaN, lone surrogates, other types, keys that are not str, cycles)
    and for more than `PRODUCT.payload_bytes_max` bytes of UTF-8.
    """
    if payload is None:
        return None
    try:
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        _check_keys(payload)
        size_bytes = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"payload cannot be written as JSON: {error}") from None
    if size_bytes > PRODUCT.payload_bytes_max:
        raise InvalidJob(f"payload has {size_bytes} bytes, more than {PRODUCT.payload_bytes_max}")
    return text


def _check_keys(value: Any) -> None:
    """Raise `TypeError` for a dict key that is not a str: `json` would silently turn it into one."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys must be str, not {type(key).__name__}")
            if isinstance(member, dict | list | tuple):
                _check_keys(member)
    elif isinstance(value, list | tuple):
        for member in value:
            if isinstance(member, dict | list | tuple):
                _check_keys(member)


def decode_payload(text: str | None) -> Any:
    """Return the value of a stored payload text."""
    return None if text is None else json.loads(text)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job on its way in. `payload` is canonical JSON text or None; times are spans from now, in ms."""

    id: str
    qty: int
    payload: str | None = None
    queue: str = DEFAULT_QUEUE
    kind: str = DEFAULT_KIND
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = DEFAULT_TTL_MS
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    def check(self) -> None:
        """Raise `InvalidJob` for the first value outside the product's ranges."""
        check_id("id", self.id)
        check_int("qty", self.qty, PRODUCT.qty)
        check_id("queue", self.queue)
        check_id("kind", self.kind)
        check_int("priority", self.priority, PRIORITY)
        check_int("delay_ms", self.delay_ms, PRODUCT.delay_ms)
        check_int("ttl_ms", self.ttl_ms, PRODUCT.ttl_ms)
        check_int("max_attempts", self.max_attempts, PRODUCT.max_attempts)
        if self.delay_ms >= self.ttl_ms:
            raise InvalidJob(f"delay_ms {self.delay_ms} must be below ttl_ms {self.ttl_ms}")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a claim returns and every later report must show; `attempt` is the number of this one, from 1."""

    id: str
    qty: int
    owner: str
    token: int
    attempt: int
    lease_until: int


@dataclass(frozen=True, slots=True)
class LeasedJob(Ticket):
    """A ticket together with what a delivery needs to know.

    `payload` is JSON text or None (`json()` decodes it); `lease_ms` is the span that the lease had when it was
    granted, for a holder that measures it on its own monotonic clock.
    """

    queue: str
    kind: str
    payload: str | None
    priority: int
    max_attempts: int
    deadline: int
    lease_ms: int

    def json(self) -> Any:
        """Return the payload's value, None if there is none."""
        return decode_payload(self.payload)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's whole row; `attempts` is how many were claimed so far, one that is under way among them."""

    seq: int
    id: str
    qty: int
    status: Status
    attempts: int
    max_attempts: int
    token: int
    available_at: int
    deadline: int
    owner: str | None
    lease_until: int | None
    reason: Reason | None
    queue: str
    kind: str
    payload: str | None
    priority: int
    created_at: int
    finished_at: int | None
    last_error: str | None

    def json(self) -> Any:
        """Return the payload's value, None if there is none."""
        return decode_payload(self.payload)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What the history keeps of an attempt that was not a plain success.

    `certainty` is what is known of the effect: `not-sent`, `unknown`, `refused` or `accepted`; `error` may be any
    text, and is kept as one line of at most 500 characters; `http_status` is 100 to 999.
    """

    error: str
    certainty: str = "unknown"
    http_status: int | None = None

    def check(self) -> None:
        """Raise `InvalidJob` for the first value of a wrong kind or outside its range."""
        if not isinstance(self.error, str):
            raise InvalidJob(f"error must be a text, not {brief(self.error)}")
        if self.certainty not in _CERTAINTIES:
            raise InvalidJob(f"certainty must be one of {', '.join(_CERTAINTIES)}, not {brief(self.certainty)}")
        if self.http_status is not None:
            check_int("http_status", self.http_status, _HTTP_STATUS)


_CERTAINTIES: Final = ("not-sent", "unknown", "refused", "accepted")
_HTTP_STATUS: Final = Range(100, 999)


EffectWork = Callable[[Any], Awaitable[object]]
"""Database work on the store's own connection, inside the transaction of the finish."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a handler returns to acknowledge its job together with database work.

    `work(connection)` runs inside the transaction that finishes the job, in a savepoint of its own; it must not
    commit or roll back. If the ticket is stale it does not run; if it raises, it and the finish are undone.
    """

    work: EffectWork


@dataclass(frozen=True, slots=True)
class Report:
    """The end of an attempt; build it by `ok`, `retry` or `permanent`, so that only legal ones exist."""

    ticket: Ticket
    outcome: str
    delay_ms: int = 0
    failure: FailedAttempt | None = None
    effect: EffectWork | None = None

    @classmethod
    def ok(cls, ticket: Ticket, effect: EffectWork | None = None) -> "Report":
        """Report that the job was acknowledged; `effect` is database work that commits with that, or not."""
        return cls(ticket, "ok", effect=effect)

    @classmethod
    def retry(cls, ticket: Ticket, delay_ms: int, failure: FailedAttempt | None = None) -> "Report":
        """Report a failed attempt: again after `delay_ms`, if attempts and deadline allow."""
        check_int("delay_ms", delay_ms, PRODUCT.delay_ms)
        return cls(ticket, "retry", delay_ms, failure)

    @classmethod
    def permanent(cls, ticket: Ticket, failure: FailedAttempt | None = None) -> "Report":
        """Report that no later attempt can succeed: the job is dead."""
        return cls(ticket, "permanent", 0, failure)


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of an attempt that makes no report: its lease is left to run out."""

    ticket: Ticket
    failure: FailedAttempt


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One line of a job's timeline: `what` is an attempt's outcome or `redrive`, `detail` its error or note."""

    at_ms: int
    what: str
    token: int
    attempt: int | None
    who: str | None
    certainty: str | None
    detail: str | None
    http_status: int | None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back: the attempt is refunded, the token is not, and the job waits for `delay_ms`."""

    ticket: Ticket
    delay_ms: int = 0
    failure: FailedAttempt | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Push a held lease out to `lease_ms` from now, never past the deadline."""

    ticket: Ticket
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Redrive:
    """Put a dead job back: fresh attempts, `ttl_ms` to live; `note` and `actor` go into the audit row."""

    id: str
    ttl_ms: int
    note: str
    actor: str | None = None

    def check(self) -> None:
        """Raise `InvalidJob` for the first value outside its range."""
        check_id("id", self.id)
        check_int("ttl_ms", self.ttl_ms, PRODUCT.ttl_ms)
        check_id("note", self.note)
        if self.actor is not None:
            check_id("actor", self.actor)
