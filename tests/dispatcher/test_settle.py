"""What a slot does with a delivery, looked at from near by."""

import asyncio

from send_servers import other_job

from asyncqueue.dispatcher.flight import Counts, Flight
from asyncqueue.dispatcher.lane import Delivery, Ended, Lane
from asyncqueue.dispatcher.settle import board, serve_slot
from asyncqueue.events import Events
from asyncqueue.retry import ACCEPTED
from tests.waiting import until


async def accepted(_delivery):
    return ACCEPTED


def delivery(lane, lease_s, began_at=0.0):
    job, now = other_job("a"), asyncio.get_running_loop().time()
    return Delivery(job, lane, job.lease_until, now, now + lease_s, began_at=began_at)


async def test_lease_that_has_run_out_is_in_no_request_of_many():
    seated = []

    class Seat:
        def leave(self):
            return True

    def seats(jobs):
        seated.extend(job.id for job, _answered in jobs)
        return [Seat() for _job in jobs]

    lane = Lane(None, accepted, 1, board=seats)
    lapsed, held = delivery(lane, 0.0), delivery(lane, 60.0)
    flight = Flight(2, Counts(), [lane])
    assert board(flight, Events(), [lapsed, held]) == [lapsed]
    assert seated == [held.job.id]
    slot = asyncio.create_task(serve_slot(flight, Events()))
    flight.handoff.put_nowait(lapsed)
    await until(lambda: lapsed.ended)
    slot.cancel()
    assert (lapsed.ended, lapsed.outcome) == (Ended.LAPSED, None)


async def test_time_of_a_job_that_left_its_request_of_many_counts_from_the_boarding():
    lane = Lane(None, accepted, 1)
    flight, left = Flight(1, Counts(), [lane]), delivery(lane, 60.0, began_at=1.5)
    slot = asyncio.create_task(serve_slot(flight, Events()))
    flight.handoff.put_nowait(left)
    await until(lambda: left.outcome)
    slot.cancel()
    assert (left.began_at, left.outcome) == (1.5, ACCEPTED)


async def test_delivery_that_is_given_to_a_slot_which_is_cancelled_goes_to_the_next_one():
    lane = Lane(None, accepted, 1)
    flight = Flight(2, Counts(), [lane])
    first, second = [asyncio.create_task(serve_slot(flight, Events())) for _ in range(2)]
    await asyncio.sleep(0)
    given = delivery(lane, 60.0)
    flight.handoff.put_nowait(given)
    first.cancel()
    await asyncio.wait([first])
    await until(lambda: given.outcome)
    assert first.cancelled()
    second.cancel()


async def test_delivery_waits_for_a_slot_if_the_only_one_is_cancelled():
    lane = Lane(None, accepted, 1)
    flight = Flight(1, Counts(), [lane])
    slot = asyncio.create_task(serve_slot(flight, Events()))
    await asyncio.sleep(0)
    slot.cancel()
    await asyncio.wait([slot])
    given = delivery(lane, 60.0)
    flight.handoff.put_nowait(given)
    assert given.outcome is None
    slot = asyncio.create_task(serve_slot(flight, Events()))
    await until(lambda: given.outcome)
    slot.cancel()
