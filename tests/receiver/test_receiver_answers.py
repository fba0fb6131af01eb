"""What the inbox answers, and what it keeps."""

import asyncio
import json
import subprocess
import sys
import unicodedata

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from receiver_tools import ROOT, check_whole, get, look, message, post, request, speak

from asyncqueue import wire
from receiver import create_app


async def test_a_new_message_is_accepted_and_kept(inbox):
    answer = await inbox.speak(
        request(message("a", 3, payload={"b": [1.5, "é"]}), "Asyncqueue-Token: 7", "Asyncqueue-Attempt: 2")
    )
    assert (answer.status, answer.json) == (200, {"id": "a", "qty": 3, "result": "accepted"})
    assert wire.is_ack(answer.body, "a", 3)
    kept = (await get(inbox.port, "/inbox/a")).json
    assert kept.pop("received_at") > 1_600_000_000_000
    assert kept == {
        "id": "a",
        "qty": 3,
        "payload": {"b": [1.5, "é"]},
        "result": "accepted",
        "token": 7,
        "attempt": 2,
        "times": 1,
    }
    assert check_whole(inbox.path) == {"a": 3}


async def test_a_repeat_is_a_duplicate_and_changes_only_its_count(inbox):
    first = await post(inbox.port, "a", 3, payload={"x": 1, "y": 2})
    repeat = await inbox.speak(request(b'{"payload": {"y":2, "x":1}, "qty": 3, "id": "a"}'))
    assert (first.result, repeat.status, repeat.result) == ("accepted", 200, "duplicate")
    assert {**repeat.json, "result": "accepted"} == first.json
    assert (await get(inbox.port, "/inbox/a")).json["times"] == 2
    assert (await get(inbox.port, "/totals")).json == {
        "messages": 1,
        "quantity": 3,
        "duplicates": 1,
        "conflicts": 0,
        "requests": 2,
    }


@pytest.mark.parametrize(
    "other",
    [
        {"qty": 4},
        {"qty": 3},
        {"qty": 3, "payload": {"x": 2}},
        {"qty": 3, "payload": {"x": 1.0}},
        {"qty": 3, "payload": {"x": True}},
        {"qty": 3, "payload": {"x": "1"}},
        {"qty": 3, "payload": [{"x": 1}]},
        {"qty": 3, "payload": "null"},
    ],
    ids=str,
)
async def test_another_quantity_or_payload_is_a_conflict_kept_as_evidence__kind_45_different_body(inbox, other):
    await post(inbox.port, "a", 3, payload={"x": 1})
    for _ in range(2):
        answer = await post(inbox.port, "a", **other)
        assert (answer.status, answer.problem) == (409, "conflict")
    rows = look(inbox.path, "SELECT id, kept_qty, qty, payload, times FROM conflicts")
    offered = json.dumps(other["payload"], separators=(",", ":")) if "payload" in other else ""
    assert rows == [("a", 3, other["qty"], offered, 2)]
    assert check_whole(inbox.path) == {"a": 3}
    assert (await get(inbox.port, "/totals")).json["conflicts"] == 2
    assert (await post(inbox.port, "a", 3, payload={"x": 1})).result == "duplicate"


async def test_fifty_concurrent_posts_of_one_id_are_applied_once_with_equal_answers__kind_45_concurrent(inbox):
    answers = await asyncio.gather(*(post(inbox.port, "a", 3) for _ in range(50)))
    assert {answer.status for answer in answers} == {200}
    assert sorted(answer.result for answer in answers) == ["accepted"] + ["duplicate"] * 49
    assert {(answer.json["id"], answer.json["qty"]) for answer in answers} == {("a", 3)}
    assert check_whole(inbox.path) == {"a": 3}
    assert (await get(inbox.port, "/inbox/a")).json["times"] == 50


LOOKALIKES = [
    message("a "),
    message(" a"),
    message("a\u200b"),
    message("\u0430"),  # a Cyrillic a
    message(unicodedata.normalize("NFC", "é")),
    message(unicodedata.normalize("NFD", "é")),
    message("a\0"),
    message(""),
    message("a" * 65),
    b'{"id":"a","qty":1.0}',
    b'{"id":"a","qty":1e0}',
    b'{"id":"a","qty":true}',
    b'{"id":"a","qty":"1"}',
    b'{"id":"a","qty":null}',
    b'{"id":1,"qty":1}',
    b'{"id":null,"qty":1}',
    b'{"id":["a"],"qty":1}',
    b'{"id":"a"}',
    b'{"qty":1}',
    b'{"id":"a","qty":1,"more":1}',
    b'{"id":"a","qty":0}',
    b'{"id":"a","qty":-1}',
    b'{"id":"a","qty":1000000001}',
    b'{"id":"a","qty":%d}' % 2**64,
]


@pytest.mark.parametrize("body", LOOKALIKES, ids=range(len(LOOKALIKES)))
async def test_what_looks_like_a_message_is_out_of_range_and_changes_nothing__kind_45_look_alike(inbox, body):
    await post(inbox.port, "a", 1)
    answer = await inbox.speak(request(body))
    assert (answer.status, answer.problem) == (422, "out-of-range")
    assert check_whole(inbox.path) == {"a": 1}


async def test_case_and_separators_of_ids_count(inbox):
    ids = ["a", "A", "a-", "a_", "-a", "0a", "a" * 64]
    assert [(await post(inbox.port, name)).result for name in ids] == ["accepted"] * len(ids)
    assert set(check_whole(inbox.path)) == set(ids)


@pytest.mark.parametrize("key", ["b", "A", "a, a", '"a"', "", "\udcff"])
async def test_an_idempotency_key_must_be_the_id(inbox, key):
    answer = await inbox.speak(request(message("a"), f"Idempotency-Key: {key}"))
    assert (answer.status, answer.problem) == (422, "out-of-range")
    assert (await inbox.speak(request(message("a"), "Idempotency-Key: a"))).result == "accepted"


@pytest.mark.parametrize("text", ["x", "-1", "1" * 400, "1.0", "\u0661"])
async def test_a_token_that_does_not_count_is_not_kept(inbox, text):
    assert (await inbox.speak(request(message("a"), f"Asyncqueue-Token: {text}"))).result == "accepted"
    assert (await get(inbox.port, "/inbox/a")).json["token"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/inbox/b", 404, "unknown-id"),
        ("GET", "/inbox/%00", 404, "unknown-id"),
        ("GET", "/inbox/%ff", 404, "unknown-id"),
        ("GET", "/inbox/\udcff", 400, "bad-request"),
        ("BREW", "/livez", 400, "bad-request"),
        ("GET", "/inbox/" + "a" * 4_000, 404, "unknown-id"),
        ("GET", "/inbox", 405, "no-such-method"),
        ("PUT", "/inbox", 405, "no-such-method"),
        ("DELETE", "/inbox/a", 405, "no-such-method"),
        ("POST", "/totals", 405, "no-such-method"),
        ("PATCH", "/livez", 405, "no-such-method"),
        ("GET", "/", 404, "no-such-path"),
        ("POST", "/inbox/", 404, "no-such-path"),
        ("GET", "/../inbox.db", 404, "no-such-path"),
    ],
)
async def test_what_is_not_there_is_a_problem(inbox, method, path, status, problem):
    answer = await inbox.speak(request(b"", method=method, path=path, kind=None))
    assert (answer.status, answer.problem) == (status, problem)
    assert status != 405 or answer.headers["allow"] in ("GET, HEAD", "POST")


async def test_it_says_that_it_lives_and_is_ready(inbox):
    assert (await get(inbox.port, "/livez")).json == {"status": "alive"}
    assert (await get(inbox.port, "/readyz")).json == {"status": "ready"}


async def test_a_reopened_inbox_keeps_counts_and_answers(serve):
    async with serve() as first:
        await post(first.port, "a", 3)
        await post(first.port, "a", 4)
    async with serve(first.path) as second:
        assert (await post(second.port, "a", 3)).result == "duplicate"
        assert (await post(second.port, "b", 1)).result == "accepted"
        assert (await get(second.port, "/totals")).json == {
            "messages": 2,
            "quantity": 4,
            "duplicates": 1,
            "conflicts": 1,
            "requests": 4,
        }


async def test_it_can_be_mounted_in_another_application(url):
    async def home(_request):
        return web.Response(text="home")

    outer = web.Application()
    outer.router.add_get("/", home)
    outer.add_subapp("/deep/in", create_app(url))
    async with TestServer(outer) as server:
        answer = await speak(server.port, request(message("a", 2), path="/deep/in/inbox"))
        assert answer.result == "accepted"
        assert (await get(server.port, "/deep/in/totals")).json["quantity"] == 2
        assert (await get(server.port, "/deep/in/x")).problem == "no-such-path"
        assert (await get(server.port, "/")).body == b"home"
    assert check_whole(url) == {"a": 2}


def test_importing_the_package_is_cheap():
    code = "import receiver, sys; print(sorted({'aiohttp', 'aiosqlite', 'asyncpg', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
