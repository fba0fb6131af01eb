"""What does `HttpSender.send` cost beyond a bare `session.post`?

One client process against one server process, 64 requests in flight; bare and sender runs alternate against the
same server. Both post the same bytes and read the answer; the sender also checks the acknowledgement and the
deadline. The answer is the median ratio of the client CPU time per request.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.job import TIME_MS_MAX, LeasedJob
from asyncqueue.retry import Verdict
from asyncqueue.wire import IDEMPOTENCY_HEADER, JSON_TYPE, encode_body
from benchmarks.harness import machine, python_process, spread, table

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


async def run(url: str, options: argparse.Namespace) -> None:
    """Print the table of all pairs after one pair to warm up."""
    jobs = make_jobs(options.jobs)
    pairs = [
        (await bare(url, jobs, options.concurrency), await sent(url, jobs, options.concurrency))
        for _ in range(options.pairs + 1)
    ][1:]
    row = [spread([one for one, _ in pairs], 0), spread([two for _, two in pairs], 0)]
    row.append(spread([two / one for one, two in pairs], 3))
    print(table(("bare us CPU", "sender us CPU", "ratio"), [row]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()
    print(f"{machine()}\n{options.jobs:,} jobs, {options.concurrency} in flight, {options.pairs} pairs\n")
    with python_process("-m", "benchmarks.raw_server") as (_process, ready):
        asyncio.run(run(str(ready["url"]), options))


if __name__ == "__main__":
    main()
