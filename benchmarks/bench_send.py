"""What does `HttpSender.send` cost beyond a bare `session.post`?

One client process against one server process, 64 requests in flight; bare and sender runs alternate against the
same server. Both post the same bytes and read the answer; the sender also checks the acknowledgement and the
deadline. The answer is the ratio of the client's CPU time per request.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import aiohttp

from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.job import TIME_MS_MAX, LeasedJob
from asyncqueue.retry import Verdict
from asyncqueue.wire import IDEMPOTENCY_HEADER, JSON_TYPE, encode_body
from benchmarks.harness import Bench, Figures, Run, python_process, run_async

__all__ = ["BENCH"]

CONCURRENCY = 64

Post = Callable[[LeasedJob], Awaitable[None]]


def make_jobs(count: int) -> list[LeasedJob]:
    """Return `count` small jobs that are never late."""
    late = TIME_MS_MAX
    return [
        LeasedJob(f"s{n}", 3, "me", 1, 1, late, "default", "job", '{"sku":7}', 0, 20, late, 30_000)
        for n in range(count)
    ]


async def cpu_us(post: Post, jobs: list[LeasedJob], concurrency: int) -> float:
    """Return CPU microseconds of this process per job."""
    left = iter(jobs)

    async def serve() -> None:
        for job in left:
            await post(job)

    started = time.process_time()
    await asyncio.gather(*(serve() for _ in range(concurrency)))
    return (time.process_time() - started) / len(jobs) * 1e6


async def bare(url: str, jobs: list[LeasedJob], concurrency: int) -> float:
    """Post over a plain session."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(job: LeasedJob) -> None:
            headers = {"Content-Type": JSON_TYPE, IDEMPOTENCY_HEADER: job.id}
            body = encode_body(job.id, job.qty, job.payload)
            async with session.post(url, data=body, headers=headers) as answer:
                await answer.read()

        return await cpu_us(post, jobs, concurrency)


async def sent(url: str, jobs: list[LeasedJob], concurrency: int) -> float:
    """Send by the product's sender."""
    async with HttpSender(url) as sender:

        async def post(job: LeasedJob) -> None:
            outcome = await sender.send(job)
            if outcome.verdict is not Verdict.OK:
                raise SystemExit(outcome.error)

        return await cpu_us(post, jobs, concurrency)


def client(
    way: Callable[[str, list[LeasedJob], int], Coroutine[Any, Any, float]], url: str, count: int
) -> Figures:
    return {"us CPU": run_async(way(url, make_jobs(count), CONCURRENCY))}


def measure(run: Run) -> None:
    """Measure both against one server."""
    count = run.pick(100, 3_000, 5_000)
    with python_process("-m", "benchmarks.raw_server") as (_process, ready):
        url = str(ready["url"])
        run.paired(
            {"session.post": partial(client, bare, url, count), "HttpSender": partial(client, sent, url, count)}
        )


BENCH = Bench("send", "What does `HttpSender.send` cost beyond a bare `session.post`?", measure)
