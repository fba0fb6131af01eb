"""The SQL of the contract against the law: the full status x event product, every guard on both sides."""

import itertools

import contract_tools as tools
import pytest

from asyncqueue.errors import IllegalTransition
from asyncqueue.lifecycle import Event, Facts, Reason, Status, step
from asyncqueue.worker import claim, finish, redrive

NOW = 1_000
SPAN = 500
EVENTS = [Event.CLAIM, Event.OK, Event.RETRY, Event.PERMANENT, Event.REDRIVE]


def starts(status):
    """Return jobs of one status on both sides of every limit; a lease never outlasts its deadline."""
    deadlines = [NOW - 1, NOW, NOW + 1, NOW + SPAN - 1, NOW + SPAN, NOW + SPAN + 1, NOW + 9_000]
    leases = [NOW - 1, NOW, NOW + 1, NOW + SPAN] if status is Status.LEASED else [None]
    times = [NOW - 1, NOW, NOW + 1] if status is Status.PENDING else [0]
    for attempts, deadline, until, due in itertools.product([1, 2, 3, 4], deadlines, leases, times):
        if until is None or until <= deadline:
            yield Facts(status, attempts, 3, 7, due, deadline, until, Reason.RETRY)


def lawful(facts, event):
    try:
        return step(facts, event, now_ms=NOW, span_ms=SPAN)
    except IllegalTransition:
        return "illegal"


async def apply(con, facts, event):
    """Call the contract function of an event; return its answer."""
    if event is Event.CLAIM:
        return await claim(con, "one", NOW, SPAN)
    if event is Event.REDRIVE:
        return await redrive(con, "a", NOW, SPAN, "n")
    ticket = {"id": "a", "qty": 3, "owner": "one", "token": facts.token, "attempt": facts.attempts}
    return await finish(con, {**ticket, "lease_until": facts.lease_until or NOW + 1}, str(event.value), NOW, SPAN)


def stored(path):
    row = tools.job(path)
    reason = Reason(row["reason"]) if row["reason"] else None
    numbers = (
        row[name] for name in ("attempts", "max_attempts", "token", "available_at", "deadline", "lease_until")
    )
    return Facts(Status(row["status"]), *numbers, reason)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("status", list(Status))
async def test_the_database_does_what_the_law_says(status, event, con, path):
    await con.execute_fetchall("PRAGMA synchronous=OFF")
    walked = set()
    for facts in starts(status):
        tools.run(path, "DELETE FROM jobs")
        tools.put(
            path,
            status=str(facts.status.value),
            attempts=facts.attempts,
            token=facts.token,
            available_at=facts.available_at,
            deadline=facts.deadline,
            lease_until=facts.lease_until,
            owner="one" if status is Status.LEASED else None,
            reason="retry",
        )
        expected = lawful(facts, event)
        if event is Event.REDRIVE and expected == "illegal":
            with pytest.raises(ValueError, match="not dead"):
                await apply(con, facts, event)
        else:
            answer = await apply(con, facts, event)
            assert bool(answer) is says_so(event, expected), facts
        assert stored(path) == (facts if expected in {"illegal", None} else expected), facts
        walked.add(expected if isinstance(expected, str | None) else (expected.status, expected.reason))
    assert walked == REACHED.get((status, event), {"illegal"})


def says_so(event, expected):
    """Tell whether the function answers with something true: a ticket, a status, True."""
    changed = isinstance(expected, Facts)
    return changed and (event is not Event.CLAIM or expected.status is Status.LEASED)


_LEASED = (Status.LEASED, None)
_BY_TIME = (Status.DEAD, Reason.DEADLINE)
_SPENT = (Status.DEAD, Reason.EXHAUSTED)
REACHED = {
    (Status.PENDING, Event.CLAIM): {None, _LEASED, _BY_TIME, _SPENT},
    (Status.LEASED, Event.CLAIM): {None, _LEASED, _BY_TIME, _SPENT},
    (Status.LEASED, Event.OK): {None, (Status.DONE, None)},
    (Status.LEASED, Event.RETRY): {None, (Status.PENDING, Reason.RETRY), _BY_TIME, _SPENT},
    (Status.LEASED, Event.PERMANENT): {None, (Status.DEAD, Reason.PERMANENT)},
    (Status.DEAD, Event.REDRIVE): {(Status.PENDING, None)},
}
