"""A receiver that hangs up on whom it pleases: nobody can tell what it did, and its total moves once a job."""

import json
import random

from dispatch_support import drained, fill
from send_servers import answer, raw_server

from asyncqueue import wire
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.retry import RetryPolicy

JOBS = 120
QUICK = RetryPolicy(base_ms=1, cap_ms=5)


async def test_connections_closed_at_random_are_retries_and_the_total_moves_once__kind_41_keep_alive_race(queue):
    chance = random.Random(41)
    inbox: dict[str, int] = {}
    unanswered = []

    async def behave(_server, request, writer):
        job = json.loads(request.body)
        result = wire.DUPLICATE if job["id"] in inbox else wire.ACCEPTED
        before_the_effect, after_it, idle = (chance.random() < 0.15 for _ in range(3))
        if not before_the_effect:
            inbox.setdefault(job["id"], job["qty"])
        if before_the_effect or after_it:
            unanswered.append(job["id"])
        else:
            writer.write(answer(wire.encode_ack(job["id"], job["qty"], result)))
            await writer.drain()
        if before_the_effect or after_it or idle:
            writer.close()

    ids = await fill(queue, JOBS, max_attempts=50)
    async with raw_server(behave) as server:
        sender = HttpSender(server.url())
        async with Dispatcher(queue, sender, concurrency=8, policy=QUICK) as dispatcher:
            await drained(dispatcher)
        sent = [json.loads(request.body)["id"] for request in server.requests]
    counts = dispatcher.counts
    assert (counts.done, counts.dead, counts.lost) == (JOBS, 0, 0)
    assert inbox == dict.fromkeys(ids, 1)
    assert len(set(unanswered)) > JOBS / 10  # it did happen
    assert counts.retried >= len(unanswered)  # each of them, and connections that were closed as the next one came
    assert set(sent) == set(ids)
