"""Which event loop the processes of the command line run on: uvloop where it is installed, else asyncio's own."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from asyncqueue.errors import ConfigError

__all__ = ["LOOP", "loop_factory"]

LOOP: Final = "ASYNCQUEUE_LOOP"  # the environment variable: `asyncio` or `uvloop`


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a new event loop, None for asyncio's own.

    `ASYNCQUEUE_LOOP` decides; without it uvloop (the extra `fast`) is taken if it is there. Embedded use is not
    concerned: a library runs on the loop of its caller. Raises `ConfigError` for an unknown name, and for uvloop
    asked for where it is missing.
    """
    wanted = os.environ.get(LOOP) or "auto"
    if wanted not in ("auto", "asyncio", "uvloop"):
        raise ConfigError(f"{LOOP} must be 'asyncio' or 'uvloop', not {wanted!r}")
    if wanted == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        if wanted == "uvloop":
            raise ConfigError(f"{LOOP} is 'uvloop', which is missing: pip install 'asyncqueue[fast]'") from None
        return None
    return uvloop.new_event_loop
