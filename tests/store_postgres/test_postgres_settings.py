"""The bounds of a session follow from the time that the server may take to answer."""

import pytest

from asyncqueue.stores.postgres import statements

BOUNDS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@pytest.mark.parametrize(
    ("reply_ms", "bounds_ms"),
    [
        (1, (1, 1, 60_000)),
        (300, (300, 150, 60_000)),
        (10_000, (10_000, 5_000, 60_000)),
        (20_000, (20_000, 10_000, 120_000)),
    ],
)
def test_statement_gets_the_time_a_lock_half_of_it_and_an_idle_transaction_six_times_it(reply_ms, bounds_ms):
    settings = statements.settings(reply_ms)
    assert tuple(int(settings[name]) for name in BOUNDS) == bounds_ms


def test_one_transaction_gets_the_plans_and_bounds_of_a_session():
    settings = statements.settings(20_000)
    local = dict(
        each.removeprefix("SET LOCAL ").split(" = ") for each in statements.local_settings(20_000).split(";")
    )
    assert local == {name: f"'{value}'" for name, value in settings.items() if name in local}
    assert {"enable_seqscan", "jit", "plan_cache_mode", "statement_timeout", "lock_timeout"} <= local.keys()


def test_planner_is_free_while_effects_run_and_bound_again_behind_them():
    names = {each.split()[2] for each in statements.EFFECTS_FREE.split(";")}
    assert all(each.endswith((" = on", " = auto")) for each in statements.EFFECTS_FREE.split(";"))
    assert sorted(statements.EFFECTS_OVER.split(";")) == sorted(
        f"SET LOCAL {name} = {statements.settings(1)[name]}" for name in names
    )
