"""What the inbox answers when it does not answer `accepted`: problems, always `application/problem+json`."""

import logging
import time
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from asyncqueue import wire
from asyncqueue.wire import Problem
from receiver.stores.base import Result

__all__ = ["BAD_REQUEST", "BUG", "NO_EXPECTATION", "NO_METHOD", "NO_PATH", "Grumble", "refusal", "refused_for"]

BAD_REQUEST: Final = Problem(400, "urn:asyncqueue:problem:bad-request", "This is not HTTP as the inbox reads it")
NO_PATH: Final = Problem(404, "urn:asyncqueue:problem:no-such-path", "There is nothing at this path")
NO_METHOD: Final = Problem(405, "urn:asyncqueue:problem:no-such-method", "This path does not take this method")
NO_EXPECTATION: Final = Problem(417, "urn:asyncqueue:problem:expectation", "Only 100-continue can be expected")
BUG: Final = Problem(500, "urn:asyncqueue:problem:internal", "The inbox failed; it says more in its log")

_RETRY_AFTER_S: Final = "1"
_NOTHING: Final[Mapping[str, str]] = {}
# the rest of such a body is not waited for
_CLOSING: Final = (wire.TOO_LARGE, wire.REQUEST_TIMEOUT, wire.UNSUPPORTED, BAD_REQUEST, NO_EXPECTATION)


def refused_for(result: Result, message_id: str) -> tuple[Problem, str] | None:
    """Return the problem and the words for a result that is no acknowledgement, else None."""
    if result is Result.CONFLICT:
        return wire.CONFLICT, f"{message_id} was accepted with another quantity or payload"
    if result is Result.EFFECT_FAILED:
        return wire.EFFECT_FAILED, f"the effect of {message_id} failed and was undone"
    return None


def refusal(problem: Problem, detail: str, headers: Mapping[str, str] = _NOTHING) -> web.Response:
    """Return the answer that names `problem`; a 503 carries Retry-After, an unread body ends the connection."""
    told = {hdrs.CONTENT_TYPE: wire.PROBLEM_TYPE, **headers}
    if problem is wire.BUSY:
        told[hdrs.RETRY_AFTER] = _RETRY_AFTER_S
    response = web.Response(body=wire.encode_problem(problem, detail), status=problem.status, headers=told)
    if problem in _CLOSING:
        response.force_close()
    return response


class Grumble:
    """Says what is wrong at most once in `every_s` seconds, however many requests meet it."""

    def __init__(self, log: logging.Logger, every_s: float = 5.0) -> None:
        self._log = log
        self._every_s = every_s
        self._quiet_until = float("-inf")
        self._unsaid = 0

    def say(self, text: str) -> None:
        """Log `text` as a warning, or only count it."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        self._quiet_until, unsaid, self._unsaid = now + self._every_s, self._unsaid, 0
        self._log.warning("%s%s", text, f" (and {unsaid} more like it)" if unsaid else "")
