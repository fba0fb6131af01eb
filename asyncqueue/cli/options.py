"""Arguments and options that several commands share, so that they read and behave alike everywhere."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from asyncqueue.errors import ConfigError
from asyncqueue.job import brief
from asyncqueue.lifecycle import Reason, Status
from asyncqueue.stores.sqlite.connection import Journal, Profile
from asyncqueue.stores.url import is_server

__all__ = [
    "INTEGER",
    "as_json",
    "check_journal",
    "database",
    "examples",
    "job_conditions",
    "job_filters",
    "journal",
    "reads",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_DIGITS_MAX: Final = 18


class _Integer(click.ParamType[int]):
    """A plain decimal integer: no underscores, blanks, signs of plus or foreign digits, which `int` would take."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if not re.fullmatch("-?[0-9]+", value):
            self.fail(f"{brief(value)} is not a whole number", param, ctx)
        if len(value.lstrip("-0")) > _DIGITS_MAX:
            self.fail(f"{brief(value)} is out of range: it has more than {_DIGITS_MAX} digits", param, ctx)
        return int(value)


INTEGER: Final = _Integer()


def examples(*lines: str) -> str:
    """Return the end of a help text: command lines to copy, which click must not wrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def database(command: Command) -> Command:
    """Add the argument DB."""
    return click.argument("db", metavar="DB", type=click.Path())(command)


def as_json(what: str) -> Callable[[Command], Command]:
    """Add `--json`, which prints `what`; its keys are stable."""
    return click.option("--json", "json_", is_flag=True, help=f"For programs: print {what}; the keys are stable.")


def reads(what: str) -> Callable[[Command], Command]:
    """Add what every reading command has: DB and `--json`."""

    def add(command: Command) -> Command:
        return database(as_json(what)(command))

    return add


def job_filters(*, status: bool) -> Callable[[Command], Command]:
    """Add the filters and the paging of a list of jobs."""
    first = [click.option("--status", type=_choice(Status), help="Only jobs in this status.")] if status else []
    return lambda command: _added(command, [*first, *_conditions(), *_paging()])


def job_conditions(command: Command) -> Command:
    """Add the filters of an action on many jobs."""
    return _added(command, _conditions())


def journal(command: Command) -> Command:
    """Add `--journal` and `--force-wal`; see `check_journal`."""
    return _added(
        command,
        [
            click.option(
                "--journal",
                type=click.Choice(["keep", "delete", "wal"]),
                default="keep",
                show_default=True,
                help="SQLite journal: delete (synchronous EXTRA), wal (FULL), or keep what the file has (a new "
                "one gets delete).",
            ),
            click.option(
                "--force-wal",
                is_flag=True,
                help="With --journal wal: use it although this SQLite build has the WAL-reset bug.",
            ),
        ],
    )


def check_journal(db: str, journal: Journal, *, force_wal: bool) -> None:
    """Raise `ConfigError` for a journal that would be refused, before anything is made."""
    if is_server(db) and (journal != "keep" or force_wal):
        raise ConfigError(
            "--journal and --force-wal are for a SQLite file: leave them out for a PostgreSQL server"
        )
    if force_wal and journal != "wal":
        raise ConfigError("--force-wal goes with --journal wal alone")
    Profile(journal, force_wal=force_wal).check()


def _added(command: Command, options: Sequence[Callable[[Any], Any]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def _conditions() -> list[Callable[[Any], Any]]:
    return [
        click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
        click.option("--kind", metavar="NAME", help="Only jobs of this kind."),
        click.option("--reason", type=_choice(Reason), help="Only jobs with this reason."),
        click.option("--id-prefix", metavar="TEXT", help="Only jobs whose id begins with TEXT."),
        click.option(
            "--older-than-ms",
            type=INTEGER,
            help="Only jobs that ended, or if they are live fell due, at least this long ago.",
        ),
    ]


def _paging() -> list[Callable[[Any], Any]]:
    return [
        click.option(
            "--after",
            "after_seq",
            type=INTEGER,
            default=0,
            metavar="SEQ",
            help="Continue after the job with this seq, the last one of the page before.",
        ),
        click.option(
            "--limit", type=INTEGER, default=100, show_default=True, help="Jobs on one page, 1 to 10000."
        ),
    ]


def _choice(values: type[Status] | type[Reason]) -> click.Choice[str]:
    return click.Choice([value.value for value in values])
