"""Where a queue or an inbox is, as its URL says."""

from typing import Final

__all__ = ["is_server", "shown"]

_POSTGRES: Final = ("postgresql:", "postgres:")


def is_server(url: str) -> bool:
    """Tell whether a URL names a PostgreSQL server, not a file."""
    return url.startswith(_POSTGRES)


def shown(url: str) -> str:
    """Return how messages call it: a path, or a URL without user, password and options."""
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0] if mark else url
