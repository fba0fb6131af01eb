"""The tests of that service, with the fixtures and helpers of `asyncqueue.testing`."""

import pytest
from receipts import MailServerBusyError, Receipts

from asyncqueue import HttpSender
from asyncqueue.testing import assert_enqueued, drain, inline


class Mail:
    """A mail server that is busy for the first `busy` calls."""

    def __init__(self, busy: int = 0) -> None:
        self.busy = busy
        self.sent: list[tuple[str, str]] = []

    async def __call__(self, address: str, text: str) -> None:
        if self.busy:
            self.busy -= 1
            raise MailServerBusyError
        self.sent.append((address, text))


@pytest.fixture
def mail():
    return Mail()


@pytest.fixture
def receipts(asyncqueue_queue, mail):
    return Receipts(asyncqueue_queue, mail)


async def test_an_order_enqueues_its_receipt_once(receipts, asyncqueue_queue):
    assert await receipts.take_order(41, "ann@example.org")
    assert not await receipts.take_order(41, "ann@example.org")
    payload = {"order": 41, "to": "ann@example.org"}
    await assert_enqueued(asyncqueue_queue, kind="receipt", payload=payload, count=1)


async def test_the_receipt_is_mailed(receipts, mail, asyncqueue_queue):
    await receipts.take_order(41, "ann@example.org")
    drained = await drain(asyncqueue_queue, {"receipt": receipts.send_receipt})
    assert drained.done == 1
    assert mail.sent == [("ann@example.org", "Thank you for order 41.")]


async def test_a_busy_mail_server_is_asked_again_later(receipts, mail, asyncqueue_queue, asyncqueue_clock):
    mail.busy = 1
    await receipts.take_order(41, "ann@example.org")
    assert (await drain(asyncqueue_queue, receipts.send_receipt)).retried == 1
    assert (await drain(asyncqueue_queue, receipts.send_receipt)).ran == 0
    asyncqueue_clock.advance(await asyncqueue_queue.next_due_ms())
    assert (await drain(asyncqueue_queue, receipts.send_receipt)).done == 1


async def test_an_impossible_address_is_a_dead_letter_at_once(receipts, asyncqueue_queue):
    await receipts.take_order(41, "nobody")
    assert (await drain(asyncqueue_queue, receipts.send_receipt)).dead == 1
    (dead,) = await assert_enqueued(asyncqueue_queue, status="dead")
    assert dead.last_error == "no such address: nobody"


async def test_taking_an_order_mails_its_receipt(receipts, mail, asyncqueue_queue):
    with inline(asyncqueue_queue, receipts.send_receipt):
        await receipts.take_order(41, "ann@example.org")
    assert len(mail.sent) == 1


async def test_a_receiver_that_fails_twice_gets_the_job_a_third_time(
    asyncqueue_queue, asyncqueue_clock, asyncqueue_receiver
):
    asyncqueue_receiver.fail(times=2, status=503)
    await asyncqueue_queue.enqueue("order-41", 3)
    sender = HttpSender(asyncqueue_receiver.url, clock=asyncqueue_clock)
    for _ in range(3):
        await drain(asyncqueue_queue, sender)
        asyncqueue_clock.advance(60_000)
    assert [seen.attempt for seen in asyncqueue_receiver.requests] == [1, 2, 3]
    assert asyncqueue_receiver.accepted == {"order-41": 3}
