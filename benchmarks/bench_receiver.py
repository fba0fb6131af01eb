"""How much load does the inbox alone take?

A raw aiohttp loop, 64 requests in flight, posts to the receiver: only new messages; only duplicates; and a mix
of 80 % new, 15 % duplicates and 5 % conflicts (the same id with another quantity). Beside them the same loop
against a handler that only echoes, the most that this client and this server process can do.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import aiohttp

from asyncqueue.wire import encode_body
from benchmarks.harness import Bench, Figures, Run, Watch, folder, python_process, run_async

__all__ = ["BENCH"]

CONCURRENCY = 64
HEADERS = {"Content-Type": "application/json"}
OK, CONFLICT = 200, 409
Message = tuple[str, int]


def mixed(count: int) -> list[Message]:
    """Return 80 % new ids, 15 % seen before, 5 % seen before with another quantity."""
    messages: list[Message] = []
    for number in range(count):
        turn = number % 20
        if turn < 16:
            messages.append((f"m{number}", 1))
        else:  # an id of the same group of twenty
            messages.append((f"m{number - turn}", 1 if turn < 19 else 2))
    return messages


async def post_all(url: str, messages: Iterable[Message]) -> tuple[float, Counter[int]]:
    """Post them from 64 tasks; return how many a second and how many had each status."""
    left, statuses, count = iter(messages), Counter[int](), 0

    async def post() -> None:
        nonlocal count
        for job_id, qty in left:
            async with session.post(url, data=encode_body(job_id, qty, None), headers=HEADERS) as answer:
                await answer.read()
                statuses[answer.status] += 1
                count += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        watch = Watch()
        await asyncio.gather(*(post() for _ in range(CONCURRENCY)))
        return watch.figures(count, "requests/s")["requests/s"], statuses


async def load(url: str, kind: str, count: int) -> Figures:
    """Offer one kind of load."""
    new = [(f"m{number}", 1) for number in range(count)]
    expected = Counter({OK: count})
    if kind == "duplicates":
        await post_all(url, new)
    if kind == "mix":
        new = mixed(count)
        expected = Counter({OK: count - count // 20, CONFLICT: count // 20})
    rate, statuses = await post_all(url, new)
    if statuses != expected:
        raise SystemExit(f"{kind}: answers {dict(statuses)}, not {dict(expected)}")
    return {"requests/s": rate}


def against(kind: str, count: int, *arguments: str) -> Figures:
    with folder() as place:
        command = arguments or ("-m", "benchmarks.raw_server")
        command = tuple(part.replace("INBOX", str(place / "inbox.db")) for part in command)
        with python_process(*command) as (_process, ready):
            return run_async(load(str(ready["url"]), kind, count))


def measure(run: Run) -> None:
    """Measure all loads in turns."""
    count = run.pick(200, 4_000, 8_000)
    receiver = ("-m", "receiver", "INBOX", "--port", "0")
    ways: dict[str, Callable[[], Figures]] = {
        "echo, no database": partial(against, "new", count),
        "receiver, new": partial(against, "new", count, *receiver),
        "receiver, duplicates": partial(against, "duplicates", count, *receiver),
        "receiver, mix": partial(against, "mix", count, *receiver),
        "receiver, new, WAL": partial(against, "new", count, *receiver, "--journal", "wal", "--force-wal"),
    }
    run.paired(ways, repetitions=run.pick(1, 3, 7))


BENCH = Bench("receiver", "How much load does the inbox alone take?", measure)
