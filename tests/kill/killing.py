"""Kill the process of a role, and see that what is left is whole and can be gone on with.

`python -m tests.kill.killing` kills at random times instead of between statements.
"""

import argparse
import asyncio
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from asyncqueue.clock import ManualClock
from asyncqueue.queue import Queue
from asyncqueue.wire import Message
from receiver.inbox import Inbox
from receiver.stores import open_inbox
from receiver.stores.base import Result
from tests.power.images import Content, read
from tests.power.judge import memory_folder
from tests.roles import NOW_MS, ROLES, Role

__all__ = ["Killed", "kill_at_every_boundary", "kill_at_random"]

NAME = "base.db"
BOUNDARIES_MAX = 200
ROUNDS_MAX = 5
_REDRIVEN = ("job2", "job3")
LATER_MS = NOW_MS + 3_600_000


@dataclass
class Killed:
    """How many processes died, and what was wrong with what they left."""

    kills: int = 0
    wrong: list[str] = field(default_factory=list)


class Killer:
    """One role, the states between its steps, and the process that forks those that are to die."""

    def __init__(self, role: str, folder: Path, zygote: "subprocess.Popen[str]") -> None:
        self._name = role
        self._role: Role = ROLES[role]
        self._folder = folder
        self._zygote = zygote
        self._work = folder / "work"
        self.found = Killed()
        self._gone_on_from: set[str] = set()
        self._contents = self._without_kills()

    @property
    def steps(self) -> int:
        """Return how many steps there are."""
        return len(self._role.steps)

    def _without_kills(self) -> list[Content]:
        """Run the steps to their end; keep the folder before and the content after each."""
        self._work.mkdir()
        contents: list[Content] = [{"user_version": [(0,)]}]
        for step in range(self.steps):
            shutil.copytree(self._work, self._folder / f"before-{step}")
            answer = self._ask(first=step, last=step + 1)
            assert answer == {"killed": False, "failed": False, "acknowledged": 1}, answer
            contents.append(read(self._work / NAME))
        return contents

    def _ask(self, **what: Any) -> dict[str, Any]:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        asked = {"role": self._name, "path": str(self._work / NAME), **what}
        self._zygote.stdin.write(json.dumps(asked) + "\n")
        self._zygote.stdin.flush()
        answer: dict[str, Any] = json.loads(self._zygote.stdout.readline())
        return answer

    def kill(self, first: int, last: int, **when: Any) -> bool:
        """Let a process take the steps and die; tell whether it died before its end."""
        shutil.rmtree(self._work)
        shutil.copytree(self._folder / f"before-{first}", self._work)
        answer = self._ask(first=first, last=last, **when)
        where = f"{self._role.steps[last - 1][0]}, {when}"
        if answer["failed"]:
            self.found.wrong.append(f"{where}: the process failed")
        self.found.kills += answer["killed"]
        self._check(where, first + answer["acknowledged"])
        return bool(answer["killed"])

    def _check(self, where: str, done: int) -> None:
        """Compare the file with what had been answered, then go on with it until nothing is left to do."""
        allowed = self._contents[done : done + 2]
        if done == 0 and not (self._work / NAME).exists():
            return
        content = read(self._work / NAME)
        if content not in allowed and not (done == 0 and content.keys() <= {"user_version"}):
            self.found.wrong.append(f"{where}: after {done} answers it is neither before nor after the next step")
        # A job that was claimed and has no attempt has a fresh budget: only a redrive gives that to these two.
        redriven = [
            job[1] for job in content.get("jobs", ()) if job[1] in _REDRIVEN and job[4] == 0 < int(str(job[6]))
        ]
        if redriven != [row[1] for row in content.get("redrives", ())]:
            self.found.wrong.append(f"{where}: I6: redriven {redriven}, audited {content['redrives']}")
        state = json.dumps(content, default=str)
        if state in self._gone_on_from:
            return
        self._gone_on_from.add(state)
        for fault in asyncio.run(_GO_ON[self._name](self._work / NAME)):
            self.found.wrong.append(f"{where}: {fault}")


async def _queue_goes_on(path: Path) -> list[str]:
    """Deliver all that is left and return which of I4 and I7 do not hold."""
    async with Queue.open(path, clock=ManualClock(LATER_MS)) as queue:
        for name, is_paused in (await queue.queues()).items():
            if is_paused:
                await queue.resume(name)
        for _round in range(ROUNDS_MAX):
            for job in await queue.claim("heir", limit=100):
                await queue.finish(job, "ok")
        stats = await queue.stats()
        jobs = await queue.list(limit=1_000)
    faults = [] if stats.pending == stats.leased == 0 else [f"I7: {stats} is not done or dead"]
    if stats.total != len(jobs) or stats.done != sum(job.status == "done" for job in jobs):
        faults.append(f"I4: {stats} for {len(jobs)} jobs")
    return faults


async def _contract_goes_on(path: Path) -> list[str]:
    """Let the product take the contract's file over and do the rest."""
    async with Queue.open(path, clock=ManualClock(NOW_MS + 30_000)) as queue:
        for _round in range(ROUNDS_MAX):
            for job in await queue.claim("heir", limit=100):
                await queue.finish(job, "ok")
        stats = await queue.stats()
    return [] if stats.pending == stats.leased == 0 else [f"I7: {stats} is not done or dead"]


async def _receiver_goes_on(path: Path) -> list[str]:
    """Send everything again and return whether I2 does not hold."""
    inbox = Inbox(await open_inbox(path, effect=None, journal="delete", force_wal=False, patience_ms=5_000))
    sent = [Message("one", 1, None), Message("two", 2, '"' + "x" * 9_000 + '"')]
    try:
        for message in [*sent, *sent]:
            if await inbox.receive(message, 1, 1) is Result.CONFLICT:
                return [f"I2: {message.id} is kept with another quantity"]
        totals = await inbox.totals()
    finally:
        await inbox.close()
    with closing(sqlite3.connect(path)) as connection:
        ledger = connection.execute("SELECT id, qty FROM ledger ORDER BY id").fetchall()
    if ledger != [("one", 1), ("two", 2)] or (totals.messages, totals.quantity) != (2, 3):
        return [f"I2: {ledger}, {totals}"]
    return []


_GO_ON = {"queue": _queue_goes_on, "receiver": _receiver_goes_on, "contract": _contract_goes_on}


@contextmanager
def _killer(role: str) -> Iterator[Killer]:
    with (
        memory_folder() as folder,  # what was written survives the process there, too
        subprocess.Popen(
            [sys.executable, "-m", "tests.kill.zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as zygote,
        mock.patch("time.time_ns", return_value=NOW_MS * 1_000_000),
    ):
        try:
            yield Killer(role, folder, zygote)
        finally:
            zygote.terminate()


def kill_at_every_boundary(role: str) -> Killed:
    """Kill the process of `role` before the first, after the first, second, … statement of each of its steps."""
    with _killer(role) as killer:
        for step in range(killer.steps):
            for boundary in range(BOUNDARIES_MAX):
                if not killer.kill(step, step + 1, boundary=boundary):
                    break
        return killer.found


def kill_at_random(role: str, times: int, rng: random.Random) -> Killed:
    """Kill the process of `role` at any time while it takes all its steps."""
    with _killer(role) as killer:
        began = time.monotonic()
        killer.kill(0, killer.steps)
        longest_s = time.monotonic() - began
        for _ in range(times):
            killer.kill(0, killer.steps, delay_s=rng.uniform(0, longest_s))
        return killer.found


def main() -> None:
    """Kill each role KILLS times at random."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=3_400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong = 0
    for role in ROLES:
        found = kill_at_random(role, options.kills, random.Random(options.seed))
        print(
            f"{role}: {found.kills:,} killed, {len(found.wrong)} wrong", *found.wrong[:5], sep="\n  ", flush=True
        )
        wrong += len(found.wrong)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
