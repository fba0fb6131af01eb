"""When to try again: the contract's `retry_delay` and the product's policy over it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from asyncqueue.errors import ConfigError
from asyncqueue.job import (
    CONTRACT,
    PRODUCT,
    EffectWork,
    FailedAttempt,
    Range,
    Release,
    Report,
    Ticket,
    brief,
    check_int,
)

__all__ = [
    "Certainty",
    "Outcome",
    "RetryPolicy",
    "Verdict",
    "backoff_ms",
    "check_jitter",
    "decide",
    "retry_delay",
]

_DELAY_MS = Range(1, 60_000)
_DOUBLINGS_MAX = 62  # 2**62 is beyond every cap in use; a larger exponent only costs memory or overflows


def backoff_ms(attempt: int, base_ms: int, cap_ms: int, jitter: float) -> int:
    """Return floor(min(cap_ms, base_ms * 2**(attempt-1)) * jitter), for any attempt >= 1, without overflow.

    The cap is applied before the ratio, and the exponent is bounded before the power is taken, so the
    result is within 0..cap_ms for every attempt number. The ratio is exact for caps up to 2**53 ms, which is
    beyond `PRODUCT.delay_ms`; the last `min` keeps the promise where a float would round up.
    """
    ceiling = min(cap_ms, base_ms << min(attempt - 1, _DOUBLINGS_MAX))
    return min(ceiling, math.floor(ceiling * jitter))


def retry_delay(attempt: int, base_ms: int, cap_ms: int, jitter: float) -> int:
    """Return the delay in milliseconds before the next try (contract layer).

    `attempt` 1-16, `base_ms` 1-60000, `cap_ms` base_ms-60000, `jitter` a finite int or float 0-1, no bool.
    Pure: no random numbers, no sleep. Raises `ValueError` for anything else.
    """
    check_int("attempt", attempt, CONTRACT.max_attempts)
    check_int("base_ms", base_ms, _DELAY_MS)
    check_int("cap_ms", cap_ms, Range(base_ms, _DELAY_MS.high))
    check_jitter(jitter)
    return backoff_ms(attempt, base_ms, cap_ms, jitter)


def check_jitter(jitter: float) -> None:
    """Raise `ValueError` unless `jitter` is an exact int or float, finite and within 0..1."""
    if type(jitter) not in (int, float) or not 0 <= jitter <= 1:  # NaN and infinities fail the comparison
        raise ValueError(f"jitter must be a finite number from 0 to 1, not {brief(jitter)}")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Capped exponential backoff with full jitter; all times in milliseconds.

    1 <= base_ms <= cap_ms, and `retry_after_cap_ms` >= 0 bounds what a peer may ask for by Retry-After; no
    time is above `PRODUCT.delay_ms`, and no delay ever is. Raises `ConfigError` for anything else.
    """

    base_ms: int = 1_000
    cap_ms: int = 300_000
    retry_after_cap_ms: int = 3_600_000

    def __post_init__(self) -> None:
        """Refuse a policy whose cap is below its base or whose times are outside their ranges."""
        for name in ("base_ms", "cap_ms", "retry_after_cap_ms"):
            if getattr(self, name) not in PRODUCT.delay_ms:
                raise ConfigError(f"retry: {name} must be an integer from 0 to {PRODUCT.delay_ms.high}")
        if not 1 <= self.base_ms <= self.cap_ms:
            raise ConfigError(f"retry: need 1 <= base_ms <= cap_ms, got {self.base_ms} and {self.cap_ms}")

    def delay_ms(self, attempt: int, jitter: float, retry_after_ms: int | None = None) -> int:
        """Return the delay before the next try: the backoff, or the peer's capped wish if that is longer.

        `jitter` is a random number from 0 to 1. A wish is spread by up to one `base_ms`, so that many
        jobs told to come back at one moment do not.
        """
        own = backoff_ms(attempt, self.base_ms, self.cap_ms, jitter)
        if retry_after_ms is None:
            return own
        wish = min(max(retry_after_ms, 0), self.retry_after_cap_ms)
        return min(max(own, wish) + math.floor(self.base_ms * jitter), PRODUCT.delay_ms.high)


class Verdict(StrEnum):
    """What an attempt means for its job."""

    OK = "ok"
    RETRY = "retry"
    PERMANENT = "permanent"
    HOLD = "hold"  # the endpoint's fault: the job goes back unburnt and the endpoint rests
    LEAVE = "leave"  # nobody can tell: the lease is left to run out, as the contract says


class Certainty(StrEnum):
    """What is known of the effect at the other side."""

    NOT_SENT = "not-sent"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended; `error` is one line for humans, `retry_after_ms` the peer's wish.

    `effect` is a handler's database work, for the transaction of the finish; only with verdict OK.
    """

    verdict: Verdict
    certainty: Certainty = Certainty.UNKNOWN
    error: str = ""
    http_status: int | None = None
    retry_after_ms: int | None = None
    effect: EffectWork | None = None

    def failure(self) -> FailedAttempt:
        """Return what the history keeps of this attempt."""
        return FailedAttempt(self.error, self.certainty, self.http_status)


ACCEPTED = Outcome(Verdict.OK, Certainty.ACCEPTED)


def decide(
    ticket: Ticket, outcome: Outcome, policy: RetryPolicy, rng: Callable[[], float]
) -> Report | Release | None:
    """Return what to tell the store about an attempt, or None to leave the lease alone. Pure but for `rng`."""
    match outcome.verdict:
        case Verdict.OK:
            return Report.ok(ticket, outcome.effect)
        case Verdict.RETRY:
            delay_ms = policy.delay_ms(ticket.attempt, rng(), outcome.retry_after_ms)
            return Report.retry(ticket, delay_ms, outcome.failure())
        case Verdict.PERMANENT:
            return Report.permanent(ticket, outcome.failure())
        case Verdict.HOLD:
            return Release(ticket, policy.delay_ms(1, rng(), outcome.retry_after_ms), outcome.failure())
        case Verdict.LEAVE:
            return None
