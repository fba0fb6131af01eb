"""Effects: database work in the very transaction of the finish, in a savepoint of its own."""

import asyncio

import pytest

from asyncqueue.errors import BadEffect, InvalidJob
from asyncqueue.job import NewJob, Report
from asyncqueue.lifecycle import Status


async def leased_jobs(queue, *ids):
    await queue.enqueue_many([NewJob(job_id, 1) for job_id in ids])
    return await queue.claim("w", limit=len(ids))


async def test_effect_commits_in_the_very_transaction_of_the_finish(queue, raw, ledger, rows_of):
    (leased,) = await leased_jobs(queue, "a")
    seen = {}

    async def work(connection):
        await connection.execute("INSERT INTO ledger VALUES ('a', 1)")
        seen["inside"] = await rows_of(connection, "SELECT status FROM jobs")
        seen["outside"] = raw.select("SELECT status FROM jobs"), ledger()

    assert await queue.finish(leased, "ok", effect=work) is Status.DONE
    assert seen == {"inside": [("done",)], "outside": ([("leased",)], [])}
    assert ledger() == [("a", 1)]


async def test_stale_ticket_does_not_run_its_effect(queue, clock, ledger, pays):
    (first,) = await leased_jobs(queue, "a")
    clock.advance(30_000)
    (second,) = await queue.claim("w2")
    assert await queue.finish(first, "ok", effect=pays(first)) is None
    assert ledger() == []
    assert await queue.finish(second, "ok", effect=pays(second)) is Status.DONE
    assert await queue.finish(second, "ok", effect=pays(second)) is None
    assert ledger() == [("a", 2)]


async def test_failing_effect_undoes_itself_and_the_finish_and_leaves_an_honest_retry(queue, ledger, pays):
    (leased,) = await leased_jobs(queue, "a")
    before = await queue.get("a")
    error = RuntimeError("no such account")
    with pytest.raises(RuntimeError) as raised:
        await queue.finish(leased, "ok", effect=pays(leased, error))
    assert raised.value is error
    assert ledger() == []
    assert await queue.get("a") == before
    assert await queue.history("a") == []
    assert await queue.finish(leased, "retry", error="no such account") is Status.PENDING
    assert (await queue.get("a")).last_error == "no such account"
    (again,) = await queue.claim("w")
    assert await queue.finish(again, "ok", effect=pays(again)) is Status.DONE
    assert ledger() == [("a", 2)]


ENDINGS = {
    "commit": "commit",
    "commit, after a comment": "/* well */ -- then\n COMMIT",
    "end": "END TRANSACTION",
    "rollback": "ROLLBACK",
    "begin": "BEGIN",
    "release of the savepoint around it": "RELEASE ASYNCQUEUE_EFFECT",
    "rollback to the savepoint around it": "ROLLBACK TO asyncqueue_effect",
}


@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "hides the refusal"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_effect_that_ends_the_transaction_is_refused_and_nothing_is_half(
    queue, ledger, pays, refusal, *, ending, swallows
):
    a, b, c, d = await leased_jobs(queue, "a", "b", "c", "d")

    async def work(connection):
        await pays(b)(connection)
        try:
            await connection.execute(ENDINGS[ending])
        except refusal:
            if not swallows:
                raise

    answers = await asyncio.gather(
        queue.finish(a, "ok", effect=pays(a)),
        queue.finish(b, "ok", effect=work),
        queue.finish(c, "ok"),
        queue.finish(d, "ok", effect=pays(d)),
        return_exceptions=True,
    )
    assert [answers[0], *answers[2:]] == [Status.DONE] * 3
    assert isinstance(answers[1], BadEffect)
    assert "commit" in str(answers[1])
    assert ledger() == [("a", 1), ("d", 1)]
    assert (await queue.get("b")).status is Status.LEASED
    assert await queue.finish(b, "retry") is Status.PENDING


async def test_effect_may_use_savepoints_of_its_own(queue, ledger, pays):
    (leased,) = await leased_jobs(queue, "a")

    async def work(connection):
        await connection.execute("SAVEPOINT mine")
        await connection.execute("INSERT INTO ledger VALUES ('undone', 1)")
        await connection.execute("ROLLBACK TO mine")
        await pays(leased)(connection)
        await connection.execute("RELEASE mine")

    assert await queue.finish(leased, "ok", effect=work) is Status.DONE
    assert ledger() == [("a", 1)]


async def test_guard_is_gone_after_the_effects(queue, ledger, pays):
    a, b = await leased_jobs(queue, "a", "b")
    await queue.finish(a, "ok", effect=pays(a))
    assert await queue.finish(b, "ok") is Status.DONE
    assert await queue.enqueue("c", 1)


async def test_thousand_effects_in_one_commit_lose_exactly_those_that_fail(queue, commits, ledger, pays):
    leased = await leased_jobs(queue, *(f"j{n:03}" for n in range(1_000)))
    errors = {one.id: RuntimeError(one.id) for n, one in enumerate(leased) if n % 10 == 9}
    commits.clear()
    answers = await asyncio.gather(
        *(queue.finish(one, "ok", effect=pays(one, errors.get(one.id))) for one in leased), return_exceptions=True
    )
    assert len(commits) == 1
    assert answers == [errors.get(one.id, Status.DONE) for one in leased]
    assert len(errors) == 100
    assert ledger() == [(one.id, 1) for one in leased if one.id not in errors]
    stats = await queue.stats()
    assert (stats.done, stats.leased) == (900, 100)


async def test_cancelled_caller_of_a_running_effect_finds_it_committed(queue, ledger, pays):
    a, b = await leased_jobs(queue, "a", "b")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(connection):
        begun.set()
        await go_on.wait()
        await pays(a)(connection)

    caller = asyncio.create_task(queue.finish(a, "ok", effect=work))
    await begun.wait()
    waiting = asyncio.create_task(queue.finish(b, "ok", effect=pays(b)))
    await asyncio.sleep(0)
    caller.cancel()
    waiting.cancel()  # its batch has not begun: withdrawn, so its effect never runs
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await queue.enqueue("next", 1)
    assert ledger() == [("a", 1)]
    assert [(await queue.get(job_id)).status for job_id in "ab"] == [Status.DONE, Status.LEASED]


async def test_effect_that_meets_a_cancellation_of_its_own_cancels_nobody_beside_it(queue, ledger, pays):
    a, b, c = await leased_jobs(queue, "a", "b", "c")

    async def work(connection):
        await pays(b)(connection)
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner

    first, second, third = await asyncio.gather(
        queue.finish(a, "ok", effect=pays(a)),
        queue.finish(b, "ok", effect=work),
        queue.finish(c, "ok"),
        return_exceptions=True,
    )
    assert (first, third) == (Status.DONE, Status.DONE)
    assert isinstance(second, BadEffect)
    assert ledger() == [("a", 1)]


async def test_reports_on_one_job_are_taken_in_their_order_with_or_without_effect(queue, ledger, pays):
    a, b, c, d = await leased_jobs(queue, "a", "b", "c", "d")
    error = RuntimeError("no")
    reports = [
        Report.ok(a, pays(a, error)),
        Report.retry(a, 0),
        Report.retry(b, 0),
        Report.ok(b, pays(b)),
        Report.ok(c, pays(c)),
        Report.permanent(c),
        Report.ok(d),
        Report.ok(d, pays(d)),
    ]
    assert await queue.finish_many(reports) == [
        *(error, Status.PENDING),
        *(Status.PENDING, None),
        *(Status.DONE, None),
        *(Status.DONE, None),
    ]
    assert ledger() == [("c", 1)]


async def test_effect_that_is_not_async_is_refused_and_undone(queue, ledger):
    (leased,) = await leased_jobs(queue, "a")
    with pytest.raises(TypeError, match="await"):
        await queue.finish(leased, "ok", effect=lambda _connection: None)
    assert (await queue.get("a")).status is Status.LEASED


@pytest.mark.parametrize("outcome", ["retry", "permanent"])
async def test_effect_goes_with_ok_alone(queue, ledger, pays, outcome):
    (leased,) = await leased_jobs(queue, "a")
    with pytest.raises(InvalidJob, match="ok"):
        await queue.finish(leased, outcome, effect=pays(leased))
    with pytest.raises(InvalidJob, match="ok"):
        await queue.finish_many([Report(leased, outcome, effect=pays(leased))])
    assert ledger() == []
    assert (await queue.get("a")).status is Status.LEASED


async def test_effect_that_closes_the_connection_costs_neither_its_neighbours_nor_the_queue(queue, ledger):
    (leased,) = await leased_jobs(queue, "a")

    async def work(connection):
        await connection.close()

    bad, good = await asyncio.gather(
        queue.finish(leased, "ok", effect=work), queue.enqueue("b", 1), return_exceptions=True
    )
    assert isinstance(bad, BadEffect)
    assert good is True
    assert (await queue.get("a")).status is Status.LEASED
    assert await queue.finish(leased, "ok") is Status.DONE


async def test_effect_of_a_late_report_runs_where_late_reports_count(opening, clock, ledger, pays):
    async with opening(late="accept") as queue:
        (leased,) = await leased_jobs(queue, "a")
        clock.advance(30_000)
        assert await queue.finish(leased, "ok", effect=pays(leased)) is Status.DONE
    assert ledger() == [("a", 1)]
