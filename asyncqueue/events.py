"""What happened, as records. The domain emits them; logs, metrics and progress bars subscribe.

All wording for humans lives with the subscribers. A subscriber is a plain callable and must be quick; one that
raises is dropped with a log line, since telling is never worth a delivery.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from asyncqueue.lifecycle import Status

__all__ = [
    "BatchRefused",
    "ChoreFailed",
    "ChoreRecovered",
    "Claimed",
    "Event",
    "Events",
    "Held",
    "LeaseLost",
    "Released",
    "Settled",
    "Started",
    "Stopped",
    "Stopping",
    "record",
]

log = logging.getLogger("asyncqueue")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """A dispatcher began to claim."""

    owner: str
    concurrency: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """Leases were obtained."""

    count: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Settled(Event):
    """An attempt ended. `status` is the job's new status, None if the report was stale or none was made."""

    id: str
    token: int
    attempt: int
    verdict: str
    status: Status | None
    certainty: str
    error: str
    http_status: int | None
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class Released(Event):
    """Unused leases were given back, attempts refunded."""

    count: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """A delivery was cancelled, for its lease was gone."""

    id: str
    token: int
    why: str


@dataclass(frozen=True, slots=True)
class Held(Event):
    """The endpoint rests for `pause_ms`: it refused for reasons that are no job's fault."""

    pause_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class BatchRefused(Event):
    """The endpoint takes no batches: each job goes in a request of its own, and a batch is tried again later."""

    http_status: int
    error: str
    retry_ms: int


@dataclass(frozen=True, slots=True)
class ChoreFailed(Event):
    """A chore raised; it is tried again after `pause_ms`. One event per backoff step."""

    chore: str
    error: str
    failures: int
    pause_ms: int


@dataclass(frozen=True, slots=True)
class ChoreRecovered(Event):
    """A chore works again after `failures` failures."""

    chore: str
    failures: int


@dataclass(frozen=True, slots=True)
class Stopping(Event):
    """No more claims; deliveries in flight may end."""

    why: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """The dispatcher has ended; the counts of its whole life."""

    claimed: int
    done: int
    retried: int
    dead: int
    stale: int
    lost: int
    released: int
    left: int = 0


Subscriber = Callable[[Event], None]


class Events:
    """A list of subscribers; emitting to none costs next to nothing."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def __bool__(self) -> bool:
        """Tell whether anybody listens: callers need not build the record otherwise."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with every event from now on."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Tell every subscriber."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("an event subscriber failed and was dropped: %r", subscriber)
                self._subscribers.remove(subscriber)


def record(event: Event) -> dict[str, Any]:
    """Return an event as a flat mapping with its name, for JSON lines."""
    return {"event": _snake(type(event).__name__), **asdict(event)}


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
