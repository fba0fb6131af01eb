"""The real receiver, killed at a hop to its database: KILL_AT is `before:N` or `after:N`, N counted from BEGIN.

FILE_BYTES_MAX limits the size of every file of this process, once it is ready: a full disk without root.
"""

import os
import resource
import signal

import aiosqlite

from receiver import __main__ as receiver_main

WHEN, _, NUMBER = os.environ.get("KILL_AT", "never:0").partition(":")
FILE_BYTES_MAX = int(os.environ.get("FILE_BYTES_MAX", "0"))
state = {"transactions": 0, "hops": 0}
plain_fetchall = aiosqlite.Connection.execute_fetchall
plain_announce = receiver_main._announce


async def fetchall(self, sql, parameters=()):
    state["transactions"] += sql.startswith("BEGIN")
    counted = state["transactions"] == 2 and WHEN != "never"  # the first one is the migration's
    state["hops"] += counted
    if counted and WHEN == "before" and state["hops"] == int(NUMBER):
        os.kill(os.getpid(), signal.SIGKILL)
    rows = await plain_fetchall(self, sql, parameters)
    if counted and WHEN == "after" and state["hops"] == int(NUMBER):
        os.kill(os.getpid(), signal.SIGKILL)
    return rows


def announce(url, *, as_json):
    if FILE_BYTES_MAX:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    plain_announce(url, as_json=as_json)


aiosqlite.Connection.execute_fetchall = fetchall
receiver_main._announce = announce
receiver_main.main()
