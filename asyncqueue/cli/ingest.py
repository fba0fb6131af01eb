"""A stream of JSON Lines into the queue: read and parsed in a thread, put in by sets of about a thousand."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, Self, TextIO

import anyio
import anyio.to_thread
import click
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from asyncqueue.cli.lines import Line, batches
from asyncqueue.cli.render import console
from asyncqueue.errors import Conflict, InvalidJob, QueueFull
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue

__all__ = ["Ingest", "Refusal", "Summary"]

Answer = bool | InvalidJob | Conflict | QueueFull

_NAMED_MAX: Final = 100  # refused lines that a summary keeps in memory


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that was not taken; `kind` is `conflict`, `invalid` or `full`."""

    line: int
    kind: str
    error: str


@dataclass(slots=True)
class Summary:
    """What became of the lines; `first` names the first hundred that were refused."""

    lines: int = 0
    new: int = 0
    duplicate: int = 0
    conflict: int = 0
    invalid: int = 0
    full: int = 0
    qty: int = 0
    first: list[Refusal] = field(default_factory=list)

    @property
    def refused(self) -> int:
        """Return how many lines were not taken."""
        return self.conflict + self.invalid + self.full

    def record(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        record = asdict(self)
        record["rejects"] = record.pop("first")
        return record

    def refuse(self, line: Line, error: Conflict | InvalidJob | QueueFull) -> None:
        """Count a refused line."""
        kinds = ((Conflict, "conflict"), (QueueFull, "full"), (InvalidJob, "invalid"))
        kind = next(name for cls, name in kinds if isinstance(error, cls))
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.first) < _NAMED_MAX:
            self.first.append(Refusal(line.number, kind, str(error)))


class Ingest:
    """One run over one input. `run` returns the summary; `qty` in it is the sum over new and duplicate lines.

    Input and rejects file are opened before the database is made, so a wrong path changes nothing. A rejects file
    that is the input, the database or one of its side files is refused: it would be overwritten.
    """

    def __init__(
        self,
        db: str,
        file: str,
        rejects: str | None,
        defaults: NewJob,
        opening: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._opening = opening  # how to open the queue: arguments of `Queue.open`
        self._db = db
        self._file = file
        self._rejects = rejects
        self._defaults = defaults
        self._summary = Summary()

    async def run(self) -> Summary:
        """Put in every line that can be. Raises `OSError` for the files and what `Queue` raises."""
        with ExitStack() as files:
            source = self._open_source(files)
            sink = self._open_rejects(files)
            async with AsyncExitStack() as resources:
                with _Bar(source) as bar:
                    await self._pump(resources, source, sink, bar)
        return self._summary

    async def _pump(self, resources: AsyncExitStack, source: BinaryIO, sink: TextIO | None, bar: "_Bar") -> None:
        queue: Queue | None = None  # opened, and made, for the first good line
        sets = batches(source, self._defaults)
        while (batch := await anyio.to_thread.run_sync(next, sets, None, abandon_on_cancel=True)) is not None:
            good = [line.job for line in batch if line.job is not None]
            if good and queue is None:
                queue = await resources.enter_async_context(Queue.open(self._db, **self._opening))
            answers = iter(await queue.enqueue_many(good) if good and queue else ())
            for line in batch:
                answer = InvalidJob(line.error) if line.job is None else next(answers)
                self._count(line, answer, sink)
            bar.show(batch[-1].end_bytes, self._summary)

    def _count(self, line: Line, answer: Answer, sink: TextIO | None) -> None:
        summary = self._summary
        summary.lines += 1
        if isinstance(answer, bool):
            summary.new += answer
            summary.duplicate += not answer
            summary.qty += line.job.qty if line.job else 0
            return
        summary.refuse(line, answer)
        if sink is not None:
            text = line.raw.decode("utf-8", "surrogateescape")  # invalid bytes survive as \udc80-\udcff
            sink.write(json.dumps({"line": line.number, "error": str(answer), "text": text}) + "\n")

    def _open_source(self, files: ExitStack) -> BinaryIO:
        if self._file == "-":
            return sys.stdin.buffer
        return files.enter_context(Path(self._file).open("rb"))

    def _open_rejects(self, files: ExitStack) -> TextIO | None:
        if self._rejects is None:
            return None
        target = Path(self._rejects)
        database = self._db.removeprefix("sqlite:///")
        side_files = [Path(f"{database}{suffix}") for suffix in ("", "-journal", "-wal", "-shm", "-gate")]
        for taken in (Path(self._file), *side_files):
            if _is_same(target, taken):
                raise click.UsageError(f"--rejects {self._rejects} would overwrite {taken}: choose another file")
        return files.enter_context(target.open("w", encoding="ascii"))


class _Bar:
    """A progress bar on stderr if that is a terminal, else nothing."""

    def __init__(self, source: BinaryIO) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console(err=True), transient=True)
            self._task = self._bar.add_task("", total=_size_bytes(source))

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, read_bytes: int, summary: Summary) -> None:
        """Show how far the input is read and what became of it."""
        if self._bar is not None and self._task is not None:
            text = f"{summary.lines} lines, {summary.refused} refused"
            self._bar.update(self._task, completed=read_bytes, description=text)


def _size_bytes(source: BinaryIO) -> int | None:
    """Return the size of a regular file, None for a pipe or a terminal."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except OSError:
        return None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist (yet)
        return one.absolute() == other.absolute()
