"""Python programs as child processes of a test."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

__all__ = ["spawn"]

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def spawn():
    """Start a Python program as a child process; all of them are gone after the test."""
    children = []

    def start(code, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()
