"""The settings of `dispatch`: from the options, and back into the arguments of a child process."""

import sys
from dataclasses import dataclass
from typing import Final, Literal

from asyncqueue.cli.options import check_journal
from asyncqueue.job import Range, check_id, check_int

__all__ = ["DispatchSettings", "child_command"]

_PROCESSES: Final = Range(1, 64)
_NUMBERS: Final = (
    "concurrency",
    "batch",
    "lease_ms",
    "timeout_ms",
    "connect_timeout_ms",
    "retry_base_ms",
    "retry_cap_ms",
    "grace_ms",
    "poll_ms",
)
_CHOICES: Final = ("ack", "late", "history", "journal")
_FLAGS: Final = ("drain", "force_wal")


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """What one `dispatch` was asked for; times in milliseconds. The ranges are checked by who uses the values."""

    db: str
    url: str
    concurrency: int = 64
    batch: int = 1
    processes: int = 1
    drain: bool = False
    lease_ms: int = 30_000
    timeout_ms: int = 10_000
    connect_timeout_ms: int | None = None
    ack: Literal["echo", "status"] = "echo"
    queues: tuple[str, ...] = ()
    owner_prefix: str = ""
    retry_base_ms: int = 1_000
    retry_cap_ms: int = 300_000
    grace_ms: int = 10_000
    poll_ms: int = 5
    late: Literal["strict", "accept"] = "strict"
    history: Literal["failures", "all"] = "failures"
    journal: Literal["keep", "delete", "wal"] = "keep"
    force_wal: bool = False
    stop_with_stdin: bool = False
    supervised: bool = False
    json_: bool = False

    def check(self) -> None:
        """Raise `InvalidJob` or `ConfigError` for a value that nobody else checks, or not soon enough."""
        check_journal(self.db, self.journal, force_wal=self.force_wal)
        check_int("--processes", self.processes, _PROCESSES)
        if self.owner_prefix:
            check_id("--owner-prefix", self.owner_prefix)
        for name in self.queues:
            check_id("--queue", name)


def child_command(settings: DispatchSettings) -> list[str]:
    """Return the command of one dispatcher process with these settings; it stops when its stdin ends."""
    values = [(name, getattr(settings, name)) for name in _NUMBERS]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in values if value is not None]
    options += [f"--queue={name}" for name in settings.queues]
    options += [f"--{name}={getattr(settings, name)}" for name in _CHOICES]
    if settings.owner_prefix:
        options.append(f"--owner-prefix={settings.owner_prefix}")
    options += [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(settings, name)]
    command = [sys.executable, "-m", "asyncqueue", "dispatch", *options, "--json", "--stop-with-stdin"]
    return [*command, "--supervised", "--", settings.db, settings.url]
