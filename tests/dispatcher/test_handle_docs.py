"""The code of docs/handlers.md runs as it stands there, and what the page names exists."""

import contextlib
import re
import sqlite3
from pathlib import Path

import asyncqueue

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_program_of_the_page_runs_and_leaves_the_foreign_kind_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(BLOCKS[0], scope)
    await scope["main"]()
    printed = capsys.readouterr().out
    assert "mail to ada" in printed
    assert "pending=1, leased=0, done=4, dead=0" in printed


async def test_the_effect_of_the_page_enqueues_what_comes_next_in_its_own_transaction(tmp_path):
    scope: dict = {}
    exec(BLOCKS[1], scope)
    async with asyncqueue.Queue.open(tmp_path / "jobs.db") as queue:
        await queue.enqueue("a", 3, kind="order")
        quick = asyncqueue.RetryPolicy(base_ms=1, cap_ms=1)
        async with asyncqueue.Dispatcher(queue, {"order": scope["order"]}, policy=quick) as dispatcher:
            await dispatcher.drain()
            assert (await queue.get("mail-a"), dispatcher.counts.retried > 0) == (None, True)  # no table: undone
            with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
                connection.execute("CREATE TABLE orders (id TEXT, qty INTEGER)")
            await queue.redrive("a", note="table-made")
            await dispatcher.drain()
        assert ((await queue.get("a")).status, (await queue.get("mail-a")).status) == ("done", "pending")


def test_what_the_page_says_of_a_job_exists():
    names = set(re.findall(r"`(?:await )?job\.(\w+)", PAGE))
    assert {"remaining_ms", "lost", "renew"} <= names
    assert all(hasattr(asyncqueue.Context, name) for name in names)


def test_the_names_of_the_page_are_public_and_imported_only_when_used():
    for name in ("Context", "Effect", "Retention", "in_thread"):
        assert name in asyncqueue.__all__
        assert getattr(asyncqueue, name).__name__ == name
