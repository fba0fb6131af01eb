"""Which files are broken, and the tests that judge each: the fast ones that are about it."""

from typing import Final

__all__ = ["TARGETS"]

# The order is that of the damage that a fault there would do.
TARGETS: Final = {
    "asyncqueue/lifecycle.py": ("tests/unit/test_lifecycle.py", "tests/store/test_store_lifecycle.py"),
    "asyncqueue/worker.py": ("tests/contract",),
    "asyncqueue/stores/sqlite/statements.py": (
        "tests/store",
        "tests/store_sqlite",
        "tests/contract",
        "tests/queue",
        "tests/move",
    ),
    "asyncqueue/stores/batching.py": ("tests/store_sqlite/test_batching.py", "tests/queue"),
    "asyncqueue/dispatcher/settle.py": ("tests/dispatcher",),
    "receiver/inbox.py": ("tests/receiver",),
    "receiver/stores/sqlite/statements.py": ("tests/receiver",),
    "asyncqueue/stores/shield.py": ("tests/store_sqlite", "tests/contract/test_contract_cancellation.py"),
    "asyncqueue/stores/sqlite/store.py": ("tests/store", "tests/store_sqlite", "tests/queue"),
    "asyncqueue/stores/sqlite/turns.py": ("tests/store", "tests/queue/test_queue_turns.py"),
    "asyncqueue/stores/sqlite/connection.py": ("tests/store_sqlite",),
}
