"""The other end of the raw loop: an aiohttp handler that reads the body and echoes the job, nothing else."""

import asyncio
import json

from aiohttp import web

from asyncqueue.eventloop import loop_factory, prepare_process


async def inbox(request: web.Request) -> web.Response:
    job = json.loads(await request.read())
    body = b'{"id":"%b","qty":%d,"result":"accepted"}' % (job["id"].encode(), job["qty"])
    return web.Response(body=body, content_type="application/json")


async def serve() -> None:
    app = web.Application()
    app.router.add_post("/inbox", inbox)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/inbox"
    print(json.dumps({"event": "ready", "url": url}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    prepare_process()  # as the receiver does
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())
