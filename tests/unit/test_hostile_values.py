"""Generated hostile input at each door that reads bytes: a value or the documented error, the same at all."""

import json
import string

from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncqueue.job import PRODUCT
from tests.hostile.corpus import WHOLE
from tests.hostile.doors import (
    ACK,
    read_as_line,
    read_by_inbox,
    see_ack,
    see_batch,
    see_body,
    see_note,
    see_retry_after,
)

IDENTIFIER = string.ascii_letters + string.digits + "_-"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
members = st.dictionaries(
    st.sampled_from(("id", "qty", "payload", "Id", "kind")),
    json_values | st.integers(-2, 10**9 + 2) | st.text("ab-_ \n\0\u00e9", max_size=66),
    max_size=4,
)


@st.composite
def damaged(draw, whole):
    """Return `whole` with a few bytes changed, cut out or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[place : place + 1] = draw(st.binary(min_size=1, max_size=3))
            case 1:
                del data[place : place + draw(st.integers(1, 8))]
            case 2:
                data[place:place] = draw(
                    st.sampled_from((b'"', b"{", b"[", b",", b"\\", b"\\ud800", b"1e999", b"\0"))
                )
            case _:
                data[place:place] = data[: draw(st.integers(0, len(data)))]
    return bytes(data)


bodies = st.binary(max_size=60) | damaged(WHOLE) | members.map(lambda value: json.dumps(value).encode())


@settings(max_examples=2_000, deadline=None, database=None)
@given(body=bodies)
@example(body=WHOLE)
@example(body=b'{"id":"a","id":"a","qty":1}')
@example(body=b'{"id":"a","qty":1,"payload":{"k":1,"k":1}}')
@example(body=b'{"id":"a","qty":1,"payload":null}')
@example(body=b'{"id":"a","qty":1,"payload":1e400}')
@example(body=b'\xef\xbb\xbf{"id":"a","qty":1}')
def test_inbox_and_json_lines_agree_about_every_body(body):
    see_body(body)
    see_batch(b"[" + body + b"]")


@settings(max_examples=1_500, deadline=None, database=None)
@given(body=st.binary(max_size=60) | damaged(ACK) | json_values.map(lambda value: json.dumps(value).encode()))
@example(body=ACK)
@example(body=b"[" * 60_000)
def test_an_ack_is_taken_only_if_it_says_so(body):
    see_ack(body)


dates = st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S GMT"))
numbers = st.integers(-(10**30), 10**30).map(str)


@settings(max_examples=1_500, deadline=None, database=None)
@given(
    value=st.none()
    | st.text(max_size=40)
    | numbers
    | dates
    | dates.flatmap(lambda date: damaged(date.encode())).map(lambda raw: raw.decode("latin-1")),
    now_ms=st.integers(0, 10**15),
)
@example(value="9" * 10_000, now_ms=0)
@example(value="\u0665", now_ms=0)
@example(value="Mon, 01 Jan 0001 00:00:00 +2359", now_ms=0)
@example(value="Fri, 31 Dec 9999 23:59:59 -2359", now_ms=0)
@example(value="1 Jan 2020 00:00:00 +99999999999", now_ms=0)
def test_retry_after_is_a_wish_within_bounds_or_nothing(value, now_ms):
    see_retry_after(value, now_ms)


@settings(max_examples=1_000, deadline=None, database=None)
@given(note=st.text(max_size=70) | st.text(IDENTIFIER, max_size=70) | json_values)
@example(note="again\n")
@example(note="\u0430gain")  # a Cyrillic letter
@example(note="")
def test_a_redrive_note_is_an_identifier_or_refused(note):
    see_note(note)


@settings(max_examples=500, deadline=None, database=None)
@given(qty=json_values | st.integers(PRODUCT.qty.low - 2, PRODUCT.qty.low + 2))
def test_a_quantity_is_an_integer_in_range_at_every_door(qty):
    is_good = type(qty) is int and qty in PRODUCT.qty
    body = json.dumps({"id": "a", "qty": qty}).encode()
    assert (read_by_inbox(body) is not None) == (read_as_line(body) is not None) == is_good
