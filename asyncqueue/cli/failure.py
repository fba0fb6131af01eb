"""What becomes of an error: one line on stderr and an exit code. The only place that decides it.

Exit codes: 0 done; 1 failed (busy, full, conflict, rejects, not dead); 2 wrong usage or bad input, nothing was
changed; 130 Ctrl-C; 141 the reader of our output has gone. A supervisor is told by 3, if it wishes (`dispatch
--supervised`), that the store refuses for good.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from asyncqueue.errors import AsyncQueueError, ConfigError, InvalidJob, NotAQueue, StoreDenied
from asyncqueue.job import printable

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "PIPE_GONE",
    "REFUSED",
    "Failed",
    "Interrupted",
    "Refused",
    "run",
    "say",
]

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
REFUSED: Final = 3
INTERRUPTED: Final = 130
PIPE_GONE: Final = 141

_THE_USERS: Final = (ConfigError, InvalidJob, NotAQueue, StoreDenied)
# What the system may answer to a path or a port that the user gave, and what can be done about it.
_ADVICE: Final = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.ELOOP: "check the path",
    errno.EISDIR: "give the path of a file",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose a folder that can be written",
    errno.EEXIST: "choose another path",
    errno.ENOTEMPTY: "choose another path",
    errno.EADDRINUSE: "choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this host",
}
_EXPECTED: Final = (
    click.ClickException,
    click.Abort,
    KeyboardInterrupt,
    BaseExceptionGroup,
    AsyncQueueError,
    OSError,
)
_QUIET: Final = ((BrokenPipeError, PIPE_GONE), ((click.Abort, KeyboardInterrupt), INTERRUPTED))
_MESSAGE_CHARS_MAX: Final = 1_000


class Failed(AsyncQueueError):
    """The command did what it could, and that was not everything; exit code 1, or `code`."""

    code = FAILED


class Interrupted(Failed):
    """The command was cut off by Ctrl-C, and there is something to say about it; exit code 130."""

    code = INTERRUPTED


class Refused(Failed):
    """The store refuses for good, as a child tells its supervisor; exit code 3."""

    code = REFUSED


def run(command: click.Command, arguments: Sequence[str]) -> NoReturn:
    """Run `command` and end the process; no traceback for anything that is the user's or the system's fault."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _leave(_code(command, arguments))


def say(kind: str, text: str) -> None:
    """Write one line to stderr, control and bidi characters escaped; `kind` is `error`, `warning` or `note`."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"asyncqueue: {kind}: {printable(' '.join(text.split()), _MESSAGE_CHARS_MAX)}", err=True)


def _code(command: click.Command, arguments: Sequence[str]) -> int:
    try:
        code = command.main(list(arguments), prog_name="asyncqueue", standalone_mode=False)
        sys.stdout.flush()
    except _EXPECTED as error:
        return _told(_only(error))
    return code if isinstance(code, int) else OK


def _misused(error: click.ClickException) -> int:
    """Tell what is wrong with the command line; without any arguments the help is the answer."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
    else:
        say("error", _usage(error))
    return BAD_INPUT


def _told(error: BaseException) -> int:
    """Tell an error that is not a bug, and return its exit code; raise one that is."""
    if isinstance(error, click.ClickException):
        return _misused(error)
    for kinds, code in _QUIET:
        if isinstance(error, kinds):
            return code
    if isinstance(error, OSError):
        say("error", _system(error))
        return BAD_INPUT if error.errno in _ADVICE else FAILED
    if isinstance(error, AsyncQueueError):
        say("error", str(error))
        if isinstance(error, Failed):
            return error.code
        return BAD_INPUT if isinstance(error, _THE_USERS) else FAILED
    raise error


def _only(group: BaseException) -> BaseException:
    """Return the first error inside nested groups, unless one of them is a bug: then that one."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    leaves = [_only(error) for error in group.exceptions]
    bugs = [leaf for leaf in leaves if not isinstance(leaf, _EXPECTED)]
    return (bugs or leaves)[0]


def _usage(error: click.ClickException) -> str:
    message = error.format_message().strip().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.option_name[1:].isdecimal():
        message = f"{error.option_name}: no number here may be below 0"
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} (see '{context.command_path} --help')"


def _system(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is not None:
        what = f"{os.fsdecode(error.filename)}: {what}"
    advice = _ADVICE.get(error.errno or 0)
    return what if advice is None else f"{what}: {advice}"


def _leave(code: int) -> NoReturn:
    """End the process. What is left of the output is written; nobody is told again that the reader has gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        _discard(stream)
    if code == INTERRUPTED:
        # A thread may sit in a read of a terminal or a pipe that never ends; the interpreter would wait for it.
        os._exit(code)
    sys.exit(code)


def _discard(stream: object) -> None:
    """Point a broken stream at nothing, so that the interpreter's own flush at exit is quiet."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
        os.close(nowhere)
