"""The HTTP contract: what one side writes the other reads, and nothing else is taken for it."""

import contextlib
import json
import os
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncqueue import wire
from asyncqueue.job import PRODUCT, encode_payload

IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
QTYS = st.integers(PRODUCT.qty.low, PRODUCT.qty.high)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(IDS, QTYS, JSON)
def test_a_message_survives_the_way(job_id, qty, payload):
    text = encode_payload(payload) if _encodes(payload) else None
    message = wire.parse_message(wire.encode_body(job_id, qty, text))
    assert message == wire.Message(job_id, qty, text)


def _encodes(payload):
    try:
        encode_payload(payload)
    except ValueError:
        return False
    return True


@given(IDS, QTYS, JSON)
def test_equal_jobs_give_equal_bytes(job_id, qty, payload):
    shuffled = json.loads(json.dumps(payload), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    if not _encodes(payload):
        return
    one, two = (wire.encode_body(job_id, qty, encode_payload(value)) for value in (payload, shuffled))
    assert one == two


@given(IDS, QTYS, st.sampled_from([wire.ACCEPTED, wire.DUPLICATE]))
def test_an_ack_is_for_its_job_only(job_id, qty, result):
    body = wire.encode_ack(job_id, qty, result)
    assert wire.is_ack(body, job_id, qty)
    assert not wire.is_ack(body, job_id, qty + 1)
    assert not wire.is_ack(body, job_id + "x", qty)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Sign in</html>",
        b"null",
        b"[]",
        b"[" * 60_000,
        b"9" * 60_000,
        b"\xff\xfe",
        b'{"id":"a","qty":1}',
        b'{"id":"a","qty":true,"result":"accepted"}',
        b'{"id":"a","qty":1.0,"result":"accepted"}',
        b'{"id":"a","qty":"1","result":"accepted"}',
        b'{"id":"A","qty":1,"result":"accepted"}',
        b'{"id":["a"],"qty":1,"result":"accepted"}',
        b'{"id":"a","qty":1,"result":["accepted"]}',
        b'{"id":"a","qty":1,"result":"ACCEPTED"}',
        b'{"id":"a","qty":1,"result":"conflict"}',
        b'[{"id":"a","qty":1,"result":"accepted"}]',
    ],
)
def test_what_is_not_an_ack(body):
    assert wire.is_ack(body, "a", 1) is False
    assert wire.problem_type(body) is None
    assert wire.problem_detail(body) is None


@given(st.binary(max_size=200))
def test_no_reply_raises(body):
    wire.is_ack(body, "a", 1)
    assert wire.problem_type(body) is None or isinstance(wire.problem_type(body), str)


@given(st.binary(max_size=200))
def test_no_request_raises_anything_but_a_wire_error(body):
    with contextlib.suppress(wire.WireError):
        assert wire.parse_message(body).qty in PRODUCT.qty


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", wire.MALFORMED),
        (b"\xff", wire.MALFORMED),
        (b"[]", wire.MALFORMED),
        (b"1", wire.MALFORMED),
        (b'{"id":"a","qty":1}x', wire.MALFORMED),
        (b'\xef\xbb\xbf{"id":"a","qty":1}', wire.MALFORMED),
        (b'{"id":"a","qty":1,"qty":1}', wire.MALFORMED),
        (b'{"id":"a","qty":1,"payload":{"k":1,"k":2}}', wire.MALFORMED),
        (b'{"id":"a","qty":NaN}', wire.MALFORMED),
        (b'{"id":"a","qty":1,"payload":Infinity}', wire.MALFORMED),
        (b'{"id":"a","qty":' + b"9" * 5000 + b"}", wire.MALFORMED),
        (b'{"id":"a","qty":1,"payload":' + b"[" * 200_000, wire.MALFORMED),
        (b"{}", wire.OUT_OF_RANGE),
        (b'{"id":"a"}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":1,"more":1}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":1.0}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":true}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":"1"}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":0}', wire.OUT_OF_RANGE),
        (b'{"id":"a ","qty":1}', wire.OUT_OF_RANGE),
        (b'{"id":"a\\n","qty":1}', wire.OUT_OF_RANGE),
        ('{"id":"é","qty":1}'.encode(), wire.OUT_OF_RANGE),
        (b'{"id":1,"qty":1}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":1,"payload":1e400}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":1,"payload":"\\ud800"}', wire.OUT_OF_RANGE),
        (b'{"id":"a","qty":1,"payload":"' + b"x" * 262_144 + b'"}', wire.OUT_OF_RANGE),
    ],
)
def test_a_bad_message_has_its_problem(body, problem):
    with pytest.raises(wire.WireError) as caught:
        wire.parse_message(body)
    assert caught.value.problem is problem


def test_a_problem_says_what_it_is():
    body = wire.encode_problem(wire.CONFLICT, "qty 2, not 1: \u202e\ud800")
    assert json.loads(body)["status"] == wire.CONFLICT.status
    assert wire.problem_type(body) == wire.CONFLICT.type
    assert wire.problem_detail(body) == "qty 2, not 1: \u202e\ud800"


NOW_MS = 1_000_000_000_000  # 2001-09-09T01:46:40Z


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        (None, None),
        ("", None),
        ("-1", None),
        ("0", 0),
        ("1e9", None),
        ("nan", None),
        ("inf", None),
        ("0x10", None),
        ("1_0", None),
        (" 5 ", 5000),
        ("007", 7000),
        ("9" * 400, wire.RETRY_AFTER_MS_MAX),
        ("9" * 12, wire.RETRY_AFTER_MS_MAX),
        ("0" * 400, wire.RETRY_AFTER_MS_MAX),  # longer than any honest number
        ("\u0665", None),  # a digit, but not ASCII
        ("²", None),
        ("\udcff", None),
        ("Wed, 21 Oct 1998 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2999 07:28:00 GMT", wire.RETRY_AFTER_MS_MAX),
        ("Sun, 09 Sep 2001 01:46:50 GMT", 10_000),
        ("Sunday, 09-Sep-01 01:46:50 GMT", 10_000),
        ("Sun Sep  9 01:46:50 2001", 10_000),
        ("Sun, 09 Sep 2001 01:46:50 -0000", 10_000),
        ("Sun, 09 Sep 2001 01:46:50 +99999999", None),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_retry_after_is_read_the_same_everywhere(value, wait_ms, zone, monkeypatch):
    monkeypatch.setitem(os.environ, "TZ", zone)
    time.tzset()
    try:
        assert wire.parse_retry_after(value, NOW_MS) == wait_ms
    finally:
        monkeypatch.undo()
        time.tzset()


DATE_LIKE = st.builds(
    " ".join,
    st.tuples(
        st.sampled_from(["Wed,", "", "Wednesday,"]),
        st.integers(-5, 99_999).map(str),
        st.sampled_from(["Oct", "Feb", "é", ""]),
        st.integers(-5, 10**25).map(str),
        st.from_regex(r"-?[0-9]{0,3}:[0-9]{0,3}:?[0-9]{0,3}", fullmatch=True),
        st.sampled_from(["GMT", "-0000", "", "+9999", "EST", "+" + "9" * 40]),
    ),
)


@given(st.text(max_size=80) | DATE_LIKE | st.integers().map(str), st.integers(0, 10**15))
def test_retry_after_never_raises_and_is_bounded(value, now_ms):
    wait_ms = wire.parse_retry_after(value, now_ms)
    assert wait_ms is None or 0 <= wait_ms <= wire.RETRY_AFTER_MS_MAX


def _parsed(body):
    try:
        return wire.parse_message(body)
    except wire.WireError as error:
        return error.problem, error.detail


def _without_shortcut(function, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_PLAIN", re.compile(b"(?!)"))
        patch.setattr(wire, "encode_ack", lambda *_: b"")
        return function(*arguments)


PLAIN_PARTS = st.sampled_from(
    [
        b'{"id":"',
        b'","qty":',
        b"}",
        b"a",
        b"-",
        b"_",
        b"0",
        b"7",
        b" ",
        b"\n",
        b'"',
        b"\\u0061",
        b"\xc3\xa9",
        b"\xff",
    ]
)
NEARLY_PLAIN = st.one_of(
    st.builds(
        lambda name, qty, end: b'{"id":"' + name + b'","qty":' + qty + b"}" + end,
        st.lists(
            st.sampled_from([b"a", b"-", b"_", b"0", b"9" * 20, b" ", b"\\u0061", b"\xff", b"\xc3\xa9", b"."])
        ).map(b"".join),
        st.lists(
            st.sampled_from([b"0", b"1", b"9" * 7, b"-", b".0", b"e1", b" ", b"\n", b"true", b"\xd9\xa1"]),
            max_size=4,
        ).map(b"".join),
        st.sampled_from([b"", b"", b"\n", b" ", b"}", b"\0"]),
    ),
    st.lists(PLAIN_PARTS, max_size=8).map(b"".join),
    st.binary(max_size=60),
)


@example(b'{"id":"a","qty":01}')
@example(b'{"id":"a","qty":00}')
@example(b'{"id":"","qty":1}')
@example(b'{"id":"a","qty":1}\n')
@example(b'{"id":"a\\u0061","qty":1}')
@example(b'{"id":"%b","qty":1}' % (b"a" * 65))
@example(b'{"id":"a","qty":%b}' % (b"9" * 16))
@given(st.one_of(NEARLY_PLAIN, st.builds(wire.encode_body, IDS, QTYS, st.none())))
def test_a_plain_body_is_read_as_strictly_without_json(body):
    assert _parsed(body) == _without_shortcut(_parsed, body)


def test_plain_bodies_take_the_shortcut(monkeypatch):
    """Else the test above compares the slow way with itself."""
    monkeypatch.setattr(wire, "strict_object", None)
    assert wire.parse_message(b'{"id":"a-Z_9","qty":12}') == wire.Message("a-Z_9", 12, None)
    monkeypatch.setattr(wire, "_loads_or_none", None)
    assert wire.is_ack(b'{"id":"a","qty":3,"result":"accepted"}', "a", 3)


ACKS = st.tuples(IDS, QTYS, st.sampled_from(["accepted", "duplicate", "Accepted", "no"]))


@given(IDS, QTYS, ACKS, st.sampled_from([b"", b" ", b"}"]))
def test_an_ack_is_recognized_as_strictly_without_json(job_id, qty, ack, end):
    other, other_qty, result = ack
    for name, count in ((job_id, qty), (other, qty), (job_id, other_qty)):
        body = wire.encode_ack(name, count, result) + end
        assert wire.is_ack(body, job_id, qty) == _without_shortcut(wire.is_ack, body, job_id, qty)
