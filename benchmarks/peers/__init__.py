"""Other queues, each behind the same few verbs: filled, then drained of no-op jobs by its own worker loop.

They are an extra of their own (`pip install 'asyncqueue[peers]'`); a peer that is not installed is left out, and
the result says so.
"""

from benchmarks.peers.base import PostgresPeer, SqlitePeer
from benchmarks.peers.files import Huey, LeaseTable, LeaseTableSets, LiteQueue, PersistQueue
from benchmarks.peers.postgres import Chancy, PgQueuer, Procrastinate
from benchmarks.peers.server import postgres_server

__all__ = ["POSTGRES_PEERS", "SQLITE_PEERS", "PostgresPeer", "SqlitePeer", "postgres_server"]

SQLITE_PEERS: tuple[type[SqlitePeer], ...] = (LeaseTable, LeaseTableSets, Huey, LiteQueue, PersistQueue)
POSTGRES_PEERS: tuple[type[PostgresPeer], ...] = (Procrastinate, PgQueuer, Chancy)
