"""Arguments of a wrong kind: refused in words, before anything is asked of the store."""

import pytest

from asyncqueue.errors import InvalidJob
from asyncqueue.job import FailedAttempt, Note, Release, Renew, Report, Ticket

TICKET = Ticket("a", 1, "w", 1, 1, 1)

WRONG = {
    "finish": lambda queue: queue.finish(None, "ok"),
    "finish_many": lambda queue: queue.finish_many(None),
    "finish_many, an item": lambda queue: queue.finish_many([None]),
    "finish_many, a ticket": lambda queue: queue.finish_many([Report.ok("a")]),
    "finish_late, an item": lambda queue: queue.finish_late(lambda: [None]),
    "finish, an error": lambda queue: queue.finish(TICKET, "retry", error=5),
    "finish_many, a failure": lambda queue: queue.finish_many([Report.permanent(TICKET, "x")]),
    "finish_many, a certainty": lambda queue: queue.finish_many(
        [Report.retry(TICKET, 0, FailedAttempt("x", "?"))]
    ),
    "renew": lambda queue: queue.renew(None),
    "renew_many": lambda queue: queue.renew_many(None),
    "renew_many, an item": lambda queue: queue.renew_many([1]),
    "renew_many, a ticket": lambda queue: queue.renew_many([Renew({}, 1_000)]),
    "release": lambda queue: queue.release("a"),
    "release_many": lambda queue: queue.release_many(7),
    "release_many, an item": lambda queue: queue.release_many(["a"]),
    "release_many, a ticket": lambda queue: queue.release_many([Release(None)]),
    "release_many, a failure": lambda queue: queue.release_many([Release(TICKET, 0, "x")]),
    "release_many, a status": lambda queue: queue.release_many(
        [Release(TICKET, 0, FailedAttempt("x", "refused", 7))]
    ),
    "snooze": lambda queue: queue.snooze(None, 1),
    "note_many": lambda queue: queue.note_many(None),
    "note_many, an item": lambda queue: queue.note_many([FailedAttempt("x")]),
    "note_many, a ticket": lambda queue: queue.note_many([Note(None, FailedAttempt("x"))]),
    "note_many, a failure": lambda queue: queue.note_many([Note(TICKET, None)]),
    "cancel": lambda queue: queue.cancel(None),
    "cancel_many": lambda queue: queue.cancel_many(None),
    "cancel_many, a text": lambda queue: queue.cancel_many("abc"),
    "enqueue_many": lambda queue: queue.enqueue_many(None),
    "get": lambda queue: queue.get(None),
    "history": lambda queue: queue.history(None),
    "wait": lambda queue: queue.wait(None),
    "redrive": lambda queue: queue.redrive(None, note="again"),
}


@pytest.mark.parametrize("call", WRONG)
async def test_an_argument_of_a_wrong_kind_is_an_invalid_job_in_one_line(queue, commits, call):
    with pytest.raises(InvalidJob) as caught:
        await WRONG[call](queue)
    assert "must be" in str(caught.value)
    assert "\n" not in str(caught.value)
    if "late" not in call:
        assert commits == []
