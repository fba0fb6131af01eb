"""The story: enqueue, deliver by two dispatchers, kill one while it sends, let the other recover, count."""

import http.client
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncqueue.cli.demo.child import Child, receiver_command, started
from asyncqueue.cli.demo.reconcile import Facts, Reconciliation, Totals, reconcile
from asyncqueue.cli.failure import Failed
from asyncqueue.cli.ingest import Ingest, Summary
from asyncqueue.cli.render import console
from asyncqueue.cli.settings import DispatchSettings, child_command
from asyncqueue.errors import ConfigError
from asyncqueue.job import NewJob
from asyncqueue.lifecycle import Status
from asyncqueue.queue import Queue

__all__ = ["Story"]

_JOBS_MIN: Final = 500  # with fewer the first dispatcher may be done before it can be killed
_LEASE_MS: Final = 5_000  # how long the killed one's jobs wait
_TIMEOUT_MS: Final = 2_500
_CONCURRENCY: Final = 32
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.05
_HELD_MAX: Final = 10_000

Show = Callable[[str, int], None]


class Story:
    """One run in `folder` with the jobs in `orders`. All child processes are gone when `run` returns or raises."""

    def __init__(self, folder: Path, orders: Path) -> None:
        self._db = str(folder / "jobs.db")
        self._inbox = str(folder / "inbox.db")
        self._orders = orders
        self._folder = folder

    async def run(self) -> Reconciliation:
        """Run the story. Raises `Failed` if it could not be told to its end within a minute."""
        found: list[Reconciliation] = []
        async with anyio.create_task_group() as group:
            group.start_soon(_until_signal)
            found.append(await self._tell())
            group.cancel_scope.cancel()
        return found[0]

    async def _tell(self) -> Reconciliation:
        began_at = time.monotonic()
        put_in = await self._enqueue()
        with _bar(put_in.new) as show, anyio.move_on_after(_PATIENCE_S) as patience:
            async with AsyncExitStack() as children, Queue.open(self._db, create=False) as queue:
                receiver = await children.enter_async_context(started("receiver", receiver_command(self._inbox)))
                url = await _url(receiver)
                victim, survivor = [
                    await children.enter_async_context(started(name, self._dispatcher(name, url)))
                    for name in ("first", "second")
                ]
                everyone = (receiver, victim, survivor)
                logs = [children.enter_context((self._folder / f"{c.name}.jsonl").open("wb")) for c in everyone]
                group = await children.enter_async_context(anyio.create_task_group())
                for child, log in zip(everyone, logs, strict=True):
                    group.start_soon(child.listen, log)
                await _sends_are_under_way(victim, url, put_in.new, show)
                victim_code = await victim.kill()
                held = await _held_by(queue, victim.owner)
                await _drained(survivor, url, show)
                recovered = await _done(queue, held)
                facts = Facts(
                    jobs=put_in.new,
                    quantity=put_in.qty,
                    queue=await queue.stats(),
                    inbox=await _totals(url),
                    leases_at_kill=len(held),
                    victim_code=victim_code,
                    survivor_code=await survivor.wait(),
                    recovered=recovered,
                    elapsed_ms=round((time.monotonic() - began_at) * 1000),
                )
                await receiver.stop()
        if patience.cancelled_caught:
            raise Failed(f"the demo did not come to its end within {_PATIENCE_S:.0f} s: is this host overloaded?")
        return reconcile(facts)

    async def _enqueue(self) -> Summary:
        summary = await Ingest(self._db, str(self._orders), None, NewJob("", 0)).run()
        if summary.refused or summary.duplicate:
            first = f": line {summary.first[0].line}: {summary.first[0].error}" if summary.first else ""
            raise ConfigError(f"{self._orders}: every line must be a job of its own{first}")
        if summary.new < _JOBS_MIN:
            raise ConfigError(
                f"{self._orders}: has {summary.new} jobs, the demo needs {_JOBS_MIN} to kill in time"
            )
        return summary

    def _dispatcher(self, name: str, url: str) -> list[str]:
        return child_command(
            DispatchSettings(
                db=self._db,
                url=url,
                concurrency=_CONCURRENCY,
                drain=True,
                lease_ms=_LEASE_MS,
                timeout_ms=_TIMEOUT_MS,
                owner_prefix=name,
            )
        )


async def _url(receiver: Child) -> str:
    record = await receiver.first_record()
    url = record.get("url")
    if type(url) is not str:
        raise Failed(f"the receiver did not say where it listens: {json.dumps(record)}")
    return url


async def _sends_are_under_way(victim: Child, url: str, jobs: int, show: Show) -> None:
    """Return at a moment when the victim is sending, its sends succeed, and a tenth of all jobs has arrived."""
    before = 0
    while True:
        messages = (await _totals(url)).messages
        show("two dispatchers", messages)
        tally = victim.tally
        if victim.code is not None:
            raise Failed(f"the first dispatcher ended with exit code {victim.code} before it could be killed")
        if messages >= jobs // 10 and messages > before > 0 and tally.done and tally.sending:
            return
        before = messages
        await anyio.sleep(_POLL_S)


async def _drained(survivor: Child, url: str, show: Show) -> None:
    while survivor.code is None:
        show("one killed, the other recovers", (await _totals(url)).messages)
        await anyio.sleep(_POLL_S)


async def _held_by(queue: Queue, owner: str) -> list[str]:
    """Return the ids of the jobs leased to `owner`: after its death, exactly those that it was working on."""
    leased = await queue.list(status=Status.LEASED, limit=_HELD_MAX)
    return [job.id for job in leased if job.owner == owner]


async def _done(queue: Queue, ids: list[str]) -> int:
    """Count those of the killed one's jobs that are done, which the other dispatcher must have reported."""
    rows = [await queue.get(job_id) for job_id in ids]
    return sum(1 for job in rows if job is not None and job.status is Status.DONE)


async def _totals(url: str) -> Totals:
    return await anyio.to_thread.run_sync(_get_totals, url)


def _get_totals(url: str) -> Totals:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_PATIENCE_S / 2)
    try:
        connection.request("GET", "/totals")
        answer = json.loads(connection.getresponse().read())
        return Totals(**{field.name: int(answer[field.name]) for field in fields(Totals)})
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise Failed(f"the receiver does not tell its totals: {type(error).__name__}: {error}") from None
    finally:
        connection.close()


async def _until_signal() -> None:
    """Turn a signal that would end us on the spot into an error, so that the children are ended first."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            raise Failed(f"stopped by {signal.Signals(number).name}")


@contextmanager
def _bar(jobs: int) -> Iterator[Show]:
    """Show how many jobs have arrived: a bar on stderr if that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda _what, _messages: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("", total=jobs)
        yield lambda what, messages: bar.update(task, description=what, completed=messages)
