"""The protocol of leases, fence, dedup and redrive as a state machine small enough to be explored whole.

What a job may do is not written here again: every change of a job is `asyncqueue.lifecycle.step`, the law that the
stores are tested against. What is written here is what surrounds it: dispatchers that hold a ticket and may die at
any moment, a network that loses, repeats and delays, a receiver, clocks that step, and an operator.

Times are relative to the wall clock of the store (now is always 0), so that time can go on for ever in finitely
many states. A holder measures its lease on its own monotonic clock, which steps of the wall clock do not move.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import NamedTuple

from asyncqueue.lifecycle import Event, Facts, Status, step

LIVE = (Status.PENDING, Status.LEASED)
FAR = 99  # a bound that is never reached


@dataclass(frozen=True, slots=True)
class Protocol:
    """The size of the world, and which safeguards it has. Spans are in ticks."""

    dispatchers: int = 2
    jobs: int = 2
    tokens_max: int = 3
    max_attempts: int = 2
    lease: int = 1
    ttl: int = 2
    retry_delay: int = 1
    redrives_max: int = 1
    clock_steps: int = 1
    accepts_late: bool = False
    fence: bool = True
    dedup: bool = True
    deadline: bool = True
    budget: bool = True
    audit: bool = True
    sweep: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A job's row. There is one object for each content (`row_of`), so that rows are compared at no cost."""

    number: int
    facts: Facts
    status: Status
    token: int
    attempts: int


class Ticket(NamedTuple):
    """What a dispatcher holds; both spans run on its own clock, and nobody asks for them once the send began."""

    job: int
    token: int
    attempt: int
    lease_left: int
    deadline_left: int
    is_sent: bool


class State(NamedTuple):
    """One moment of the world.

    A request once sent may arrive any number of times or never, and so may its answer: a network that loses,
    repeats and reorders is a set to which is only added. `redrives` and `audits` count what was done and what was
    written down of it.
    """

    jobs: tuple[Row | None, ...]
    redrives: tuple[int, ...]
    audits: tuple[int, ...]
    held: tuple[Ticket | None, ...]
    requests: frozenset[tuple[int, int]]
    answers: frozenset[tuple[int, int]]
    effects: tuple[int, ...]
    steps_left: int


class Move(NamedTuple):
    """What can happen next; `broken` names the invariant that the very act violates."""

    label: str
    state: State
    broken: str | None = None


def start(protocol: Protocol) -> State:
    """Return the world before the first enqueue."""
    nobody, zeros = (None,) * protocol.jobs, (0,) * protocol.jobs
    idle = (None,) * protocol.dispatchers
    return State(nobody, zeros, zeros, idle, frozenset(), frozenset(), zeros, protocol.clock_steps)


def moves(protocol: Protocol, state: State) -> Iterator[Move]:
    """Yield everything that can happen in `state`."""
    for job in range(protocol.jobs):
        yield from _by_people(protocol, state, job)
    for who in range(protocol.dispatchers):
        yield from _by_dispatcher(protocol, state, who)
    for job, token in state.requests:
        yield receive(protocol, state, job, token)
    yield Move("a tick passes", tick(state))
    if state.steps_left:
        for delta in (1, -1):
            jobs = tuple(_moved(row, delta) for row in state.jobs)
            yield Move(
                f"the wall clock steps by {delta:+}", state._replace(jobs=jobs, steps_left=state.steps_left - 1)
            )


def violation(state: State) -> str | None:
    """Name the invariant that does not hold in `state`."""
    for job, row in enumerate(state.jobs):
        if state.effects[job] > 1 or (row is not None and row.status is Status.DONE and state.effects[job] != 1):
            return "I2"
        if row is not None and row.attempts > row.facts.max_attempts:
            return "I5"
        if state.audits[job] != state.redrives[job]:
            return "I6"
    return None


# --- what people do ------------------------------------------------------------------------------------


def _by_people(protocol: Protocol, state: State, job: int) -> Iterator[Move]:
    row = state.jobs[job]
    if row is None:
        new = row_of(Facts(Status.PENDING, 0, protocol.max_attempts, 0, 0, protocol.ttl))
        yield Move(f"enqueue job {job}", _with_job(state, job, new))
    elif row.status in LIVE:
        yield Move(f"cancel job {job}", _with_job(state, job, _law(row, Event.CANCEL, 0)))
    elif row.status is Status.DEAD and sum(state.redrives) < protocol.redrives_max:
        again = _with_job(state, job, _law(row, Event.REDRIVE, protocol.ttl))
        audits = _plus_one(state.audits, job) if protocol.audit else state.audits
        yield Move(f"redrive job {job}", again._replace(redrives=_plus_one(state.redrives, job), audits=audits))


# --- what dispatchers do -------------------------------------------------------------------------------


def _by_dispatcher(protocol: Protocol, state: State, who: int) -> Iterator[Move]:
    ticket = state.held[who]
    if ticket is None:
        yield from claims(protocol, state, who)
        return
    yield _lets_go(state, who)
    yield renew(protocol, state, who)
    if not ticket.is_sent:
        yield report(protocol, state, who, Event.RELEASE)
        if ticket.lease_left > 0 or not protocol.deadline:
            yield send(state, who)
        return
    if (ticket.job, ticket.token) in state.answers:
        yield report(protocol, state, who, Event.OK)
    yield report(protocol, state, who, Event.RETRY)
    yield report(protocol, state, who, Event.PERMANENT)


def claims(protocol: Protocol, state: State, who: int, *, bounded: bool = True) -> Iterator[Move]:
    """Yield each claim that dispatcher `who` can make: it buries what must die, then takes one eligible job."""
    after = [_claimed(protocol, row) for row in state.jobs]
    buried = tuple(
        then if protocol.sweep and then is not None and then.status is Status.DEAD else now
        for now, then in zip(state.jobs, after, strict=True)
    )
    swept = state if buried == state.jobs else state._replace(jobs=buried)
    eligible = [(job, then) for job, then in enumerate(after) if then is not None and then.status is Status.LEASED]
    if not eligible:
        yield Move("a claim finds nothing to take", swept)
    for job, taken in eligible:
        if bounded and taken.token > protocol.tokens_max:
            continue
        before = state.jobs[job]
        rose = before is not None and taken.token > before.token
        ticket = Ticket(
            job, taken.token, taken.attempts, taken.facts.lease_until or 0, taken.facts.deadline, is_sent=False
        )
        then = _with_ticket(_with_job(swept, job, taken), who, ticket)
        yield Move(f"a dispatcher claims {_named(ticket)}", then, None if rose else "I3")


def _lets_go(state: State, who: int) -> Move:
    """Let dispatcher `who` die, or let its lease run out: nothing is reported either way."""
    ticket = state.held[who]
    assert ticket is not None
    return Move(f"the holder of {_named(ticket)} is gone", _with_ticket(state, who, None))


def send(state: State, who: int) -> Move:
    """Begin the send under the ticket of dispatcher `who`."""
    ticket = state.held[who]
    assert ticket is not None
    sent = ticket._replace(is_sent=True, lease_left=0, deadline_left=0)
    then = _with_ticket(state, who, sent)._replace(requests=state.requests | {(ticket.job, ticket.token)})
    return Move(f"the send of {_named(ticket)} begins", then, "I5" if ticket.deadline_left <= 0 else None)


def report(protocol: Protocol, state: State, who: int, event: Event) -> Move:
    """Report the end of the attempt under the ticket of dispatcher `who`, however late, and let the ticket go."""
    ticket = state.held[who]
    assert ticket is not None
    span = protocol.retry_delay if event is Event.RETRY else 0
    return _under_ticket(protocol, _with_ticket(state, who, None), ticket, event, span)


def renew(protocol: Protocol, state: State, who: int) -> Move:
    """Push the lease out; a holder that is told that it is not its any more lets go of its ticket."""
    ticket = state.held[who]
    assert ticket is not None
    move = _under_ticket(protocol, state, ticket, Event.RENEW, protocol.lease)
    row = move.state.jobs[ticket.job]
    if move.label.endswith("stale") or row is None:
        return move._replace(state=_with_ticket(move.state, who, None))
    if ticket.is_sent:
        return move
    held = ticket._replace(lease_left=row.facts.lease_until or 0, deadline_left=row.facts.deadline)
    return move._replace(state=_with_ticket(move.state, who, held))


def _under_ticket(protocol: Protocol, state: State, ticket: Ticket, event: Event, span: int) -> Move:
    label = f"{event} is reported under {_named(ticket)}"
    row = state.jobs[ticket.job]
    if row is None or row.status is not Status.LEASED:
        return Move(f"{label}: stale", state)
    is_current = row.token == ticket.token and row.attempts == ticket.attempt
    if protocol.fence and not is_current:
        return Move(f"{label}: stale", state)
    if protocol.accepts_late and event in (Event.OK, Event.RETRY, Event.PERMANENT):
        row = row_of(replace(row.facts, lease_until=1))
    after = _law(row, event, span)
    if after is None:
        return Move(f"{label}: stale", state)
    return Move(label, _with_job(state, ticket.job, after), None if is_current else "I3")


def _named(ticket: Ticket) -> str:
    return f"job {ticket.job} token {ticket.token}"


# --- what the receiver does ----------------------------------------------------------------------------


def receive(protocol: Protocol, state: State, job: int, token: int) -> Move:
    """Take a request that was sent at some time, once more perhaps, and answer it."""
    is_new = state.effects[job] == 0 or not protocol.dedup
    effects = _plus_one(state.effects, job) if is_new else state.effects
    then = state._replace(effects=effects, answers=state.answers | {(job, token)})
    return Move(f"the receiver gets job {job}, sent under token {token or 'of somebody gone'}", then)


# --- once the faults have stopped ----------------------------------------------------------------------


def calm(protocol: Protocol, state: State) -> State | None:
    """Return the next state in a world without faults, None once every job is done or dead and none is held."""
    for who, ticket in enumerate(state.held):
        if ticket is None:
            continue
        if not ticket.is_sent:
            return (send(state, who) if ticket.lease_left > 0 else _lets_go(state, who)).state
        if (ticket.job, ticket.token) in state.answers:
            return report(protocol, state, who, Event.OK).state
        return receive(protocol, state, ticket.job, ticket.token).state
    if all(row is None or row.status not in LIVE for row in state.jobs):
        return None
    claim = next(claims(protocol, state, 0, bounded=False))
    return claim.state if claim.state != state else tick(state)


# --- time ----------------------------------------------------------------------------------------------


def tick(state: State) -> State:
    """Let one tick pass on every clock."""
    held = tuple(
        ticket
        and ticket._replace(
            lease_left=max(0, ticket.lease_left - 1), deadline_left=max(0, ticket.deadline_left - 1)
        )
        for ticket in state.held
    )
    return state._replace(jobs=tuple(_moved(row, 1) for row in state.jobs), held=held)


@cache
def _moved(row: Row | None, delta: int) -> Row | None:
    """Return the job with its times `delta` ticks nearer; how long ago something passed is not told apart."""
    if row is None or row.status not in LIVE:
        return row
    facts = row.facts
    return row_of(
        replace(
            facts,
            available_at=max(0, facts.available_at - delta) if row.status is Status.PENDING else 0,
            deadline=max(0, facts.deadline - delta),
            lease_until=None if facts.lease_until is None else max(0, facts.lease_until - delta),
        )
    )


# --- the law, asked once per question ------------------------------------------------------------------


@cache
def row_of(facts: Facts) -> Row:
    """Return the row of these facts, without what can make no difference any more."""
    kept = replace(facts, reason=None)
    if facts.status is not Status.PENDING:
        kept = replace(kept, available_at=0)
    if facts.status not in LIVE:
        kept = replace(kept, deadline=0)
    if facts.status is Status.DONE:
        kept = replace(kept, attempts=0)
    return _row(kept)


@cache
def _row(facts: Facts) -> Row:
    return Row(next(_numbers), facts, facts.status, facts.token, facts.attempts)


_numbers = count(1)


@cache
def _law(row: Row, event: Event, span: int) -> Row | None:
    """Return the job after `event`, None where the law says that nothing changes."""
    after = step(row.facts, event, now_ms=0, span_ms=span)
    return None if after is None else row_of(after)


@cache
def _claimed(protocol: Protocol, row: Row | None) -> Row | None:
    """Return what a claim makes of a job, None for nothing; a safeguard that is missing has its bound far away."""
    if row is None or row.status not in LIVE:
        return None
    deadline = row.facts.deadline if protocol.deadline else FAR
    max_attempts = row.facts.max_attempts if protocol.budget else FAR
    seen = replace(row.facts, deadline=deadline, max_attempts=max_attempts)
    after = step(seen, Event.CLAIM, now_ms=0, span_ms=protocol.lease)
    if after is None:
        return None
    return row_of(replace(after, deadline=row.facts.deadline, max_attempts=row.facts.max_attempts))


# --- small things --------------------------------------------------------------------------------------


def _plus_one(counts: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] + 1, *counts[place + 1 :])


def _with_job(state: State, job: int, row: Row | None) -> State:
    return state._replace(jobs=(*state.jobs[:job], row, *state.jobs[job + 1 :]))


def _with_ticket(state: State, who: int, ticket: Ticket | None) -> State:
    return state._replace(held=(*state.held[:who], ticket, *state.held[who + 1 :]))
