"""The PostgreSQL inbox: one short transaction per set of messages; many receivers may share one inbox."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import asyncpg

from asyncqueue.errors import BadEffect, StoreBusy, StoreError
from asyncqueue.stores.postgres import schema
from asyncqueue.stores.postgres.address import Address
from asyncqueue.stores.postgres.connection import Connection, Database, Profile, Xact, is_gone
from asyncqueue.stores.postgres.effects import run_effect
from asyncqueue.stores.postgres.rights import check_rights
from asyncqueue.stores.postgres.statements import EFFECT_BEGIN, EFFECT_END, EFFECT_UNDO, EFFECTS_FREE, EFFECTS_OVER
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Effect, Kept, Result, Totals
from receiver.stores.postgres import statements
from receiver.stores.sets import CONFLICTS_PER_ID_MAX, evidence_of, first_of, repeats_of, results_of

__all__ = ["INBOX", "PostgresInbox", "Profile"]

log = logging.getLogger("receiver")

INBOX: Final = schema.Part("inbox", "inbox", "receiver.stores.postgres", ("0001_inbox.sql",))
_RIGHTS: Final[dict[str, tuple[str, ...]]] = {
    "inbox": ("SELECT", "INSERT", "UPDATE"),
    "conflicts": ("SELECT", "INSERT", "UPDATE"),
    "inbox_totals": ("SELECT", "INSERT", "UPDATE"),
}
_RIGHTS_WITH_LEDGER: Final = _RIGHTS | {"ledger": ("INSERT",)}
_RIGHTS_WITH_EFFECT: Final = _RIGHTS | {"inbox": (*_RIGHTS["inbox"], "DELETE")}  # a failed one undoes its message


class PostgresInbox:
    """An inbox in one schema of a PostgreSQL database; made by `open`."""

    def __init__(self, database: Database, effect: Effect | None) -> None:
        self._database = database
        self._effect = effect

    @classmethod
    async def open(cls, url: str, profile: Profile, effect: Effect | None = None) -> "PostgresInbox":
        """Open or make the inbox's tables in the schema that `url` names (default `asyncqueue`).

        Raises `ConfigError`, `StoreUnreachable`, `StoreDenied` (also if the role may not use the tables),
        `NotAQueue`, `NewerSchema`, `StoreBusy`.
        """
        address = Address.parse(url)

        async def migrate(connection: Connection) -> None:
            # Nobody is asked: its effects write beside it, so what is there already is likely theirs.
            await schema.migrate(connection, address.schema, address.shown, adopt=True, part=INBOX)

        inbox = cls(await Database.open(address, profile, migrate), effect)
        try:
            await inbox.check_ready()
        except BaseException:
            await inbox.close()
            raise
        return inbox

    async def receive(self, take: Callable[[], Sequence[Arrival]]) -> list[Result | Exception]:
        """See `receiver.stores.base.InboxStore`.

        The rule is that all are new, and there are no effects: then one statement does it all, and is repeated if
        its answer is lost, which answers what it did as duplicates. (A pooler's session lacks our settings.)
        """
        until = self._database.patience_ends()
        if self._effect is None and not self._database.address.is_pooled:
            results = await self._database.alone(lambda one: self._receive_new(one, take()), until)
            if results is not None:
                return results
        made: list[_Set] = []

        async def work(connection: Connection) -> list[Result | Exception]:
            made[:] = [_Set(connection, self._database, self._effect, take())]
            return await made[0].receive()

        is_ours = self._effect is None
        return await self._database.write(work, lambda: made[0].xact, is_ours=is_ours, until=until)

    async def _receive_new(
        self, connection: Connection, arrivals: Sequence[Arrival]
    ) -> list[Result | Exception] | None:
        """Record messages that are all new; None if they are not: then none is recorded."""
        columns = _columns_of(arrivals)
        if len(set(columns[0])) != len(arrivals):
            return None
        try:
            count = await connection.fetchval(self._database.sql(statements.ACCEPT_NEW), *columns)
        except asyncpg.UniqueViolationError:
            return None
        return [Result.ACCEPTED] * count if count == len(arrivals) else None

    async def get(self, message_id: str) -> Kept | None:
        """See `receiver.stores.base.InboxStore`."""
        rows = await self._database.read(statements.GET, message_id)
        return Kept(*rows[0]) if rows else None

    async def totals(self) -> Totals:
        """See `receiver.stores.base.InboxStore`."""
        return Totals(*(await self._database.read(statements.TOTALS))[0])

    async def check_ready(self) -> None:
        """See `receiver.stores.base.InboxStore`."""
        await self.totals()
        await check_rights(self._database, _RIGHTS_WITH_LEDGER if self._effect is None else _RIGHTS_WITH_EFFECT)

    async def close(self) -> None:
        """See `receiver.stores.base.InboxStore`."""
        await self._database.close()


class _Set:
    """One set of messages inside its transaction."""

    def __init__(
        self, connection: Connection, database: Database, effect: Effect | None, arrivals: Sequence[Arrival]
    ) -> None:
        self._connection = connection
        self._database = database
        self._effect = effect
        self._arrivals = arrivals
        self.xact: Xact | None = None  # as the last statement has told it
        self._columns = _columns_of(arrivals)
        self._ids = self._columns[0]

    async def receive(self) -> list[Result | Exception]:
        if not self._arrivals:
            return []
        accepted, failed = await self._accept()
        if len(accepted) == len(self._arrivals):
            results = [Result.ACCEPTED] * len(accepted)
        else:
            results = await self._judge({message.id for message in accepted}, failed)
            await self._keep_repeats(results)
        ((xid, server),) = await self._rows(
            statements.TOTALS_ADD,
            len(accepted),
            sum(message.qty for message in accepted),
            results.count(Result.DUPLICATE),
            results.count(Result.CONFLICT),
        )
        self.xact = xid, server
        return [*results]

    async def _accept(self) -> tuple[list[Message], set[str]]:
        """Insert what is new and run its effects; return what was accepted, and the ids whose effect failed."""
        statement = statements.ACCEPT_IN_LEDGER if self._effect is None else statements.ACCEPT
        rows = await self._rows(statement, *self._columns)
        accepted = first_of(self._arrivals, {row[0] for row in rows})
        if self._effect is None or not accepted:
            return accepted, set()
        failed = await self._run_effects(self._effect, accepted)
        return [message for message in accepted if message.id not in failed], failed

    async def _run_effects(self, effect: Effect, accepted: list[Message]) -> set[str]:
        """Run the effect of each accepted message; return the ids whose effect failed and was undone."""
        await self._connection.execute(EFFECTS_FREE)
        failed = {message.id for message in accepted if not await self._run_effect(effect, message)}
        await self._connection.execute(EFFECTS_OVER)
        if failed:
            await self._rows(statements.FORGET, [*failed])
        return failed

    async def _run_effect(self, effect: Effect, message: Message) -> bool:
        await self._connection.execute(EFFECT_BEGIN)
        failure = await run_effect(lambda connection: effect(connection, message), self._connection)
        if is_gone(self._connection) or not self._connection.is_in_transaction():
            if failure is not None and not isinstance(failure, BadEffect):
                raise failure  # the server or the network ended it, and the effect only met that
            raise StoreError(f"the effect of {message.id} ended its transaction; nothing of the set is kept")
        if failure is None:
            try:
                await self._connection.execute(EFFECT_END)
            except (asyncpg.InFailedSQLTransactionError, asyncpg.InvalidSavepointSpecificationError) as error:
                failure = error  # it hid an error of the database, which undoes it
            else:
                return True
        log.warning("the effect of %s failed and was undone", message.id, exc_info=failure)
        await self._connection.execute(EFFECT_UNDO)
        await self._connection.execute(EFFECT_END)
        return False

    async def _judge(self, accepted: set[str], failed: set[str]) -> list[Result]:
        """Return a result for each arrival, in order."""
        rows = await self._rows(statements.JUDGE, *self._columns[:3])
        is_same: dict[int, bool] = dict(map(tuple, rows))
        gone = next((n for n, name in enumerate(self._ids) if n not in is_same and name not in failed), None)
        if gone is not None:
            raise StoreBusy(f"{self._ids[gone]} was deleted from the inbox meanwhile; send it again")
        return results_of(self._arrivals, lambda index: is_same[index], accepted, failed)

    async def _keep_repeats(self, results: list[Result]) -> None:
        """Count duplicates per id; keep conflicts as evidence."""
        repeats = repeats_of(self._arrivals, results)
        evidence = evidence_of(self._arrivals, results)
        if repeats or evidence:
            await self._rows(statements.HOLD, [*{entry[0] for entry in (*repeats, *evidence)}])
        if repeats:
            await self._rows(statements.SEEN_AGAIN, *_columns(repeats))
        if evidence:
            digests = [hashlib.sha256(entry[2].encode()).digest() for entry in evidence]
            await self._rows(statements.CONFLICT, *_columns(evidence), digests, CONFLICTS_PER_ID_MAX)

    async def _rows(self, statement: str, *arguments: Any) -> list[Any]:
        return list(await self._connection.fetch(self._database.sql(statement), *arguments))


def _columns_of(arrivals: Sequence[Arrival]) -> tuple[list[Any], ...]:
    """Return a set of messages as it travels: ids, quantities, payloads, tokens, attempts."""
    messages = [arrival.message for arrival in arrivals]
    return (
        [message.id for message in messages],
        [message.qty for message in messages],
        [message.payload for message in messages],
        [arrival.token for arrival in arrivals],
        [arrival.attempt for arrival in arrivals],
    )


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return a set as it travels: one list a column."""
    return [list(column) for column in zip(*rows, strict=True)]
