"""A state machine drives `Queue` and a plain-Python model side by side, over reopened files and moved clocks."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test

from asyncqueue.clock import ManualClock
from asyncqueue.errors import Conflict, NotDead, UnknownJob
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Event, Facts, Status, step
from asyncqueue.queue import Queue
from tests.store.turns import assert_lawful_claim

IDS = [f"j{n}" for n in range(8)]
EVENTS = {"ok": Event.OK, "retry": Event.RETRY, "permanent": Event.PERMANENT}


@dataclass
class Known:
    """One job of the model."""

    id: str
    seq: int
    qty: int
    queue: str
    priority: int
    facts: Facts
    owner: str | None = None
    tokens: list = field(default_factory=list)


class QueueMachine(RuleBasedStateMachine):
    tickets = Bundle("tickets")

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.jobs = {}
        self.redrives = 0
        self.paused = set()
        self.queue = None
        self.reopen()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    @property
    def now(self):
        return self.clock.now_ms()

    @rule()
    def reopen(self):
        async def swap():
            if self.queue is not None:
                await self.queue.close()
            return await Queue.open(self.url, clock=self.clock)

        self.queue = self.run(swap())

    def _model_enqueue(self, job):
        known = self.jobs.get(job.id)
        if known is not None:
            return Conflict if (known.qty, known.queue) != (job.qty, job.queue) else False
        due, deadline = self.now + job.delay_ms, self.now + job.ttl_ms
        facts = Facts(Status.PENDING, 0, job.max_attempts, 0, due, deadline)
        self.jobs[job.id] = Known(job.id, len(self.jobs) + 1, job.qty, job.queue, job.priority, facts)
        return True

    @rule(
        jobs=st.lists(
            st.builds(
                NewJob,
                st.sampled_from(IDS),
                st.integers(1, 2),
                queue=st.sampled_from(["default", "q"]),
                priority=st.integers(-1, 1),
                delay_ms=st.sampled_from([0, 0, 5]),
                ttl_ms=st.sampled_from([10, 30, 1_000]),
                max_attempts=st.integers(1, 3),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def enqueue(self, jobs):
        expected = [self._model_enqueue(job) for job in jobs]
        answers = self.run(self.queue.enqueue_many(jobs))
        assert [type(answer) if isinstance(answer, Conflict) else answer for answer in answers] == expected

    def _eligible(self, lease_ms, queues):
        """Return what a claim could take, best first, with what the law makes of each."""
        return [
            (known, step(known.facts, Event.CLAIM, now_ms=self.now, span_ms=lease_ms))
            for known in sorted(self.jobs.values(), key=lambda known: (-known.priority, known.seq))
            if known.facts.status in (Status.PENDING, Status.LEASED)
            and (queues is None or known.queue in queues)
            and known.queue not in self.paused
            and step(known.facts, Event.CLAIM, now_ms=self.now, span_ms=lease_ms) is not None
        ]

    @rule(
        target=tickets,
        owner=st.sampled_from(["w1", "w2"]),
        limit=st.integers(1, 5),
        lease_ms=st.sampled_from([1, 10, 100]),
        queues=st.sampled_from([None, ["q"], ["default", "q"]]),
    )
    def claim(self, owner, limit, lease_ms, queues):
        leased = self.run(self.queue.claim(owner, limit=limit, lease_ms=lease_ms, queues=queues))
        self._model_sweep()
        offered = {known.id: (known, after) for known, after in self._eligible(lease_ms, queues)}
        assert_lawful_claim(
            [one.id for one in leased],
            [known for known, _after in offered.values()],
            limit,
            name_of=lambda known: known.id,
        )
        for one in leased:
            known, after = offered[one.id]
            assert (one.token, one.attempt, one.lease_until) == (after.token, after.attempts, after.lease_until)
            known.facts, known.owner = after, owner
            known.tokens.append(after.token)
        return multiple(*leased)

    def _holds(self, ticket):
        known = self.jobs[ticket.id]
        mine = (known.facts.status, known.owner, known.facts.token, known.facts.attempts)
        return mine == (Status.LEASED, ticket.owner, ticket.token, ticket.attempt)

    def _model_report(self, ticket, event, span_ms=0):
        if not self._holds(ticket):
            return None
        known = self.jobs[ticket.id]
        after = step(known.facts, event, now_ms=self.now, span_ms=span_ms)
        if after is not None:
            known.facts = after
        return after

    @rule(
        ticket=tickets,
        outcome=st.sampled_from(["ok", "ok", "retry", "permanent"]),
        delay=st.sampled_from([0, 5, 99]),
    )
    def finish(self, ticket, outcome, delay):
        after = self._model_report(ticket, EVENTS[outcome], delay)
        answer = self.run(self.queue.finish(ticket, outcome, delay_ms=delay if outcome == "retry" else 0))
        assert answer == (after and after.status)

    @rule(ticket=tickets, lease_ms=st.sampled_from([1, 20, 500]))
    def renew(self, ticket, lease_ms):
        after = self._model_report(ticket, Event.RENEW, lease_ms)
        assert self.run(self.queue.renew(ticket, lease_ms)) == (after and after.lease_until)

    @rule(ticket=tickets, delay_ms=st.sampled_from([0, 5]))
    def release(self, ticket, delay_ms):
        after = self._model_report(ticket, Event.RELEASE, delay_ms)
        assert self.run(self.queue.release(ticket, delay_ms=delay_ms)) is (after is not None)

    @rule(first=tickets, second=tickets, outcome=st.sampled_from(["ok", "permanent"]))
    def two_finishes_at_once(self, first, second, outcome):
        expected = [self._model_report(ticket, EVENTS[outcome]) for ticket in (first, second)]

        async def both():
            return await asyncio.gather(*(self.queue.finish(ticket, outcome) for ticket in (first, second)))

        assert self.run(both()) == [after and after.status for after in expected]

    @rule(job_id=st.sampled_from(IDS), ttl_ms=st.sampled_from([5, 500]))
    def redrive(self, job_id, ttl_ms):
        known = self.jobs.get(job_id)
        if known is None or known.facts.status is not Status.DEAD:
            try:
                self.run(self.queue.redrive(job_id, note="n", ttl_ms=ttl_ms))
            except NotDead:
                return
            raise AssertionError("a job that is not dead was redriven")
        known.facts = step(known.facts, Event.REDRIVE, now_ms=self.now, span_ms=ttl_ms)
        self.redrives += 1
        assert self.run(self.queue.redrive(job_id, note="n", ttl_ms=ttl_ms)) is True

    @rule(job_id=st.sampled_from(IDS))
    def cancel(self, job_id):
        known = self.jobs.get(job_id)
        if known is None:
            try:
                self.run(self.queue.cancel(job_id))
            except UnknownJob:
                return
            raise AssertionError("an unknown id was cancelled")
        is_live = known.facts.status in (Status.PENDING, Status.LEASED)
        if is_live:
            known.facts = step(known.facts, Event.CANCEL, now_ms=self.now)
        assert self.run(self.queue.cancel(job_id)) is is_live

    @rule(name=st.sampled_from(["default", "q"]), is_paused=st.booleans())
    def pause_or_resume(self, name, is_paused):
        self.run((self.queue.pause if is_paused else self.queue.resume)(name))
        (self.paused.add if is_paused else self.paused.discard)(name)

    @rule(delta_ms=st.sampled_from([1, 5, 9, 10, 100]))
    def time_passes(self, delta_ms):
        self.clock.advance(delta_ms)

    def _model_sweep(self):
        swept = 0
        for known in self.jobs.values():
            if known.facts.status in (Status.PENDING, Status.LEASED):
                after = step(known.facts, Event.CLAIM, now_ms=self.now, span_ms=1)
                if after is not None and after.status is Status.DEAD:
                    known.facts, swept = after, swept + 1
        return swept

    @rule()
    def sweep(self):
        assert self.run(self.queue.sweep()) == self._model_sweep()

    @invariant()
    def the_rows_are_those_of_the_model(self):
        rows = self.run(self.queue.list())
        assert [row.id for row in rows] == list(self.jobs)
        for row in rows:
            known = self.jobs[row.id]
            assert Facts(**{name: getattr(row, name) for name in Facts.__slots__}) == known.facts
            assert 0 <= row.attempts <= row.max_attempts
            assert known.tokens == list(range(1, row.token + 1)), "a token was skipped, repeated or reset"

    @invariant()
    def the_sums_add_up(self):
        stats = self.run(self.queue.stats())
        assert stats.total == len(self.jobs)
        assert stats.redrives == (self.redrives if self.jobs else 0)
        for status in Status:
            assert getattr(stats, status) == sum(known.facts.status is status for known in self.jobs.values())

    def teardown(self):
        self.run(self.queue.close())
        self.runner.close()


def test_queue_agrees_with_the_model_whatever_happens(new_url):
    run_state_machine_as_test(
        lambda: QueueMachine(new_url()),
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
