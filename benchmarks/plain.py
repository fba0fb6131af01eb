"""The queue's own SQL on plain sqlite3, with no event loop, no checks and no records around it: the floor."""

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncqueue.stores.sqlite import statements

__all__ = ["PlainQueue"]

LEASE_MS = 3_600_000


class PlainQueue:
    """A file that a `Queue` made, drained by the statements of the store, with the same durability."""

    def __init__(self, path: Path, now_ms: int, journal: str = "delete") -> None:
        self._now_ms = now_ms
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in statements.PRAGMAS[journal]:
            self._connection.execute(pragma)

    def _run(self, name: str, values: dict[str, Any]) -> list[Any]:
        """Run the statement of that name."""
        return self._connection.execute(getattr(statements, name), values).fetchall()

    def _rows(self, name: str, **values: Any) -> list[Any]:
        return self._run(name, {**values, "now": self._now_ms})

    def _claim(self, limit: int) -> list[Any]:
        names = [name for name, seq in self._rows("LOOK", sweep=100, queues=None) if seq is None]
        if not names:
            return []
        picked = json.loads(self._rows("PICK_JSON", queue=names[0], kinds=None, limit=limit)[0][0])
        seqs = json.dumps([row[0] for row in picked])
        self._rows("CLAIM", seqs=seqs, owner="plain", lease_ms=LEASE_MS)
        claimed: list[Any] = json.loads(self._rows("CLAIMED", seqs=seqs)[0][0])
        return claimed

    def _finish(self, rows: Sequence[Any]) -> None:
        items = json.dumps([(row[0], row[3], row[1], row[2], row[4]) for row in rows])
        valid = json.loads(self._rows("VALID", items=items, late=False)[0][0])
        self._rows("FINISH_OK", ids=json.dumps([rows[place][0] for place in valid]))

    def drain(self, limit: int) -> int:
        """Claim and finish sets of `limit`, each in a transaction of its own as the verbs do; return how many."""
        count = 0
        with contextlib.closing(self._connection):
            while True:
                self._run("BEGIN", {})
                rows = self._claim(limit)
                self._run("COMMIT", {})
                if not rows:
                    return count
                self._run("BEGIN", {})
                self._finish(rows)
                self._run("COMMIT", {})
                count += len(rows)
