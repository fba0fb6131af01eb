"""How a set travels to a statement of SQLite."""

import json
from collections.abc import Iterable
from typing import Any

from asyncqueue.errors import InvalidJob

__all__ = ["array"]


def array(items: Iterable[Any]) -> str:
    """Return `items` as a JSON array, which `json_each` takes apart; raises `InvalidJob` for what is no JSON."""
    try:
        return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))
    except TypeError as error:
        raise InvalidJob(f"a value has no place in its column: {error}") from None
