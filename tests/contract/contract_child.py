"""A process of its own for the contract's tests: opens the file and does what its arguments say.

claims PATH OWNER                 claim once for every line on stdin (the time), print each answer as JSON
die PATH VERB POINT HOW           run one verb and die inside its fault hook at POINT, by `exit` or `kill`
dispatch PATH OWNER NOW_MS URL    run_file once, sending over HTTP, and print the result as JSON
"""

import asyncio
import json
import os
import signal
import sys

import aiohttp

from asyncqueue.worker import Retryable, claim, finish, open_queue, redrive, run_file

TICKET = {"id": "a", "qty": 3, "owner": "one", "token": 1, "attempt": 1, "lease_until": 1_000}


def say(value):
    print(json.dumps(value), flush=True)


async def claims(path, owner):
    con = await open_queue(path)
    say("ready")
    for line in sys.stdin:
        say(await claim(con, owner, int(line)))
    await con.close()


async def die(path, verb, point, how):
    def fault(reached):
        if reached == point and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif reached == point:
            os._exit(9)

    con = await open_queue(path)
    if verb == "claim":
        await claim(con, "one", 0, fault=fault)
    elif verb == "finish":
        await finish(con, TICKET, "ok", 0, fault=fault)
    elif verb == "redrive":
        await redrive(con, "a", 0, 1_000, "n", fault)
    say("survived")
    await con.close()


async def dispatch(path, owner, now_ms, url):
    async def send(event):
        async with aiohttp.ClientSession() as session:
            try:
                async with session.post(url, json=event) as response:
                    return response.status == 200 and await response.json() == event
            except aiohttp.ClientError as error:
                raise Retryable(str(error)) from error

    say(await run_file(path, owner, lambda: int(now_ms), send, 0.5))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    asyncio.run({"claims": claims, "die": die, "dispatch": dispatch}[command](*arguments))
