"""A small service: an order is taken, and its receipt is mailed by a job."""

import re
from collections.abc import Awaitable, Callable

from asyncqueue import LeasedJob, Permanent, Queue, Retryable


class MailServerBusyError(Exception):
    """The mail server asks to come back later."""


class Receipts:
    """Takes orders; `mail(address, text)` is however this service sends mail."""

    def __init__(self, queue: Queue, mail: Callable[[str, str], Awaitable[None]]) -> None:
        self._queue = queue
        self._mail = mail

    async def take_order(self, number: int, address: str) -> bool:
        """Accept an order; its receipt goes out later, once, however often this is called."""
        payload = {"order": number, "to": address}
        return await self._queue.enqueue(f"receipt-{number}", 1, kind="receipt", payload=payload)

    async def send_receipt(self, job: LeasedJob) -> bool:
        """Mail one receipt: the handler of kind `receipt`."""
        wanted = job.json()
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", wanted["to"]):
            raise Permanent(f"no such address: {wanted['to']}")
        try:
            await self._mail(wanted["to"], f"Thank you for order {wanted['order']}.")
        except MailServerBusyError as error:
            raise Retryable("the mail server is busy") from error
        return True
