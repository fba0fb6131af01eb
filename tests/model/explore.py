"""Breadth-first exploration: every state that can be reached, or the shortest way to one that must not be.

`python -m tests.model.explore` explores larger worlds than the tests do, and prints how many states it visited.
"""

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields

from tests.model.protocol import Protocol, State, calm, moves, start, violation

CALM_MOVES_MAX = 50
LAST = 10**9
CameFrom = dict[State, State | None]


@dataclass(frozen=True)
class CounterExample:
    """The invariant that broke, and what happened until then."""

    invariant: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"  {number}. {what}" for number, what in enumerate(self.story, 1)]
        return "\n".join([f"{self.invariant} does not hold:", *lines])


@dataclass(frozen=True)
class Explored:
    """How much there was, and what was wrong with it."""

    states: int
    transitions: int
    depth: int
    fault: CounterExample | None


def canonical(protocol: Protocol, state: State) -> State:
    """Return the one state that stands for all that differ only by names or by what nobody will ask for.

    Dispatchers have no names and jobs no order. An answer that nobody waits for is forgotten. A request whose
    sender is gone may still reach the receiver, but it does not matter under which token it was sent.
    """
    state = _in_order(state)
    held = [ticket for ticket in state.held if ticket is not None]
    awaited = {(ticket.job, ticket.token) for ticket in held}
    requests = {
        request if request in awaited else (request[0], 0)
        for request in state.requests
        if request in awaited or state.effects[request[0]] == 0 or not protocol.dedup
    }
    return state._replace(
        held=tuple(sorted(held)) + (None,) * (protocol.dispatchers - len(held)),
        requests=frozenset(requests),
        answers=state.answers & awaited,
    )


def _in_order(state: State) -> State:
    """Rename the jobs so that their rows stand in order."""
    ranks = [
        (row.number if row else LAST, state.effects[job], state.redrives[job])
        for job, row in enumerate(state.jobs)
    ]
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    if order == list(range(len(order))):
        return state
    name_of = {job: name for name, job in enumerate(order)}
    return state._replace(
        jobs=tuple(state.jobs[job] for job in order),
        redrives=tuple(state.redrives[job] for job in order),
        audits=tuple(state.audits[job] for job in order),
        effects=tuple(state.effects[job] for job in order),
        held=tuple(ticket and ticket._replace(job=name_of[ticket.job]) for ticket in state.held),
        requests=frozenset((name_of[job], token) for job, token in state.requests),
        answers=frozenset((name_of[job], token) for job, token in state.answers),
    )


def explore(protocol: Protocol) -> Explored:
    """Visit every reachable state, shortest ways first; stop at the first violation.

    Then see that from every one of them a world without faults ends with every job done or dead (I7).
    """
    gc.disable()  # a million small tuples, none of them in a cycle: looking through them again is in vain
    try:
        return _explore(protocol)
    finally:
        gc.enable()


def _explore(protocol: Protocol) -> Explored:
    first = canonical(protocol, start(protocol))
    came_from: CameFrom = {first: None}
    frontier = deque([(first, 0)])
    transitions = depth = 0
    while frontier:
        state, depth = frontier.popleft()
        for _label, after, broken in moves(protocol, state):
            transitions += 1
            then = canonical(protocol, after)
            fault = broken
            if then not in came_from:
                came_from[then] = state
                frontier.append((then, depth + 1))
                fault = broken or violation(then)
            if fault is not None:
                found = CounterExample(fault, _story(protocol, [*_way(came_from, state), then]))
                return Explored(len(came_from), transitions, depth, found)
    stuck = _never_ends(protocol, came_from)
    found = None if stuck is None else CounterExample("I7", _story(protocol, _way(came_from, stuck)))
    return Explored(len(came_from), transitions, depth, found)


def _never_ends(protocol: Protocol, states: Iterable[State]) -> State | None:
    """Return the first state from which a world without faults does not come to an end, None if there is none."""
    left: dict[State, int] = {}  # calm moves until the end
    for first in states:
        way = []
        state: State | None = first
        while state is not None and state not in left:
            way.append(state)
            if len(way) > CALM_MOVES_MAX:
                return first
            after = calm(protocol, state)
            state = None if after is None else canonical(protocol, after)
        behind = 0 if state is None else left[state] + 1
        for place, passed in enumerate(reversed(way)):
            left[passed] = behind + place
    return None if max(left.values()) <= CALM_MOVES_MAX else max(left, key=left.__getitem__)


def _way(came_from: CameFrom, state: State | None) -> list[State]:
    """Return the states from the start to `state`."""
    way = []
    while state is not None:
        way.append(state)
        state = came_from[state]
    return way[::-1]


def _story(protocol: Protocol, way: list[State]) -> tuple[str, ...]:
    """Tell how the last state comes about, with one name for each job all the way."""
    state, labels = start(protocol), []
    for then in way[1:]:
        label, state, _broken = next(
            move for move in moves(protocol, state) if canonical(protocol, move.state) == then
        )
        labels.append(label)
    return tuple(labels)


def main() -> None:
    """Explore the world that the options describe and print what was found."""
    parser = argparse.ArgumentParser(description=explore.__doc__)
    for field in fields(Protocol):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=int(field.default))
    protocol = Protocol(**vars(parser.parse_args()))
    began = time.monotonic()
    found = explore(protocol)
    print(f"{found.states:,} states, {found.transitions:,} transitions, depth {found.depth}", end="")
    print(f", {time.monotonic() - began:.0f} s: {found.fault or 'every invariant holds'}")
    if found.fault:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
