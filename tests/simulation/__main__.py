"""Run seeds: `python -m tests.simulation --seeds 1000`, or replay one: `--seed 17 --history`."""

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.plants import PLANTS
from tests.simulation.runner import run_chunk, the_runner

CHUNK = 50
CHUNKS_A_POOL = 10  # for each worker


def replay_command(seed: int, plant: str = "") -> str:
    return f"python -m tests.simulation --seed {seed} --history" + (f" --plant {plant}" if plant else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--history", action="store_true", help="with --seed: print what happened")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="run with this bug planted")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, options.plant, with_history=options.history)
    return _run_many(options)


def _replay(seed: int, plant: str, *, with_history: bool) -> int:
    trace, verdict, history = the_runner(plant).run(seed)
    if with_history:
        print("\n".join(history))
    print(f"seed {seed}: trace {trace}: {'VIOLATED ' + verdict if verdict else 'all invariants hold'}")
    return 1 if verdict else 0


def _run_many(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    last = options.first + options.seeds
    size = max(1, min(CHUNK, -(-options.seeds // options.workers)))
    chunks = [range(first, min(first + size, last)) for first in range(options.first, last, size)]
    happened: Counter[str] = Counter()
    for results, counts in _ended(chunks, options.workers, options.plant):
        happened += counts
        for seed, verdict in results:
            if verdict:
                _replay(seed, options.plant, with_history=True)
                print(f"replay: {replay_command(seed, options.plant)}")
                return 1
    print(", ".join(f"{count} {name}" for name, count in happened.items()))
    print(f"{options.seeds} seeds from {options.first}: all invariants hold ({time.perf_counter() - began:.1f} s)")
    return 0


def _ended(chunks: list[range], workers: int, plant: str) -> Iterator[tuple[list[tuple[int, str]], Counter[str]]]:
    """Return what came of each chunk, in order; of a single worker's none is run before it is asked for."""
    if workers == 1:
        yield from map(run_chunk, chunks, itertools.repeat(plant))
        return
    for some in _portions(chunks, workers * CHUNKS_A_POOL):
        # a pool for each portion, so that memory is given back: max_tasks_per_child can hang (cpython gh-115634)
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                yield from pool.map(run_chunk, some, itertools.repeat(plant))
            finally:
                pool.shutdown(cancel_futures=True)


def _portions(chunks: list[range], size: int) -> Iterator[list[range]]:
    return (chunks[first : first + size] for first in range(0, len(chunks), size))


if __name__ == "__main__":
    sys.exit(main())
