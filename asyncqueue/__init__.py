"""A durable job queue and HTTP dispatcher for asyncio services.

The public names are imported when first used, so that `import asyncqueue` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from asyncqueue import outbox as outbox
    from asyncqueue.dispatcher import Context, Dispatcher, Retention, in_thread
    from asyncqueue.dispatcher.send import HttpSender
    from asyncqueue.errors import (
        AsyncQueueError,
        BadAck,
        BadEffect,
        ConfigError,
        Conflict,
        ForkedProcess,
        IllegalTransition,
        InvalidJob,
        NewerSchema,
        NotAQueue,
        NotDead,
        NoTransaction,
        Permanent,
        QueueFull,
        Retryable,
        StoreBusy,
        StoreClosed,
        StoreDamaged,
        StoreDenied,
        StoreError,
        StoreFull,
        StoreMoved,
        StoreUnreachable,
        UnknownJob,
        UnsupportedConnection,
    )
    from asyncqueue.job import (
        Effect,
        FailedAttempt,
        Job,
        LeasedJob,
        NewJob,
        Note,
        Release,
        Renew,
        Report,
        Ticket,
    )
    from asyncqueue.queue import DedupHorizonWarning, Queue
    from asyncqueue.retry import RetryPolicy

__all__ = [
    "AsyncQueueError",
    "BadAck",
    "BadEffect",
    "ConfigError",
    "Conflict",
    "Context",
    "DedupHorizonWarning",
    "Dispatcher",
    "Effect",
    "FailedAttempt",
    "ForkedProcess",
    "HttpSender",
    "IllegalTransition",
    "InvalidJob",
    "Job",
    "LeasedJob",
    "NewJob",
    "NewerSchema",
    "NoTransaction",
    "NotAQueue",
    "NotDead",
    "Note",
    "Permanent",
    "Queue",
    "QueueFull",
    "Release",
    "Renew",
    "Report",
    "Retention",
    "RetryPolicy",
    "Retryable",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreMoved",
    "StoreUnreachable",
    "Ticket",
    "UnknownJob",
    "UnsupportedConnection",
    "in_thread",
]

_HOME: Final = {
    "Context": "asyncqueue.dispatcher",
    "DedupHorizonWarning": "asyncqueue.queue",
    "Dispatcher": "asyncqueue.dispatcher",
    "Effect": "asyncqueue.job",
    "FailedAttempt": "asyncqueue.job",
    "HttpSender": "asyncqueue.dispatcher.send",
    "Job": "asyncqueue.job",
    "LeasedJob": "asyncqueue.job",
    "NewJob": "asyncqueue.job",
    "Note": "asyncqueue.job",
    "Queue": "asyncqueue.queue",
    "Retention": "asyncqueue.dispatcher",
    "Release": "asyncqueue.job",
    "Renew": "asyncqueue.job",
    "Report": "asyncqueue.job",
    "RetryPolicy": "asyncqueue.retry",
    "Ticket": "asyncqueue.job",
    "in_thread": "asyncqueue.dispatcher",
}


def __getattr__(name: str) -> Any:
    if name == "outbox":
        return import_module("asyncqueue.outbox")
    if name not in __all__:
        raise AttributeError(f"module 'asyncqueue' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "asyncqueue.errors")), name)


def __dir__() -> list[str]:
    return [*__all__, "outbox"]
