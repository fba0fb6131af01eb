"""A role of a real PostgreSQL server that may use some tables, as far as it was granted, and nothing else."""

import contextlib
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg

from tests.store.raw import schema_of, server_of

# What the documentation says that a role needs.
DOCUMENTED = ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES")


class Lowly:
    """`url` is the queue, or the inbox, as that role opens it."""

    def __init__(self, url: str) -> None:
        self._server, self.schema = server_of(url), schema_of(url)
        self.name, password = f"lowly_{secrets.token_hex(6)}", secrets.token_hex(6)
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.url = parts._replace(netloc=f"{self.name}:{password}@{host}").geturl()
        self._execute(f"CREATE ROLE {self.name} LOGIN PASSWORD '{password}'")
        self._execute(f"GRANT USAGE ON SCHEMA {self.schema} TO {self.name}")

    def grant(self, *rights: str) -> None:
        for right in rights:
            self._execute(f"GRANT {right} IN SCHEMA {self.schema} TO {self.name}")

    def revoke(self, *rights: str) -> None:
        for right in rights:
            self._execute(f"REVOKE {right} IN SCHEMA {self.schema} FROM {self.name}")

    def grant_on(self, table: str, rights: str) -> None:
        self._execute(f"GRANT {rights} ON {self.schema}.{table} TO {self.name}")

    def revoke_on(self, table: str, rights: str) -> None:
        self._execute(f"REVOKE {rights} ON {self.schema}.{table} FROM {self.name}")

    def remove(self) -> None:
        self._execute(f"DROP OWNED BY {self.name}")
        self._execute(f"DROP ROLE {self.name}")

    def _execute(self, sql: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql)


@contextlib.contextmanager
def lowly_role(url: str, *rights: str) -> Iterator[Lowly]:
    """Make a role for what is in the schema of `url` already, with these rights, and remove it afterwards."""
    role = Lowly(url)
    try:
        role.grant(*rights)
        yield role
    finally:
        role.remove()
