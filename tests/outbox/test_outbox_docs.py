"""The code of docs/outbox.md runs as it stands there."""

import re
from pathlib import Path

import pytest

import asyncqueue

PAGE = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text("utf-8")
PRINTED = ["id='order-41'", "delivering order-41"]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("block", "printed"), list(zip(BLOCKS, PRINTED, strict=True)))
async def test_a_block_of_the_page_runs(block, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(block, scope)
    await scope["main"]()
    assert printed in capsys.readouterr().out


def test_every_error_of_the_page_exists():
    names = set(re.findall(r"`((?:No|Not|Newer|Unsupported|Store)[A-Z]\w+|Conflict|InvalidJob|QueueFull)`", PAGE))
    assert len(names) >= 9
    for name in names:
        assert issubclass(getattr(asyncqueue.errors, name), asyncqueue.AsyncQueueError)
