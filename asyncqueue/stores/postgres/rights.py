"""What a role must be allowed to do with the tables of a schema; told at the start, not by the first write."""

from collections.abc import Mapping, Sequence

from asyncqueue.errors import StoreDenied
from asyncqueue.stores.postgres import statements
from asyncqueue.stores.postgres.connection import Database

__all__ = ["check_rights"]


async def check_rights(database: Database, needed: Mapping[str, Sequence[str]]) -> None:
    """Raise `StoreDenied`, which names what is missing, unless the role has these rights on these tables.

    A right on some columns counts: whether they are the ones that matter is left to the statements.
    """
    tables = [table for table, rights in needed.items() for _right in rights]
    rights = [right for rights in needed.values() for right in rights]
    schema = database.address.schema
    rows = await database.read(statements.RIGHTS_MISSING, schema, tables, rights)
    if rows:
        missing = "; ".join(f"{rights} on {table}" for _role, table, rights in rows)
        raise StoreDenied(
            f"{database.address.shown}: role {rows[0][0]} lacks rights in schema {schema}: GRANT {missing}"
        )
