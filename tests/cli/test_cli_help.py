"""The help is complete, and asking for it is cheap."""

import subprocess
import sys

import click
import pytest

from asyncqueue.cli.app import cli


def _walk(command: click.Command, path: tuple[str, ...] = ()):
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _walk(child, (*path, name))


COMMANDS = dict(_walk(cli))


def test_the_commands_are_those_of_the_design():
    leaves = {" ".join(path) for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
    assert leaves == {
        "enqueue",
        "dispatch",
        "stats",
        "queue list",
        "queue stats",
        "queue pause",
        "queue resume",
        "queue drain",
        "job list",
        "job show",
        "job wait",
        "job cancel",
        "dlq list",
        "dlq show",
        "dlq redrive",
        "purge",
        "backup",
        "restore",
        "demo",
        "init",
        "migrate-store",
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_every_option_has_help(path):
    command = COMMANDS[path]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
    if not isinstance(command, click.Group):
        assert "Examples:" in (command.epilog or "")
        assert "asyncqueue " + " ".join(path) in command.epilog


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_printed_by_both_flags_and_lists_every_parameter(path):
    command = COMMANDS[path]
    context = click.Context(command, info_name="x", **cli.context_settings)
    text = command.get_help(context)
    assert "-h, --help" in text
    for parameter in command.params:
        for name in getattr(parameter, "opts", [])[:1] if isinstance(parameter, click.Option) else []:
            assert name in text
    if isinstance(command, click.Group):
        for name in command.commands:
            assert name in text


def test_numeric_time_options_carry_their_unit():
    for command in COMMANDS.values():
        for parameter in command.params:
            words = set((parameter.name or "").split("_"))
            assert not words & {"seconds", "timeout", "delay", "ttl", "lease", "grace", "poll"} or "ms" in words


def test_help_exits_0_and_no_arguments_exit_2(run):
    assert run("-h").returncode == 0
    assert run("job", "list", "--help").returncode == 0
    bare = run()
    assert bare.returncode == 2
    assert "Commands:" in bare.stderr
    assert bare.stdout == ""


def test_version_is_printed(run):
    ended = run("--version")
    assert ended.returncode == 0
    assert ended.stdout.startswith("asyncqueue ")


def test_help_does_not_import_the_http_client(environment, tmp_path):
    script = (
        "import sys\n"
        "from asyncqueue.__main__ import main\n"
        "sys.argv = ['asyncqueue', 'dispatch', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    print('IMPORTED', 'aiohttp' in sys.modules)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert ended.returncode == 0
    assert ended.stdout.rstrip().endswith("IMPORTED False")
