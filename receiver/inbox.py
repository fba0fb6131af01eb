"""The inbox: what arrived, what it is answered, and the group commit in between."""

from typing import Final

from asyncqueue.stores.batching import Batcher
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Effect, InboxStore, Kept, Result, Totals

_CHARS_PER_WEIGHT: Final = 1024  # a batch of 1,024 holds at most about a million characters of payload

__all__ = ["Arrival", "Effect", "Inbox", "Kept", "Result", "Totals"]


class Inbox:
    """Takes messages; those that wait at the same moment share one transaction."""

    def __init__(self, store: InboxStore) -> None:
        self._store = store
        self._batcher: Batcher[Arrival, Result] = Batcher(store.receive)

    async def receive(self, message: Message, token: int | None, attempt: int | None) -> Result:
        """Record a message and run its effect once; say whether it was new, known or in conflict.

        When this returns, the dedup row, the effect and the answer are on the disk together. Raises `StoreError`
        if the database could not; then nothing is.
        """
        weight = 1 if message.payload is None else 1 + len(message.payload) // _CHARS_PER_WEIGHT
        return await self._batcher.submit(Arrival(message, token, attempt), weight)

    async def get(self, message_id: str) -> Kept | None:
        """Return what is kept of an accepted message, or None."""
        return await self._store.get(message_id)

    async def totals(self) -> Totals:
        """Return the counts, at a cost that does not grow with their number."""
        return await self._store.totals()

    async def close(self) -> None:
        """Finish what is under way and close the store."""
        try:
            await self._batcher.settle()
        finally:
            await self._store.close()
