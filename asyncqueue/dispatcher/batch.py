"""What the answers to a batch request mean, and whether an endpoint takes batches at all."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from asyncqueue import wire, wire_batch
from asyncqueue.dispatcher.meaning import BAD_ACK, meaning_of_problem, quoted
from asyncqueue.events import BatchRefused, Events
from asyncqueue.job import LeasedJob, printable
from asyncqueue.retry import ACCEPTED, Certainty, Outcome, Verdict

__all__ = ["Offer", "outcomes_of", "refuses_batches"]

log = logging.getLogger("asyncqueue")

RETRY_S: Final = 60.0
_NOT_OFFERED: Final = (404, 405)
_NO_ANSWER: Final = Outcome(Verdict.LEAVE, Certainty.UNKNOWN, "200 BadAck: no answer for this job in the batch")
_NEVER: Final = float("-inf")  # asked before the clock, which is not free
_STATUSES: Final = range(300, 1000)


class Offer:
    """Whether batches may be sent to an endpoint: not for RETRY_S seconds after it refused one.

    Its first refusal, and the first after batches went through again, is told: as an event, or else in the log.
    """

    def __init__(self, endpoint: str, events: Events | None) -> None:
        self._endpoint = endpoint
        self._events = events
        self._is_told = False
        self._until = _NEVER

    def stands(self) -> bool:
        """Tell whether a batch may be tried now."""
        return self._until == _NEVER or asyncio.get_running_loop().time() >= self._until

    def kept(self) -> None:
        """Take note that a batch was answered."""
        self._is_told = False

    def withdrawn(self, status: int, error: str) -> None:
        """Take note that the endpoint refused a batch as such."""
        self._until = asyncio.get_running_loop().time() + RETRY_S
        if self._is_told:
            return
        self._is_told = True
        if self._events is not None:
            self._events.emit(BatchRefused(status, error, round(RETRY_S * 1000)))
        else:
            log.warning("%s takes no batches (%s): each job goes in a request of its own", self._endpoint, error)


def refuses_batches(status: int, verdict: Verdict) -> bool:
    """Tell whether an answer to a whole batch speaks of the batch rather than of the endpoint or of its jobs.

    What would kill a job that was sent by itself (400, 413, 415, 422) does not say which one of many it means.
    """
    return status in _NOT_OFFERED or verdict is Verdict.PERMANENT


def outcomes_of(jobs: Sequence[LeasedJob], status: int, body: bytes) -> list[Outcome] | None:
    """Return an outcome for each job of a batch that was answered 2xx, None if the body is no array of answers.

    Answers are matched by place; one that does not name its job there acknowledges and refuses nothing.
    """
    replies = wire_batch.parse_replies(body)
    if replies is None:
        return None
    outcomes = [
        ACCEPTED if wire.acknowledges(reply, job.id, job.qty) else _refused(reply, job, status)
        for job, reply in zip(jobs, replies, strict=False)
    ]
    return outcomes + [_NO_ANSWER] * (len(jobs) - len(outcomes))


def _refused(reply: Any, job: LeasedJob, whole: int) -> Outcome:
    """Return the outcome of a job whose answer is no acknowledgement: its own problem, or nothing that counts."""
    if type(reply) is not dict or reply.get("id") != job.id or not _is_refusal(reply.get("status")):
        return Outcome(BAD_ACK.verdict, BAD_ACK.certainty, f"{whole} {BAD_ACK.text}", whole)
    status, kind, detail = reply["status"], reply.get("type"), reply.get("detail")
    meaning = meaning_of_problem(status, kind if type(kind) is str else None)
    text = f"{status} {meaning.text}: {quoted(detail if type(detail) is str else '')}"
    return Outcome(meaning.verdict, meaning.certainty, printable(text), status)


def _is_refusal(status: object) -> bool:
    return type(status) is int and status in _STATUSES
