"""The law of a job's life, as data.

`TRANSITIONS[(status, event)]` lists the rules of that pair in order; the first rule whose guard holds
applies. A missing pair is the error: nothing outside this table may change a job. SQL cannot execute the
table, so the tests walk the full status x event product on every store and compare.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from asyncqueue.errors import IllegalTransition

__all__ = ["STATUSES", "TRANSITIONS", "Event", "Facts", "Reason", "Rule", "Status", "step"]


class Status(StrEnum):
    """Where a job is; each job is in exactly one."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a job is where it is (NULL when there is nothing to say)."""

    RETRY = "retry"
    EXHAUSTED = "exhausted"
    DEADLINE = "deadline"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a job."""

    CLAIM = "claim"
    RENEW = "renew"
    OK = "ok"
    RETRY = "retry"
    PERMANENT = "permanent"
    RELEASE = "release"
    CANCEL = "cancel"
    REDRIVE = "redrive"


STATUSES: Final = tuple(Status)


@dataclass(frozen=True, slots=True)
class Facts:
    """One job as the law sees it; times in integer milliseconds."""

    status: Status
    attempts: int
    max_attempts: int
    token: int
    available_at: int
    deadline: int
    lease_until: int | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class _Moment:
    """When an event happens, and with which delay, lease or time to live (milliseconds)."""

    now_ms: int
    span_ms: int


Guard = Callable[[Facts, _Moment], bool]
Change = Callable[[Facts, _Moment], Facts]


@dataclass(frozen=True, slots=True)
class Rule:
    """If `when` holds, the job moves to `to` with `reason`, and `change` sets its numbers.

    `to=None` means that nothing changes.
    """

    text: str
    when: Guard
    to: Status | None
    reason: Reason | None = None
    change: Change = lambda facts, _moment: facts


def _lease_gone(facts: Facts, at: _Moment) -> bool:
    return facts.lease_until is None or at.now_ms >= facts.lease_until


def _out_of_time(facts: Facts, at: _Moment) -> bool:
    return facts.deadline <= at.now_ms


def _out_of_attempts(facts: Facts, _at: _Moment) -> bool:
    return facts.attempts >= facts.max_attempts


def _not_due(facts: Facts, at: _Moment) -> bool:
    return facts.available_at > at.now_ms


def _retry_misses_deadline(facts: Facts, at: _Moment) -> bool:
    return at.now_ms + at.span_ms >= facts.deadline


def _lease_held(facts: Facts, at: _Moment) -> bool:
    return not _lease_gone(facts, at)


def _always(_facts: Facts, _at: _Moment) -> bool:
    return True


def _take(facts: Facts, at: _Moment) -> Facts:
    return replace(
        facts,
        attempts=facts.attempts + 1,
        token=facts.token + 1,
        lease_until=min(at.now_ms + at.span_ms, facts.deadline),
    )


def _drop_lease(facts: Facts, _at: _Moment) -> Facts:
    return replace(facts, lease_until=None)


def _settle(facts: Facts, at: _Moment) -> Facts:
    return replace(facts, lease_until=None, available_at=at.now_ms)


def _wait(facts: Facts, at: _Moment) -> Facts:
    return replace(facts, lease_until=None, available_at=at.now_ms + at.span_ms)


def _extend(facts: Facts, at: _Moment) -> Facts:
    held = facts.lease_until or 0  # a lease without an end is gone: `_STALE` comes first
    return replace(facts, lease_until=min(max(held, at.now_ms + at.span_ms), facts.deadline))


def _refund(facts: Facts, at: _Moment) -> Facts:
    return replace(_wait(facts, at), attempts=facts.attempts - 1)


def _fresh_budget(facts: Facts, at: _Moment) -> Facts:
    return replace(facts, attempts=0, available_at=at.now_ms, deadline=at.now_ms + at.span_ms, lease_until=None)


_STALE = Rule("the lease is gone: the report is stale, nothing changes", _lease_gone, None)
_DIES_OF_TIME = Rule("its deadline has passed", _out_of_time, Status.DEAD, Reason.DEADLINE, _drop_lease)
_DIES_OF_ATTEMPTS = Rule("its attempts are used up", _out_of_attempts, Status.DEAD, Reason.EXHAUSTED, _drop_lease)
_CANCELLED = Rule("by an operator or its producer", _always, Status.DEAD, Reason.CANCELLED, _drop_lease)
_TAKEN = Rule("attempt and token rise by 1", _always, Status.LEASED, None, _take)

TRANSITIONS: Final[Mapping[tuple[Status, Event], tuple[Rule, ...]]] = {
    (Status.PENDING, Event.CLAIM): (
        _DIES_OF_TIME,
        _DIES_OF_ATTEMPTS,
        Rule("it is not due yet: it is passed over", _not_due, None),
        _TAKEN,
    ),
    (Status.LEASED, Event.CLAIM): (
        Rule("another holder's lease still runs: it is passed over", _lease_held, None),
        _DIES_OF_TIME,
        _DIES_OF_ATTEMPTS,
        _TAKEN,
    ),
    (Status.LEASED, Event.RENEW): (
        _STALE,
        Rule("the lease is pushed out, never past the deadline", _always, Status.LEASED, None, _extend),
    ),
    (Status.LEASED, Event.OK): (_STALE, Rule("acknowledged", _always, Status.DONE, None, _settle)),
    (Status.LEASED, Event.RETRY): (
        _STALE,
        Rule("that was the last attempt", _out_of_attempts, Status.DEAD, Reason.EXHAUSTED, _settle),
        Rule(
            "the next try would miss the deadline",
            _retry_misses_deadline,
            Status.DEAD,
            Reason.DEADLINE,
            _settle,
        ),
        Rule("it waits for its delay", _always, Status.PENDING, Reason.RETRY, _wait),
    ),
    (Status.LEASED, Event.PERMANENT): (
        _STALE,
        Rule("no later attempt can succeed", _always, Status.DEAD, Reason.PERMANENT, _settle),
    ),
    (Status.LEASED, Event.RELEASE): (
        _STALE,
        Rule("unused: the attempt is refunded, the token is not", _always, Status.PENDING, None, _refund),
    ),
    (Status.PENDING, Event.CANCEL): (_CANCELLED,),
    (Status.LEASED, Event.CANCEL): (_CANCELLED,),
    (Status.DEAD, Event.REDRIVE): (
        Rule("a fresh budget, audited; the token stays", _always, Status.PENDING, None, _fresh_budget),
    ),
}


def step(facts: Facts, event: Event, *, now_ms: int, span_ms: int = 0) -> Facts | None:
    """Return the job after `event`, or None where the law says that nothing changes.

    `span_ms` is the lease of a claim or renew, the delay of a retry or release, the time to live of a
    redrive. Raises `IllegalTransition` for a pair that the table does not have.
    """
    rules = TRANSITIONS.get((facts.status, event))
    if rules is None:
        raise IllegalTransition(f"a {facts.status} job has no event {event}")
    at = _Moment(now_ms, span_ms)
    rule = next(rule for rule in rules if rule.when(facts, at))
    if rule.to is None:
        return None
    return replace(rule.change(facts, at), status=rule.to, reason=rule.reason)
