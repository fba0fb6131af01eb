"""Every SQL statement of the PostgreSQL inbox; the same names as on SQLite.

Sets travel as one array a column (`unnest`). Every statement takes its rows in the order of their ids, and new
rows come before known ones: receivers that meet in the same ids wait for each other, but never in a circle.
"""

from typing import Final

from asyncqueue.stores.postgres.statements import XACT

__all__ = [
    "ACCEPT",
    "ACCEPT_IN_LEDGER",
    "ACCEPT_NEW",
    "CONFLICT",
    "FORGET",
    "GET",
    "HOLD",
    "JUDGE",
    "SEEN_AGAIN",
    "TOTALS",
    "TOTALS_ADD",
]

_NOW: Final = "(SELECT floor(extract(epoch FROM transaction_timestamp()) * 1000)::bigint)"

# $1-$5 ids, quantities, payloads, tokens, attempts.
_OFFERED: Final = f"""
INSERT INTO asyncqueue.inbox (id, qty, payload, result, received_at, token, attempt)
SELECT id, qty, payload, 'accepted', {_NOW}, token, attempt
FROM unnest($1::text[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[])
  WITH ORDINALITY AS item(id, qty, payload, token, attempt, n)
"""  # noqa: S608 - a constant, joined from a constant
# Of one id twice in a set the first is inserted. An id that another receiver is inserting is waited for: it is
# known if that commits, and ours if it does not.
ACCEPT: Final = f"""
{_OFFERED}
ORDER BY id COLLATE "C", n
ON CONFLICT (id) DO NOTHING
RETURNING id
"""
ACCEPT_IN_LEDGER: Final = f"""
WITH new AS ({ACCEPT}, qty), entered AS (INSERT INTO asyncqueue.ledger SELECT id, qty FROM new)
SELECT id FROM new
"""  # noqa: S608 - a constant, joined from constants


def _add(totals: str) -> str:
    """Return the statement that adds `totals`, four values, to what was counted so far."""
    return f"""
INSERT INTO asyncqueue.inbox_totals AS t (slot, messages, quantity, duplicates, conflicts)
SELECT pg_backend_pid() % 64, {totals}
ON CONFLICT (slot) DO UPDATE SET
  messages = t.messages + excluded.messages, quantity = t.quantity + excluded.quantity,
  duplicates = t.duplicates + excluded.duplicates, conflicts = t.conflicts + excluded.conflicts
"""


# All there is to do if every id is new and comes once; else nothing is done, which is answered with 0 or, if
# another receiver has just inserted one of them, with a unique violation. Done again, it finds them known.
ACCEPT_NEW: Final = f"""
WITH new AS (
  {_OFFERED}
  WHERE NOT EXISTS (SELECT FROM asyncqueue.inbox WHERE id = ANY($1::text[]))
  ORDER BY id COLLATE "C"
  RETURNING id, qty),
entered AS (INSERT INTO asyncqueue.ledger SELECT id, qty FROM new),
counted AS ({_add("count(*), sum(qty), 0, 0 FROM new HAVING count(*) > 0")})
SELECT count(*) FROM new
"""  # noqa: S608 - a constant, joined from constants

# $1-$3 ids, quantities, payloads.
JUDGE: Final = """
SELECT n - 1, kept.qty = item.qty AND kept.payload IS NOT DISTINCT FROM item.payload
FROM unnest($1::text[], $2::integer[], $3::text[]) WITH ORDINALITY AS item(id, qty, payload, n)
JOIN asyncqueue.inbox AS kept ON kept.id = item.id
"""
# $1 ids: from here on nobody else counts repeats or conflicts of these.
HOLD: Final = 'SELECT 1 FROM asyncqueue.inbox WHERE id = ANY($1::text[]) ORDER BY id COLLATE "C" FOR NO KEY UPDATE'
# $1 ids, $2 times.
SEEN_AGAIN: Final = """
UPDATE asyncqueue.inbox AS kept SET times = kept.times + item.times
FROM unnest($1::text[], $2::bigint[]) AS item(id, times) WHERE kept.id = item.id
"""
# $1-$6 ids, quantities, payloads, times, ordinals, digests, $7 the most for one id. The ordinal counts the kinds
# of conflict of its id within the set, as the rows that this very statement adds cannot be counted by it.
CONFLICT: Final = f"""
INSERT INTO asyncqueue.conflicts AS known (id, kept_qty, qty, payload, digest, first_at, last_at, times)
SELECT item.id, kept.qty, item.qty, item.payload, item.digest, {_NOW}, {_NOW}, item.times
FROM unnest($1::text[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[])
  AS item(id, qty, payload, times, ordinal, digest)
JOIN asyncqueue.inbox AS kept ON kept.id = item.id
WHERE (SELECT count(*) FROM asyncqueue.conflicts AS c WHERE c.id = item.id) + item.ordinal < $7::bigint
   OR EXISTS (SELECT FROM asyncqueue.conflicts AS c
              WHERE c.id = item.id AND c.qty = item.qty AND c.digest = item.digest)
ON CONFLICT (id, qty, digest) DO UPDATE SET times = known.times + excluded.times, last_at = excluded.last_at
"""  # noqa: S608 - a constant, joined from a constant
FORGET: Final = "DELETE FROM asyncqueue.inbox WHERE id = ANY($1::text[])"
# $1-$4 messages, quantity, duplicates, conflicts. The last statement of a transaction: two server processes that
# share a slot wait for a commit, not for the work before it.
TOTALS_ADD: Final = f"{_add('$1::bigint, $2::bigint, $3::bigint, $4::bigint')} RETURNING {XACT}"

GET: Final = """
SELECT id, qty, payload, result, received_at, token, attempt, times FROM asyncqueue.inbox WHERE id = $1
"""
TOTALS: Final = """
SELECT coalesce(sum(messages), 0)::bigint, coalesce(sum(quantity), 0)::bigint,
       coalesce(sum(duplicates), 0)::bigint, coalesce(sum(conflicts), 0)::bigint
FROM asyncqueue.inbox_totals
"""
