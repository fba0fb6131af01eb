"""Does it add up? What went in against what came out, one comparison a line. Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from asyncqueue.stores.base import Stats

__all__ = ["Check", "Facts", "Reconciliation", "Totals", "reconcile"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What the receiver says of itself at `GET /totals`."""

    messages: int
    quantity: int
    duplicates: int
    conflicts: int
    requests: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was counted, each by whom it concerns: the input file, the queue, the receiver, the processes."""

    jobs: int
    quantity: int
    queue: Stats
    inbox: Totals
    leases_at_kill: int
    victim_code: int
    survivor_code: int
    recovered: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison; `found` must be equal to `wanted`, or at least that."""

    name: str
    wanted: int
    found: int
    rule: Literal["equal", "at least"] = "equal"

    @property
    def ok(self) -> bool:
        """Tell whether it holds."""
        return self.found == self.wanted if self.rule == "equal" else self.found >= self.wanted


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The facts and every comparison of them."""

    facts: Facts
    checks: tuple[Check, ...]

    @property
    def wrong(self) -> tuple[Check, ...]:
        """Return the comparisons that do not hold."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def story(self) -> str:
        """Return the result in words."""
        f = self.facts
        return (
            f"{f.inbox.requests:,} requests for {f.jobs:,} jobs in {f.elapsed_ms / 1000:.1f} s.\n"
            f"The killed dispatcher held {f.leases_at_kill} leases; the other one finished {f.recovered} of those "
            f"jobs, and the inbox recognised {f.inbox.duplicates} duplicates.\n"
            + ("Nothing lost, every effect once." if not self.wrong else "It does not add up.")
        )

    def record(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        checks = [{**asdict(check), "ok": check.ok} for check in self.checks]
        return {"ok": not self.wrong, "checks": checks, "facts": asdict(self.facts)}


def reconcile(facts: Facts) -> Reconciliation:
    """Compare: nothing lost is every job done and in the inbox, effect once is the ledger's quantity."""
    queue, inbox = facts.queue, facts.inbox
    checks = (
        Check("jobs in the queue", facts.jobs, queue.total),
        Check("jobs done", facts.jobs, queue.done),
        Check("jobs dead", 0, queue.dead),
        Check("jobs live", 0, queue.live),
        Check("messages in the inbox", facts.jobs, inbox.messages),
        Check("quantity in the ledger", facts.quantity, inbox.quantity),
        Check("conflicts in the inbox", 0, inbox.conflicts),
        Check("requests sent, at least", inbox.messages + inbox.duplicates, inbox.requests, "at least"),
        Check("leases held at the kill, at least", 1, facts.leases_at_kill, "at least"),
        Check("jobs of those delivered by the other", facts.leases_at_kill, facts.recovered),
        Check("signal that ended the killed dispatcher", 9, -facts.victim_code),
        Check("exit code of the other dispatcher", 0, facts.survivor_code),
    )
    return Reconciliation(facts, checks)
