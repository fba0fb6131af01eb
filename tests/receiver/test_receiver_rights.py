"""A PostgreSQL role that may not do what a receiver does: told at the start and by /readyz, before any message."""

import pytest
from receiver_tools import check_whole, get, post, run_cli, totals_of

from asyncqueue.errors import StoreDenied
from asyncqueue.wire import Message
from receiver.stores.base import Arrival, Result
from receiver.stores.postgres.store import PostgresInbox, Profile
from tests.lowly import DOCUMENTED, lowly_role

LEAST = {
    "versions": "SELECT",
    "inbox": "SELECT, INSERT, UPDATE",
    "conflicts": "SELECT, INSERT, UPDATE",
    "inbox_totals": "SELECT, INSERT, UPDATE",
    "ledger": "INSERT",
}
LACKING = [
    (table, right) for table, rights in LEAST.items() for right in rights.split(", ") if table != "versions"
]


@pytest.fixture
async def role(postgres_url):
    """A role without any right on the tables of an inbox that somebody else has made."""
    await (await PostgresInbox.open(postgres_url, Profile())).close()
    with lowly_role(postgres_url) as role:
        yield role


@pytest.fixture
def url(postgres_url):
    return postgres_url


async def _received(inbox, *qtys):
    """Send one id with these quantities, one after the other."""
    return [(await inbox.receive(lambda qty=qty: [Arrival(Message("a", qty, None), 1, 1)]))[0] for qty in qtys]


async def test_the_least_rights_are_enough_for_every_answer(role, url):
    for table, rights in LEAST.items():
        role.grant_on(table, rights)
    inbox = await PostgresInbox.open(role.url, Profile())
    answers = await _received(inbox, 1, 1, 2, 2)
    await inbox.close()
    assert answers == [Result.ACCEPTED, Result.DUPLICATE, Result.CONFLICT, Result.CONFLICT]
    assert check_whole(url) == {"a": 1}


async def test_an_effect_needs_no_ledger_but_a_way_back(role, url):
    async def effect(_connection, message):
        if message.qty == 1:
            raise ValueError("no")

    for table, rights in LEAST.items():
        role.grant_on(table, rights)
    role.revoke_on("ledger", "INSERT")
    with pytest.raises(StoreDenied, match=r"GRANT DELETE on inbox$"):
        await PostgresInbox.open(role.url, Profile(), effect)
    role.grant_on("inbox", "DELETE")
    inbox = await PostgresInbox.open(role.url, Profile(), effect)
    answers = await _received(inbox, 1, 2)
    await inbox.close()
    assert answers == [Result.EFFECT_FAILED, Result.ACCEPTED]
    assert totals_of(url) == (1, 2, 0, 0)


@pytest.mark.parametrize(("table", "right"), LACKING)
async def test_each_right_that_is_missing_is_told_at_the_start(role, table, right):
    for name, rights in LEAST.items():
        role.grant_on(name, rights)
    role.revoke_on(table, right)
    with pytest.raises(StoreDenied, match=rf"{right}.* {table}|permission denied for table {table}"):
        await PostgresInbox.open(role.url, Profile())


async def test_rights_on_the_columns_that_matter_are_enough(role):
    for table, rights in LEAST.items():
        role.grant_on(table, rights)
    role.revoke_on("inbox", "UPDATE")
    role.grant_on("inbox", "UPDATE (times)")
    inbox = await PostgresInbox.open(role.url, Profile())
    assert await _received(inbox, 1, 1) == [Result.ACCEPTED, Result.DUPLICATE]
    await inbox.close()


async def test_the_command_tells_all_that_is_missing_in_one_line(role):
    role.grant("SELECT ON ALL TABLES")
    ended = run_cli(role.url, "--port", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("receiver: error: postgresql://")
    assert line.endswith(
        f"role {role.name} lacks rights in schema {role.schema}: GRANT INSERT, UPDATE on inbox; "
        "INSERT, UPDATE on conflicts; INSERT, UPDATE on inbox_totals; INSERT on ledger"
    )


async def test_rights_that_are_lost_and_granted_anew_make_it_unready_and_ready(role, serve):
    role.grant(*DOCUMENTED)
    async with serve(role.url) as inbox:
        assert (await get(inbox.port, "/readyz")).status == 200
        role.revoke_on("conflicts", "INSERT")
        assert (await get(inbox.port, "/readyz")).problem == "busy"
        assert (await get(inbox.port, "/totals")).status == 200
        role.revoke("ALL ON ALL TABLES")
        assert (await get(inbox.port, "/readyz")).problem == "busy"
        assert (await post(inbox.port, "a", 1)).problem == "busy"
        role.grant(*DOCUMENTED)
        assert (await get(inbox.port, "/readyz")).status == 200
        assert (await post(inbox.port, "a", 1)).result == "accepted"
