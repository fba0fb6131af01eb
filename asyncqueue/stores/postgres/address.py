"""What a `postgresql://` URL says: where the server is, and the few options of ours that may stand in its query.

`schema=name` puts the tables into a schema of that name (default `asyncqueue`), `pgbouncer=true` says that a
pooler in transaction mode stands between. Everything else is the driver's: several hosts for a failover,
`sslmode`, a folder of a socket as `host`.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from asyncqueue.errors import ConfigError

__all__ = ["DEFAULT_SCHEMA", "SCHEMES", "Address", "check_schema"]

SCHEMES: Final = ("postgresql://", "postgres://")
DEFAULT_SCHEMA: Final = "asyncqueue"

_SCHEMA: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")  # no quotes needed, and room for a suffix
_HOST: Final = re.compile(r"(\[[^\]@]*\]|[^:@\[\]]*)(:\d*)?")
_OURS: Final = ("schema", "pgbouncer")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def check_schema(name: str) -> None:
    """Raise `ConfigError` unless `name` can be a schema's name without quotes."""
    if not _SCHEMA.fullmatch(name):
        raise ConfigError("schema must be 1-48 characters of a-z 0-9 _, not starting with a digit or pg_")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a queue is. `dsn` is for the driver; `shown` has no password and is what messages say."""

    dsn: str
    shown: str
    schema: str = DEFAULT_SCHEMA
    is_pooled: bool = False

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Take a URL apart. Raises `ConfigError`, which never shows a password."""
        try:
            parts = urlsplit(url)
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ConfigError("not a URL of a PostgreSQL server: postgresql://user@host:port/database") from None
        _user, at, hosts = parts.netloc.rpartition("@")
        is_cut = not at or "@" in url.partition(parts.netloc)[2]  # what stands there may be a part of a password
        if is_cut and not all(map(_HOST.fullmatch, hosts.split(","))):
            raise ConfigError(
                "not a URL of a PostgreSQL server: postgresql://user@host:port/database, where / ? # @ : in a "
                "user or a password are written as %2F %3F %23 %40 %3A"
            )
        shown = urlunsplit((parts.scheme, hosts, parts.path, "", ""))
        if not url.startswith(SCHEMES) or "\0" in url:
            raise ConfigError(f"not a URL of a PostgreSQL server: {shown!r}")
        given = [name for name, _value in query]
        for name in _OURS:
            if given.count(name) > 1:
                raise ConfigError(f"{shown}: {name} may be given once")
        ours = {name: value for name, value in query if name in _OURS}
        schema = ours.get("schema", DEFAULT_SCHEMA)
        check_schema(schema)
        pooled = ours.get("pgbouncer", "false").lower()
        if pooled not in _FLAGS:
            raise ConfigError(f"{shown}: pgbouncer must be true or false")
        rest = urlencode([(name, value) for name, value in query if name not in ours])
        dsn = urlunsplit((parts.scheme, parts.netloc, parts.path, rest, ""))
        return cls(dsn, shown, schema, _FLAGS[pooled])
