"""A dispatcher that sends batches to a real receiver, in processes that are killed."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from dispatch_support import ROOT, Log, drained, ended, fill, running, until
from send_servers import answer, other_job, raw_server, silent

from asyncqueue import wire
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.lane import Ended
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import ConfigError
from asyncqueue.events import LeaseLost, Settled
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
    ids = await fill(queue, 3_000, max_attempts=1_000)  # a receiver is not back at once
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


async def test_a_stop_gives_back_what_never_left_and_counts_what_did(queue):
    await fill(queue, 9)
    async with raw_server(silent) as server:
        sender = HttpSender(server.url(), batch=8)
        dispatcher = Dispatcher(queue, sender, concurrency=9, grace_ms=0)
        async with dispatcher, running(dispatcher):
            await until(lambda: len(server.requests) == 2)  # eight together, and one that waited alone
            assert {delivery.is_boarded for delivery in dispatcher._flight.held} == {False, True}
            sender._gatherer._may_leave = lambda: False
            await fill(queue, 3, "more")
            dispatcher._flight.concurrency = 12
            dispatcher._lanes[0].most = 12
            dispatcher._claim.nudge()
            await until(lambda: len(sender._gatherer._waiting) == 3)
    jobs = {job.id: job for job in await queue.list()}
    assert {job.attempts for job_id, job in jobs.items() if job_id.startswith("job")} == {1}
    assert {job.attempts for job_id, job in jobs.items() if job_id.startswith("more")} == {0}
    assert {job.status for job in jobs.values()} == {Status.PENDING}


async def test_an_abort_ends_requests_that_jobs_share(queue):
    await fill(queue, 20)
    async with raw_server(silent) as server:
        sender = HttpSender(server.url(), batch=10)
        async with sender:
            dispatcher = Dispatcher(queue, Uncloseable(sender), concurrency=20)
            task = asyncio.create_task(dispatcher.run())
            await until(lambda: len(server.requests) == 2)
            dispatcher.abort()
            await task
            await until(lambda: not sender._gatherer._rides and not sender._session.connector._acquired)
    assert (await queue.stats()).leased == 20


class Uncloseable:
    """The same sender, opened and closed by somebody else."""

    def __init__(self, sender):
        self.send, self.send_alone, self.board = sender.send, sender.send_alone, sender.board
        self.batch, self.timeout_ms = sender.batch, sender.timeout_ms


async def test_a_lost_lease_leaves_its_request_at_once_and_the_others_go_on__kind_4(queue):
    release = asyncio.Event()

    async def held(_server, request, writer):
        await release.wait()
        replies = [wire.encode_ack(item["id"], item["qty"], wire.ACCEPTED) for item in json.loads(request.body)]
        writer.write(answer(b"[%b]" % b",".join(replies)))

    await fill(queue, 5)
    log = Log()
    async with raw_server(held) as server:
        sender = HttpSender(server.url(), batch=10)
        async with Dispatcher(queue, sender, concurrency=5, events=log.events) as dispatcher, running(dispatcher):
            await until(lambda: server.requests)
            lost = next(d for d in dispatcher._flight.held if d.job.id == "job-00002")
            lost.end(Ended.TAKEN)
            await until(lambda: log.of(LeaseLost))
            assert dispatcher.in_flight == 4
            release.set()
            await until(lambda: dispatcher.counts.done == 4)
    assert (await queue.get("job-00002")).status is Status.LEASED
    assert dispatcher.counts.lost == 1


async def test_where_batches_are_refused_slowly_the_single_send_has_the_rest_of_the_time(queue):
    async def slow(server, request, writer):
        if "/batch" in request.head.split("\r\n")[0]:
            await asyncio.sleep(0.3)  # time that passes is what is tested: it is taken from what is left
            writer.write(answer(b"", "404 Not Found"))
        else:
            await silent(server, request, writer)

    await fill(queue, 3)
    async with raw_server(slow) as server:
        sender = HttpSender(server.url(), batch=10, timeout_ms=1_000, connect_timeout_ms=1_000)
        timeouts = []
        timeout_of, sender._timeout_of = sender._timeout_of, lambda ms: (timeouts.append(ms), timeout_of(ms))[1]
        async with Dispatcher(queue, sender) as dispatcher, running(dispatcher):
            await until(lambda: dispatcher.counts.retried == 3)
    assert len(timeouts) == 4
    assert max(timeouts[1:]) <= 700
