"""What may be opened, what is refused in one line, and that a refusal changes nothing."""

import asyncio
import contextlib
import errno
import os
import signal
import sqlite3
import stat
import warnings

import pytest

from asyncqueue.errors import ConfigError, ForkedProcess, NewerSchema, NotAQueue, StoreClosed, StoreError
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores import open_store
from asyncqueue.stores.sqlite import schema, statements, store
from asyncqueue.stores.sqlite.connection import Profile, check_path, has_wal_reset_bug


def picture(folder):
    """Everything a refused open could have changed: names, sizes, times, modes and bytes."""
    found = {}
    for where in folder.iterdir():
        state = where.lstat()
        data = None
        if stat.S_ISREG(state.st_mode):
            data = where.read_bytes()
        elif stat.S_ISLNK(state.st_mode):
            data = where.readlink()
        found[where.name] = (state.st_mode, state.st_size, state.st_mtime_ns, state.st_nlink, data)
    return found


def names(folder):
    return sorted(where.name for where in folder.iterdir())


def make_text(path):
    path.write_text("these are my notes, and no database at all; " * 200)


def make_garbage(path):
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)


def make_directory(path):
    path.mkdir()


def make_fifo(path):
    os.mkfifo(path)


def make_dangling_link(path):
    path.symlink_to(path.parent / "nowhere.db")


def make_link_loop(path):
    path.symlink_to(path)


def make_foreign(path, journal="delete", script="CREATE TABLE users (id INTEGER PRIMARY KEY)"):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal}")
        connection.executescript(script)


def make_foreign_wal(path):
    make_foreign(path, "wal")


def make_other_jobs_table(path):
    make_foreign(path, script="CREATE TABLE jobs (id TEXT, what TEXT); CREATE TABLE redrives (seq INTEGER)")


def make_half_a_queue(path):
    script = "CREATE TABLE jobs (seq, id, qty, status, attempts, max_attempts, token, available_at, deadline,"
    make_foreign(path, script=script + " owner, lease_until, reason)")


def make_hard_link(path):
    path.touch()  # an empty file would be taken
    os.link(path, path.parent / "second-name.db")


def make_read_only(path):
    path.touch()
    path.chmod(0o444)


REFUSED = {
    "text": make_text,
    "garbage behind the right magic": make_garbage,
    "directory": make_directory,
    "fifo": make_fifo,
    "dangling link": make_dangling_link,
    "link to itself": make_link_loop,
    "other database": make_foreign,
    "other database in WAL mode": make_foreign_wal,
    "other table of that name": make_other_jobs_table,
    "half a queue": make_half_a_queue,
    "hard link": make_hard_link,
    "read-only file": make_read_only,
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("create", [True, False])
async def test_what_is_no_queue_is_refused_in_one_line_and_left_as_it_was(path, make, create):
    make(path)
    before = picture(path.parent)
    with pytest.raises(NotAQueue) as caught:
        await Queue.open(path, create=create)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert picture(path.parent) == before


@pytest.mark.parametrize("opener", [open_store, store.SqliteStore.open], ids=["by url", "by path"])
async def test_other_database_is_not_adopted_unless_that_is_asked_for(path, opener):
    make_foreign(path)
    before = picture(path.parent)
    with pytest.raises(NotAQueue, match="but not a queue"):
        await (await opener(path)).close()
    assert picture(path.parent) == before


async def test_missing_file_is_refused_with_create_off_and_not_made(path):
    with pytest.raises(NotAQueue, match="no such file"):
        await Queue.open(path, create=False)
    assert names(path.parent) == []


async def test_file_that_another_process_is_making_just_now_is_waited_for(path, monkeypatch):
    path.touch()
    monkeypatch.setattr(store, "_BIRTH_S", 60)
    looked = asyncio.Event()
    inspect = schema.inspect

    async def noted(*args, create, **named):
        try:
            return await inspect(*args, create=create, **named)
        finally:
            if not create:
                looked.set()

    monkeypatch.setattr(schema, "inspect", noted)
    early = asyncio.ensure_future(Queue.open(path, create=False)._open())
    await looked.wait()
    async with Queue.open(path) as maker:
        await maker.enqueue("a", 1)
        async with asyncio.timeout(40):
            queue = await early
        assert (await queue.stats()).pending == 1
        await queue.close()


async def test_opening_a_file_that_is_up_to_date_takes_no_write_lock(path):
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with Queue.open(path, patience_ms=1) as queue:
            assert (await queue.stats()).pending == 1
        writer.execute("ROLLBACK")


def make_empty(path):
    path.touch()


def make_without_tables(path):
    make_foreign(path, script="CREATE TABLE users (id INTEGER PRIMARY KEY); DROP TABLE users")


@pytest.mark.parametrize("make", [make_empty, make_without_tables])
async def test_a_database_without_tables_is_no_queue_unless_one_may_be_made(path, make):
    make(path)
    before = picture(path.parent)
    with pytest.raises(NotAQueue, match="empty"):
        await Queue.open(path, create=False)
    assert picture(path.parent) == before
    async with Queue.open(path) as queue:
        assert await queue.enqueue("a", 1)


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_keep_leaves_the_journal_as_it_is_also_while_others_use_the_file(path, journal):
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        await queue.enqueue("a", 1)
        async with Queue.open(path, journal="keep", patience_ms=500) as other:
            assert (await other.stats()).pending == 1
            assert await other.cancel("a")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (journal,)


async def test_missing_folder_is_named_and_not_made(tmp_path):
    with pytest.raises(NotAQueue, match=r"the folder .* does not exist"):
        await Queue.open(tmp_path / "no" / "jobs.db")
    assert names(tmp_path) == []


async def test_file_used_as_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAQueue, match="directory"):
        await Queue.open(tmp_path / "file" / "jobs.db")


@pytest.mark.parametrize("url", ["", ":memory:", "mysql://h/d", "a\0b", "sqlite:///"])
async def test_url_of_no_queue_is_a_config_error(url):
    with pytest.raises(ConfigError):
        await open_store(url)


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
async def test_path_and_sqlite_url_name_the_same_file(path, prefix):
    async with Queue.open(f"{prefix}{path}") as queue:
        await queue.enqueue("a", 1)
    assert path.exists()


@pytest.mark.parametrize("version", [schema.VERSION + 1, 99, 2**31 - 1])
async def test_newer_schema_is_refused_in_words_and_left_as_it_was__kind_56(path, version):
    """FAULTS 56: old code opens a newer file."""
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("ALTER TABLE jobs ADD COLUMN invented_later TEXT")
        connection.execute(f"PRAGMA user_version={version}")
    before = picture(path.parent)
    with pytest.raises(NewerSchema, match="newer"):
        await Queue.open(path)
    assert picture(path.parent) == before


@pytest.mark.parametrize("version", [0, 1], ids=["of a contract file", "of nobody"])
async def test_unknown_changes_are_refused_and_left_as_they_were(path, version):
    async with Queue.open(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version={version}")
    before = picture(path.parent)
    with pytest.raises(NotAQueue, match="unknown changes"):
        await Queue.open(path)
    assert picture(path.parent) == before


async def test_link_to_a_queue_opens_the_queue_and_shares_its_gate(path, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with Queue.open(path) as real, Queue.open(link) as linked:
        await linked.enqueue("a", 1)
        assert (await real.get("a")).id == "a"
    assert names(tmp_path) == ["jobs.db", "jobs.db-gate", "link.db"]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_every_file_is_private_whatever_the_umask(path, journal):
    before = os.umask(0)
    try:
        async with Queue.open(path, journal=journal, force_wal=True) as queue:
            seen = {}

            async def work(transaction):
                await transaction.sweep(1)
                await transaction.redrive([])
                await transaction.enqueue([])
                seen.update(
                    {name: stat.S_IMODE((path.parent / name).stat().st_mode) for name in names(path.parent)}
                )

            await queue.enqueue("a", 1)
            await queue._store.write(lambda transaction: transaction.enqueue([]))
            await queue._store.write(_writes_then(work))
    finally:
        os.umask(before)
    assert set(seen.values()) == {0o600}
    side = {"jobs.db-journal"} if journal == "delete" else {"jobs.db-wal", "jobs.db-shm"}
    assert set(seen) == {"jobs.db", "jobs.db-gate"} | side


def _writes_then(work):
    async def both(transaction):
        await transaction.enqueue([NewJob("b", 1)])
        await work(transaction)

    return both


@pytest.mark.parametrize(
    ("journal", "expected"), [("delete", ("delete", 3)), ("wal", ("wal", 2)), ("keep", ("delete", 3))]
)
async def test_both_connections_run_the_durability_profile(path, journal, expected):
    store = await open_store(path, profile=Profile(journal, force_wal=True))
    try:
        for connection in (store._database._writer, store._database._reader):
            (mode,) = (await connection.execute_fetchall("PRAGMA journal_mode"))[0]
            (level,) = (await connection.execute_fetchall("PRAGMA synchronous"))[0]
            assert (mode, level) == expected
    finally:  # else the threads of the connections keep a run alive in which this fails
        await store.close()


@pytest.mark.parametrize(
    ("version", "has_bug"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_wal_reset_bug_is_known_by_version(version, has_bug):
    assert has_wal_reset_bug(version) is has_bug


@pytest.mark.parametrize("has_bug", [True, False])
async def test_wal_is_refused_on_builds_with_the_bug_unless_forced(path, monkeypatch, has_bug):
    monkeypatch.setattr("asyncqueue.stores.sqlite.connection.has_wal_reset_bug", lambda: has_bug)
    if has_bug:
        with pytest.raises(ConfigError, match="WAL-reset"):
            await Queue.open(path, journal="wal")
        assert not path.exists()
    async with Queue.open(path, journal="wal", force_wal=has_bug) as queue:
        assert await queue.enqueue("a", 1)
        (leased,) = await queue.claim("w")
        assert await queue.finish(leased, "ok") == "done"


@pytest.mark.parametrize("settings", [{"journal": "memory"}, {"patience_ms": 0}, {"late": "maybe"}])
async def test_unknown_setting_is_refused_before_the_file_is_made(path, settings):
    with pytest.raises(ConfigError):
        await Queue.open(path, **settings)
    assert not path.exists()


async def test_existing_database_is_never_opened_by_ourselves(path, monkeypatch):
    """FAULTS 34: closing any descriptor of it would drop SQLite's locks in this process."""
    async with Queue.open(path):
        pass
    opened = []
    original = os.open
    monkeypatch.setattr(
        os, "open", lambda name, *a, **k: opened.append(os.fspath(name)) or original(name, *a, **k)
    )
    monkeypatch.setattr("builtins.open", lambda name, *a, **k: opened.append(name))
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        await queue.stats()
    check_path(path, create=True)
    assert str(path) + "-gate" in opened
    monkeypatch.undo()
    assert str(path) not in opened


SIDE_FUNCTIONS = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    print("took the lock")
except sqlite3.OperationalError as error:
    print(error)
"""


async def test_locks_outlive_every_side_function_of_the_same_process(path, spawn):
    """FAULTS 34: process B cannot write while A's transaction is open, whatever else A does."""
    other = await Queue.open(path)
    async with Queue.open(path) as queue:
        answers = []

        async def work(transaction):
            await transaction.enqueue([NewJob("a", 1)])
            await queue.stats()
            await queue.get("a")
            await queue.list()
            await queue.version()
            await queue.next_due_ms()
            check_path(path, create=True)
            with contextlib.suppress(StoreError):
                await (await Queue.open(path, patience_ms=50)).close()
            await other.close()
            child = spawn(SIDE_FUNCTIONS, path)
            answers.append((await asyncio.to_thread(child.communicate))[0].strip())

        await queue._store.write(work)
        assert answers == ["database is locked"]
        assert (await queue.get("a")).id == "a"


def refused_in_a_forked_child(*calls):
    """Fork; return how many of `calls` the child refused with `ForkedProcess`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the very mistake
        child = os.fork()
    if child == 0:
        refused = 0
        with contextlib.suppress(BaseException):
            signal.alarm(20)
            for call in calls:
                try:
                    asyncio.run(call())
                except ForkedProcess:
                    refused += 1
        os._exit(100 + refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 100


async def test_store_used_in_a_forked_child_is_refused_at_once_and_the_parents_file_stays_whole__kind_33_fork(
    path, plain
):
    """FAULTS 33."""
    async with Queue.open(path) as queue:
        await queue.enqueue("a", 1)
        calls = [queue.stats, queue.version, lambda: queue.enqueue("b", 1), lambda: queue.claim("w"), queue.close]
        assert refused_in_a_forked_child(*calls) == len(calls)
        assert await queue.enqueue("c", 1)
        assert [job.id for job in await queue.list()] == ["a", "c"]
        assert plain(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_fork_while_a_batch_is_under_way_is_refused_at_once_too__kind_33(path):
    """FAULTS 33: the batch of the parent never ends in the child."""
    async with Queue.open(path) as queue:
        writing = asyncio.ensure_future(queue.enqueue("a", 1))
        await asyncio.sleep(0)
        assert [lane.done() for lane in queue._batches._batcher._lanes] == [False]
        assert refused_in_a_forked_child(lambda: queue.enqueue("b", 1), queue.stats, queue.close) == 3
        assert await writing
        assert [job.id for job in await queue.list()] == ["a"]


def test_pragmas_are_what_the_durability_facts_ask_for():
    """FAULTS, fact 1."""
    assert statements.PRAGMAS["delete"][1].endswith("EXTRA")
    assert statements.PRAGMAS["wal"][1].endswith("FULL")
    assert statements.PRAGMAS["keep"][1].endswith("EXTRA"), "whatever journal is kept, its last commit must be"


async def test_file_in_a_folder_that_cannot_be_written_is_refused_at_open(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    async with Queue.open(path):
        pass
    asked = os.access
    monkeypatch.setattr(os, "access", lambda where, mode: where != tmp_path and asked(where, mode))
    with pytest.raises(NotAQueue, match="is not writable"):
        await Queue.open(path)


async def test_file_that_the_system_does_not_make_is_refused_at_open(path, monkeypatch):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(NotAQueue, match=r"cannot be created .No space left on device"):
        await Queue.open(path)
    assert names(path.parent) == []


async def test_file_that_somebody_makes_at_the_same_moment_is_used(path, monkeypatch):
    opened = os.open

    def beaten(where, flags, *mode):
        if flags & os.O_EXCL:
            os.close(opened(where, flags & ~os.O_EXCL, *mode))
        return opened(where, flags, *mode)

    monkeypatch.setattr(os, "open", beaten)
    async with Queue.open(path) as queue:
        assert await queue.enqueue("a", 1)


async def test_sqlite_that_is_too_old_is_refused_before_the_file_is_made(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(ConfigError, match=r"is too old: 3\.38 or newer is needed"):
        await Queue.open(path)
    assert names(path.parent) == []


async def test_oldest_sqlite_that_knows_the_operators_of_json_is_not_refused(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 38, 0))
    async with Queue.open(path) as queue:
        assert await queue.enqueue("a", 1)


async def test_text_that_is_not_utf8_is_read_with_marks_and_shuts_nobody_out(path, plain):
    async with Queue.open(path, patience_ms=500) as queue:
        await queue.enqueue_many([NewJob(f"job{n}", 1) for n in range(3)])
        plain(path).execute("UPDATE jobs SET last_error = CAST(x'ff' AS TEXT) WHERE id = 'job1'")
        assert [job.last_error for job in await queue.list()] == [None, "\ufffd", None]
        assert await queue.enqueue("next", 1)


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_whoever_goes_on_with_a_file_that_was_moved_away_is_told(path, tmp_path, journal):
    """Else nobody would ever see what it is told is stored."""
    (tmp_path / "away").mkdir()
    async with Queue.open(path, journal=journal, force_wal=True) as queue:
        await queue.enqueue("a", 1)
        for file in tmp_path.glob("jobs.db*"):
            file.rename(tmp_path / "away" / file.name)
        for _ in range(2):
            with pytest.raises(StoreClosed, match="removed or replaced"):
                await queue.enqueue("b", 1)
            with pytest.raises(StoreClosed, match="removed or replaced"):
                await queue.sweep()
        async with Queue.open(path, journal=journal, force_wal=True) as other:
            with pytest.raises(StoreClosed, match="removed or replaced"):
                await queue.enqueue("b", 1)
            assert await other.enqueue("b", 1) is True
        assert (await queue.get("a")).id == "a"  # what it knows can still be read
