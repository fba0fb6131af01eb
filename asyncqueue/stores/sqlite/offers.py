"""How a set travels to a statement of SQLite."""

import json
from collections.abc import Iterable
from typing import Any

__all__ = ["array"]


def array(items: Iterable[Any]) -> str:
    """Return `items` as a JSON array, which `json_each` takes apart."""
    return json.dumps(list(items), ensure_ascii=False, separators=(",", ":"))
