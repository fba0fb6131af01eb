"""`python -m receiver inbox.db --port 8080`: the inbox as a process of its own."""

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import sys
from typing import Any

import click

from asyncqueue.errors import AsyncQueueError, ConfigError

__all__ = ["main"]

KEEPALIVE_S = (
    75.0  # above the dispatcher's 15 s, so that the server is never the first to close an idle connection
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("path", metavar="INBOX_DB")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 picks one.")
@click.option(
    "--journal", type=click.Choice(["delete", "wal"]), default="delete", show_default=True, help="Journal mode."
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
    default=10.0,
    show_default=True,
    help="Longest time for a body to arrive, in seconds.",
)
@click.option(
    "--grace-s",
    type=click.FloatRange(0, 3600),
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
    """Run an idempotent inbox on INBOX_DB, a SQLite file that is made if missing.

    POST /inbox takes {"id", "qty", "payload"?}; a message sent twice has its effect once. GET /totals counts.
    SIGTERM or SIGINT stops it: requests in flight are finished first; a second signal stops it at once.

    Example: python -m receiver inbox.db --port 8080
    """
    asyncio.run(_serve(**options))


async def _serve(  # noqa: PLR0913 - the command's options
    *,
    path: str,
    host: str,
    port: int,
    journal: Any,
    force_wal: bool,
    body_bytes_max: int,
    body_timeout_s: float,
    grace_s: float,
    allow_unsigned: bool,
    stop_with_stdin: bool,
    as_json: bool,
) -> None:
    from aiohttp import web  # noqa: PLC0415 - `--help` stays quick

    from receiver.app import DOOR, create_app  # noqa: PLC0415 - `--help` stays quick

    _check_host(host, allow_unsigned=allow_unsigned)
    app = create_app(
        path, journal=journal, force_wal=force_wal, body_bytes_max=body_bytes_max, body_timeout_s=body_timeout_s
    )
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEPALIVE_S, shutdown_timeout=grace_s)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stopping)
    if stop_with_stdin:
        _stop_with_stdin(loop, stopping)
    try:
        await runner.setup()
        await _listen(web.TCPSite(runner, host, port), host, port)
        _announce(runner.addresses[0], as_json=as_json)
        await stopping.wait()
        app[DOOR].is_stopping = True
    finally:
        await runner.cleanup()


def _on_signal(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        raise SystemExit(1)  # asked twice: at once
    stopping.set()


def _stop_with_stdin(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    def read() -> None:
        if not os.read(0, 4_096):
            loop.remove_reader(0)
            stopping.set()

    try:
        loop.add_reader(0, read)
    except OSError:  # a file or nothing at all: there is nothing to wait for
        stopping.set()


async def _listen(site: Any, host: str, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


def _check_host(host: str, *, allow_unsigned: bool) -> None:
    is_loopback = host == "localhost"
    with contextlib.suppress(ValueError):
        is_loopback = is_loopback or ipaddress.ip_address(host).is_loopback
    if not is_loopback and not allow_unsigned:
        raise ConfigError(
            f"{host} is beyond loopback and requests are not signed: add --allow-unsigned to accept that"
        )


def _announce(address: Any, *, as_json: bool) -> None:
    host, port = address[:2]
    url = f"http://[{host}]:{port}/inbox" if ":" in host else f"http://{host}:{port}/inbox"
    if as_json or not sys.stdout.isatty():
        click.echo(json.dumps({"event": "ready", "url": url}))
    else:
        click.echo(f"receiver is ready at {url}")


def main() -> None:
    """Run the command; a user's mistake is one line on stderr and exit status 2."""
    try:
        cli.main(prog_name="receiver", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (AsyncQueueError, click.Abort) as error:
        click.echo(f"receiver: error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
