"""The counts of a file that the product's queue and the contract's functions change by turns."""

import asyncio
import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.queue import Queue
from tests.queue.histories import IDS, History, steps
from tests.store.raw import raw_of

their_steps = st.one_of(
    st.tuples(st.just("their enqueue"), st.sampled_from(IDS)),
    st.tuples(st.sampled_from(["their claim", "their finish"])),
    st.tuples(st.just("their redrive"), st.sampled_from(IDS)),
)


class SharedHistory(History):
    """One file, the product's queue and the contract's functions on it, and what both hold."""

    def __init__(self, queue, contract, clock):
        super().__init__(queue, clock)
        self.contract = contract
        self.tickets = []

    async def their_enqueue(self, job_id):
        await worker.enqueue(self.contract, {"id": job_id, "qty": 1}, self.now, 500, 2)

    async def their_claim(self):
        self.tickets.append(await worker.claim(self.contract, "theirs", self.now, 50))

    async def their_finish(self):
        if self.tickets and (ticket := self.tickets.pop()):
            await worker.finish(self.contract, ticket, "ok", self.now)

    async def their_redrive(self, job_id):
        await worker.redrive(self.contract, job_id, self.now, 100, "theirs")


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(steps | their_steps, min_size=5, max_size=40), st.booleans())
def test_counts_equal_a_count_of_the_rows_after_any_history_of_product_and_contract(
    tmp_path, no_sync, taken, was_contract
):
    async def live():
        address, clock = tmp_path / f"jobs-{next(numbers)}.db", ManualClock()
        if was_contract:  # a file that the contract made and filled before the product ever saw it
            first = await worker.open_queue(address)
            await worker.enqueue(first, {"id": "j0", "qty": 1}, clock.now_ms(), 500)
            await worker.enqueue(first, {"id": "j1", "qty": 1}, clock.now_ms(), 1)
            await worker.claim(first, "theirs", clock.now_ms() + 1)
            await first.close()
        async with Queue.open(address, clock=clock, dedup_ms=0) as queue:
            contract = await worker.open_queue(address)
            try:
                await SharedHistory(queue, contract, clock).go(taken, raw_of(str(address)))
            finally:
                await contract.close()

    asyncio.run(live())


numbers = itertools.count()
