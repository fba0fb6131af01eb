"""The orders service as a process that kills itself at the n-th point of its first request (0: never).

    python -m tests.outbox.orders_child DATABASE INBOX_URL N

Points lie before and after every statement on the service's own connection, before and after its commit, and at
both ends of the request. It prints its port when it listens.
"""

import asyncio
import os
import runpy
import signal
import sys
from pathlib import Path

from aiohttp import web
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

SERVICE = Path(__file__).parents[2] / "examples" / "orders_service.py"


class Failpoints:
    """Counts the points of one request and ends the process, at once and for good, at the chosen one."""

    def __init__(self, fatal):
        self.fatal = fatal
        self.passed = 0
        self.armed = False

    def point(self, *_args):
        if self.armed:
            self.passed += 1
            if self.passed == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        event.listen(Engine, "before_cursor_execute", self.point)
        event.listen(Engine, "after_cursor_execute", self.point)
        event.listen(Engine, "commit", self.point)
        event.listen(Session, "after_commit", self.point)

    @web.middleware
    async def middleware(self, request, handler):
        self.armed = True
        self.point()
        answer = await handler(request)
        self.point()
        self.armed = False
        return answer


async def serve(database, inbox, fatal):
    failpoints = Failpoints(fatal)
    failpoints.install()
    app = runpy.run_path(str(SERVICE))["create_app"](Path(database), inbox)
    app.middlewares.append(failpoints.middleware)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
