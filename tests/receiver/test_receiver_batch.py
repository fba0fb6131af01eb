"""POST /inbox/batch: an answer per item, one transaction per request, hostile arrays."""

import asyncio
import contextlib
import json
from collections import Counter

import pytest
from receiver_tools import check_whole, get, look, message, post, request, running, speak

from asyncqueue import wire_batch
from tests.waiting import until

PATH = "/inbox/batch"


def array(*items):
    return (
        b"[" + b",".join(item if isinstance(item, bytes) else json.dumps(item).encode() for item in items) + b"]"
    )


def item(message_id, qty=1, **more):
    return {"id": message_id, "qty": qty, "token": 1, "attempt": 1, **more}


async def send(port, *items):
    return await speak(port, request(array(*items), path=PATH))


def outcomes(answer):
    """Return of each answer its result, or its status and problem."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    return [
        one.get("result") or (one["status"], one["type"].removeprefix("urn:asyncqueue:problem:"))
        for one in answer.json
    ]


async def test_each_item_has_its_answer_in_order(inbox):
    await post(inbox.port, "known", 2)
    items = [
        item("new"),
        item("known", 2),
        item("known", 3),
        item("bad id"),
        item("rich", payload={"b": 1, "a": 2}),
    ]
    answer = await send(inbox.port, *items)
    assert outcomes(answer) == ["accepted", "duplicate", (409, "conflict"), (422, "out-of-range"), "accepted"]
    assert [one.get("id") for one in answer.json] == ["new", "known", "known", None, "rich"]
    assert [one.get("qty") for one in answer.json] == [1, 2, None, None, 1]
    assert check_whole(inbox.path) == {"known": 2, "new": 1, "rich": 1}
    assert look(inbox.path, "SELECT kept_qty, qty FROM conflicts") == [(2, 3)]
    assert (await post(inbox.port, "rich", 1, payload={"a": 2, "b": 1})).result == "duplicate"


async def test_the_claim_of_an_item_is_kept(inbox):
    await send(inbox.port, item("a", token=7, attempt=2), {"id": "b", "qty": 1})
    rows = look(inbox.path, "SELECT id, token, attempt FROM inbox ORDER BY id")
    assert rows == [("a", 7, 2), ("b", None, None)]


async def test_of_one_id_twice_in_an_array_the_first_counts(inbox):
    answer = await send(inbox.port, item("a", 1), item("a", 1), item("a", 2), item("b", 5))
    assert outcomes(answer) == ["accepted", "duplicate", (409, "conflict"), "accepted"]
    assert check_whole(inbox.path) == {"a": 1, "b": 5}


BAD_ITEMS = [
    (b"1", "malformed"),
    (b"null", "malformed"),
    (b"[]", "malformed"),
    (b'{"id":"x","qty":1,"qty":1}', "malformed"),
    (b'{"id":"x","qty":1,"payload":{"a":1,"a":2}}', "malformed"),
    (b'{"id":"x","qty":1,"payload":NaN}', "malformed"),
    (b'{"id":"x","qty":1,"payload":-Infinity}', "malformed"),
    (b'{"id":"x","qty":1,"payload":' + b"9" * 5_000 + b"}", "malformed"),
    (b'{"id":"x","qty":' + b"9" * 5_000 + b"}", "malformed"),
    (b"{}", "out-of-range"),
    (b'{"id":"x"}', "out-of-range"),
    (b'{"id":"x","qty":1,"more":1}', "out-of-range"),
    (b'{"id":"x","qty":true}', "out-of-range"),
    (b'{"id":"x","qty":1.0}', "out-of-range"),
    (b'{"id":"x","qty":"1"}', "out-of-range"),
    (b'{"id":"x","qty":0}', "out-of-range"),
    (b'{"id":"x","qty":1,"token":-1}', "out-of-range"),
    (b'{"id":"x","qty":1,"attempt":null}', "out-of-range"),
    (b'{"id":"x","qty":1,"payload":1e999}', "out-of-range"),
    (b'{"id":"x","qty":1,"payload":"\\ud800"}', "out-of-range"),
    (b'{"id":{},"qty":1}', "out-of-range"),
    (b'{"id":"\\u0000","qty":1}', "out-of-range"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD_ITEMS)
async def test_a_bad_item_fails_alone_and_as_it_would_by_itself(inbox, bad, problem):
    answer = await send(inbox.port, item("a"), bad, b' \n{"id" : "b", "qty": 1}\t')
    assert [one if isinstance(one, str) else one[1] for one in outcomes(answer)] == [
        "accepted",
        problem,
        "accepted",
    ]
    assert check_whole(inbox.path) == {"a": 1, "b": 1}
    alone = json.loads(bad, parse_int=str)  # of any length
    if not (isinstance(alone, dict) and {"token", "attempt"} & alone.keys()):  # headers, in a single request
        assert (await speak(inbox.port, request(bad))).problem == problem


WHOLE = [
    (b"", 400),
    (b"[]", 400),
    (b" [ ] ", 400),
    (b"{}", 400),
    (message("a"), 400),
    (b"null", 400),
    (b"[", 400),
    (b'[{"id":"a","qty":1}', 400),
    (b'[{"id":"a","qty":1},]', 400),
    (b'[{"id":"a","qty":1}]x', 400),
    (b'[{"id":"a","qty":1} {"id":"b","qty":1}]', 400),
    (b'[{"id":"a","qty":1,"qty":1}]]', 400),
    (b'[{"id":"a","qty":1,"qty":1}', 400),
    (b"\xff[]", 400),
    (b'\xef\xbb\xbf[{"id":"a","qty":1}]', 400),
    (b"[" * 100_000, 400),
    (b'[{"id":"a","qty":1,"payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]", 400),
    (array(*[item(f"a{n}") for n in range(1_001)]), 413),
    (array(b'{"id":"x","id":"x"}', *[item(f"a{n}") for n in range(1_001)]), 413),
    (b"[" + b" " * (1024 * 1024) + b"]", 413),
]


@pytest.mark.parametrize("number", range(len(WHOLE)))
async def test_what_is_no_batch_is_refused_as_a_whole(inbox, number):
    body, status = WHOLE[number]
    answer = await speak(inbox.port, request(body, path=PATH))
    assert answer.status == status
    assert answer.problem == {400: "malformed", 413: "too-large"}[status]
    assert check_whole(inbox.path) == {}


async def test_the_largest_batch_is_taken_and_its_reply_fits_its_bound(inbox):
    items = [item(f"{n:064d}", 10**9) for n in range(wire_batch.ITEMS_MAX)]
    answer = await send(inbox.port, *items)
    assert outcomes(answer) == ["accepted"] * len(items)
    assert len(answer.body) <= wire_batch.reply_bytes_max(len(items))
    worst = [{"id": f"{n:064d}", "qty": '"' * 1_000} for n in range(wire_batch.ITEMS_MAX // 2)]
    answer = await send(inbox.port, *worst)
    assert set(outcomes(answer)) == {(422, "out-of-range")}
    assert len(answer.body) <= wire_batch.reply_bytes_max(len(worst))


@pytest.mark.parametrize("items", [1, 1_000])
async def test_a_request_is_one_transaction(inbox, items):
    written = []

    async def counted(write):
        written.append(1)
        return await write()

    inbox.wrap_writes(counted)
    await send(inbox.port, *[item(f"a{n}") for n in range(items)])
    assert len(written) == 1


async def test_requests_that_wait_together_share_a_transaction(inbox):
    sets = []
    receive = inbox.store.receive
    began, gate = asyncio.Event(), asyncio.Event()

    async def held(take):
        def counted():
            arrivals = take()
            sets.append(len(arrivals))
            return arrivals

        began.set()
        await gate.wait()
        return await receive(counted)

    inbox.store.receive = held
    async with asyncio.TaskGroup() as group:
        first = group.create_task(send(inbox.port, item("first")))
        await began.wait()
        others = [group.create_task(send(inbox.port, *[item(f"{n}-{m}") for m in range(10)])) for n in range(5)]
        await until(lambda: inbox.door.inside == 6)
        gate.set()
    assert outcomes(first.result()) == ["accepted"]
    assert [outcomes(other.result()) for other in others] == [["accepted"] * 10] * 5
    assert sum(sets) == 51
    assert len([size for size in sets if size]) <= 2


async def test_a_failed_effect_fails_its_item_only(serve):
    async def effect(connection, message):
        if message.id == "b":
            raise RuntimeError("no")
        await connection.execute("UPDATE ledger SET qty = qty")

    async with serve(effect=effect) as inbox:
        answer = await send(inbox.port, item("a"), item("b"), item("c"))
        assert outcomes(answer) == ["accepted", (500, "effect-failed"), "accepted"]
        assert look(inbox.path, "SELECT id FROM inbox ORDER BY id") == [("a",), ("c",)]


async def test_a_message_may_be_called_batch(inbox):
    await post(inbox.port, "batch", 3)
    assert (await get(inbox.port, PATH)).json["qty"] == 3
    answer = await speak(inbox.port, request(b"", method="PUT", path=PATH))
    assert (answer.status, answer.problem) == (405, "no-such-method")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert "this path takes GET, HEAD, POST" in answer.json["detail"]
    other = await speak(inbox.port, request(b"", method="PUT", path="/inbox/other"))
    assert other.headers["allow"] == "GET, HEAD"


async def test_while_stopping_a_batch_is_refused_with_a_time(inbox):
    inbox.door.is_stopping = True
    answer = await send(inbox.port, item("a"))
    assert (answer.status, answer.problem, answer.headers["retry-after"]) == (503, "busy", "1")


async def test_killed_at_any_moment_a_batch_is_whole_or_not_there(tmp_path):
    path = tmp_path / "inbox.db"
    answered, sent = set(), []

    async def keep_sending(port):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # killed
            while True:
                sent.append(f"r{len(sent)}")
                ids = [f"{sent[-1]}-{n}" for n in range(100)]
                answer = await send(port, *map(item, ids))
                assert outcomes(answer) == ["accepted"] * 100
                answered.update(ids)

    for further in range(1, 6):
        async with running(path) as receiver, asyncio.TaskGroup() as group:
            group.create_task(keep_sending(receiver.port))
            goal = len(sent) + 3 * further
            await until(lambda goal=goal: len(sent) >= goal)
            receiver.process.kill()
    async with running(path):
        kept = check_whole(path)
    assert answered <= kept.keys()
    sizes = Counter(message_id.split("-")[0] for message_id in kept)
    assert len(sizes) >= 40
    assert set(sizes.values()) == {100}
