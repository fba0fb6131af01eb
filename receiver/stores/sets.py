"""What every inbox works out of a set of messages without its database: who was first, what each is answered."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Result

__all__ = ["CONFLICTS_PER_ID_MAX", "Evidence", "evidence_of", "first_of", "repeats_of", "results_of"]

CONFLICTS_PER_ID_MAX: Final = 16
_EVIDENCE_CHARS_MAX: Final = 4_096

Evidence = tuple[str, int, str, int, int]
"""id, quantity, beginning of the payload, how often, and how many other kinds of this id precede it in the set."""


def first_of(arrivals: Sequence[Arrival], new: set[str]) -> list[Message]:
    """Return the messages that were inserted: of each new id the first."""
    if len(new) == len(arrivals):
        return [arrival.message for arrival in arrivals]
    first: dict[str, Message] = {}
    for arrival in arrivals:
        if arrival.message.id in new:
            first.setdefault(arrival.message.id, arrival.message)
    return list(first.values())


def results_of(
    arrivals: Sequence[Arrival], is_same: Callable[[int], bool], accepted: set[str], failed: set[str]
) -> list[Result]:
    """Return a result for each arrival, in order; `is_same(index)` compares one with what is kept of its id."""
    unanswered = set(accepted)
    results = []
    for index, arrival in enumerate(arrivals):
        message_id = arrival.message.id
        if message_id in failed:
            results.append(Result.EFFECT_FAILED)
        elif not is_same(index):
            results.append(Result.CONFLICT)
        elif message_id in unanswered:
            unanswered.discard(message_id)
            results.append(Result.ACCEPTED)
        else:
            results.append(Result.DUPLICATE)
    return results


def repeats_of(arrivals: Sequence[Arrival], results: Sequence[Result]) -> list[tuple[str, int]]:
    """Return how many duplicates there are of each id."""
    pairs = zip(arrivals, results, strict=True)
    return [*Counter(one.message.id for one, result in pairs if result is Result.DUPLICATE).items()]


def evidence_of(arrivals: Sequence[Arrival], results: Sequence[Result]) -> list[Evidence]:
    """Return the kinds of conflict in a set, each once."""
    times: Counter[tuple[str, int, str]] = Counter()
    for arrival, result in zip(arrivals, results, strict=True):
        if result is Result.CONFLICT:
            message = arrival.message
            times[message.id, message.qty, (message.payload or "")[:_EVIDENCE_CHARS_MAX]] += 1
    kinds: Counter[str] = Counter()
    evidence = []
    for (message_id, qty, payload), count in times.items():
        evidence.append((message_id, qty, payload, count, kinds[message_id]))
        kinds[message_id] += 1
    return evidence
