"""`dispatch` at work: one dispatcher in this process, or a supervisor of several.

The only module of the command line that imports the dispatcher, and with it the HTTP client.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any

import anyio
from anyio.abc import TaskStatus

from asyncqueue.cli.failure import Failed, Interrupted, Refused
from asyncqueue.cli.output import LineWriter
from asyncqueue.cli.settings import DispatchSettings
from asyncqueue.cli.supervise import Supervisor
from asyncqueue.cli.view import LiveView, Tally
from asyncqueue.clock import SystemClock
from asyncqueue.dispatcher import Dispatcher
from asyncqueue.dispatcher.send import HttpSender
from asyncqueue.errors import AsyncQueueError
from asyncqueue.eventloop import loop_factory, prepare_process
from asyncqueue.events import Event, Events, Subscriber, record
from asyncqueue.queue import Queue
from asyncqueue.retry import RetryPolicy

__all__ = ["run"]


def run(settings: DispatchSettings) -> None:
    """Dispatch until stopped or drained. Raises `Failed` if the end was not clean, else what the parts raise."""
    work = _one if settings.processes == 1 else _many
    prepare_process()
    anyio.run(work, settings, backend_options={"loop_factory": loop_factory()})


async def _one(settings: DispatchSettings) -> None:
    async with _opened(settings) as queue:
        _dispatcher(queue, settings, Events())  # every mistake is told before anything is drawn
        with ExitStack() as resources:
            events = Events(await _listener(settings, queue, resources))
            async with _dispatcher(queue, settings, events) as dispatcher:
                cut_off = await _dispatch(dispatcher, settings)
    if cut_off is not None:
        count, number = cut_off
        kind = Interrupted if number == signal.SIGINT else Failed
        raise kind(f"stopped at once: {count} sends were cut off; their jobs go on when the leases run out")


async def _many(settings: DispatchSettings) -> None:
    live = None
    async with _opened(settings) as queue:
        _dispatcher(queue, settings, Events())  # every mistake is told once, by the parent
        if _wants_view(settings) and settings.drain:
            live = (await queue.stats()).live
    if not _wants_view(settings):
        await Supervisor(settings, None).run()
        return
    tally = Tally()
    with LiveView(f"{settings.processes} dispatchers", tally, live):
        await Supervisor(settings, tally).run()


def _opened(settings: DispatchSettings) -> AbstractAsyncContextManager[Queue]:
    return Queue.open(
        settings.db,
        late=settings.late,
        history=settings.history,
        journal=settings.journal,
        force_wal=settings.force_wal,
        create=False,
    )


def _dispatcher(queue: Queue, settings: DispatchSettings, events: Events) -> Dispatcher:
    sender = HttpSender(
        settings.url,
        ack=settings.ack,
        timeout_ms=settings.timeout_ms,
        connect_timeout_ms=settings.connect_timeout_ms,
        batch=settings.batch,
        events=events,
    )
    return Dispatcher(
        queue,
        sender,
        concurrency=settings.concurrency,
        lease_ms=settings.lease_ms,
        queues=settings.queues or None,
        owner_prefix=settings.owner_prefix,
        policy=RetryPolicy(settings.retry_base_ms, settings.retry_cap_ms),
        poll_ms=settings.poll_ms,
        grace_ms=settings.grace_ms,
        events=events,
    )


async def _dispatch(dispatcher: Dispatcher, settings: DispatchSettings) -> tuple[int, int] | None:
    """Dispatch to the end; return how many sends a second signal cut off, and which."""
    cut_off: list[tuple[int, int]] = []
    async with anyio.create_task_group() as group:
        if settings.stop_with_stdin:
            group.start_soon(_stop_with_stdin, dispatcher.stop)
        await group.start(_heed_signals, dispatcher, cut_off)
        try:
            await (dispatcher.drain() if settings.drain else dispatcher.run())
        except AsyncQueueError as error:  # nobody's usage is wrong: what was opened has begun to refuse
            raise (Refused if settings.supervised else Failed)(str(error)) from error
        group.cancel_scope.cancel()
    return cut_off[0] if cut_off else None


async def _heed_signals(
    dispatcher: Dispatcher,
    cut_off: list[tuple[int, int]],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Stop at the first signal, leave at once at the second, after noting how many sends that cuts off."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        stopping = False
        async for number in signals:
            if stopping:
                cut_off.append((dispatcher.in_flight, number))
                dispatcher.abort()
                return
            stopping = True
            dispatcher.stop(signal.Signals(number).name)


async def _listener(settings: DispatchSettings, queue: Queue, resources: ExitStack) -> Subscriber:
    """Return who listens to the events: a picture on a terminal, lines of JSON elsewhere."""
    if not _wants_view(settings):
        return _lines(resources.enter_context(LineWriter(sys.stdout.fileno())))
    live = (await queue.stats()).live if settings.drain else None
    tally = Tally()
    resources.enter_context(LiveView("dispatcher", tally, live))
    return lambda event: tally.feed(record(event))


def _lines(writer: LineWriter) -> Subscriber:
    stamp: dict[str, Any] = {"pid": os.getpid()}
    clock = SystemClock()

    def write(event: Event) -> None:
        writer.put(json.dumps({**record(event), "at_ms": clock.now_ms(), **stamp}))

    return write


def _wants_view(settings: DispatchSettings) -> bool:
    return sys.stdout.isatty() and not settings.json_


async def _stop_with_stdin(stop: Callable[[str], None]) -> None:
    try:
        while True:
            await anyio.wait_readable(0)
            if not os.read(0, 4_096):
                break
    except OSError:  # a file or nothing at all: there is nothing to wait for
        pass
    stop("standard input has ended")
