"""Whatever a power cut leaves of un-synced work: what was acknowledged is there, whole, and nothing is half."""

import asyncio
import random

import pytest

from asyncqueue.queue import Queue
from asyncqueue.stores.sqlite import statements
from tests.power.disk import cuts
from tests.power.judge import NAME, SETTINGS, cut_power, memory_folder, record
from tests.power.workloads import contract, queue

EACH = 5


@pytest.fixture
def folder():
    with memory_folder() as made:
        yield made


@pytest.mark.timeout(120)
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_acknowledged_change_is_lost_in_the_shipped_settings(setting, tmp_path, folder):
    log = record(SETTINGS[setting], tmp_path)
    verdict = cut_power(log, cuts(log, [NAME], random.Random(11), EACH), folder)
    print(verdict)
    assert (verdict.lost, verdict.damaged) == (0, 0), verdict.examples
    assert verdict.images >= 300


@pytest.mark.timeout(120)
def test_a_cache_that_spills_in_the_middle_of_a_transaction_loses_nothing(tmp_path, folder):
    log = record(queue("delete", jobs=300), tmp_path, cache_pages=10)
    verdict = cut_power(log, cuts(log, [NAME], random.Random(12), 1), folder)
    assert (verdict.lost, verdict.damaged) == (0, 0), verdict.examples
    assert verdict.images >= 300


def test_delete_with_full_loses_the_last_acknowledged_commit_and_never_more(tmp_path, folder):
    """The check is checked: FULL never syncs the folder after the journal's unlink, which is the commit."""
    log = record(contract, tmp_path)
    verdict = cut_power(log, cuts(log, [NAME], random.Random(13), EACH), folder)
    assert verdict.lost > 20
    assert verdict.damaged == 0
    assert all(_answer(line) == int(line.rsplit(" ", 1)[1]) + 1 for line in verdict.examples)


def _answer(line):
    return int(line.split(" calls, ")[1].split(" ")[0])


@pytest.mark.parametrize(
    ("mode", "pragmas", "kind"),
    [
        ("wal", ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL"), "lost"),
        ("delete", ("PRAGMA journal_mode=DELETE", "PRAGMA synchronous=OFF"), "damaged"),
    ],
    ids=["wal with normal", "delete without any sync"],
)
def test_settings_that_sync_too_little_are_found_out(  # noqa: PLR0917 - fixtures
    mode, pragmas, kind, tmp_path, folder, monkeypatch
):
    monkeypatch.setitem(statements.PRAGMAS, mode, pragmas)
    log = record(queue(mode), tmp_path)
    verdict = cut_power(log, cuts(log, [NAME], random.Random(14), EACH), folder)
    assert getattr(verdict, kind) > 20, verdict


async def test_the_queue_goes_on_from_what_a_cut_left(tmp_path, folder):
    log = await asyncio.to_thread(record, queue("delete"), tmp_path)
    chosen = random.Random(15).sample(list(cuts(log, [NAME], random.Random(15), 2)), 12)
    for cut in chosen:
        for left in folder.iterdir():
            left.unlink()
        for name, data in cut.image.items():
            (folder / name).write_bytes(data)
        async with Queue.open(folder / NAME) as opened:
            before = await opened.stats()
            assert before.total == len(await opened.list(limit=1_000))
            assert await opened.enqueue("after-the-cut", 1)
            assert (await opened.stats()).total == before.total + 1
