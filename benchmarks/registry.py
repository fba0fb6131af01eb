"""All benchmarks, in the order of the report."""

from benchmarks import (
    bench_claim,
    bench_claim_race,
    bench_contention,
    bench_dispatch,
    bench_drain,
    bench_effects,
    bench_enqueue,
    bench_memory,
    bench_postgres_peers,
    bench_processes,
    bench_profile,
    bench_receiver,
    bench_send,
    bench_wakeup,
)
from benchmarks.harness import Bench

__all__ = ["BENCHES"]

BENCHES: tuple[Bench, ...] = (
    bench_drain.BENCH,
    bench_enqueue.BENCH,
    bench_dispatch.BENCH,
    bench_profile.BENCH,
    bench_processes.BENCH,
    bench_receiver.BENCH,
    bench_claim.BENCH,
    bench_wakeup.BENCH,
    bench_memory.BENCH,
    bench_contention.BENCH,
    bench_claim_race.BENCH,
    bench_send.BENCH,
    bench_effects.BENCH,
    bench_postgres_peers.BENCH,
)
