"""On one PostgreSQL server: how do drain and enqueue compare with the peers, each at its best batch size?

Drain: no-op jobs through `Dispatcher` (handler in process), and through the peers' own workers, at several batch
sizes; the best size of each is compared. Enqueue: 1,000 callers at once, who share commits, against the peers
one by one; and bulk against bulk. Everybody in turns, fsync and synchronous_commit on.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from asyncqueue import Queue
from benchmarks.bench_drain import by_dispatcher, postgres_drain
from benchmarks.bench_enqueue import concurrent, one_by_one
from benchmarks.harness import Bench, Figures, Run, Skipped, Watch, run_async
from benchmarks.jobs import fill
from benchmarks.peers import POSTGRES_PEERS, PostgresPeer, postgres_server
from benchmarks.peers.server import PostgresServer

__all__ = ["AT_A_TIME", "BENCH", "BULK", "CALLERS", "ONE_BY_ONE", "OWN"]

OWN = "asyncqueue"
AT_A_TIME = "at a time"
ONE_BY_ONE = "one by one"
CALLERS = "1,000 callers at once"
BULK = "bulk"
OWN_SIZES = (64, 256, 1_024, 4_096)
PEER_SIZES = {"procrastinate": (64,), "pgqueuer": (64, 256, 1_000, 4_000), "chancy": (64, 256, 1_000)}
SLOWER = {"procrastinate": 48, "pgqueuer": 1, "chancy": 3}  # about so many times: so many fewer jobs
SLOW_IN_BULK = ("procrastinate", "chancy")
Ways = dict[str, Callable[[], Figures]]


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


def drains(server: PostgresServer, jobs: int) -> Ways:
    """Return every way to drain, at every size."""
    ways: Ways = {f"{OWN}, {n} {AT_A_TIME}": _on(server, by_dispatcher, jobs, "delete", n) for n in OWN_SIZES}
    for peer in POSTGRES_PEERS:
        for size in PEER_SIZES[peer.name]:
            ways[f"{peer.name}, {size} {AT_A_TIME}"] = partial(
                postgres_drain, partial(peer, batch=size), server.new_database, max(1, jobs // SLOWER[peer.name])
            )
    return ways


def enqueues(server: PostgresServer, jobs: int, few: int, many: int) -> Ways:
    """Return every way in; `few` jobs where each has a commit of its own, `many` where thousands share one."""
    ways: Ways = {
        f"{OWN}, {ONE_BY_ONE}": _on(server, own_enqueue, one_by_one, few),
        f"{OWN}, {CALLERS}": _on(server, own_enqueue, concurrent, jobs),
        f"{OWN}, {BULK}": _on(server, own_enqueue, fill, many),
    }
    for peer in POSTGRES_PEERS:
        ways[f"{peer.name}, {ONE_BY_ONE}"] = _on(server, peer_enqueue, peer, "one_by_one", few)
        count = jobs if peer.name in SLOW_IN_BULK else many
        ways[f"{peer.name}, {BULK}"] = _on(server, peer_enqueue, peer, "bulk", count)
    return ways


def _on(
    server: PostgresServer, measure: Callable[..., Coroutine[Any, Any, Figures]], *arguments: object
) -> Callable[[], Figures]:
    return lambda: run_async(measure(server.new_database(), *arguments))


def measure(run: Run) -> None:
    """Measure drain or enqueue; `run.part` names which."""
    # a backlog of seconds: the machine's speed changes within one
    backlog, jobs, few = run.pick(400, 8_000, 48_000), run.pick(400, 4_000, 8_000), run.pick(20, 300, 500)
    many = run.pick(400, 16_000, 64_000)  # fewer are a matter of how one or two commits happen to fall
    try:
        with postgres_server() as server:
            run.note("One server with its default durability: fsync and synchronous_commit are on.")
            run.paired(drains(server, backlog) if run.part == "drain" else enqueues(server, jobs, few, many))
    except Skipped as why:
        run.note(f"Left out: {why}")


BENCH = Bench(
    "postgres_peers",
    "On PostgreSQL, how do drain and enqueue compare with the peers, each at its best batch size?",
    measure,
    parts=("drain", "enqueue"),
    full_only=("drain", "enqueue"),
)
