"""The endurance run in small, and that its checks can fail."""

import random
import sqlite3
from contextlib import closing

import pytest

from tests.system.endurance.books import Books, Row, reconcile
from tests.system.endurance.plan import OTHER, RECEIVER, ROLES, STEADY, Plan
from tests.system.endurance.report import document, table
from tests.system.endurance.run import run
from tests.system.endurance.traffic import KINDS
from tests.system.endurance.watch import Life, Sample, Sizes, longest, out_of_bounds, steep


def change(path, statement, *parameters):
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, parameters).rowcount == 1


@pytest.mark.timeout(300)  # it ends when enough has happened; that is how long a loaded machine may take
async def test_mixed_traffic_under_kills_for_twenty_seconds_loses_and_doubles_nothing(tmp_path):
    result = await run(7, tmp_path, 20)
    assert not result.faults, table(result)
    assert {role for _at, role in result.kills} == set(ROLES)
    assert all(result.done[kind] for kind in KINDS)
    assert result.books.promised == result.books.closed | result.books.rows.keys()
    assert result.files
    assert sum(len(life.samples) for life in result.lives) >= 20
    assert "0 lost, 0 doubled" in table(result)
    assert document(result)["ok"]
    # The same check on the same files, damaged by hand: it must see each.
    jobs, inbox = tmp_path / "jobs.db", tmp_path / "inbox.db"
    first, second = sorted(i for i, row in result.books.rows.items() if row.status == "done")[:2]
    change(inbox, "UPDATE ledger SET qty = 2 * qty WHERE id = ?", first)
    change(inbox, "DELETE FROM ledger WHERE id = ?", second)
    change(jobs, "DELETE FROM redrives WHERE seq = (SELECT min(seq) FROM redrives)")
    reconcile(result.books, jobs, inbox)
    assert (result.books.lost, result.books.doubled) == (1, 1)
    assert {fault[:2] for fault in result.faults} == {"I2", "I4", "I6"}
    assert "FAILED: I2: 1 doubled" in table(result)


PENDING = Row(2, "pending", None, 1, 1, 9)
DONE = PENDING._replace(status="done", token=2)


def books_after(*looks, promised=("new-1",)):
    books = Books(promised=set(promised))
    for rows, counts in looks:
        books.compare(rows, counts)
    return books


@pytest.mark.parametrize(
    ("invariant", "looks"),
    [
        ("I1", [({"new-1": PENDING}, {"pending": 1}), ({}, {})]),
        ("I1", [({"new-1": DONE}, {"done": 1}), ({}, {}), ({"new-1": PENDING}, {"pending": 1})]),
        ("I1", [({"new-1": PENDING._replace(status="dead", reason="exhausted")}, {"dead": 1})]),
        ("I1", [({"poison-1": DONE}, {"done": 1})]),
        ("I1", [({"new-1": PENDING._replace(qty=3)}, {"pending": 1})]),
        ("I3", [({"new-1": PENDING}, {"pending": 1}), ({"new-1": PENDING._replace(token=0)}, {"pending": 1})]),
        ("I3", [({"new-1": DONE}, {"done": 1}), ({"new-1": PENDING._replace(token=2)}, {"pending": 1})]),
        ("I3", [({"new-1": DONE}, {"done": 1}), ({"new-1": DONE._replace(token=3)}, {"done": 1})]),
        ("I4", [({"new-1": PENDING}, {"pending": 2})]),
        ("I5", [({"new-1": PENDING._replace(attempts=10)}, {"pending": 1})]),
    ],
)
def test_a_look_that_does_not_follow_from_the_last_one_is_a_fault(invariant, looks):
    (fault,) = books_after(*looks, promised=("new-1", "poison-1")).faults
    assert fault.startswith(invariant)


def test_a_job_that_is_sent_ends_and_is_purged_is_no_fault():
    books = books_after(({"new-1": PENDING}, {"pending": 1}), ({"new-1": DONE}, {"done": 1}), ({}, {}))
    assert not books.faults
    assert books.closed == {"new-1"}
    assert books.ledger() == {"new-1": 2}


def life(role=STEADY, *, seconds=1000, mb=lambda at: 40.0, descriptors=lambda at: 20, threads=lambda at: 3):
    samples = [Sample(at, mb(at), descriptors(at), threads(at)) for at in range(seconds)]
    return Life(role, 0.0, samples)


FLAT = [Sizes(float(at), 5.0, at / 100) for at in range(600)]
NOISE = random.Random(1)


def test_what_is_flat_is_within_bounds_whatever_noise_there_is():
    noisy = life(mb=lambda at: 40 + NOISE.random(), descriptors=lambda at: 20 + NOISE.randrange(8))
    starting = life(RECEIVER, mb=lambda at: min(60.0, 40 + at / 5))
    assert out_of_bounds([noisy, starting], FLAT) == []
    assert steep([noisy, starting]) == []


@pytest.mark.parametrize(
    ("what", "grown"),
    [
        ("descriptors", life(descriptors=lambda at: 20 + at // 60)),
        ("threads", life(threads=lambda at: 3 + at // 60)),
        ("long enough", life(seconds=20)),
    ],
)
def test_what_grows_is_out_of_bounds(what, grown):
    (fault,) = out_of_bounds([grown], FLAT)
    assert what in fault


@pytest.mark.parametrize(
    ("what", "lived"),
    [
        ("memory", life(mb=lambda at: 40 + 1.01 * at / 3600)),
        ("long enough", life(seconds=890)),
        ("long enough", life(seconds=35)),
    ],
)
def test_memory_that_grows_or_was_not_seen_for_long_enough_is_out_of_bounds(what, lived):
    (fault,) = steep([lived])
    assert what in fault


def test_a_queue_file_that_purges_do_not_keep_small_is_out_of_bounds():
    (fault,) = out_of_bounds([life()], [Sizes(float(at), at / 100, 0.0) for at in range(600)])
    assert "file" in fault


def test_a_queue_file_that_keeps_the_size_of_one_bad_minute_is_within_bounds():
    assert out_of_bounds([life()], [Sizes(float(at), 0.4 if at < 330 else 0.7, 0.0) for at in range(600)]) == []


def test_the_longest_life_of_each_role_is_judged():
    short, long, other = life(seconds=100), life(seconds=500), life(RECEIVER, seconds=50)
    assert longest([short, long, other]) == [long, other]
    assert long.slope() == pytest.approx(0)


@pytest.mark.parametrize("minutes", [1 / 3, 6, 10, 20, 44, 45, 60])
def test_every_process_is_killed_in_a_run_and_two_are_left_alone_for_most_of_a_long_one(minutes):
    plan = Plan(minutes * 60)
    moments = [plan.seconds * share / 1000 for share in range(1000)]
    allowed = {role: [at for at in moments if role in plan.victims(at)] for role in ROLES}
    assert all(allowed.values())
    assert len(allowed[OTHER]) == 1000
    if minutes >= 10:
        assert max(allowed[STEADY]) < plan.seconds / 5
        calm = plan.seconds - max(allowed[RECEIVER])
        assert calm >= 0.39 * plan.seconds
        assert calm * 2 / 3 >= 600 or not plan.tells_slopes
