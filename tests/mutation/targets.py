"""What is broken, and the tests that judge it: the fast ones that are about it."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from tests.mutation.operators import Mutant

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """The mutants of a file, or of the constants of it whose names begin with `named`, and their judges."""

    file: str
    tests: tuple[str, ...]
    named: str = ""
    on: Literal["sqlite", "postgres"] = "sqlite"

    @property
    def chosen(self) -> str:
        """Which of the tests judge, in the words of pytest's `-k`."""
        return "postgres" if self.on == "postgres" else "not postgres"

    def has(self, mutant: Mutant) -> bool:
        """Tell whether a mutant of the file is one of this target."""
        return re.match(self.named, mutant.place) is not None

    def __str__(self) -> str:
        return f"{self.file} ({self.named})" if self.named else self.file


_STATEMENTS: Final = "asyncqueue/stores/sqlite/statements.py"
_ON_POSTGRES: Final = "asyncqueue/stores/postgres/statements.py"
_OF_CONTRACT: Final = "CONTRACT_"
_OF_MOVES: Final = "_?MOVE|_SEALED|_NUMBERED"
# The order is that of the damage that a fault there would do.
TARGETS: Final = (
    Target("asyncqueue/lifecycle.py", ("tests/unit/test_lifecycle.py", "tests/store/test_store_lifecycle.py")),
    Target("asyncqueue/worker.py", ("tests/contract",)),
    Target(_STATEMENTS, ("tests/contract",), _OF_CONTRACT),
    Target(_STATEMENTS, ("tests/store", "tests/store_sqlite", "tests/queue"), f"(?!{_OF_CONTRACT}|{_OF_MOVES})"),
    Target(_STATEMENTS, ("tests/move/test_move.py",), _OF_MOVES),
    Target(
        "asyncqueue/stores/batching.py",
        ("tests/store_sqlite/test_batching.py", "tests/store_sqlite/test_sqlite_files.py", "tests/queue"),
    ),
    Target(
        "asyncqueue/dispatcher/settle.py",
        tuple(
            f"tests/dispatcher/test_{name}.py"
            for name in (
                "dispatch_batch",
                "dispatch_drain",
                "dispatch_handlers",
                "dispatch_leases",
                "dispatch_outage",
                "dispatch_rest",
                "dispatch_slots",
                "dispatch_stop",
                "handle_effects",
                "handle_left",
                "settle",
            )
        ),
    ),
    Target(
        _ON_POSTGRES, ("tests/store", "tests/store_postgres", "tests/queue"), f"(?!{_OF_MOVES})", on="postgres"
    ),
    Target(_ON_POSTGRES, ("tests/move/test_move.py",), _OF_MOVES, on="postgres"),
    Target("receiver/inbox.py", ("tests/receiver",)),
    Target("receiver/stores/sqlite/statements.py", ("tests/receiver",)),
    Target("asyncqueue/stores/shield.py", ("tests/store_sqlite", "tests/contract/test_contract_cancellation.py")),
    Target(
        "asyncqueue/stores/sqlite/store.py",
        ("tests/store", "tests/store_sqlite", "tests/queue", "tests/outbox/test_outbox_adopt.py"),
    ),
    Target(
        "asyncqueue/stores/sqlite/turns.py",
        ("tests/store", "tests/queue/test_queue_turns.py", "tests/store_sqlite/test_sqlite_plans.py"),
    ),
    Target(
        "asyncqueue/stores/ring.py",
        (
            "tests/unit/test_ring.py",
            "tests/queue/test_queue_turns.py",
            "tests/store_sqlite/test_sqlite_troubles.py",
        ),
    ),
    Target(
        "asyncqueue/stores/inside.py", ("tests/queue/test_queue_inside.py", "tests/queue/test_queue_effects.py")
    ),
    Target("asyncqueue/stores/sqlite/connection.py", ("tests/store_sqlite", "tests/queue/test_queue_history.py")),
    Target(
        "asyncqueue/stores/sqlite/turn.py",
        tuple(f"tests/store_sqlite/test_sqlite_{name}.py" for name in ("turn", "inline", "cancellation")),
    ),
    Target(
        "asyncqueue/stores/sqlite/gate.py",
        tuple(f"tests/store_sqlite/test_sqlite_{name}.py" for name in ("gate", "contention", "processes")),
    ),
    Target(
        "asyncqueue/stores/sqlite/schema.py",
        (
            *(f"tests/store_sqlite/test_sqlite_{name}.py" for name in ("files", "migration", "read_only")),
            "tests/outbox/test_outbox_adopt.py",
        ),
    ),
    Target("asyncqueue/stores/sets.py", ("tests/store", "tests/queue", "tests/store_sqlite")),
    Target(
        "asyncqueue/stores/postgres/store.py",
        ("tests/store", "tests/store_postgres", "tests/queue"),
        on="postgres",
    ),
    *(
        Target(
            f"asyncqueue/stores/postgres/{name}.py",
            ("tests/store", "tests/store_postgres/test_postgres_alone.py", "tests/queue"),
            on="postgres",
        )
        for name in ("alone", "asked")
    ),
    Target(
        "asyncqueue/stores/postgres/connection.py",
        ("tests/store_postgres", "tests/store/test_store_verbs.py"),
        on="postgres",
    ),
    Target(
        "asyncqueue/stores/postgres/turns.py",
        ("tests/store", "tests/store_postgres", "tests/queue/test_queue_turns.py"),
        on="postgres",
    ),
    Target(
        "asyncqueue/stores/postgres/floor.py",
        ("tests/store", "tests/store_postgres/test_postgres_floor.py"),
        on="postgres",
    ),
    Target("asyncqueue/stores/postgres/schema.py", ("tests/store_postgres",), on="postgres"),
    Target("receiver/stores/sets.py", ("tests/receiver",)),
    Target("receiver/stores/sqlite/store.py", ("tests/receiver",)),
    Target("receiver/stores/postgres/store.py", ("tests/receiver",), on="postgres"),
)
