"""The inbox: what arrived, what it is answered, and the group commit in between."""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from asyncqueue.stores.batching import Batch, Batcher
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Effect, InboxStore, Kept, Result, Totals

_CHARS_PER_WEIGHT: Final = 1024  # a batch of 1,024 holds at most about a million characters of payload

__all__ = ["Arrival", "Effect", "Inbox", "Kept", "Result", "Totals"]


class Inbox:
    """Takes messages; those that wait at the same moment share one transaction."""

    def __init__(self, store: InboxStore) -> None:
        self._store = store
        self._batcher: Batcher[Sequence[Arrival], list[Result]] = Batcher(self._receive)

    async def receive(self, message: Message, token: int | None, attempt: int | None) -> Result:
        """Record a message and run its effect once; say whether it was new, known or in conflict.

        When this returns, the dedup row, the effect and the answer are on the disk together. Raises `StoreError`
        if the database could not; then nothing is, or it is not known (see `receiver.stores.base.InboxStore`).
        """
        return (await self.receive_many((Arrival(message, token, attempt),)))[0]

    async def receive_many(self, arrivals: Sequence[Arrival]) -> list[Result]:
        """Do for a set of messages what `receive` does for one: all of them in one transaction, a result for each.

        Raises `StoreError` as `receive` does, for the set as a whole.
        """
        return await self._batcher.submit(arrivals, sum(map(_weight, arrivals)))

    async def _receive(self, batch: Batch[Sequence[Arrival], list[Result]]) -> list[list[Result] | Exception]:
        """Record several sets in one transaction, and hand each its own results."""
        results = iter(await self._store.receive(lambda: [arrival for one in batch.close() for arrival in one]))
        return [_together(list(islice(results, len(one)))) for one in batch.close()]

    async def get(self, message_id: str) -> Kept | None:
        """Return what is kept of an accepted message, or None."""
        return await self._store.get(message_id)

    async def totals(self) -> Totals:
        """Return the counts, at a cost that does not grow with their number."""
        return await self._store.totals()

    async def check_ready(self) -> None:
        """Raise `StoreError` unless messages can be recorded now, as far as that can be told without a write."""
        await self._store.check_ready()

    async def close(self) -> None:
        """Finish what is under way and close the store."""
        try:
            await self._batcher.settle()
        finally:
            await self._store.close()


def _weight(arrival: Arrival) -> int:
    payload = arrival.message.payload
    return 1 if payload is None else 1 + len(payload) // _CHARS_PER_WEIGHT


def _together(results: list[Result | Exception]) -> list[Result] | Exception:
    """Return the results of one set, or the first error among them."""
    known = [result for result in results if not isinstance(result, Exception)]
    return known if len(known) == len(results) else next(r for r in results if isinstance(r, Exception))
