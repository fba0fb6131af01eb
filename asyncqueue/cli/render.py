"""Records as text: JSON for programs, aligned tables for people. Nothing that came from outside is printed raw."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncqueue.job import Job, decode_payload, printable

__all__ = ["cell", "console", "job_record", "print_json", "print_table", "span_text"]

_PIPE_WIDTH: Final = 10_000  # columns when nobody looks: no cell is ever wrapped or cut


def console(*, err: bool = False) -> Console:
    """Return a console on stdout or stderr; on a pipe it does not wrap. Markup and emoji codes are plain text."""
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def cell(value: object, chars_max: int = 500) -> Text:
    """Return a value as one safe line: control and bidi characters escaped; None is a dash."""
    return Text("-" if value is None else printable(str(value), chars_max), overflow="fold")


def span_text(span_ms: int | None) -> str | None:
    """Return a span of milliseconds as seconds."""
    return None if span_ms is None else f"{span_ms / 1000:.1f} s"


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON document on one line, in ASCII, so that no terminal acts on it."""
    click.echo(json.dumps(value))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[str] = (), header: bool = True
) -> None:
    """Print an aligned table; the columns in `numbers` are set to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=header, show_edge=False)
    right = set(numbers)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    lines = console()
    with lines.capture() as text:
        lines.print(table)
    for line in text.get().splitlines():  # by the line: a reader that leaves is noticed even without a buffer
        click.echo(line.rstrip())


def job_record(job: Job) -> dict[str, Any]:
    """Return a job for JSON: its row with the payload as a value; times are milliseconds since the epoch."""
    return {**asdict(job), "payload": _payload(job.payload)}


def _payload(text: str | None) -> Any:
    """Return the value of a payload; the text itself if another program stored something that is not JSON."""
    try:
        return decode_payload(text)
    except (ValueError, RecursionError):
        return text
