"""The plugin as our users' pytest loads it, and the example project whose tests use it."""

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """Run a child Python in an empty folder that finds this checkout."""

    def start(*arguments, folder=tmp_path):
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    return start


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")


def plugin():
    """Name the plugin for a child pytest, unless the installed project does so by its entry point already."""
    named = {entry.value for entry in importlib.metadata.entry_points(group="pytest11")}
    return () if "asyncqueue.testing" in named else ("-p", "asyncqueue.testing")


def test_project_names_the_plugin_as_an_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"asyncqueue": "asyncqueue.testing"}


def test_import_at_the_start_of_pytest_is_cheap(run):
    heavy = (
        "aiohttp",
        "aiosqlite",
        "asyncqueue.queue",
        "asyncqueue.dispatcher",
        "asyncqueue.stores",
        "click",
        "rich",
    )
    code = f"""
import sys, pytest
import asyncqueue.testing
print([name for name in {heavy!r} if name in sys.modules])
from asyncqueue.testing import drain
print("aiohttp" in sys.modules, "asyncqueue.queue" in sys.modules)
"""
    ended = run("-c", code)
    assert ended.stdout.split("\n")[:2] == ["[]", "False True"], ended.stderr


def test_every_fixture_of_the_plugin_is_prefixed_and_described(run):
    ended = run(*PYTEST, *plugin(), "--fixtures")
    ours = ended.stdout.partition("asyncqueue.testing")[2].partition("---- ")[0]
    assert {"asyncqueue_clock", "asyncqueue_queue", "asyncqueue_receiver"} <= set(ours.split()), ended.stdout[
        -2000:
    ]
    assert "no docstring" not in ours


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_fixtures_work_in_both_modes_of_pytest_asyncio(run, tmp_path, mode):
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    (tmp_path / "test_it.py").write_text(
        """
import pytest
from asyncqueue.testing import assert_enqueued, drain

@pytest.mark.asyncio
async def test_fresh_queue(asyncqueue_queue, asyncqueue_clock):
    assert (await asyncqueue_queue.stats()).total == 0
    await asyncqueue_queue.enqueue("a", 1, delay_ms=5)
    asyncqueue_clock.advance(5)
    assert (await drain(asyncqueue_queue, lambda job: True)).done == 1

@pytest.mark.asyncio
async def test_another_fresh_queue(asyncqueue_queue):
    assert (await asyncqueue_queue.stats()).total == 0
    await assert_enqueued(asyncqueue_queue, id="a")
"""
    )
    ended = run(*PYTEST, *plugin())
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "the queue is empty" in ended.stdout
    assert "enqueued.py" not in ended.stdout, "the helper's own frames hide the user's line"


def test_tests_of_the_example_project_pass(run):
    folder = ROOT / "examples" / "testing_example"
    ended = run(*PYTEST, *plugin(), "-c", str(folder / "pyproject.toml"), str(folder), folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed" in ended.stdout


def test_page_on_testing_shows_code_of_the_example_that_runs():
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    shown = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    sources = [_flat(path.read_text("utf-8")) for path in (ROOT / "examples" / "testing_example").glob("*.py")]
    assert len(shown) >= 4
    for block in shown:
        assert any(_flat(block) in source for source in sources), block


def _flat(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())
