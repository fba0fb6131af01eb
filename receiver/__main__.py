"""`python -m receiver inbox.db --port 8080`: the inbox as a process of its own.

Exit codes: 0 stopped as asked; 1 the database was busy, full or not there at the start; 2 wrong usage or bad
input, nothing was changed; 128 + signal for a second signal, which stops at once.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from asyncqueue.errors import AsyncQueueError, ConfigError, NotAQueue, StoreDenied
from asyncqueue.eventloop import loop_factory, prepare_process

__all__ = ["main"]

_MESSAGE_CHARS_MAX: Final = 1_000
_FLUSH_S: Final = 0.5  # for an answer that is being written when the grace is over


def _finite(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # which no range excludes
        raise click.BadParameter("is not a number", param=parameter)
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("url", metavar="INBOX_DB")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 picks one.")
@click.option(
    "--journal",
    type=click.Choice(["delete", "wal"]),
    default="delete",
    show_default=True,
    help="SQLite's journal mode.",
)
@click.option("--force-wal", is_flag=True, help="Use WAL although this SQLite build has the WAL-reset bug.")
@click.option(
    "--body-bytes-max",
    type=click.IntRange(64, 1 << 30),
    default=1 << 20,
    show_default=True,
    help="Largest body, in bytes.",
)
@click.option(
    "--body-timeout-s",
    type=click.FloatRange(0.1, 3600),
    callback=_finite,
    default=10.0,
    show_default=True,
    help="Longest time for a body to arrive, in seconds.",
)
@click.option(
    "--requests-max",
    type=click.IntRange(1, 1_000_000),
    default=4_096,
    show_default=True,
    help="Most messages under way at once; more are answered 503.",
)
@click.option(
    "--connections-max",
    type=click.IntRange(1, 1_000_000),
    default=900,
    show_default=True,
    help="Most connections at once; more are answered 503 and closed.",
)
@click.option(
    "--idle-s",
    type=click.FloatRange(0.1, 3600),
    callback=_finite,
    default=75.0,
    show_default=True,
    help="How long a connection may be idle or stuck in a header, in seconds; keep it above the dispatcher's 15.",
)
@click.option(
    "--grace-s",
    type=click.FloatRange(0, 3600),
    callback=_finite,
    default=10.0,
    show_default=True,
    help="How long a stop waits for requests in flight, in seconds.",
)
@click.option("--allow-unsigned", is_flag=True, help="Listen beyond loopback although requests are not signed.")
@click.option(
    "--stop-with-stdin",
    is_flag=True,
    help="Also stop when standard input ends, as it does when the parent process has died.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, also on a terminal.")
def cli(**options: Any) -> None:
    """Run an idempotent inbox on INBOX_DB: a SQLite file, made if missing, or postgresql://user@host/database.

    POST /inbox takes {"id", "qty", "payload"?}; a message sent twice has its effect once. GET /totals counts.
    SIGTERM or SIGINT stops it: requests in flight are finished first; a second signal stops it at once. Receivers
    on several hosts may share one inbox on PostgreSQL (?schema=NAME chooses its schema).

    Example: python -m receiver inbox.db --port 8080
    """
    from asyncqueue.stores.url import is_server  # noqa: PLC0415 - `--help` stays quick

    given = click.get_current_context().get_parameter_source("journal")
    if is_server(options["url"]) and (options["force_wal"] or given is not ParameterSource.DEFAULT):
        raise ConfigError(
            "--journal and --force-wal are for a SQLite file: leave them out for a PostgreSQL server"
        )
    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(**options))


async def _serve(  # noqa: PLR0913 - the command's options
    *,
    url: str,
    host: str,
    port: int,
    journal: Any,
    force_wal: bool,
    body_bytes_max: int,
    body_timeout_s: float,
    requests_max: int,
    connections_max: int,
    idle_s: float,
    grace_s: float,
    allow_unsigned: bool,
    stop_with_stdin: bool,
    as_json: bool,
) -> None:
    from aiohttp import web  # noqa: PLC0415 - `--help` stays quick

    from receiver.app import DOOR, create_app  # noqa: PLC0415 - `--help` stays quick
    from receiver.server import BoundedSite  # noqa: PLC0415 - `--help` stays quick

    app = create_app(
        url,
        journal=journal,
        force_wal=force_wal,
        body_bytes_max=body_bytes_max,
        body_timeout_s=body_timeout_s,
        concurrency_max=requests_max,
    )
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _on_signal, number, stopping)
    if stop_with_stdin:
        _stop_with_stdin(stopping)
    with await _bound(host, port, allow_unsigned=allow_unsigned) as bound:  # first: a port in use changes no file
        runner = web.AppRunner(app, shutdown_timeout=_FLUSH_S)
        try:
            await runner.setup()
            site = BoundedSite(runner, bound, connections_max=connections_max, idle_s=idle_s)
            with _told_as_config(host, port):
                await site.start()
            _announce(f"{site.name}/inbox", as_json=as_json)
            await stopping.wait()
            app[DOOR].is_stopping = True
            await site.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await app[DOOR].emptied()
        finally:
            await runner.cleanup()


def _on_signal(number: int, stopping: asyncio.Event) -> None:
    if stopping.is_set():
        os._exit(128 + number)  # asked twice: at once; the file is as safe as under SIGKILL
    stopping.set()


def _stop_with_stdin(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4_096):
            loop.remove_reader(0)
            stopping.set()

    try:
        loop.add_reader(0, read)
    except OSError:  # a file or nothing at all: there is nothing to wait for
        stopping.set()


async def _bound(host: str, port: int, *, allow_unsigned: bool) -> socket.socket:
    """Return a socket bound to the first address of `host`. Raises `ConfigError`."""
    with _told_as_config(host, port):
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # IPv4 first: that is what `localhost` means to most clients
        family, kind, protocol, _name, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        if not allow_unsigned and not ipaddress.ip_address(address[0]).is_loopback:
            raise ConfigError(
                f"{host} is beyond loopback and requests are not signed: add --allow-unsigned to accept that"
            )
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        return listener


@contextlib.contextmanager
def _told_as_config(host: str, port: int) -> Any:
    try:
        yield
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from None


def _announce(url: str, *, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        click.echo(json.dumps({"event": "ready", "url": url}))
    else:
        click.echo(f"receiver is ready at {url}")


def _fail(message: str, code: int) -> NoReturn:
    """Say what is wrong in one line, control and bidi characters escaped, and exit."""
    line = " ".join(message.split())[:_MESSAGE_CHARS_MAX]
    clean = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    click.echo(f"receiver: error: {clean}", err=True)
    sys.exit(code)


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit status 2."""
    if sys.stdout is None:  # closed by the caller: there is nobody to tell, and that is no error
        sys.stdout = Path(os.devnull).open("w", encoding="ascii", errors="replace")  # noqa: SIM115 - until the end
    logging.basicConfig(format="receiver: %(levelname)s: %(message)s", level=logging.WARNING)
    try:
        cli.main(prog_name="receiver", standalone_mode=False)
    except click.ClickException as error:
        _fail(f"{error.format_message().rstrip('.')} (see 'python -m receiver --help')", 2)
    except (ConfigError, NotAQueue, StoreDenied) as error:
        _fail(str(error), 2)
    except AsyncQueueError as error:
        _fail(str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
