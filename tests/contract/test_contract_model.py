"""Random sequences of contract calls against a model in plain Python that keeps a list of dicts."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import contract_tools as tools
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncqueue.worker import Conflict, claim, enqueue, finish, open_queue, redrive

IDS = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["one", "two"])
SPANS = st.sampled_from([1, 5, 10, 30])


class Boom(Exception):
    pass


def boom(_point):
    raise Boom


class Model:
    """The contract in as few words as Python has."""

    def __init__(self):
        self.rows = []
        self.audit = []

    def get(self, job_id):
        return next((row for row in self.rows if row["id"] == job_id), None)

    def enqueue(self, job_id, qty, now, ttl, budget):
        row = self.get(job_id)
        if row:
            return Conflict if row["qty"] != qty else False
        start = {"status": "pending", "attempts": 0, "max_attempts": budget, "token": 0, "available_at": now}
        self.rows.append(
            {**dict.fromkeys(tools.COLUMNS), "id": job_id, "qty": qty, "deadline": now + ttl, **start}
        )
        return True

    def claim(self, owner, now, lease):
        free = [
            r
            for r in self.rows
            if r["status"] == "pending" or (r["status"] == "leased" and r["lease_until"] <= now)
        ]
        for row in free:
            late, spent = row["deadline"] <= now, row["attempts"] >= row["max_attempts"]
            if late or spent:
                row.update(status="dead", reason="deadline" if late else "exhausted", owner=None, lease_until=None)
        due = [
            r for r in free if r["status"] == "leased" or (r["status"] == "pending" and r["available_at"] <= now)
        ]
        if not due:
            return None
        row = due[0]
        until = min(now + lease, row["deadline"])
        row.update(status="leased", owner=owner, lease_until=until, reason=None)
        row.update(attempts=row["attempts"] + 1, token=row["token"] + 1)
        names = {"id": "id", "qty": "qty", "owner": "owner", "token": "token"}
        names |= {"attempt": "attempts", "lease_until": "lease_until"}
        return {name: row[column] for name, column in names.items()}

    def finish(self, ticket, outcome, now, delay):
        row = self.get(ticket["id"])
        if row["status"] != "leased" or row["token"] != ticket["token"]:
            return False
        if now >= row["lease_until"] or now >= row["deadline"]:
            return False
        spent, late = row["attempts"] >= row["max_attempts"], now + delay >= row["deadline"]
        status, reason = {
            "ok": ("done", None),
            "permanent": ("dead", "permanent"),
            "retry": ("dead", "exhausted") if spent else ("dead", "deadline") if late else ("pending", "retry"),
        }[outcome]
        due = now + delay if status == "pending" else now
        row.update(status=status, reason=reason, available_at=due, owner=None, lease_until=None)
        return status

    def redrive(self, job_id, now, ttl, note):
        row = self.get(job_id)
        if not row or row["status"] != "dead":
            return ValueError
        self.audit.append((job_id, row["token"], now, note))
        row.update(status="pending", attempts=0, available_at=now, deadline=now + ttl)
        row.update(owner=None, lease_until=None, reason=None)
        return True


class Contract(RuleBasedStateMachine):
    """Each rule calls the function and the model, and compares the answers; the invariant compares the rows."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "q.db"
        self.runner = asyncio.Runner()
        self.con = self.runner.run(open_queue(self.path))
        self.runner.run(self.con.execute_fetchall("PRAGMA synchronous=OFF"))
        self.model = Model()
        self.now = 100
        self.tickets = []

    def teardown(self):
        self.runner.run(self.con.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def answer(self, call):
        """Run a contract call; an error answers with its class."""
        try:
            return self.runner.run(call)
        except (Conflict, ValueError) as error:
            return Conflict if isinstance(error, Conflict) else ValueError

    @rule(delta=st.sampled_from([1, 4, 9, 25]))
    def time_passes(self, delta):
        self.now += delta

    @rule(job_id=IDS, qty=st.sampled_from([1, 1, 1, 2]), ttl=SPANS, budget=st.integers(1, 3))
    def intake(self, job_id, qty, ttl, budget):
        found = self.answer(enqueue(self.con, {"id": job_id, "qty": qty}, self.now, ttl, budget))
        assert found is self.model.enqueue(job_id, qty, self.now, ttl, budget)

    @rule(owner=OWNERS, lease=SPANS)
    def take(self, owner, lease):
        ticket = self.answer(claim(self.con, owner, self.now, lease))
        assert ticket == self.model.claim(owner, self.now, lease)
        if ticket:
            self.tickets.append(ticket)

    @rule(
        data=st.data(),
        outcome=st.sampled_from(["ok", "retry", "retry", "permanent"]),
        delay=st.sampled_from([0, 3, 40]),
    )
    def report(self, data, outcome, delay):
        if self.tickets:
            ticket = data.draw(st.sampled_from(self.tickets))
            found = self.answer(finish(self.con, ticket, outcome, self.now, delay))
            assert found == self.model.finish(ticket, outcome, self.now, delay)

    @rule(job_id=IDS, ttl=SPANS)
    def put_back(self, job_id, ttl):
        assert self.answer(redrive(self.con, job_id, self.now, ttl, "n")) is self.model.redrive(
            job_id, self.now, ttl, "n"
        )

    @rule(job_id=IDS, owner=OWNERS)
    def fail_half_way(self, job_id, owner):
        """A hook that raises before the commit: the rows stay as the model has them."""
        before = tools.snapshot(self.path)
        for call in (claim(self.con, owner, self.now, 5, boom), redrive(self.con, job_id, self.now, 5, "n", boom)):
            try:
                self.runner.run(call)
            except (Boom, ValueError):
                assert tools.snapshot(self.path) == before
            else:  # nothing to take: only the sweep was committed
                self.model.claim(owner, self.now, 5)
                before = tools.snapshot(self.path)

    @invariant()
    def the_rows_are_those_of_the_model(self):
        assert tools.jobs(self.path) == self.model.rows
        assert tools.audit(self.path) == self.model.audit
        assert not self.con.in_transaction


TestContractModel = Contract.TestCase
TestContractModel.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
