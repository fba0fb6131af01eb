"""The simulation holds for many seeds, replays exactly, and finds the bugs that are planted."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plants import PLANTS
from tests.simulation.runner import HAPPENINGS
from tests.simulation.world import World

ROOT = Path(__file__).parents[2]
SEEDS = 500
SEEDS_FOR_A_PLANT = 300

pytestmark = pytest.mark.timeout(200)


def simulate(*words, hash_seed="random"):
    """Run the command in a process of its own: it replaces the machine under the code."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_invariants_hold_for_many_seeds_and_every_fault_has_happened():
    ended = simulate("--seeds", SEEDS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{SEEDS} seeds from 0: all invariants hold" in ended.stdout
    counts = {name: int(re.search(rf"(\d+) {name}", ended.stdout)[1]) for name in HAPPENINGS}
    assert {name: count for name, count in counts.items() if not count} == {}


@pytest.mark.parametrize("seed", [3, 149, 5_000])
def test_a_seed_replays_byte_for_byte(seed):
    first = simulate("--seed", seed, "--history", hash_seed=1)
    again = simulate("--seed", seed, "--history", hash_seed=2)
    assert first.returncode == 0, first.stdout + first.stderr
    assert " POST " in first.stdout
    assert re.search(rf"seed {seed}: trace [0-9a-f]{{32}}: all invariants hold", first.stdout)
    assert first.stdout == again.stdout


def test_another_seed_is_another_run():
    traces = {re.search("trace ([0-9a-f]+)", simulate("--seed", seed).stdout)[1] for seed in (3, 4)}
    assert len(traces) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name):
    first = PLANTS[name].first
    ended = simulate("--first", first, "--seeds", SEEDS_FOR_A_PLANT, "--workers", 1, "--plant", name)
    assert ended.returncode == 1, f"{PLANTS[name].what}: not found\n{ended.stdout[-2_000:]}{ended.stderr[-2_000:]}"
    assert re.search(rf"VIOLATED .*{PLANTS[name].found}", ended.stdout), ended.stdout[-2_000:]


def test_a_failing_seed_prints_its_history_and_the_command_that_replays_it():
    ended = simulate("--seeds", 50, "--workers", 1, "--plant", "wrong-total")
    assert ended.returncode == 1
    history, command = ended.stdout.split("replay: python -m tests.simulation ")
    replayed = simulate(*command.split())
    assert replayed.returncode == 1
    assert replayed.stdout == history
    assert "VIOLATION I2: the totals do not add up" in history


def test_a_killed_process_runs_no_cleanup_and_others_go_on():
    world, told = World(0, "/nowhere"), []

    async def victim():
        try:
            await asyncio.sleep(10)
        finally:
            told.append("cleanup")

    async def other():
        await asyncio.sleep(5)
        told.append("other")

    killed = world.spawn("victim", victim)
    world.spawn("other", other)
    world.at(1, world.kill, killed)
    assert not world.run(lambda: False, 20)
    assert told == ["other"]
    world.release()


def test_callbacks_keep_their_order_and_time_jumps():
    world, told = World(0, "/nowhere"), []

    async def main():
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_soon(told.append, number)
        loop.call_later(3600, told.append, "late")
        await asyncio.sleep(7200)
        told.append(round(loop.time()))

    world.spawn("one", main)
    assert world.run(lambda: not world.processes, 10_000)
    assert told == [0, 1, 2, 3, 4, "late", 7200]
