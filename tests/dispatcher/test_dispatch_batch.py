"""A dispatcher that sends batches to a real receiver, in processes that are killed."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from dispatch_support import ROOT, Log, drained, ended, fill, running, until
from send_servers import other_job, raw_server, silent

from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import ConfigError
from asyncqueue.events import Settled
from asyncqueue.lifecycle import Status
from asyncqueue.retry import ACCEPTED, RetryPolicy
from asyncqueue.testing.receiver import ScriptedReceiver

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def python(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", *map(str, arguments)], cwd=ROOT, env=ENVIRONMENT, **options)


@contextmanager
def receiver(inbox, port=0):
    process = python("receiver", inbox, "--port", port, stdout=subprocess.PIPE)
    with process:
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def rows(path, sql):
    with closing(sqlite3.connect(path, timeout=10)) as plain:
        return plain.execute(sql).fetchall()


def check_effects(inbox, ids):
    """Assert that each job has had its effect exactly once."""
    assert sorted(rows(inbox, "SELECT id, qty FROM ledger")) == [(job_id, 1) for job_id in sorted(ids)]
    assert rows(inbox, "SELECT messages, conflicts FROM totals") == [(len(ids), 0)]


async def test_batches_go_to_the_receiver_and_each_job_is_settled_by_itself(queue, tmp_path):
    inbox = tmp_path / "inbox.db"
    log = Log()
    with receiver(inbox) as (_process, url):
        ids = await fill(queue, 500)
        await queue.enqueue("differs", 2)
        async with HttpSender(url) as single:  # somebody else took the id, with another quantity
            assert await single.send(other_job("differs", qty=5)) == ACCEPTED
        async with Dispatcher(queue, HttpSender(url, batch=50), concurrency=100, events=log.events) as dispatcher:
            await drained(dispatcher)
    assert (await queue.get("differs")).status is Status.DEAD
    assert dispatcher.counts.done == 500
    assert dispatcher.counts.dead == 1
    settled = log.of(Settled)
    assert sorted(event.id for event in settled) == sorted([*ids, "differs"])
    assert {event.http_status for event in settled} == {None, 409}
    assert {(job.status, job.attempts) for job in await queue.list(limit=1_000, status="done")} == {
        (Status.DONE, 1)
    }
    assert len(rows(inbox, "SELECT DISTINCT received_at FROM inbox")) < 100


async def test_dispatcher_and_receiver_killed_in_flight_every_effect_is_there_once(queue, path, tmp_path):
    inbox = tmp_path / "inbox.db"
    ids = await fill(queue, 3_000)
    command = ("asyncqueue", "dispatch", path)
    options = ("--drain", "--batch", 32, "--concurrency", 96, "--lease-ms", 2_500, "--timeout-ms", 400)
    options += ("--connect-timeout-ms", 400, "--retry-base-ms", 1, "--retry-cap-ms", 50, "--json")

    def dispatch(url):
        return python(*command, url, *options, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def arrived():
        return rows(inbox, "SELECT messages FROM totals")[0][0]

    with receiver(inbox) as (first, url):
        port = url.rsplit(":", 1)[1].split("/")[0]
        with dispatch(url) as victim:
            await until(lambda: arrived() >= 300)
            victim.kill()
        with dispatch(url) as survivor:
            await until(lambda: arrived() >= 900)
            first.kill()
            first.wait()
            with receiver(inbox, port):
                assert await ended(survivor, 45) == 0
    stats = await queue.stats()
    assert (stats.done, stats.total) == (3_000, 3_000)
    check_effects(inbox, ids)


async def test_a_receiver_without_batches_gets_single_jobs(queue):
    await fill(queue, 40)
    async with ScriptedReceiver() as receiver, Dispatcher(queue, HttpSender(receiver.url, batch=20)) as dispatcher:
        await drained(dispatcher)
    assert dispatcher.counts.done == 40
    assert set(receiver.accepted.values()) == {1}
    assert len(receiver.accepted) == 40


async def test_a_stop_cuts_batches_short_within_its_grace(queue):
    await fill(queue, 30)

    policy = RetryPolicy(base_ms=1, cap_ms=1)
    async with raw_server(silent) as server:
        sender = HttpSender(server.url(), batch=10)
        dispatcher = Dispatcher(queue, sender, concurrency=20, grace_ms=50, policy=policy)
        async with dispatcher, running(dispatcher):
            await until(lambda: dispatcher.in_flight == 20)
        await until(lambda: not sender._gatherer._rides)
    stats = await queue.stats()
    assert (stats.leased, stats.pending) == (0, 30)
    assert sorted(job.attempts for job in await queue.list()) == [0] * 10 + [1] * 20


@pytest.mark.parametrize("batch", [1, 50])
def test_the_lease_must_outlast_a_send_with_batches_too(queue, batch):
    sender = HttpSender("http://127.0.0.1:1/", timeout_ms=10_000, batch=batch)
    with pytest.raises(ConfigError, match="lease_ms"):
        Dispatcher(queue, sender, lease_ms=12_000)
