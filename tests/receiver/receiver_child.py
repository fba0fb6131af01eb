"""The real receiver, killed at a statement: KILL_AT is `before:N` or `after:N`, N counted from BEGIN.

FILE_BYTES_MAX limits the size of every file of this process, once it is ready: a full disk without root.
"""

import os
import resource
import signal

from asyncqueue.stores.sqlite import connection
from receiver import __main__ as receiver_main

WHEN, _, NUMBER = os.environ.get("KILL_AT", "never:0").partition(":")
FILE_BYTES_MAX = int(os.environ.get("FILE_BYTES_MAX", "0"))
state = {"transactions": 0, "statements": 0}
plain_execute = connection._Connection.execute
plain_announce = receiver_main._announce


def execute(self, sql, parameters=(), /):
    if isinstance(parameters, connection._OneHop):
        return plain_execute(self, sql, parameters)  # its statements come here one by one
    state["transactions"] += sql.startswith("BEGIN")
    counted = state["transactions"] == 2 and WHEN != "never"  # the first one is the migration's
    state["statements"] += counted
    if counted and WHEN == "before" and state["statements"] == int(NUMBER):
        os.kill(os.getpid(), signal.SIGKILL)
    cursor = plain_execute(self, sql, parameters)
    if counted and WHEN == "after" and state["statements"] == int(NUMBER):
        cursor.fetchall()
        os.kill(os.getpid(), signal.SIGKILL)
    return cursor


def announce(url, *, as_json):
    if FILE_BYTES_MAX:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, resource.RLIM_INFINITY))
    plain_announce(url, as_json=as_json)


connection._Connection.execute = execute
receiver_main._announce = announce
receiver_main.main()
