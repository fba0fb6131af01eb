"""`asyncqueue migrate-store` as a real process: SIGKILL at every step, dispatchers stopped, moved and started."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from move_tools import dump, fill

from asyncqueue.queue import Queue
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("move_child.py")
MOVED = 4  # a dispatcher's exit code
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments, script=("-m", "asyncqueue")):
    command = [sys.executable, *map(str, script), *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=50, check=False
    )


def dispatcher(url, log):
    command = [sys.executable, str(CHILD), "dispatch", url, str(log)]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT)


def deliveries(log):
    return log.read_text().split("\n")[:-1] if log.exists() else []


async def put(url, jobs):
    async with Queue.open(url) as queue:
        for number in range(jobs):
            await queue.enqueue(f"m{number}", number + 1)


@pytest.mark.parametrize("pair", [("sqlite", "postgres"), ("postgres", "sqlite")], indirect=True, ids="-to-".join)
async def test_a_mover_that_is_killed_again_and_again_ends_with_the_same_queue(pair):
    source, target = pair
    await fill(source)
    before = dump(source)
    kills = 0
    for steps in (1, 2, 3, 4, 5, 2, 3, 6, 1):
        done = run(steps, "migrate-store", source, target, script=[CHILD])
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    while (done := run(12, "migrate-store", source, target, "--json", script=[CHILD])).returncode:
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    assert kills >= 9
    assert json.loads(done.stdout)["rows"] == {table: len(rows) for table, rows in before.items()}
    assert dump(target) == before
    async with Queue.open(target) as queue:
        assert await queue.enqueue("new", 1)
    assert run("enqueue", source, "new", 1).returncode == 2


@pytest.mark.parametrize("pair", [("sqlite", "postgres"), ("postgres", "sqlite")], indirect=True, ids="-to-".join)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_dispatchers_are_stopped_moved_and_started_without_a_lost_job_or_a_token_twice(pair, end, tmp_path):
    source, target = pair
    jobs, log = 300, tmp_path / "deliveries"
    await put(source, jobs)
    running = [dispatcher(source, log) for _ in range(2)]
    try:
        await until(lambda: len(deliveries(log)) >= jobs // 3, 40)
        for process in running:
            process.send_signal(end)
        for process in running:
            process.wait(30)
        flags = ["--with-leases"] if end == signal.SIGKILL else []
        done = run("migrate-store", source, target, *flags)
        assert done.returncode == 0, done.stderr
        assert len(deliveries(log)) < jobs  # there was something left to move
        old = dispatcher(source, log)  # somebody forgot one: it must not deliver anything, and says so by its end
        running = [old, *(dispatcher(target, log) for _ in range(2))]
        async with Queue.open(target) as queue:

            async def all_done():
                assert all(process.poll() is None for process in running if process is not old)
                return (await queue.stats()).done == jobs

            await until(all_done, 40)
        assert old.wait(30) == MOVED
    finally:
        for process in running:
            process.kill()
            process.wait()
    seen = Counter(deliveries(log))
    assert {line.split()[0] for line in seen} == {f"m{number}" for number in range(jobs)}
    assert max(seen.values()) == 1  # no job was ever sent twice under one token
    if end == signal.SIGTERM:
        assert sum(seen.values()) == jobs


async def test_the_command_refuses_what_cannot_be_moved_in_one_line(pair, tmp_path):
    source, target = pair
    for arguments, words in (
        ([tmp_path / "missing.db", target], "no such file"),
        (["mysql://me:secret@h/x", target], "not a queue"),
        (["mysql://me:a/secret@h/x?key=secret", target], "'mysql://h/x'"),
        ([source], "Missing argument"),
    ):
        done = run("migrate-store", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert "secret" not in done.stderr
        assert done.stderr.count("\n") == 1
    await put(source, 3)
    async with Queue.open(source) as queue:
        await queue.claim("w", lease_ms=60_000)
    done = run("migrate-store", source, target)
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 jobs are leased" in done.stderr
    for place in (target, f"{target}-missing"):
        done = run("migrate-store", source, place, "--abandon")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no move of it is under way" in done.stderr
    done = run("migrate-store", source, target, "--with-leases", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == {"queues": 0, "jobs": 3, "redrives": 0, "attempts": 0}
    again = run("migrate-store", source, target)
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, "was moved before")


@pytest.mark.parametrize("pair", [("sqlite", "postgres")], indirect=True, ids="-to-".join)
async def test_a_move_is_given_up_although_the_target_is_away(pair):
    source, target = pair
    await fill(source, 50)
    before = dump(source)
    assert run(4, "migrate-store", source, target, script=[CHILD]).returncode == -signal.SIGKILL
    assert run("enqueue", source, "new", 1).returncode == 2
    done = run("migrate-store", source, "postgresql://me:secret@127.0.0.1:1/x", "--abandon")
    assert (done.returncode, done.stdout) == (0, f"given up: {source} can be used again\n")
    assert "was left as it is" in done.stderr
    assert "secret" not in done.stderr
    assert dump(source) == before
    assert run("enqueue", source, "new", 1).returncode == 0
