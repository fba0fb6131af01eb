"""What must hold at each door that reads bytes of strangers: a value or the documented error, never another."""

import json
import string

from asyncqueue import wire, wire_batch
from asyncqueue.cli.lines import parse_job
from asyncqueue.errors import InvalidJob
from asyncqueue.job import NewJob, Redrive, printable
from asyncqueue.wire import WireError

__all__ = [
    "ACK",
    "read_as_line",
    "read_by_inbox",
    "see_ack",
    "see_batch",
    "see_body",
    "see_note",
    "see_retry_after",
]

ACK = wire.encode_ack("a-1", 3, wire.ACCEPTED)

_DEFAULTS = NewJob("", 0)
_IDENTIFIER = frozenset(string.ascii_letters + string.digits + "_-")


def read_by_inbox(body):
    try:
        message = wire.parse_message(body)
    except WireError as refused:
        error = refused
    else:
        return message.id, message.qty, message.payload
    assert error.problem in (wire.MALFORMED, wire.OUT_OF_RANGE)
    assert printable(error.detail, 1_000) == error.detail
    return None


def read_as_line(body):
    try:
        job = parse_job(body, _DEFAULTS)
    except InvalidJob as refused:
        error = refused
    else:
        return job.id, job.qty, job.payload
    assert len(str(error)) < 1_000
    return None


def see_body(body):
    """Inbox and JSON Lines agree about it, and what is accepted is the same when it is sent again."""
    at_inbox, as_line = read_by_inbox(body), read_as_line(body)
    if at_inbox is None:
        assert as_line is None or b"kind" in body  # a line may say more than a message
        return
    assert as_line == at_inbox
    again = wire.encode_body(*at_inbox)
    assert read_by_inbox(again) == at_inbox
    assert wire.encode_body(*read_by_inbox(again)) == again


def see_batch(body):
    """As a batch it is refused as a whole or item by item; an item alone is judged as a message is."""
    try:
        items = wire_batch.parse_batch(body)
    except WireError as refused:
        error = refused
    else:
        _see_items(items)
        return
    assert error.problem in (wire.MALFORMED, wire.TOO_LARGE)


def _see_items(items):
    assert 1 <= len(items) <= wire_batch.ITEMS_MAX
    for item in items:
        if isinstance(item, WireError):
            assert item.problem in (wire.MALFORMED, wire.OUT_OF_RANGE)
            json.loads(wire_batch.encode_item_problem(item.problem, item.detail, item.id))
        else:
            message = item.message
            alone = wire.encode_body(message.id, message.qty, message.payload)
            assert read_by_inbox(alone) == (message.id, message.qty, message.payload)


def see_ack(body):
    """It is taken for an acknowledgement only if it says so."""
    taken = wire.is_ack(body, "a-1", 3)
    assert type(taken) is bool
    if taken:
        answer = json.loads(body)
        assert (answer["id"], answer["qty"]) == ("a-1", 3)
        assert type(answer["qty"]) is int
        assert answer["result"] in (wire.ACCEPTED, wire.DUPLICATE)
    for read in (wire.problem_type, wire.problem_detail):
        assert read(body) is None or type(read(body)) is str
    replies = wire_batch.parse_replies(body)
    assert replies is None or type(replies) is list


def see_retry_after(value, now_ms):
    """It is a wish within bounds or nothing."""
    wish_ms = wire.parse_retry_after(value, now_ms)
    assert wish_ms is None or 0 <= wish_ms <= wire.RETRY_AFTER_MS_MAX


def see_note(note):
    """It is an identifier or refused, in printable words."""
    is_good = type(note) is str and 1 <= len(note) <= 64 and set(note) <= _IDENTIFIER
    assert _is_taken(Redrive("a", 1, note)) == is_good
    assert _is_taken(Redrive("a", 1, "note", actor=note)) == (is_good or note is None)
    assert _is_taken(Redrive(note, 1, "note")) == is_good


def _is_taken(redrive):
    try:
        redrive.check()
    except InvalidJob as refused:
        text = str(refused)
    else:
        return True
    assert text.isprintable()
    return False
