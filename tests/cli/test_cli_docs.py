"""The page about the command line: what the commands say, and nothing left out."""

import runpy
from pathlib import Path

import click
import pytest

from asyncqueue.cli.app import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")


def _walk(command: click.Command, name: str = "asyncqueue"):
    yield name, command
    if isinstance(command, click.Group):
        for word, child in command.commands.items():
            yield from _walk(child, f"{name} {word}")


def _sections() -> dict[str, str]:
    """The text of each command's section, by its name."""
    parts = PAGE.split("\n## ")[1:]
    return {part.splitlines()[0]: part for part in parts}


def test_the_page_is_what_the_commands_say():
    render = runpy.run_path(str(ROOT / "docs" / "make_cli.py"))["render"]
    assert render() == PAGE, "run `make docs`"


def test_the_page_has_a_section_for_every_command_and_no_other():
    assert set(_sections()) == {name for name, _command in _walk(cli)}


@pytest.mark.parametrize(
    ("name", "command"), list(_walk(cli)), ids=lambda value: value if type(value) is str else ""
)
def test_every_section_has_every_option_with_its_meaning_and_an_example(name, command):
    section = _sections()[name]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            row = next(line for line in section.splitlines() if line.startswith(f"| `{parameter.opts[0]}"))
            assert (parameter.help or "!").split()[0] in row
        else:
            assert parameter.make_metavar(click.Context(command, **cli.context_settings)) in section
    if not isinstance(command, click.Group):
        assert f"\n{name} " in section or f"\n{name}\n" in section
        assert "```sh" in section
