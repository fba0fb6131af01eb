"""What every test gets: a check that no database thread outlives it; and a PostgreSQL server, if it asks."""

import resource
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from tests import postgres_server

MEMORY_MAX_BYTES = 4 * 1024**3  # of one process; a test that needs more fails by itself, not the machine with it


def pytest_configure(config: pytest.Config) -> None:
    """Begin a run, in the process that starts the others."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `make test &` in a script; a child would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX_BYTES, hard))
    if not hasattr(config, "workerinput"):
        postgres_server.begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run."""
    if not hasattr(config, "workerinput"):
        postgres_server.end_run()


@pytest.fixture
def new_postgres_url() -> Iterator[Callable[[], str]]:
    """A function that names one fresh, empty schema of a real server after the other."""
    made: list[str] = []

    def name_one() -> str:
        made.append(postgres_server.new_schema())
        return postgres_server.url_of(made[-1])

    yield name_one
    for schema in made:
        postgres_server.drop(schema)


@pytest.fixture
def postgres_url(new_postgres_url: Callable[[], str]) -> str:
    """The URL of a fresh, empty schema of a real server."""
    return new_postgres_url()


def _database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name]


@pytest.fixture(autouse=True)
def no_database_thread_survives() -> Iterator[None]:
    """Fail a test that leaves an aiosqlite connection open."""
    before = set(_database_threads())
    yield
    for thread in (left := set(_database_threads()) - before):
        thread.join(timeout=5)
    alive = [thread.name for thread in left if thread.is_alive()]
    assert not alive, f"connections left open: {alive}"
