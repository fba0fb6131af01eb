"""What a dispatcher was given to deliver by, as lanes: one for everything, or one for each kind."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from asyncqueue.dispatcher.handle import Handler, HandlerCarrier
from asyncqueue.dispatcher.lane import Delivery, Lane
from asyncqueue.dispatcher.settle import Sender
from asyncqueue.errors import ConfigError
from asyncqueue.job import Range, check_id, check_int
from asyncqueue.queue import Queue
from asyncqueue.retry import Outcome

if TYPE_CHECKING:  # the HTTP client is imported by those who send
    from asyncqueue.dispatcher.send import HttpSender

__all__ = ["Deliver", "Route"]

Deliver = Sender | Handler | Mapping[str, Sender | Handler]


@dataclass(frozen=True, slots=True)
class Route:
    """How the lanes of one dispatcher are made."""

    queue: Queue
    concurrency: int
    lease_ms: int

    def lanes(self, deliver: Deliver, limits: Mapping[str, int] | None) -> tuple[Lane, ...]:
        """Return the lanes for `deliver`; of a mapping, each kind gets its own."""
        limits = limits or {}
        threads = anyio.CapacityLimiter(self.concurrency)
        if not isinstance(deliver, Mapping):
            if limits:
                raise ConfigError("limits are for a mapping of kinds to handlers")
            return (self._lane(None, deliver, self.concurrency, threads),)
        if not deliver:
            raise ConfigError("a mapping of kinds to handlers must name at least one kind")
        _check_kinds(deliver, limits, self.concurrency)
        lanes = tuple(
            self._lane((kind,), one, limits.get(kind, self.concurrency), threads) for kind, one in deliver.items()
        )
        for lane in lanes:
            lane.kept = min(lane.most, kept_slots(self.concurrency, len(lanes)))
        return lanes

    def _lane(
        self, kinds: tuple[str, ...] | None, deliver: Any, most: int, threads: anyio.CapacityLimiter
    ) -> Lane:
        if not callable(getattr(deliver, "send", deliver)):
            raise ConfigError("deliver must be a sender or an async function, or a mapping of kinds to these")
        if not hasattr(deliver, "send"):
            return Lane(kinds, HandlerCarrier(deliver, self.queue, self.lease_ms, threads), most)
        timeout_ms = getattr(deliver, "timeout_ms", None)
        if getattr(deliver, "batch", 1) > 1:
            return Lane(kinds, BatchCarrier(deliver), most, timeout_ms, deliver, deliver.board)
        return Lane(kinds, SenderCarrier(deliver), most, timeout_ms, deliver)


def kept_slots(concurrency: int, lanes: int) -> int:
    """Return how many slots are kept for each of several lanes: together a quarter of all, one each at least.

    None where that would take more than half of the slots.
    """
    if lanes < 2 or concurrency < 2 * lanes:  # noqa: PLR2004 - nobody else, or more kinds than slots to share
        return 0
    return max(1, concurrency // (4 * lanes))


class SenderCarrier:
    """Carries deliveries by a sender."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def __call__(self, delivery: Delivery) -> Awaitable[Outcome]:
        """Send the job once."""
        return self._sender.send(delivery.job)


class BatchCarrier:
    """Carries what cannot share a request with others (any more), in the time that is left to it."""

    def __init__(self, sender: "HttpSender") -> None:
        self._sender = sender

    def __call__(self, delivery: Delivery) -> Awaitable[Outcome]:
        """Send the job once."""
        if not delivery.is_boarded:
            return self._sender.send(delivery.job)
        return self._sender.send_alone(delivery.job, asyncio.get_running_loop().time() - delivery.began_at)


def _check_kinds(handlers: Mapping[str, object], limits: Mapping[str, int], concurrency: int) -> None:
    for kind in handlers:
        check_id("kind", kind)
    for kind, limit in limits.items():
        if kind not in handlers:
            raise ConfigError(f"limits: there is no handler for kind {kind!r}")
        check_int(f"limits: {kind}", limit, Range(1, concurrency))
