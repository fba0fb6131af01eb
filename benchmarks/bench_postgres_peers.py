"""On one PostgreSQL server: how do drain and enqueue compare with the peers, each at its best batch size?

Drain: no-op jobs through `Dispatcher` (handler in process), and through the peers' own workers, at several batch
sizes; the best size of each is compared. Enqueue: 1,000 callers at once, who share commits, against the peers
one by one; and bulk against bulk. Everybody in turns, fsync and synchronous_commit on.
"""

import argparse
import statistics
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from asyncqueue import Queue
from benchmarks.bench_drain import by_dispatcher, postgres_drain
from benchmarks.bench_enqueue import concurrent, one_by_one
from benchmarks.harness import Figures, Run, Scale, Watch, run_async, spread, table
from benchmarks.jobs import fill
from benchmarks.peers import POSTGRES_PEERS, PostgresPeer, postgres_server
from benchmarks.results import machine

OWN = "asyncqueue"
OWN_SIZES = (64, 256, 512)
PEER_SIZES = {"procrastinate": (64,), "pgqueuer": (64, 256, 1_000), "chancy": (64, 256)}
Ways = dict[str, Callable[[], Figures]]
Found = dict[str, list[float]]


async def own_enqueue(url: str, work: Callable[[Queue, int], Awaitable[None]], jobs: int) -> Figures:
    async with Queue.open(url) as queue:
        await queue.enqueue("first", 1)  # connected, statements prepared
        watch = Watch()
        await work(queue, jobs)
        return watch.figures(jobs)


async def peer_enqueue(url: str, make: type[PostgresPeer], way: str, jobs: int) -> Figures:
    peer = make(url)
    await peer.prepare(1)
    watch = Watch()
    await getattr(peer, way)(jobs)
    figures = watch.figures(jobs)
    await peer.close()
    return figures


def in_turns(ways: Ways, repetitions: int) -> Found:
    """Return the rates of each way."""
    run = Run(Scale.FULL)
    run.paired(ways, repetitions)
    return {name: found["jobs/s"] for name, found in run.samples.items()}


def report(title: str, found: Found, mine: str, theirs: str) -> None:
    """Print all rates, and the best of ours (`mine` begins its name) against the best of the peers'."""
    print(f"\n{title}\n\n" + table(("way", "jobs/s"), [(name, spread(all_, 0)) for name, all_ in found.items()]))

    def best(names: list[str]) -> str:
        return max(names, key=lambda name: statistics.median(found[name]))

    one = best([name for name in found if name.startswith(OWN) and mine in name])
    other = best([name for name in found if not name.startswith(OWN) and theirs in name])
    ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
    print(f"\n{one} against {other}: {spread(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8_000)
    parser.add_argument("--few", type=int, default=500, help="jobs where each has its own commit")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    jobs, few = options.jobs, options.few
    print(machine())
    with postgres_server() as server:

        def run(measure: Callable[..., Coroutine[Any, Any, Figures]], *arguments: object) -> Callable[[], Figures]:
            return lambda: run_async(measure(server.new_database(), *arguments))

        drains = {f"{OWN}, {n} at a time": run(by_dispatcher, jobs, "delete", n) for n in OWN_SIZES}
        enqueues = {
            f"{OWN}, one by one": run(own_enqueue, one_by_one, few),
            f"{OWN}, 1,000 callers at once": run(own_enqueue, concurrent, jobs),
            f"{OWN}, bulk": run(own_enqueue, fill, jobs),
        }
        for peer in POSTGRES_PEERS:
            for size in PEER_SIZES[peer.name]:
                count = jobs // 8 if peer.name == "procrastinate" else jobs  # 20 times slower
                drain = partial(postgres_drain, partial(peer, batch=size), server.new_database, count)
                drains[f"{peer.name}, {size} at a time"] = drain
            enqueues[f"{peer.name}, one by one"] = run(peer_enqueue, peer, "one_by_one", few)
            enqueues[f"{peer.name}, bulk"] = run(peer_enqueue, peer, "bulk", jobs)
        report("drain", in_turns(drains, options.repetitions), "at a time", "at a time")
        found = in_turns(enqueues, options.repetitions)
        report("enqueue", found, "1,000 callers", "one by one")
        report("enqueue in bulk", {name: all_ for name, all_ in found.items() if "bulk" in name}, "bulk", "bulk")


if __name__ == "__main__":
    main()
