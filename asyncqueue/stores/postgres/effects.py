"""What an effect gets on PostgreSQL: the connection of the finish, without the power to end its transaction.

The server has no way to forbid that, so the statements are looked at before they are sent.
"""

import re
from typing import Any, Final

from asyncqueue.errors import BadEffect
from asyncqueue.job import EffectWork
from asyncqueue.stores.inside import failure_of
from asyncqueue.stores.postgres.connection import Connection

__all__ = ["EffectConnection", "ends_transaction", "run_effect"]

_SAVEPOINT: Final = "asyncqueue_effect"
_TEXTS: Final = frozenset(
    {"execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval", "prepare", "cursor"}
)
_REFUSED: Final = frozenset({"close", "terminate", "reset", "reload_schema_state"})

# What may hold a semicolon or a keyword without being one, in the order in which the server would read it.
_QUOTED: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
      | --[^\n]* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)
_ENDS: Final = re.compile(
    rf"""\s*(?:
      (?:begin|start\s+transaction|commit|end|abort|prepare\s+transaction)\b
      | rollback\b(?!\s+(?:(?:work|transaction)\s+)?to\b)
      | rollback\s+(?:(?:work|transaction)\s+)?to\s+(?:savepoint\s+)?{_SAVEPOINT}\b
      | (?:release\s+(?:savepoint\s+)?|savepoint\s+){_SAVEPOINT}\b)""",
    re.IGNORECASE | re.VERBOSE,
)


def ends_transaction(sql: str) -> bool:
    """Tell whether one of the statements in `sql` begins or ends a transaction, or the savepoint of the effect."""
    return any(_ENDS.match(statement) for statement in _QUOTED.sub(" ", sql).split(";"))


class EffectConnection:
    """The driver's connection, as an effect may use it: everything but an end of the transaction.

    `transaction()` gives savepoints, as it always does inside a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.refused = False

    def __getattr__(self, name: str) -> Any:
        """Hand out the driver's own methods; those that take SQL look at it first."""
        if name in _REFUSED:
            self._refuse()
        member = getattr(self._connection, name)
        if name not in _TEXTS:
            return member

        def checked(sql: str, *arguments: Any, **options: Any) -> Any:
            if ends_transaction(sql):
                self._refuse()
            return member(sql, *arguments, **options)

        return checked

    def _refuse(self) -> None:
        self.refused = True
        raise _refusal()


def _refusal() -> BadEffect:
    return BadEffect("an effect must not begin, commit, roll back or close; it and the finish were undone")


async def run_effect(effect: EffectWork, connection: Connection) -> Exception | None:
    """Run `effect` and return what it failed with, None if it did not."""
    lent = EffectConnection(connection)
    failure = await failure_of(effect, lent)
    return _refusal() if lent.refused else failure
