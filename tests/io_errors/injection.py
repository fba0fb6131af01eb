"""Let a role take each of its steps while the n-th call fails, n = 0, 1, 2, … until a step passes untouched.

`python -m tests.io_errors.injection` does so with every role, every fault, once and lasting.
"""

import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import apsw

from tests.io_errors.faults import Fault, Faulty
from tests.power.images import Content, content_of
from tests.roles import CONTRACT, NOW_MS, QUEUE, RECEIVER, Role
from tests.vfs.driver import driven_by
from tests.vfs.shim import shim

__all__ = ["Found", "inject"]

NAME = "base.db"
POSITIONS_MAX = 1_000


@dataclass
class Found:
    """How many positions were tried, how many of them failed the step, and what was wrong after it."""

    positions: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Course:
    """What a role's steps answer and leave behind without faults."""

    answers: list[object]
    contents: list[Content | str]


def inject(role: Role, fault: Fault, *, lasting: bool) -> Found:
    """Try every position of `fault` in every step of `role`.

    A step either succeeds with the answer that it always has, or fails with an error of the role and has changed
    nothing. Then nobody holds a lock, and the same step, taken again at once, succeeds.
    """
    with tempfile.TemporaryDirectory() as name, mock.patch("time.time_ns", return_value=NOW_MS * 1_000_000):
        return asyncio.run(_Injection(role, Faulty(fault, lasting), Path(name)).run())


class _Injection:
    def __init__(self, role: Role, faulty: Faulty, folder: Path) -> None:
        self._role = role
        self._faulty = faulty
        self._folder = folder
        self._work = folder / "work"
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        self.found = Found()

    async def run(self) -> Found:
        with shim(self._faulty) as vfs, driven_by(vfs, on_statement=self._faulty.statement):
            course = await self._without_faults()
            for step in range(len(self._role.steps)):
                for number in range(POSITIONS_MAX):
                    if not await self._one(course, step, number):
                        break
        return self.found

    async def _without_faults(self) -> _Course:
        self._work.mkdir()
        answers, contents = [], [self._content()]
        for number, (_name, step) in enumerate(self._role.steps):
            shutil.copytree(self._work, self._before(number))
            async with self._role.open(self._work / NAME, number) as opened:
                answers.append(await step(opened))
            contents.append(self._content())
        return _Course(answers, contents)

    def _before(self, step: int) -> Path:
        return self._folder / f"before-{step}"

    async def _one(self, course: _Course, step: int, number: int) -> bool:
        """Take one step with one fault; tell whether the fault came."""
        shutil.rmtree(self._work)
        shutil.copytree(self._before(step), self._work)
        name, take = self._role.steps[step]
        where = f"{name}, position {number}"
        if name == "open":
            self._faulty.arm(number)
        try:
            async with asyncio.timeout(20), self._role.open(self._work / NAME, step) as opened:
                if name != "open":
                    self._faulty.arm(number)
                try:
                    answer = await take(opened)
                except self._role.errors as error:
                    self._failed(f"{where}: {error}", course, step)
                    answer = await take(opened)
                hit = self._faulty.repair()
                if answer != course.answers[step]:
                    self.found.wrong.append(f"{where}: it answered {answer}")
        except self._role.errors as error:
            if not (hit := self._faulty.repair()) or name != "open":
                raise
            self._failed(f"{where}: {error}", course, step)
            async with self._role.open(self._work / NAME, step) as opened:
                await take(opened)
        self.found.positions += hit
        if not _agree(self._content(), course.contents[step + 1], is_fault_survived=hit):
            self.found.wrong.append(f"{where}: it left something else behind")
        return hit

    def _failed(self, what: str, course: _Course, step: int) -> None:
        self._faulty.repair()
        self.found.failed += 1
        try:
            _write_lock(self._work / NAME)
        except apsw.Error as error:
            self.found.wrong.append(f"{what}; and then a lock is held: {error}")
        # What was opened may be migrated although the opening failed: the next one finds nothing left to do.
        unchanged = course.contents[step : step + 2] if step == 0 else course.contents[step : step + 1]
        if self._content() not in unchanged:
            self.found.wrong.append(f"{what}; and yet something was changed")

    def _content(self) -> Content | str:
        """Return what another process would find, were this one killed now."""
        files = [file for file in self._work.iterdir() if file.name in (NAME, f"{NAME}-journal")]
        image = {file.name: file.read_bytes() for file in files}
        return content_of(image or {NAME: b""}, self._scratch, NAME)


def _agree(found: Content | str, expected: Content | str, *, is_fault_survived: bool) -> bool:
    """Compare; a change that survives a fault may lack its history rows, which never cost the change itself."""
    if found == expected or not is_fault_survived or isinstance(found, str) or isinstance(expected, str):
        return found == expected
    history = ("attempts", "sqlite_sequence")
    return all(found[table] == rows for table, rows in expected.items() if table not in history)


def _write_lock(path: Path) -> None:
    """Raise unless every lock can be had. It asks the SQLite that has them: a process does not lock itself out."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def main() -> None:
    """Inject every fault, once and lasting, into every role."""
    faults = 0
    for name, role in {"queue": QUEUE, "receiver": RECEIVER, "contract": CONTRACT}.items():
        for fault in Fault:
            for lasting in (False, True):
                if lasting and (fault is Fault.CORRUPT or (role is CONTRACT and fault is Fault.BUSY)):
                    continue  # garbage for ever is another file; the contract's busy wait is a second a position
                began = time.monotonic()
                found = inject(role, fault, lasting=lasting)
                print(
                    f"{name}, {fault}{', lasting' if lasting else ''}: {found.positions:,} positions,"
                    f" {found.failed:,} failed steps, {len(found.wrong)} wrong, {time.monotonic() - began:.0f} s",
                    *found.wrong[:5],
                    sep="\n  ",
                    flush=True,
                )
                faults += len(found.wrong)
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
