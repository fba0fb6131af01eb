"""The records and their ranges: exact types, exact limits, printable text, canonical payloads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncqueue.errors import InvalidJob
from asyncqueue.job import (
    CONTRACT,
    PRODUCT,
    NewJob,
    Range,
    Redrive,
    brief,
    check_id,
    check_int,
    decode_payload,
    encode_payload,
    printable,
)

RANGES = [
    getattr(limits, name)
    for limits in (CONTRACT, PRODUCT)
    for name in ("qty", "ttl_ms", "lease_ms", "delay_ms", "max_attempts")
]


@pytest.mark.parametrize("allowed", RANGES)
def test_both_ends_of_a_range_belong_to_it(allowed):
    check_int("n", allowed.low, allowed)
    check_int("n", allowed.high, allowed)
    for outside in (allowed.low - 1, allowed.high + 1):
        with pytest.raises(InvalidJob, match="n must be an integer"):
            check_int("n", outside, allowed)


class LooksLikeInt(int):
    """Compares as 1, but is not an exact int."""


BEYOND_TEXT = 10**5000  # Python refuses to write it out


@pytest.mark.parametrize(
    "value", [True, 1.0, "1", None, LooksLikeInt(1), float("nan"), [1], BEYOND_TEXT, -BEYOND_TEXT], ids=type
)
def test_only_exact_integers_count(value):
    with pytest.raises(InvalidJob):
        check_int("qty", value, PRODUCT.qty)


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_ids_of_the_alphabet_pass(value):
    check_id("id", value)


class LooksLikeStr(str):
    """Compares as its text, but is not an exact str."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a" * 65,
        "a ",
        " a",
        "a\n",
        "a.b",
        "é",
        "e\u0301",
        "\u0661",
        "a\0",
        "\ud800",
        b"a",
        1,
        None,
        LooksLikeStr("a"),
    ],
)
def test_ids_that_look_alike_are_refused(value):
    with pytest.raises(InvalidJob) as caught:
        check_id("id", value)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


@given(st.text(), st.integers(0, 600))
def test_printable_text_is_one_bounded_line(text, chars_max):
    line = printable(text, chars_max)
    assert len(line) <= chars_max
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain é", "plain é"),
        ("two\r\nlines", "two\\r\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eevil", "\\u202eevil"),
        ("nul\0", "nul\\x00"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_and_bidi_characters_are_escaped(text, line):
    assert printable(text) == line


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.lists(st.integers()))
def test_brief_is_brief(value):
    assert len(brief(value)) <= 60
    assert brief(value).isascii()


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (None, None),
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (1, "1"),
        (1.0, "1.0"),
        (True, "true"),
        ("1", '"1"'),
        ("é\0", '"é\\u0000"'),
        ((1, 2), "[1,2]"),
    ],
)
def test_a_payload_has_one_canonical_text(payload, text):
    assert encode_payload(payload) == text


CYCLE: list[object] = []
CYCLE.append(CYCLE)
DEEP: list[object] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "payload",
    [
        float("nan"),
        [float("inf")],
        "\ud800",
        {"\ud800": 1},
        b"bytes",
        {1, 2},
        object(),
        {1: "a"},
        {None: "a"},
        {True: "a"},
        [{"k": ({1.5: 1},)}],
        {1: 1, "1": 2},
        CYCLE,
        DEEP,
        BEYOND_TEXT,
        "x" * (PRODUCT.payload_bytes_max - 1),
        "é" * (PRODUCT.payload_bytes_max // 2),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_what_json_cannot_say_exactly_is_refused(payload):
    with pytest.raises(InvalidJob):
        encode_payload(payload)


def test_the_largest_payload_passes():
    text = encode_payload("x" * (PRODUCT.payload_bytes_max - 2))
    assert text is not None
    assert len(text) == PRODUCT.payload_bytes_max


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(JSON)
def test_a_payload_reads_back_as_it_was(payload):
    text = encode_payload(payload)
    assert decode_payload(text) == payload
    assert encode_payload(decode_payload(text)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"qty": 0},
        {"queue": "a b"},
        {"kind": ""},
        {"priority": 32_768},
        {"delay_ms": -1},
        {"ttl_ms": 0},
        {"max_attempts": 0},
        {"delay_ms": 1000, "ttl_ms": 1000},
    ],
)
def test_a_new_job_is_checked_field_by_field(change):
    NewJob("a", 1).check()
    with pytest.raises(InvalidJob, match=next(iter(change))):
        NewJob(**{"id": "a", "qty": 1} | change).check()


@pytest.mark.parametrize("change", [{"id": "?"}, {"ttl_ms": 0}, {"note": ""}, {"actor": "a b"}])
def test_a_redrive_is_checked_field_by_field(change):
    Redrive("a", 1, "note", "me").check()
    with pytest.raises(InvalidJob, match=next(iter(change))):
        Redrive(**{"id": "a", "ttl_ms": 1, "note": "n"} | change).check()


def test_a_range_holds_exact_integers_only():
    assert 1 in Range(1, 1)
    assert True not in Range(1, 1)
    assert json.loads("1.0") not in Range(1, 1)
