"""Cancellation at every single await of every function: nothing half done, nothing locked, nothing leaked.

The probe counts each time a task of the call is suspended, whatever it waits for, and cancels at the n-th:
for n = 1, 2, 3 … until the call ends untouched. So no await is missed, now or after a change of the code.
"""

import asyncio
import sqlite3
import threading
import types
from contextlib import closing

import aiosqlite
import anyio
import contract_tools as tools
import pytest

from asyncqueue.worker import claim, enqueue, finish, open_queue, redrive, run_file, run_once
from tests.waiting import until

MODES = ["caller", "caller twice", "caller for ever", "the transaction's own task", "every task", "anyio scope"]


class Probe:
    """Runs one call and cancels as `mode` says when its tasks are suspended for the n-th time together."""

    def __init__(self, mode, nth):
        self.mode, self.nth = mode, nth
        self.count = 0
        self.tasks = []
        self.scope = anyio.CancelScope()

    @property
    def fired(self):
        return self.count >= self.nth

    async def run(self, function, *arguments):
        """Return the result, or the CancelledError or other error that the call ended with."""

        async def call():
            if self.mode != "anyio scope":
                return await function(*arguments)
            with self.scope:
                return await function(*arguments)
            return asyncio.CancelledError()

        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        try:
            task = loop.create_task(call())
            await asyncio.wait((task,))
        finally:
            loop.set_task_factory(None)
        assert all(each.done() for each in self.tasks), "something runs on after the call has ended"
        return asyncio.CancelledError() if task.cancelled() else task.exception() or task.result()

    def _make_task(self, loop, coroutine, **options):
        async def counted():
            return await self._counting(coroutine)

        task = asyncio.Task(counted(), loop=loop, **options)
        task.add_done_callback(lambda _task: coroutine.close())  # if it was cancelled before its first step
        self.tasks.append(task)
        return task

    @types.coroutine
    def _counting(self, coroutine):
        step, argument = coroutine.send, None
        while True:
            try:
                waited_for = step(argument)
            except StopIteration as stop:
                return stop.value
            self.count += 1
            self._strike()
            step, argument = coroutine.send, None
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                step, argument = coroutine.throw, error

    def _strike(self):
        late = self.count - self.nth
        if (self.mode == "caller for ever" and late >= 0) or (self.mode == "caller twice" and late in {0, 1}):
            self.tasks[0].cancel()
        elif late != 0:
            return
        elif self.mode == "caller":
            self.tasks[0].cancel()
        elif self.mode == "the transaction's own task":
            asyncio.current_task().cancel()
        elif self.mode == "every task":  # as a loop does that shuts down
            for task in self.tasks:
                task.cancel()
        elif self.mode == "anyio scope":
            self.scope.cancel()


def arrange(path, **columns):
    for table in ("jobs", "redrives", "sqlite_sequence"):
        tools.run(path, f"DELETE FROM {table}")
    if columns:
        tools.put(path, **columns)


LEASED = {"status": "leased", "attempts": 1, "token": 1, "owner": "one", "lease_until": 1_000}
TICKET = {"id": "a", "qty": 3, "owner": "one", "token": 1, "attempt": 1, "lease_until": 1_000}


async def slow_send(_event):
    for _ in range(3):
        await asyncio.sleep(0)
    return True


CALLS = {
    "enqueue": ({}, lambda con: (enqueue, con, {"id": "a", "qty": 3}, 0, 1_000)),
    "enqueue again": ({"status": "pending"}, lambda con: (enqueue, con, {"id": "a", "qty": 3}, 0, 1_000)),
    "claim": ({"status": "pending"}, lambda con: (claim, con, "one", 0)),
    "claim of nothing with a sweep": ({"deadline": 0}, lambda con: (claim, con, "one", 0)),
    "finish": (LEASED, lambda con: (finish, con, TICKET, "ok", 0)),
    "finish of a stale ticket": (LEASED, lambda con: (finish, con, {**TICKET, "token": 2}, "ok", 0)),
    "redrive": ({"status": "dead"}, lambda con: (redrive, con, "a", 0, 1_000, "n")),
}


def check_usable(con, path):
    """Fail unless nobody is locked out and the borrowed connection is outside any transaction."""
    tools.assert_writable_at_once(path)
    assert not con.in_transaction


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_at_any_await_is_whole_or_not_at_all(name, mode, con, path):
    start, arguments_for = CALLS[name]
    arrange(path, **start)
    before = tools.snapshot(path)
    await (arguments := arguments_for(con))[0](*arguments[1:])
    after = tools.snapshot(path)
    seen = []
    for nth in range(1, 200):
        arrange(path, **start)
        probe = Probe(mode, nth)
        result = await probe.run(*arguments_for(con))
        check_usable(con, path)
        seen.append(tools.snapshot(path))
        assert seen[-1] in (before, after), f"half done at await {nth}"
        assert await enqueue(con, {"id": "next", "qty": 1}, 0, 1) is True
        if not probe.fired:
            break
        assert isinstance(result, asyncio.CancelledError) or mode == "anyio scope"
    assert nth > 4
    assert not isinstance(result, BaseException)
    assert seen[-1] == after
    if mode in {"the transaction's own task", "every task"}:
        assert before in seen  # the transaction's own task rolled back


@pytest.mark.parametrize("mode", MODES)
async def test_a_hook_error_during_a_cancellation_still_rolls_back(mode, con, path):
    def fault(point):
        assert point == "after-audit"
        raise RuntimeError(point)

    for nth in range(1, 200):
        arrange(path, status="dead")
        before = tools.snapshot(path)
        probe = Probe(mode, nth)
        result = await probe.run(redrive, con, "a", 0, 1_000, "n", fault)
        check_usable(con, path)
        assert tools.snapshot(path) == before
        if not probe.fired:
            break
    assert isinstance(result, RuntimeError)


@pytest.mark.parametrize("mode", MODES)
async def test_a_busy_commit_during_a_cancellation_still_rolls_back(mode, con, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        for nth in range(1, 200):
            arrange(path, status="pending")
            before = tools.snapshot(path)
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM jobs").fetchall()
            probe = Probe(mode, nth)
            result = await probe.run(claim, con, "one", 0)
            assert not con.in_transaction
            reader.execute("ROLLBACK")
            check_usable(con, path)
            assert tools.snapshot(path) == before
            if not probe.fired:
                break
    assert isinstance(result, sqlite3.OperationalError)


@pytest.mark.parametrize("mode", MODES)
async def test_a_run_cancelled_at_any_await_leaves_the_job_pending_leased_or_done(mode, con, path):
    seen = []
    for nth in range(1, 200):
        arrange(path, status="pending")
        probe = Probe(mode, nth)
        result = await probe.run(run_once, con, "one", lambda: 100, slow_send, 0.5)
        check_usable(con, path)
        row = tools.job(path)
        seen.append((row["status"], row["token"], row["owner"], row["lease_until"]))
        if not probe.fired:
            break
    whole = {("pending", 0, None, None), ("leased", 1, "one", 1_100), ("done", 1, None, None)}
    assert set(seen) <= whole
    assert ("leased", 1, "one", 1_100) in seen
    assert result == {"id": "a", "token": 1, "status": "done"}


@pytest.mark.parametrize("mode", MODES)
async def test_an_opening_cancelled_at_any_await_leaves_no_thread_no_descriptor_and_no_half_schema(mode, tmp_path):
    for nth in range(1, 200):
        path = tmp_path / f"{nth}.db"
        before = tools.database_threads()
        probe = Probe(mode, nth)
        result = await probe.run(open_queue, path)
        if isinstance(result, aiosqlite.Connection):  # untouched, or handed over inside a cancelled scope
            await result.close()
        else:
            assert isinstance(result, asyncio.CancelledError)
        tools.assert_nothing_left(path, before)
        tables = tools.look(path, "SELECT count(*) FROM sqlite_schema WHERE name IN ('jobs','redrives')")
        assert tables in ([(0,)], [(2,)])
        tools.assert_writable_at_once(path)
        await (await open_queue(path)).close()
        if not probe.fired:
            break
    assert nth > 8


@pytest.mark.parametrize("mode", MODES)
async def test_a_file_run_cancelled_at_any_await_closes_everything(mode, path):
    for nth in range(1, 200):
        arrange(path, status="pending")
        before = tools.database_threads()
        probe = Probe(mode, nth)
        result = await probe.run(run_file, path, "one", lambda: 100, slow_send, 0.5)
        assert set(tools.database_threads()) <= set(before), "it ended before the thread of its connection"
        tools.assert_nothing_left(path, before)
        tools.assert_writable_at_once(path)
        assert tools.job(path)["status"] in {"pending", "leased", "done"}
        if not probe.fired:
            break
        # a close whose own task is cancelled ends all the same, and so does the run that waits for it
        assert isinstance(result, asyncio.CancelledError) or mode in {"anyio scope", "the transaction's own task"}
    assert result == {"id": "a", "token": 1, "status": "done"}


async def test_an_opening_that_a_loop_cuts_off_holds_nobody_up_while_sqlite_opens_the_file(tmp_path, monkeypatch):
    is_opening, may_go_on, went_on = threading.Event(), threading.Event(), []
    plain = sqlite3.connect

    def connect(*arguments, **settings):
        is_opening.set()
        went_on.append(may_go_on.wait(10))
        return plain(*arguments, **settings)

    monkeypatch.setattr(sqlite3, "connect", connect)
    opening = asyncio.ensure_future(open_queue(tmp_path / "q.db"))
    await until(is_opening.is_set)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as a loop does that shuts down
        task.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert went_on == [True]


async def test_after_many_cancelled_openings_threads_and_descriptors_are_back_to_the_start(path):
    tools.put(path, available_at=10**6)
    before = tools.database_threads()
    for round_ in range(300):
        mode = MODES[round_ % 5]
        call = (open_queue, path) if round_ % 2 else (run_file, path, "one", lambda: 100, slow_send, 0.5)
        result = await Probe(mode, 1 + round_ // 5 % 5).run(*call)
        assert isinstance(result, asyncio.CancelledError)
    tools.assert_nothing_left(path, before)


async def test_a_caller_that_waits_for_its_turn_is_withdrawn_when_cancelled(con, path):
    first = asyncio.ensure_future(enqueue(con, {"id": "a", "qty": 1}, 0, 1))
    second = asyncio.ensure_future(enqueue(con, {"id": "b", "qty": 1}, 0, 1))
    third = asyncio.ensure_future(enqueue(con, {"id": "c", "qty": 1}, 0, 1))
    await asyncio.sleep(0)
    second.cancel()
    assert await asyncio.gather(first, second, third, return_exceptions=True) == [True, second_error(second), True]
    assert [row["id"] for row in tools.jobs(path)] == ["a", "c"]


def second_error(task):
    assert task.cancelled()
    return AnyCancelledError()


class AnyCancelledError:
    def __eq__(self, other):
        return isinstance(other, asyncio.CancelledError)

    __hash__ = None


@pytest.mark.parametrize("steps", range(12))
def test_a_loop_that_shuts_down_in_the_middle_rolls_back_or_commits(steps, tmp_path):
    path = tmp_path / "q.db"
    with closing(sqlite3.connect(path)) as plain:
        plain.executescript(tools.SCHEMA)
    tools.put(path)
    before = tools.database_threads()

    async def service():
        con = await open_queue(path)
        try:
            await claim(con, "one", 0)
            await asyncio.Event().wait()
        finally:
            await con.close()

    async def main():
        task = asyncio.create_task(service())
        for _ in range(steps):
            await asyncio.sleep(0)
        return task  # left running: asyncio.run cancels every task there is, the transaction's own too

    assert asyncio.run(main()).cancelled()
    tools.assert_nothing_left(path, before)
    tools.assert_writable_at_once(path)
    assert (tools.job(path)["status"], tools.job(path)["token"]) in {("pending", 0), ("leased", 1)}
