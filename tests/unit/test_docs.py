"""Documents that are generated, or that contain code, cannot rot."""

import re
import runpy
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import receiver

ROOT = Path(__file__).parents[2]


def test_the_lifecycle_page_is_what_the_table_says():
    render = runpy.run_path(str(ROOT / "docs" / "make_lifecycle.py"))["render"]
    assert (ROOT / "docs" / "lifecycle.md").read_text("utf-8") == render(), "run `make docs`"


def test_the_queue_page_is_what_the_docstrings_say_and_leaves_out_no_verb_and_no_error():
    render = runpy.run_path(str(ROOT / "docs" / "make_queue.py"))["render"]
    assert (ROOT / "docs" / "queue.md").read_text("utf-8") == render(), "run `make docs`"


async def test_the_example_of_the_queue_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "queue.md").read_text("utf-8"), re.DOTALL)[0], scope)
    await scope["main"]()
    assert capsys.readouterr().out.splitlines() == [
        "attempt 1 of 20",
        "attempts 1 token 2",
        "dead cancelled ['cancelled']",
    ]


def test_the_reliability_page_is_what_the_tests_name():
    render = runpy.run_path(str(ROOT / "docs" / "make_reliability.py"))["render"]
    assert (ROOT / "docs" / "reliability.md").read_text("utf-8") == render(), "run `make docs`"


def _readme_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


async def test_the_embedding_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(_readme_blocks()[0], scope)
    async with TestServer(receiver.create_app(tmp_path / "inbox.db")) as server:
        await scope["main"](str(server.make_url("/inbox")))
    assert "Status.DONE" in capsys.readouterr().out


async def test_the_embedding_example_of_the_readme_runs_unchanged_with_a_postgresql_url(
    tmp_path, postgres_url, capsys
):
    example = _readme_blocks()[0].replace('"jobs.db"', repr(postgres_url))
    assert postgres_url in example
    scope: dict = {}
    exec(example, scope)
    async with TestServer(receiver.create_app(tmp_path / "inbox.db")) as server:
        await scope["main"](str(server.make_url("/inbox")))
    assert "Status.DONE" in capsys.readouterr().out


async def test_the_mounting_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(_readme_blocks()[1], scope)
    app = scope["app"]
    assert isinstance(app, web.Application)
    async with TestServer(app) as server:
        import aiohttp  # noqa: PLC0415 - only here

        async with aiohttp.ClientSession() as session:
            answer = await session.post(server.make_url("/in/inbox"), json={"id": "a", "qty": 1})
            assert (await answer.json())["result"] == "accepted"


@pytest.mark.parametrize("name", list(__import__("asyncqueue").__all__))
def test_every_public_name_can_be_imported(name):
    import asyncqueue  # noqa: PLC0415 - the names are lazy

    assert getattr(asyncqueue, name).__name__ == name
