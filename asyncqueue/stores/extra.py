"""Tables that a store has only once they were needed, beside those of its schema."""

from collections.abc import Sequence

from asyncqueue.errors import NotAQueue

__all__ = ["has_table"]


def has_table(name: str, columns: Sequence[str], ours: Sequence[str], needed_by: str, shown: str) -> bool:
    """Tell whether there is a table of ours, by the columns of whatever is named so.

    Raises `NotAQueue` for somebody else's table: a queue may live in a database of a service.
    """
    if columns and tuple(columns) != tuple(ours):
        raise NotAQueue(
            f"{shown}: has a table `{name}` of somebody else's, a name that {needed_by} needs; rename that table; "
            "nothing was changed"
        )
    return bool(columns)
