"""What a store of an inbox must do."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from asyncqueue.wire import Message
from asyncqueue.wire_batch import Arrival

__all__ = ["Arrival", "Effect", "InboxStore", "Kept", "Result", "Totals"]

Effect = Callable[[Any, Message], Awaitable[object]]
"""`await effect(connection, message)`: database work on the store's connection, in the inbox row's transaction.

It runs once per accepted message, in a savepoint of its own; if it raises, the message is as if it had never come.
The connection is aiosqlite's or asyncpg's. It cannot end the transaction: COMMIT, ROLLBACK, BEGIN and their like
are refused while it runs. If one of its statements rolls it back all the same (`INSERT OR ROLLBACK` of SQLite),
the whole set fails and nothing is kept. On PostgreSQL it may run again after a rollback, as for a deadlock.
"""


class Result(StrEnum):
    """The answers of an inbox."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    EFFECT_FAILED = "effect-failed"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of an accepted message.

    `received_at` is in milliseconds since the epoch, `payload` canonical JSON text; `token` and `attempt` are
    those of the first request, `times` counts the requests that were answered `accepted` or `duplicate`.
    """

    id: str
    qty: int
    payload: str | None
    result: str
    received_at: int
    token: int | None
    attempt: int | None
    times: int

    def as_json(self) -> bytes:
        """Return one JSON object; the payload's text is spliced in, so that it need not be read again."""
        shown = json.dumps(
            {
                "id": self.id,
                "qty": self.qty,
                "result": self.result,
                "received_at": self.received_at,
                "token": self.token,
                "attempt": self.attempt,
                "times": self.times,
            }
        )
        return f'{shown[:-1]}, "payload": {"null" if self.payload is None else self.payload}}}'.encode()


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of accepted messages, their quantities, duplicates and conflicts; `requests` is all answered ones."""

    messages: int
    quantity: int
    duplicates: int
    conflicts: int

    @property
    def requests(self) -> int:
        """Return how many requests were answered with one of the three results."""
        return self.messages + self.duplicates + self.conflicts


class InboxStore(Protocol):
    """An open inbox."""

    async def receive(self, take: Callable[[], Sequence[Arrival]]) -> list[Result | Exception]:
        """Record a set of messages in one transaction: dedup rows, effects and answers commit together.

        `take` names the messages; it is called once the transaction has begun, so that those who came while it
        waited for its turn come along, and again (with the same answer) if it is repeated.

        A new id is accepted; a known one is a duplicate if quantity and payload are equal, else a conflict, which
        is kept as evidence and changes nothing. Of one id twice in a set, the first counts. An effect that raises
        undoes its own message only. Raises `StoreError`; then nothing of the set is recorded, unless the
        connection to a server broke on the way: then all of it may be, or nothing, and to bring it again is safe.
        """
        ...

    async def get(self, message_id: str) -> Kept | None:
        """Return what is kept of a message."""
        ...

    async def totals(self) -> Totals:
        """Return the counts."""
        ...

    async def check_ready(self) -> None:
        """Raise `StoreError` unless messages can be recorded now, as far as that can be told without a write."""
        ...

    async def close(self) -> None:
        """Close it; may be called again."""
        ...
