"""A receiving server of its own: removes duplicate effects for the same id and the same quantity.

It prints its port, then `committed` after each request whose transaction has ended. The answer to the very
first request is withheld for ever: its sender is killed while it waits.
"""

import asyncio
import sqlite3
import sys

from aiohttp import web

SCHEMA = """
CREATE TABLE inbox (id TEXT PRIMARY KEY, qty INTEGER NOT NULL);
CREATE TABLE total (qty INTEGER NOT NULL);
CREATE TABLE requests (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, qty INTEGER NOT NULL);
INSERT INTO total VALUES (0);
"""


def receive(database, event):
    """Log the request and, for a new id, take it in and add its quantity: one transaction."""
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO requests (id, qty) VALUES (:id, :qty)", event)
    known = database.execute("SELECT qty FROM inbox WHERE id = :id", event).fetchone()
    if known is None:
        database.execute("INSERT INTO inbox VALUES (:id, :qty)", event)
        database.execute("UPDATE total SET qty = qty + :qty", event)
    database.execute("COMMIT")
    return known is None or known[0] == event["qty"]


async def main(path):
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(SCHEMA)
    requests = 0

    async def inbox(request):
        nonlocal requests
        requests += 1
        first = requests == 1
        event = await request.json()
        accepted = receive(database, event)
        print("committed", flush=True)
        if first:
            await asyncio.Event().wait()
        return web.json_response(event, status=200 if accepted else 409)

    app = web.Application()
    app.router.add_post("/inbox", inbox)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
