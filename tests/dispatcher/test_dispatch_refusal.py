"""A store that refuses for good ends the dispatcher, and its error is what the run ends with."""

import asyncio
import logging

import anyio
import pytest
from dispatch_support import Hands, Log, Verbs, drained, fill, running, until

from asyncqueue import errors
from asyncqueue.dispatcher import Dispatcher, refusal
from asyncqueue.dispatcher.refusal import STANDS_S, Refusals
from asyncqueue.errors import (
    NotAQueue,
    StoreBusy,
    StoreClosed,
    StoreDenied,
    StoreError,
    StoreMoved,
    StoreUnreachable,
)
from asyncqueue.events import ChoreRecovered, Stopped, Stopping
from asyncqueue.queue import Queue
from asyncqueue.stores import open_side
from asyncqueue.stores.move import Mark, abandon
from tests.waiting import PATIENCE_S

LONG_MS = 3_600_000
AT_ONCE = {"ForkedProcess", "NewerSchema", "StoreMoved"}
IF_IT_STANDS = {"ConfigError", "NotAQueue", "StoreClosed", "StoreDamaged", "StoreDenied"}
CHORES = [("claim", "claim_late"), ("report", "finish_late"), ("renew", "renew_many"), ("sweep", "sweep")]


async def _seal(path) -> None:
    """Do to a queue what the begin of a move does to its source."""
    side = await open_side(str(path), create=False)
    try:
        await side.seal(Mark("a-move", "source", "elsewhere", "copying"), with_leases=True)
    finally:
        await side.close()


async def _raised(dispatcher: Dispatcher, *, drain: bool = False) -> BaseException:
    """Return the error that a run ends with."""
    with anyio.fail_after(PATIENCE_S):
        try:
            await (dispatcher.drain() if drain else dispatcher.run())
        except Exception as error:  # noqa: BLE001 - it is what was asked for
            return error
    raise AssertionError("the run ended well")


def _look(dispatcher: Dispatcher) -> None:
    dispatcher._nudge()
    dispatcher._loops["sweep"].wake()


async def test_a_queue_that_has_moved_ends_the_run_once_its_sends_have_ended(queue, path):
    ids = await fill(queue, 3)
    log, hands = Log(), Hands()
    dispatcher = Dispatcher(queue, hands, concurrency=2, grace_ms=LONG_MS, events=log.events)
    task = asyncio.create_task(_raised(dispatcher))
    await until(lambda: hands.running == 2)
    await _seal(path)
    _look(dispatcher)
    await until(lambda: log.of(Stopping))
    assert hands.running == 2  # they may end
    assert not task.done()
    hands.open.set()
    error = await task  # and nobody waits for reports that cannot be made, though the grace is an hour
    assert type(error) is StoreMoved
    assert "see asyncqueue migrate-store" in str(error)
    assert sorted(hands.ended) == ids[:2]
    assert not hands.cancelled
    (stopping,), (stopped,) = log.of(Stopping), log.of(Stopped)
    assert stopping.why == f"StoreMoved: {error}"
    assert (stopped.claimed, stopped.done, stopped.left) == (2, 0, 2)
    assert dispatcher._group is None


@pytest.mark.parametrize("drain", [False, True], ids=["run", "drain"])
async def test_who_only_waits_learns_that_the_queue_has_moved(queue, path, drain):
    dispatcher = Dispatcher(queue, Hands())
    if drain:
        await _seal(path)
        assert type(await _raised(dispatcher, drain=True)) is StoreMoved
        return
    task = asyncio.create_task(_raised(dispatcher))
    await until(lambda: dispatcher.health().ok and dispatcher._loops["sweep"].passed_at)
    await _seal(path)
    _look(dispatcher)
    assert type(await task) is StoreMoved


async def test_a_move_that_was_given_up_lets_the_same_dispatcher_run_again(queue, path):
    await fill(queue, 5)
    await _seal(path)
    dispatcher = Dispatcher(queue, Hands(held=False))
    assert type(await _raised(dispatcher, drain=True)) is StoreMoved
    side = await open_side(str(path), create=False)
    try:
        assert not await abandon(side, None)
    finally:
        await side.close()
    await drained(dispatcher)
    assert dispatcher.counts.done == 5


async def test_a_refusal_met_during_a_stop_is_told_as_well(queue, path):
    await fill(queue, 1)
    hands = Hands()
    dispatcher = Dispatcher(queue, hands, grace_ms=LONG_MS)
    task = asyncio.create_task(_raised(dispatcher))
    await until(lambda: hands.running == 1)
    await _seal(path)
    dispatcher.stop()
    hands.open.set()
    assert type(await task) is StoreMoved  # else nobody knows that a job was sent and its report is nowhere


@pytest.mark.parametrize(("chore", "verb"), CHORES)
async def test_a_refusal_that_stands_ends_the_run_whatever_chore_meets_it(queue, chore, verb, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.2)
    denied = StoreDenied("permission denied for table jobs")
    verbs = Verbs(queue, verb)
    verbs.fail(verb, denied)
    await fill(queue, 1)
    log, hands = Log(), Hands(held=chore == "renew")
    dispatcher = Dispatcher(queue, hands, lease_ms=400, grace_ms=0, events=log.events)
    assert await _raised(dispatcher) is denied
    assert verbs.calls[verb] > 1  # not at the first
    assert log.of(Stopping)[0].why == "StoreDenied: permission denied for table jobs"


@pytest.mark.parametrize("error", [StoreDenied("no"), NotAQueue("no schema"), StoreClosed("gone")], ids=repr)
async def test_a_refusal_that_is_lifted_in_time_is_outlived(queue, error):
    verbs = Verbs(queue, "claim_late", "sweep")
    verbs.fail("claim_late", error, times=4)
    verbs.fail("sweep", error, times=3)
    await fill(queue, 3)
    log = Log()
    dispatcher = Dispatcher(queue, Hands(held=False), events=log.events)
    async with running(dispatcher):
        await until(lambda: {event.chore for event in log.of(ChoreRecovered)} == {"claim", "sweep"})
        await until(lambda: dispatcher.counts.done == 3)


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreUnreachable("away"), StoreError("?"), OSError("?")])
async def test_what_may_pass_is_waited_for_however_long_it_lasts(queue, error, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.0)
    verbs = Verbs(queue, "claim_late")
    verbs.fail("claim_late", error, times=5)
    await fill(queue, 1)
    dispatcher = Dispatcher(queue, Hands(held=False))
    async with running(dispatcher):
        await until(lambda: dispatcher.counts.done == 1)
    assert verbs.calls["claim_late"] > 5


async def test_an_empty_queue_that_may_not_be_swept_is_not_drained(queue, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.1)
    denied = StoreDenied("permission denied for table jobs")
    verbs = Verbs(queue, "sweep")
    verbs.fail("sweep", denied)
    assert await _raised(Dispatcher(queue, Hands()), drain=True) is denied


async def test_a_queue_that_was_closed_below_its_dispatcher_ends_it(path, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.1)
    async with Queue.open(path) as queue:
        dispatcher = Dispatcher(queue, Hands())
        task = asyncio.create_task(_raised(dispatcher))
        await until(lambda: dispatcher.health().ok)
    assert type(await task) is StoreClosed


async def test_reports_that_are_refused_in_the_end_are_not_waited_for(queue, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.1)
    denied = StoreDenied("permission denied for table jobs")
    verbs = Verbs(queue, "sweep")
    asked, answer = asyncio.Event(), asyncio.Event()

    async def refused(_reports):
        asked.set()
        await answer.wait()
        raise denied

    queue.finish_late = refused
    await fill(queue, 2)
    log, hands = Log(), Hands()
    dispatcher = Dispatcher(queue, hands, grace_ms=LONG_MS, events=log.events)
    task = asyncio.create_task(_raised(dispatcher))
    await until(lambda: hands.running == 2)
    verbs.fail("sweep", denied)
    _look(dispatcher)
    await until(lambda: log.of(Stopping))
    monkeypatch.setattr(refusal, "STANDS_S", 3_600.0)  # of the reports' own refusal nothing is certain
    hands.open.set()
    await asked.wait()
    await until(lambda: dispatcher.in_flight == 0)
    answer.set()
    assert await task is denied
    assert log.of(Stopped)[0].left == 2


async def test_reports_that_are_taken_are_made_although_something_else_is_refused(queue, monkeypatch):
    monkeypatch.setattr(refusal, "STANDS_S", 0.1)
    denied = StoreDenied("permission denied for table jobs")
    verbs = Verbs(queue, "sweep")
    verbs.fail("sweep", denied)
    await fill(queue, 2)
    log, hands = Log(), Hands()
    dispatcher = Dispatcher(queue, hands, grace_ms=LONG_MS, events=log.events)
    task = asyncio.create_task(_raised(dispatcher))
    await until(lambda: log.of(Stopping))
    hands.open.set()
    assert await task is denied
    assert (log.of(Stopped)[0].done, log.of(Stopped)[0].left) == (2, 0)


async def test_a_note_that_the_store_refuses_is_one_line_and_no_traceback(queue, caplog):
    verbs = Verbs(queue, "note_many")
    verbs.fail("note_many", StoreMoved("moved"))

    async def unclear(_job):
        return None

    await fill(queue, 1)
    dispatcher = Dispatcher(queue, unclear)
    with caplog.at_level(logging.WARNING, "asyncqueue"):
        async with running(dispatcher):
            await until(lambda: "keeps nothing of 1" in caplog.text)
    assert "the history keeps nothing of 1 attempts left to their leases: moved\n" in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_every_error_of_ours_is_told_apart():
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    made = {name: kind("x") for name, kind in kinds.items()}
    assert {name for name, error in made.items() if Refusals().note(error, 0.0)} == AT_ONCE
    stood: set[str] = set()
    for name, error in made.items():
        refusals = Refusals()
        assert refusals.note(error, 5.0) is (error if name in AT_ONCE else None)
        assert refusals.is_last is (name in AT_ONCE | IF_IT_STANDS)
        if refusals.note(error, 5.0 + STANDS_S) is not None:
            stood.add(name)
    assert stood == AT_ONCE | IF_IT_STANDS


@pytest.mark.parametrize("between", [None, StoreUnreachable("away"), RuntimeError("bug")], ids=repr)
def test_a_refusal_stands_only_while_no_pass_ends_otherwise(between):
    refusals, denied = Refusals(), StoreDenied("no")
    assert refusals.note(denied, 0.0) is None
    assert refusals.note(between, STANDS_S / 2) is None
    assert not refusals.is_last
    assert refusals.note(denied, STANDS_S) is None
    assert refusals.note(denied, 2 * STANDS_S - 0.001) is None
    assert refusals.note(denied, 2 * STANDS_S) is denied
