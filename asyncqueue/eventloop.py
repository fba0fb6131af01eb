"""How the processes of the command line run: on which event loop, and how Python keeps house.

Embedded use is not concerned: a library runs on the loop of its caller, and leaves collector and allocator alone.
"""

import asyncio
import gc
import os
from collections.abc import Callable
from typing import Final

from asyncqueue.errors import ConfigError

__all__ = ["LOOP", "loop_factory", "prepare_process"]

LOOP: Final = "ASYNCQUEUE_LOOP"  # the environment variable: `asyncio` or `uvloop`
# Python's own is 700: with dozens of jobs in flight it collects several times a commit and finds nothing, since
# what a job or a request leaves behind holds no cycle.
_NEW_OBJECTS: Final = 10_000
_KEPT_BYTES: Final = 1024 * 1024


def prepare_process() -> None:
    """Set up this process for many small requests at once: its garbage collector and its memory."""
    _collect_seldom()
    _keep_memory()


def _collect_seldom() -> None:
    """Let Python look for cyclic garbage among every 10,000 new objects, and not among what is there by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])


def _keep_memory() -> None:
    """Let the allocator keep what a read from a socket gives back, for the next one.

    asyncio reads into 256 KiB each time. glibc takes so much from the kernel and gives it back, three system calls
    and a page fault a request, until a larger block was freed once: its size is the new limit, and twice that is
    what may lie free (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). Other allocators are not concerned.
    """
    bytes(_KEPT_BYTES)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a new event loop, None for asyncio's own.

    `ASYNCQUEUE_LOOP` decides; without it uvloop (the extra `fast`) is taken if it is there. Raises `ConfigError`
    for an unknown name, and for uvloop asked for where it is missing.
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
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
