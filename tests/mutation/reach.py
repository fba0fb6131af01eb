"""Which tests reach which part of a file: its lines by coverage, its constants by who asks for them."""

import re
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import pytest

__all__ = ["Reach", "went_into"]


class Reach:
    """A pytest plugin that takes note of what each test reaches in the file `target` of the project in `root`."""

    def __init__(self, root: Path, target: str) -> None:
        self._path = str(root / target)
        self._module = target.removesuffix(".py").replace("/", ".")
        self._coverage = coverage.Coverage(data_file=None, include=[self._path], config_file=False)
        self._names: dict[str, set[str]] = defaultdict(set)
        self._test = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid
        self._coverage.switch_context(item.nodeid)
        module = sys.modules.get(self._module)
        if type(module) is types.ModuleType:
            module.__class__ = _recorded(self._names, lambda: self._test)

    def told(self) -> dict[str, Any]:
        """Return the tests of each line and, with the constants whose text is part of it, of each constant."""
        self._coverage.stop()
        lines = self._coverage.get_data().contexts_by_lineno(self._path)
        module = sys.modules.get(self._module)
        texts = {name: _text(value) for name, value in vars(module).items() if name.isupper()} if module else {}
        names = {
            name: sorted(
                set().union(*(self._names[user] for user in texts if text and went_into(text, texts[user])))
            )
            for name, text in texts.items()
        }
        return {"lines": {line: sorted(filter(None, tests)) for line, tests in lines.items()}, "names": names}


def _recorded(names: dict[str, set[str]], test: Any) -> type[types.ModuleType]:
    class Recorded(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            names[name].add(test())
            return super().__getattribute__(name)

    return Recorded


def went_into(text: str, whole: str) -> bool:
    """Tell whether a text, or the template that it is, went into another one."""
    return all(piece in whole for piece in re.split(r"\{\w*\}", text))


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value) if isinstance(value, tuple | dict) else ""
