"""A moved queue is the same queue: every row, every number; and never two that can be used."""

import shutil
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest
from move_tools import dump, fill, moved, sides

from asyncqueue import worker
from asyncqueue.clock import ManualClock
from asyncqueue.errors import ConfigError, NotAQueue, StoreBusy, StoreError, StoreMoved
from asyncqueue.job import NewJob
from asyncqueue.queue import Queue
from asyncqueue.stores import move as moving
from asyncqueue.stores.move import abandon, move
from asyncqueue.stores.sqlite import moving as moving_sqlite
from tests.store.raw import raw_of


def quiet(_what, _done, _of):
    pass


class Stopped(Exception):
    pass


def stop_after(rows):
    """A `told` that ends the move when so many rows are copied, as a kill would."""

    def told(what, done, _of):
        if what == "copied" and done >= rows:
            raise Stopped

    return told


NUMBER_TAKEN = {
    "postgres": "SELECT nextval('jobs_seq')",
    "sqlite": "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'jobs'",
}


async def half_moved(source, target, monkeypatch, rows=50):
    monkeypatch.setattr(moving, "_ROWS_MAX", 16)
    with pytest.raises(Stopped):
        async with sides(source, target) as (old, new):
            await move(old, new, stop_after(rows))


async def test_every_row_and_number_is_kept(pair):
    source, target = pair
    await fill(source)
    before = dump(source)
    assert all(before.values())  # there is something in every table
    result = await moved(source, target)
    assert dump(target) == before == dump(source)
    assert result.rows == {table: len(rows) for table, rows in before.items()}
    async with Queue.open(target) as queue:
        stats = await queue.stats()
        assert stats.total == len(before["jobs"])
        assert stats.redrives == len(before["redrives"])
        assert stats.paused == ("q1",)
        assert await queue.enqueue("new", 1)
        newest = await queue.get("new")
    assert newest.seq > max(row[0] for row in before["jobs"])


async def test_a_seq_is_not_given_out_twice_although_its_job_was_purged(pair):
    source, target = pair
    async with Queue.open(source) as queue:
        await queue.enqueue_many([NewJob(name, 1) for name in "abc"])
        seq = (await queue.get("c")).seq
        await queue.cancel("c")
        with pytest.warns(UserWarning, match="horizon"):
            assert await queue.purge(status="dead", older_than_ms=0) == 1
    await moved(source, target)
    async with Queue.open(target) as queue:
        await queue.enqueue("d", 1)
        assert (await queue.get("d")).seq == seq + 1


async def test_a_token_goes_on_where_it_was(pair):
    source, target = pair
    async with Queue.open(source) as queue:
        await queue.enqueue("a", 1)
        (ticket,) = await queue.claim("w", lease_ms=60_000)
        await queue.release(ticket)
    await moved(source, target)
    async with Queue.open(target) as queue:
        (again,) = await queue.claim("w", lease_ms=60_000)
        assert again.token == ticket.token + 1
        assert await queue.finish(ticket, "ok") is None  # the old ticket is stale here


async def test_the_floor_of_tokens_goes_with_the_queue(pair):
    source, target = pair
    async with Queue.open(source) as queue:
        await queue.enqueue("there", 1)
        floor = await queue.raise_tokens()
    await moved(source, target)
    async with Queue.open(target) as queue:
        await queue.enqueue("new", 1)
        assert [(await queue.get(job_id)).token for job_id in ("there", "new")] == [floor, floor]
        assert await queue.raise_tokens() > floor
    with pytest.raises(StoreMoved):
        async with Queue.open(source) as queue:
            await queue.raise_tokens()


async def test_nobody_can_change_the_source_any_more_not_even_who_has_it_open(pair):
    source, target = pair
    await fill(source)
    async with Queue.open(source) as queue:
        await queue.enqueue_many([NewJob("fresh", 1), NewJob("second", 1)])
        (ticket,) = await queue.claim("late", limit=1, lease_ms=60_000)
        await moved(source, target, with_leases=True)
        before = dump(source)
        for write in (
            lambda: queue.enqueue("new", 1),
            lambda: queue.finish(ticket, "ok"),
            lambda: queue.claim("w", lease_ms=1_000),
            lambda: queue.pause("q2"),
            lambda: queue.redrive_many(note="x", reason="permanent"),
        ):
            with pytest.raises(StoreMoved, match="migrate-store"):
                await write()
        assert (await queue.stats()).total == len(before["jobs"])  # reading goes on
    async with Queue.open(source) as queue:
        with pytest.raises(StoreMoved):
            await queue.enqueue("new", 1)
    assert dump(source) == before


async def test_live_leases_are_refused_and_leave_both_sides_as_they_were(pair):
    source, target = pair
    async with Queue.open(source) as queue:
        await queue.enqueue("a", 1)
        (ticket,) = await queue.claim("w", lease_ms=60_000)
        with pytest.raises(StoreBusy, match="1 jobs are leased"):
            await moved(source, target)
        assert await queue.finish(ticket, "ok")
        await moved(source, target)
    async with Queue.open(target) as queue:
        assert (await queue.get("a")).status == "done"


def stop_clock(kind, source, clock, monkeypatch):
    """Let the mover of such a store go by a clock of the test; return what is to be called when that moves."""
    if kind == "sqlite":
        monkeypatch.setattr(moving_sqlite, "time", SimpleNamespace(time_ns=lambda: clock.now_ms() * 1_000_000))
        return lambda: None
    stopped = "CREATE OR REPLACE FUNCTION now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE RETURN"
    return lambda: raw_of(source).execute(f"{stopped} {clock.now_ms()}")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_leases_count_until_their_very_end_and_the_last_is_told(new_url, monkeypatch, kind):
    source, target = new_url(kind), new_url("sqlite")
    clock = ManualClock(1_700_000_000_000)
    async with Queue.open(source, clock=clock) as queue:
        for lease_ms in (1_000, 3_000, 2_000):
            await queue.enqueue(f"lease{lease_ms}", 1)
            await queue.claim("w", lease_ms=lease_ms)
        await queue.enqueue("pending", 1)
    raw_of(source).execute("UPDATE jobs SET lease_until = 1700000009000 WHERE id = 'pending'")  # by hand: no lease
    clock_has_moved = stop_clock(kind, source, clock, monkeypatch)
    for advance_ms, leased in ((1_999, 2), (1, 1), (999, 1)):
        clock.advance(advance_ms)
        clock_has_moved()
        with pytest.raises(StoreBusy, match=f"{leased} jobs are leased, the last until 2023-11-14T22:13:23.000Z"):
            await moved(source, target)
    clock.advance(1)
    clock_has_moved()
    await moved(source, target)


async def test_leases_that_are_moved_run_out_and_come_again_under_a_higher_token(pair):
    source, target = pair
    async with Queue.open(source) as queue:
        await queue.enqueue("a", 1)
        (ticket,) = await queue.claim("w", lease_ms=300)
    await moved(source, target, with_leases=True)
    async with Queue.open(target) as queue:
        again = []
        while not again:
            again = await queue.claim("w2", lease_ms=60_000)
        assert (again[0].token, again[0].attempt) == (ticket.token + 1, 2)


async def test_a_half_done_copy_goes_on_where_it_ended(pair, monkeypatch):
    source, target = pair
    await fill(source)
    before = dump(source)
    for rows in (1, 50, 120, 230):
        await half_moved(source, target, monkeypatch, rows)
    result = await moved(source, target)
    assert dump(target) == before
    assert not result.was_done
    again = await moved(source, target)
    assert (again.was_done, again.rows) == (True, result.rows)
    async with Queue.open(target) as queue:
        assert await queue.enqueue("new", 1)


async def test_a_half_filled_target_cannot_be_used(pair, monkeypatch):
    source, target = pair
    await fill(source)
    await half_moved(source, target, monkeypatch)
    async with Queue.open(target) as queue:
        with pytest.raises(StoreMoved):
            await queue.enqueue("new", 1)
        with pytest.raises(StoreMoved):
            await queue.claim("w", lease_ms=1_000)


async def test_a_half_filled_target_takes_no_other_source_and_the_source_no_other_target(
    pair, new_url, monkeypatch
):
    source, target = pair
    await fill(source)
    await half_moved(source, target, monkeypatch)
    other = new_url("sqlite")
    async with Queue.open(other) as queue:
        await queue.enqueue("a", 1)
    with pytest.raises(ConfigError, match="half-done copy of another queue"):
        await moved(other, target)
    async with Queue.open(other) as queue:
        assert await queue.enqueue("b", 1)  # a refusal leaves the source as it was
    with pytest.raises(ConfigError, match=r"is being moved to .* already"):
        await moved(source, new_url("sqlite"))
    with pytest.raises(ConfigError, match="is itself being filled"):
        await moved(target, new_url("sqlite"))
    await moved(source, target)
    assert dump(target) == dump(source)
    with pytest.raises(ConfigError, match=r"was moved to .* already"):
        await moved(source, new_url("sqlite"))


@pytest.mark.parametrize("table", ["jobs", "queues", "redrives", "attempts"])
async def test_a_target_that_holds_anything_is_refused(pair, table):
    source, target = pair
    await fill(source, 50)
    async with Queue.open(target):
        pass
    raw_of(target).execute(
        {
            "jobs": "INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline) "
            "VALUES ('x', 1, 'pending', 0, 1, 0, 0, 1)",
            "queues": "INSERT INTO queues (name) VALUES ('x')",
            "redrives": "INSERT INTO redrives (id, token, at_ms, note) VALUES ('x', 1, 1, '')",
            "attempts": "INSERT INTO attempts (id, token, attempt, owner, at_ms, outcome, certainty) "
            "VALUES ('x', 1, 1, 'o', 1, 'ok', 'unknown')",
        }[table]
    )
    with pytest.raises(ConfigError, match="is not empty"):
        await moved(source, target)
    async with Queue.open(source) as queue:
        assert await queue.enqueue("still-here", 1)


async def test_a_queue_cannot_be_moved_to_itself(pair):
    source, _ = pair
    async with Queue.open(source):
        pass
    with pytest.raises(ConfigError, match="same queue"):
        await moved(source, source)
    async with Queue.open(source) as queue:
        assert await queue.enqueue("a", 1)
    with pytest.raises(ConfigError, match="same queue"):
        await moved(source, source)
    async with Queue.open(source) as queue:
        assert await queue.enqueue("b", 1)


async def test_a_queue_is_not_moved_to_itself_by_another_name_of_its_server(new_postgres_url):
    url = new_postgres_url()
    async with Queue.open(url):
        pass
    with pytest.raises(ConfigError, match="same queue"):
        await moved(url, url.replace("127.0.0.1", "localhost"))
    async with Queue.open(url) as queue:
        assert await queue.enqueue("a", 1)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_table_of_a_service_that_has_the_name_of_ours_is_left_alone(pair, side):
    source, target = pair
    await fill(source)
    before = dump(source)
    async with Queue.open(target):
        pass
    service = raw_of(source if side == "source" else target)
    service.execute("CREATE TABLE moving (van TEXT)")
    service.execute("INSERT INTO moving VALUES ('red')")
    with pytest.raises(NotAQueue, match="`moving` of somebody else's"):
        await moved(source, target)
    assert service.select("SELECT van FROM moving") == [("red",)]
    async with Queue.open(source) as old, Queue.open(target) as new:
        assert await old.enqueue("goes-on", 1)
        assert await new.enqueue("here-too", 1)
    assert {table: rows for table, rows in dump(source).items() if table != "jobs"} == {
        table: rows for table, rows in before.items() if table != "jobs"
    }


async def test_no_table_of_a_moved_source_takes_a_change_by_whoever_writes(pair):
    source, target = pair
    await fill(source)
    await moved(source, target)
    before, raw = dump(source), raw_of(source)
    for table in before:
        for change in (
            f"INSERT INTO {table} DEFAULT VALUES",
            f"UPDATE {table} SET {'name' if table == 'queues' else 'id'} = 'x'",
            f"DELETE FROM {table}",
        ):
            with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match="was moved"):
                raw.execute(change)
    assert dump(source) == before


async def test_an_empty_queue_that_was_moved_away_is_no_target(pair, new_url):
    source, target = pair
    async with Queue.open(source):
        pass
    await moved(source, target)
    with pytest.raises(ConfigError, match=r"was moved to .* and stays closed"):
        await moved(target, source)
    async with Queue.open(target) as queue:
        assert await queue.enqueue("still-open", 1)


async def test_a_move_that_is_done_or_another_ones_is_not_undone(pair, monkeypatch):
    source, target = pair
    await fill(source, 50)
    await half_moved(source, target, monkeypatch, 16)
    async with sides(source, target) as (old, new):
        begun = await new.mark()
        assert begun is not None
        half = await new.count("jobs")
        assert await new.empty("another", "jobs", 99) == 0
        await new.unseal("another")
        await old.unseal("another")
        assert (await new.mark(), await new.count("jobs")) == (begun, half)
        await move(old, new, quiet)
        await old.unseal(begun.move)
        await new.unseal(begun.move)
        assert await new.empty(begun.move, "jobs", 99) == 0
    assert dump(target) == dump(source)
    async with Queue.open(source) as queue:
        with pytest.raises(StoreMoved):
            await queue.enqueue("new", 1)


async def test_what_does_not_exist_is_not_moved(pair):
    source, target = pair
    with pytest.raises(NotAQueue):
        await moved(source, target)


@pytest.mark.parametrize("pair", [("sqlite", "sqlite"), ("sqlite", "postgres")], indirect=True, ids="-to-".join)
async def test_a_copy_of_the_source_of_an_earlier_time_is_not_given_back(pair, monkeypatch, tmp_path):
    """Else two queues would give out the same tokens."""
    source, target = pair
    await fill(source)
    await half_moved(source, target, monkeypatch)
    copy = tmp_path / "copy-of-source.db"
    shutil.copyfile(source, copy)
    await moved(source, target)
    async with sides(str(copy), target) as (old, new):
        with pytest.raises(ConfigError, match="the queue is in"):
            await abandon(old, new)
    async with Queue.open(copy) as queue:
        with pytest.raises(StoreMoved):
            await queue.enqueue("new", 1)
    async with Queue.open(target) as queue:
        assert await queue.enqueue("new", 1)


async def test_a_move_that_is_given_up_gives_the_source_back_and_empties_the_target(pair, monkeypatch):
    source, target = pair
    await fill(source)
    before = dump(source)
    await half_moved(source, target, monkeypatch, 230)
    async with sides(source, target) as (old, new):
        assert await abandon(old, new)
        with pytest.raises(ConfigError, match="no move"):
            await abandon(old, new)
    assert dump(source) == before
    assert not any(dump(target).values())
    async with Queue.open(source) as queue:
        assert await queue.enqueue("new", 1)
    await moved(source, target)
    assert dump(target) == dump(source)
    async with sides(source, target) as (old, new):
        with pytest.raises(ConfigError, match="no move"):  # what is done stays done
            await abandon(old, new)


async def test_a_move_is_not_given_up_with_a_target_that_is_another_one(
    pair, new_postgres_url, tmp_path, monkeypatch
):
    source, target = pair
    await fill(source)
    await half_moved(source, target, monkeypatch, 230)
    other = str(tmp_path / "other.db")
    async with Queue.open(other):
        pass
    async with sides(source, other) as (old, new):
        with pytest.raises(ConfigError, match=r"is being moved to .*, not to .*other\.db; nothing was changed"):
            await abandon(old, new)
    await moved(source, target)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE jobs SET token = token + 1 WHERE id = 'm7'", "jobs 8 differs from the source or is missing"),
        ("DELETE FROM redrives", "redrives 1 differs from the source or is missing"),
        ("INSERT INTO queues (name) VALUES ('zero')", "queues 'zero' is in no row of the source"),
        (NUMBER_TAKEN, "the numbers of its rows do not go on where the source's end"),
    ],
    ids=["changed", "missing", "more", "number"],
)
async def test_a_copy_that_differs_is_told_and_never_opened(pair, monkeypatch, change, words):
    source, target = pair
    if change is NUMBER_TAKEN:
        change = NUMBER_TAKEN["postgres" if target.startswith("postgresql:") else "sqlite"]
    await fill(source)
    plain = moving._compared

    async def spoilt(*arguments):
        raw_of(target).execute("UPDATE moving SET is_open = (1 = 1)")
        raw_of(target).execute(change)
        raw_of(target).execute("UPDATE moving SET is_open = (1 = 0)")
        return await plain(*arguments)

    monkeypatch.setattr(moving, "_compared", spoilt)
    with pytest.raises(StoreError, match=words):
        await moved(source, target)
    async with Queue.open(target) as queue:
        with pytest.raises(StoreMoved):
            await queue.claim("w", lease_ms=1_000)


async def test_a_move_that_is_given_up_while_it_compares_is_told_as_that(pair, monkeypatch):
    source, target = pair
    await fill(source)
    plain = moving._compared

    async def given_up(*arguments):
        async with sides(source, target) as (old, new):
            assert await abandon(old, new)
        return await plain(*arguments)

    monkeypatch.setattr(moving, "_compared", given_up)
    with pytest.raises(StoreBusy, match="another migrate-store has changed the move meanwhile"):
        await moved(source, target)
    monkeypatch.undo()
    await moved(source, target)
    assert dump(target) == dump(source)


@pytest.mark.parametrize("whole", [False, True], ids=["a page", "all"])
async def test_two_movers_at_once_do_not_mix(pair, monkeypatch, whole):
    source, target = pair
    await fill(source)
    await half_moved(source, target, monkeypatch)
    async with sides(source, target) as (old, new), sides(source, target) as (also_old, also_new):
        plain = new.put
        overtakes = iter([True])

        async def overtaken(*arguments):
            if next(overtakes, False):
                await (move(also_old, also_new, quiet) if whole else also_new.put(*arguments))
            await plain(*arguments)

        monkeypatch.setattr(new, "put", overtaken)
        with pytest.raises(StoreBusy):
            await move(old, new, quiet)
    await moved(source, target)
    assert dump(target) == dump(source)


async def test_there_and_back_again_is_the_same(pair, new_url):
    source, target = pair
    await fill(source)
    before = dump(source)
    back = new_url("sqlite" if not source.startswith("postgresql:") else "postgres")
    there = await moved(source, target)
    home = await moved(target, back)
    assert (there.rows, there.checksums) == (home.rows, home.checksums)
    assert dump(back) == before


async def test_a_contract_file_is_moved(new_url, tmp_path):
    import aiosqlite  # noqa: PLC0415 - only here

    path = tmp_path / "contract.db"
    connection = await worker.open_queue(str(path))
    assert isinstance(connection, aiosqlite.Connection)
    await worker.enqueue(connection, {"id": "a", "qty": 3}, 1_000, 1_000)
    await connection.close()
    target = new_url("postgres")
    await moved(str(path), target)
    assert raw_of(target).select("SELECT id, qty, status FROM jobs") == [("a", 3, "pending")]


async def test_a_value_that_postgresql_cannot_keep_is_named(new_url, tmp_path):
    source, target = str(tmp_path / "odd.db"), new_url("postgres")
    await fill(source, 20)
    with closing(sqlite3.connect(source)) as plain, plain:
        plain.execute("UPDATE jobs SET last_error = 'a' || char(0) || 'b' WHERE id = 'm3'")
    with pytest.raises(StoreError, match="last_error holds a value that PostgreSQL cannot keep"):
        await moved(source, target)
    async with sides(source, target) as (old, new):
        assert await abandon(old, new)
    async with Queue.open(source) as queue:
        assert await queue.enqueue("new", 1)
