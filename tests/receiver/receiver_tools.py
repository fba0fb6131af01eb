"""What the inbox's tests share: raw requests, plain looks at a file, real receiver processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.store.raw import raw_of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("receiver_child.py")


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def result(self):
        return self.json.get("result")

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return self.json["type"].removeprefix("urn:asyncqueue:problem:")


def request(body, *headers, method="POST", path="/inbox", kind="application/json", length=True):
    """Return the bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: inbox", *headers]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape") + body


def chunked(*chunks, last=b"0\r\n\r\n"):
    parts = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return request(b"", "Transfer-Encoding: chunked", length=False) + parts + last


def message(message_id="a", qty=1, **more):
    return json.dumps({"id": message_id, "qty": qty, **more}).encode()


async def read_answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines if line)}
    return Answer(int(first.split()[1]), headers, await reader.readexactly(int(headers["content-length"])))


async def speak(port, *parts):
    """Send bytes over a connection of its own and return the first answer."""
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await read_answer(reader)
        finally:
            writer.close()


async def post(port, *args, **more):
    return await speak(port, request(message(*args, **more)))


async def get(port, path):
    return await speak(port, request(b"", method="GET", path=path, kind=None))


def look(url, sql):
    """Ask the database itself, beside the receiver."""
    return raw_of(str(url)).select(sql)


def totals_of(url):
    """The counts as they stand in the tables: messages, quantity, duplicates, conflicts."""
    table = "inbox_totals" if str(url).startswith("postgresql:") else "totals"
    names = ("messages", "quantity", "duplicates", "conflicts")
    (row,) = look(url, f"SELECT {','.join(f'coalesce(sum({name}), 0)' for name in names)} FROM {table}")
    return tuple(map(int, row))


def check_whole(url):
    """Assert that dedup rows, ledger and totals agree; return the ledger."""
    ledger = dict(look(url, "SELECT id, qty FROM ledger"))
    assert dict(look(url, "SELECT id, qty FROM inbox")) == ledger
    assert totals_of(url)[:2] == (len(ledger), sum(ledger.values()))
    if not str(url).startswith("postgresql:"):
        assert look(url, "PRAGMA integrity_check") == [("ok",)]
    return ledger


class Receiver:
    """A real receiver process."""

    def __init__(self, path, *flags, script=("-m", "receiver"), env=None, stdin=None):
        self.process = subprocess.Popen(
            [sys.executable, *script, str(path), "--port", "0", *flags],
            cwd=ROOT,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        )
        self.first = self.process.stdout.readline()
        assert self.first, self.process.stderr.read()
        self.ready = json.loads(self.first)
        self.port = int(self.ready["url"].rsplit(":", 1)[1].split("/")[0])

    async def ended(self):
        await until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def send_signal(self, number):
        self.process.send_signal(number)

    async def stopped(self):
        self.send_signal(signal.SIGTERM)
        return await self.ended()

    def close(self):
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()


@asynccontextmanager
async def running(path, *flags, **more):
    receiver = Receiver(path, *flags, **more)
    try:
        yield receiver
    finally:
        receiver.close()


def run_cli(*arguments, **more):
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "receiver", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        **more,
    )
