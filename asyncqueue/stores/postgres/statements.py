"""Every SQL statement of the PostgreSQL store, in the order of a job's life; the same names as on SQLite.

`$1` is the transaction's time in milliseconds wherever a statement needs one; NULL, which is the rule, means the
server's own clock. Sets travel as one array a column (`unnest`), a column that is the same in all rows as an array
of one, where the statement says so (`_same`). Tables are written with the schema `asyncqueue.`,
which `connection.in_schema` replaces if the queue lives in another one.
"""

import re
from typing import Final

__all__ = [
    "CANCEL",
    "CLAIM",
    "COUNT",
    "COUNT_DEAD",
    "DONE_BEFORE",
    "DUE_BY_QUEUE",
    "EFFECTS_FREE",
    "EFFECTS_OVER",
    "EFFECT_BEGIN",
    "EFFECT_END",
    "EFFECT_UNDO",
    "ENQUEUE",
    "EXISTING",
    "FENCE_COLUMNS",
    "FENCE_LOOK",
    "FENCE_MAKE",
    "FENCE_MOST",
    "FENCE_RAISE",
    "FENCE_SET",
    "FENCE_TURN",
    "FINISH",
    "FINISH_AND_CLAIM",
    "FINISH_OK",
    "GET",
    "HISTORY",
    "HISTORY_APPEND",
    "HISTORY_BEGIN",
    "HISTORY_END",
    "HISTORY_UNDO",
    "LEASED_BEFORE",
    "LIST",
    "LIST_DEAD",
    "LOOK",
    "MIGRATE_AT_LEISURE",
    "MIGRATE_TURN",
    "MOVED",
    "MOVED_COLUMNS",
    "MOVE_COLUMNS",
    "MOVE_COUNT",
    "MOVE_EMPTY",
    "MOVE_FORGET",
    "MOVE_LAST",
    "MOVE_LEASES",
    "MOVE_LOOK",
    "MOVE_MAKE",
    "MOVE_MARK",
    "MOVE_NUMBER",
    "MOVE_NUMBERS",
    "MOVE_OPEN",
    "MOVE_PAGE",
    "MOVE_SEAL",
    "MOVE_UNSEAL",
    "NEXT_DUE",
    "NEXT_DUE_OF_KINDS",
    "NEXT_DUE_OF_QUEUES",
    "NOTE",
    "NOW",
    "OUTBOX_LOOK",
    "PAUSE",
    "PENDING",
    "PENDING_TURN",
    "PICK",
    "PING",
    "PLACE",
    "PURGE",
    "PURGE_HISTORY",
    "QUEUES",
    "REDRIVE",
    "REDRIVES",
    "RELEASE",
    "RENEW",
    "RIGHTS_MISSING",
    "RING",
    "SCHEMA_MAKE",
    "SCHEMA_MARK",
    "SCHEMA_STATE",
    "SCHEMA_VERSION",
    "SCHEMA_VERSIONS",
    "SERVER_START",
    "SNAPSHOT",
    "STATS",
    "STATUS_OF",
    "SWEEP",
    "XACT",
    "XACT_STATUS",
    "XID",
    "local_settings",
    "settings",
]

# --- connection and schema ---------------------------------------------------------------------------

# Our statements are written for index walks in nested loops. A planner whose statistics are behind (a table that
# grew from nothing to a million rows in a minute) must not think otherwise.
_PLANNER: Final = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


def settings(reply_ms: int) -> dict[str, str]:
    """Return the settings of a session: plans, bounded waits, an end for transactions whose client has gone."""
    return {
        **_PLANNER,
        "application_name": "asyncqueue",
        "default_transaction_isolation": "read committed",
        "statement_timeout": str(reply_ms),
        "lock_timeout": str(max(1, reply_ms // 2)),
        "idle_in_transaction_session_timeout": str(max(60_000, 6 * reply_ms)),
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
    }


def local_settings(reply_ms: int) -> str:
    """Return the same for one transaction, as a pooler in transaction mode needs it."""
    ours = settings(reply_ms)
    kept = {name: ours[name] for name in (*_PLANNER, "statement_timeout", "lock_timeout")}
    return ";".join(f"SET LOCAL {name} = '{value}'" for name, value in kept.items())


PING: Final = "SELECT 1"
NOW: Final = "SELECT asyncqueue.now_ms()"
_SERVER: Final = "extract(epoch FROM pg_postmaster_start_time())::text"
# The transaction that this is a part of, and when its server was started: `connection.Xact`.
XACT: Final = f"pg_current_xact_id_if_assigned()::text, {_SERVER}"
XID: Final = f"SELECT {XACT}"
SERVER_START: Final = f"SELECT {_SERVER}"
XACT_STATUS: Final = "SELECT pg_xact_status($1::text::xid8)"
SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"

# $1 schema, $2 a part's table. Answers although nothing of it exists: whether the schema is there, the columns of
# what is named `versions` in it, whether the table is there, and the first of all tables and views, but for those
# of extensions.
SCHEMA_STATE: Final = """
WITH things AS (
  SELECT c.oid, relname, relkind FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE nspname = $1
)
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
       (SELECT ARRAY(SELECT attname::text FROM pg_attribute
                     WHERE attrelid = things.oid AND attnum > 0 AND NOT attisdropped)
        FROM things WHERE relname = 'versions'),
       EXISTS (SELECT FROM things WHERE relname = $2),
       ARRAY(SELECT relname::text FROM things
             WHERE relkind IN ('r','p','v','m','f') AND NOT EXISTS (
               SELECT FROM pg_depend
               WHERE classid = 'pg_class'::regclass AND objid = things.oid AND deptype = 'e')
             ORDER BY relname LIMIT 4)
"""
# $1 schema, $2 tables, $3 rights, one of each an item. Answers with those that the role has not: a row a table.
RIGHTS_MISSING: Final = """
SELECT current_user::text, wanted.name, string_agg(wanted.privilege, ', ' ORDER BY wanted.n)
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS wanted(name, privilege, n)
JOIN pg_namespace AS schema ON nspname = $1
JOIN pg_class AS c ON relnamespace = schema.oid AND relname = wanted.name
WHERE NOT CASE privilege
  WHEN 'DELETE' THEN has_table_privilege(c.oid, privilege) ELSE has_any_column_privilege(c.oid, privilege) END
GROUP BY wanted.name ORDER BY min(wanted.n)
"""
SCHEMA_VERSION: Final = "SELECT version FROM asyncqueue.versions WHERE part = $1"
SCHEMA_MAKE: Final = "CREATE SCHEMA asyncqueue"
SCHEMA_VERSIONS: Final = """
CREATE TABLE IF NOT EXISTS asyncqueue.versions (
  part text COLLATE "C" PRIMARY KEY,
  version integer NOT NULL,
  birth uuid NOT NULL DEFAULT gen_random_uuid()
)
"""
SCHEMA_MARK: Final = """
INSERT INTO asyncqueue.versions (part, version) VALUES ($1, $2)
ON CONFLICT (part) DO UPDATE SET version = excluded.version
"""
# Tells this queue from every other one, wherever they are.
PLACE: Final = "SELECT birth::text FROM asyncqueue.versions WHERE part = 'queue'"
MIGRATE_AT_LEISURE: Final = "SET LOCAL statement_timeout = 0"
MIGRATE_TURN: Final = "SELECT pg_advisory_xact_lock(hashtextextended('asyncqueue schema ' || $1, 0))"

_NOW: Final = "(SELECT coalesce($1::bigint, asyncqueue.now_ms()))"  # a SELECT: worked out once, not once a row


def _same(name: str, place: int, kind: str = "text") -> str:
    """Return the value of a column that may have come as one value for all rows."""
    column = f"${place}::{kind}[]"
    return f"CASE WHEN cardinality({column}) = 1 THEN ({column})[1] ELSE {name} END"


# --- enqueue -----------------------------------------------------------------------------------------

# `seq` rises in the order given, but the rows are written in the order of their ids: two sets with the same ids
# then meet at the first of them, and do not wait for each other in a circle.
ENQUEUE: Final = f"""
INSERT INTO asyncqueue.jobs (seq, id, qty, status, attempts, max_attempts, token, available_at, deadline,
                             queue, kind, payload, priority, created_at)
SELECT seq, id, {_same("qty", 3, "int")}, 'pending', 0, {_same("max_attempts", 4, "int")}, 0,
       now_ms + {_same("delay_ms", 5, "bigint")}, now_ms + {_same("ttl_ms", 6, "bigint")},
       {_same("queue", 7)}, {_same("kind", 8)}, {_same("payload", 9)}, {_same("priority", 10, "int")}, now_ms
FROM (
  SELECT nextval('asyncqueue.jobs_seq') AS seq, {_NOW} AS now_ms, item.*
  FROM unnest($2::text[], $3::int[], $4::int[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::text[],
    $10::int[]) AS item(id, qty, max_attempts, delay_ms, ttl_ms, queue, kind, payload, priority)) AS offered
ORDER BY id COLLATE "C", seq
ON CONFLICT (id) DO NOTHING
RETURNING id
"""  # noqa: S608 - a constant, joined from a constant
EXISTING: Final = "SELECT id, qty, queue, kind, payload FROM asyncqueue.jobs WHERE id = ANY($1::text[])"

# What an outbox must know; the time is that of the call, however long the caller's transaction is open already.
OUTBOX_LOOK: Final = """
SELECT version, birth::text, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM asyncqueue.versions WHERE part = $1
"""

PENDING: Final = "SELECT coalesce(sum(jobs), 0)::bigint FROM asyncqueue.counts WHERE status = 'pending'"
# With a bound, those who enqueue come one after the other: else each would find the same room.
PENDING_TURN: Final = "SELECT pg_advisory_xact_lock('asyncqueue.counts'::regclass::oid::bigint)"

# --- claim -------------------------------------------------------------------------------------------

# Live jobs, as the coarse index has them; the fine one asks for `seq >> 7 IS NOT NULL`. Both hold for every job:
# so a walk names its index, since both look alike to a planner that has no statistics yet.
_LIVE: Final = "due IS NOT NULL AND seq >> 14 IS NOT NULL"
# The priorities that live jobs have, as -priority, the best first; one seek each.
_LEVELS: Final = f"""
levels(p) AS (
  (SELECT -priority FROM asyncqueue.jobs WHERE {_LIVE} ORDER BY -priority LIMIT 1)
  UNION ALL
  SELECT further.* FROM levels CROSS JOIN LATERAL (
    SELECT -priority FROM asyncqueue.jobs WHERE {_LIVE} AND -priority > p
    ORDER BY -priority LIMIT 1) AS further
)
"""  # noqa: S608 - a constant, joined from a constant
# The coarse buckets of 16384 seqs that hold live jobs of queue `name` at level `p`; one seek each. The first one
# is that of the fine bucket `floor`, if there is one.
_BUCKETS: Final = f"""
WITH RECURSIVE buckets(b) AS (
  SELECT coalesce({{floor}} >> 7, (
    SELECT seq >> 14 FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = p AND queue = name
    ORDER BY -priority, queue, seq >> 14 LIMIT 1))
  UNION ALL
  SELECT further.* FROM buckets CROSS JOIN LATERAL (
    SELECT seq >> 14 FROM asyncqueue.jobs
    WHERE {_LIVE} AND -priority = p AND queue = name AND seq >> 14 > b
    ORDER BY -priority, queue, seq >> 14 LIMIT 1) AS further
)
SELECT b FROM buckets
"""  # noqa: S608 - a constant, joined from a constant
# The eligible jobs of queue `name` at level `p`, in order. A coarse bucket in which nothing is due is skipped by
# one seek (`hit`); inside one, each fine bucket of 128 seqs, from the first that holds a live job, is a range of
# the fine index, sorted by seq. Each step depends on the one before it, so the rows come in order without a sort
# of all, and no row is locked that is not taken; those that another transaction has locked are passed over.
# (`seq + 0`: the order of the primary key would lead a planner into it that takes the table for empty.)
_FOUND: Final = f"""
({_BUCKETS}) AS walk
CROSS JOIN LATERAL (
  SELECT 1 WHERE b = {{floor}} >> 7
  UNION ALL
  (SELECT 1 FROM asyncqueue.jobs
   WHERE -priority = p AND queue = name AND seq >> 14 = b AND due <= {{now}} LIMIT 1)
  LIMIT 1) AS hit
CROSS JOIN LATERAL (
  SELECT seq >> 7 AS first FROM asyncqueue.jobs
  WHERE due IS NOT NULL AND -priority = p AND queue = name
    AND seq >> 7 >= greatest(b << 7, {{floor}})
  ORDER BY -priority, queue, seq >> 7 LIMIT 1) AS live
CROSS JOIN LATERAL generate_series(first, (b << 7) + 127) AS fine
CROSS JOIN LATERAL (
  SELECT ctid AS place, seq, queue, priority, status, token, attempts, owner FROM asyncqueue.jobs
  WHERE -priority = p AND queue = name AND seq >> 7 = fine AND due <= {{now}}
    AND deadline > {{now}} AND attempts < max_attempts AND ($4::text[] IS NULL OR kind = ANY($4::text[]))
  ORDER BY seq + 0 {{lock}}) AS found
"""  # noqa: S608 - a constant, joined from a constant
# The first $3[n] eligible jobs of each queue $2[n], whatever their level.
PICK: Final = f"""
WITH RECURSIVE {_LEVELS}
SELECT queue, seq, priority, status FROM unnest($2::text[], $3::int[]) AS wanted(name, room)
CROSS JOIN LATERAL (
  SELECT found.* FROM levels CROSS JOIN LATERAL (
    SELECT found.* FROM {_FOUND.format(now=_NOW, lock="", floor="NULL::bigint")} LIMIT room) AS found
  LIMIT room) AS job
"""  # noqa: S608 - a constant, joined from constants

# Live jobs that must die instead; split so that each part has its own partial index.
_SWEEPABLE: Final = f"""
SELECT seq FROM asyncqueue.jobs
WHERE due IS NOT NULL AND deadline <= {_NOW} AND (status = 'pending' OR due <= {_NOW})
UNION ALL
SELECT seq FROM asyncqueue.jobs
WHERE due IS NOT NULL AND attempts >= max_attempts AND deadline > {_NOW} AND (status = 'pending' OR due <= {_NOW})
"""  # noqa: S608 - a constant, joined from constants

# What a claim must know first, in one answer: the levels of live jobs, with the first queue at each and whether
# there are more (levels of one paused queue left out); and (as NULLs) whether there are jobs to sweep.
LOOK: Final = f"""
WITH RECURSIVE {_LEVELS}
SELECT p, name, has_more FROM levels
CROSS JOIN LATERAL (
  SELECT queue AS name FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = p
  ORDER BY -priority, queue LIMIT 1) AS first
CROSS JOIN LATERAL (
  SELECT EXISTS (
    SELECT FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = p AND queue > name) AS has_more) AS others
WHERE has_more OR NOT EXISTS (SELECT FROM asyncqueue.queues WHERE queues.name = first.name AND paused)
UNION ALL
SELECT NULL, NULL, NULL WHERE EXISTS ({_SWEEPABLE})
"""  # noqa: S608 - a constant, joined from constants

# At level $2: the first $5 queues after $3, up to $6, in which something is due; of the queues $7 and the kinds $4
# only, if these are given.
RING: Final = f"""
WITH RECURSIVE ring(p, name) AS (
  (SELECT -priority, queue FROM asyncqueue.jobs
   WHERE {_LIVE} AND -priority = $2::int AND queue > $3::text
   ORDER BY -priority, queue LIMIT 1)
  UNION ALL
  SELECT further.* FROM ring CROSS JOIN LATERAL (
    SELECT -priority, queue FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = p AND queue > name
    ORDER BY -priority, queue LIMIT 1) AS further
  WHERE $6::text IS NULL OR name < $6
)
SELECT name FROM ring
CROSS JOIN LATERAL (
  SELECT FROM ({_BUCKETS.format(floor="NULL::bigint")}) AS walk CROSS JOIN LATERAL (
    SELECT FROM asyncqueue.jobs
    WHERE -priority = p AND queue = name AND seq >> 14 = b AND due <= {_NOW}
      AND ($4::text[] IS NULL OR kind = ANY($4::text[])) LIMIT 1) AS hit
  LIMIT 1) AS due
WHERE ($6::text IS NULL OR name <= $6) AND ($7::text[] IS NULL OR name = ANY($7::text[]))
  AND NOT EXISTS (SELECT FROM asyncqueue.queues WHERE queues.name = ring.name AND paused)
LIMIT $5
"""  # noqa: S608 - a constant, joined from constants

# Whether the claim of queue $2[1] at level $7 is all that LOOK would name, and nothing is to be swept.
_ALONE: Final = f"""
(SELECT 1 FROM asyncqueue.jobs WHERE {_LIVE} AND -priority < $7 ORDER BY -priority LIMIT 1) IS NULL
AND (SELECT 1 FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = $7 AND queue < ($2::text[])[1]
     ORDER BY -priority, queue LIMIT 1) IS NULL
AND (SELECT 1 FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = $7 AND queue > ($2::text[])[1]
     ORDER BY -priority, queue LIMIT 1) IS NULL
AND NOT EXISTS (SELECT FROM asyncqueue.queues WHERE queues.name = ($2::text[])[1] AND paused)
AND NOT EXISTS ({_SWEEPABLE})
"""  # noqa: S608 - a constant, joined from a constant
# What changes when jobs that had ended may be live again: by a redrive, or on a server that was started anew.
_ERA: Final = f"""
concat_ws(' ', {_SERVER}, (
  SELECT coalesce(sum(rows_now), 0)::bigint FROM asyncqueue.totals WHERE name = 'redrives'))
"""  # noqa: S608 - a constant, joined from a constant
# The first $3[n] eligible jobs of each queue $2[n] at level $7; $5 owner, $6 lease in ms. $8 is a fine bucket
# before which the queue $2[1] has no live job, or NULL: entries of jobs that have ended stay in an index until the
# next vacuum, and would all be passed over again. Given one, nothing is claimed unless that queue is alone and the
# era is still $9. Also what each job was before, for the history of a lease that was lost, and `floor.Signs`.
_PICKED: Final = f"""
picked AS MATERIALIZED (
  SELECT job.* FROM unnest($2::text[], $3::int[]) AS wanted(name, room)
  CROSS JOIN (SELECT $7::int AS p WHERE {{gate}}) AS level
  CROSS JOIN LATERAL (
    SELECT found.* FROM {_FOUND.format(now=_NOW, lock="FOR UPDATE SKIP LOCKED", floor="$8::bigint")}
    LIMIT room) AS job)
"""  # noqa: S608 - a constant, joined from constants
_STILL_SO: Final = f"$9::text = ({_ERA}) AND {_ALONE}"
_LEASE: Final = f"""
UPDATE asyncqueue.jobs SET status = 'leased', attempts = jobs.attempts + 1, token = jobs.token + 1, owner = $5,
  lease_until = least({_NOW} + $6::bigint, deadline), reason = NULL
FROM picked WHERE jobs.ctid = picked.place
RETURNING jobs.id, qty, jobs.owner, jobs.token, jobs.attempts, lease_until, jobs.queue, kind, payload,
  jobs.priority, max_attempts, deadline, lease_until - {_NOW}, jobs.seq, picked.status, picked.token,
  picked.attempts, picked.owner, (
    SELECT concat_ws(' ',
      coalesce((
        SELECT seq >> 7 FROM asyncqueue.jobs
        WHERE due IS NOT NULL AND -priority = $7 AND queue = ($2::text[])[1]
          AND seq >> 7 >= coalesce($8::bigint, '-9223372036854775808')
        ORDER BY -priority, queue, seq >> 7 LIMIT 1), 0),
      coalesce(pg_sequence_last_value('asyncqueue.jobs_seq'::regclass), 0),
      pg_snapshot_xmin(pg_current_snapshot()),
      pg_current_xact_id_if_assigned(),
      {_ERA})) AS signs
"""  # noqa: S608 - a constant, joined from constants
CLAIM: Final = f"WITH {_PICKED.format(gate=f'$8::bigint IS NULL OR ({_STILL_SO})')} {_LEASE}"

SWEEP: Final = f"""
WITH doomed AS MATERIALIZED (
  SELECT seq, status, token, attempts, owner FROM asyncqueue.jobs
  WHERE seq = ANY(ARRAY(SELECT seq FROM ({_SWEEPABLE}) AS late LIMIT $2))
    AND (deadline <= {_NOW} OR attempts >= max_attempts) AND due IS NOT NULL
    AND (status = 'pending' OR due <= {_NOW})
  ORDER BY seq FOR UPDATE SKIP LOCKED)
UPDATE asyncqueue.jobs SET status = 'dead', owner = NULL, lease_until = NULL, finished_at = {_NOW},
  reason = CASE WHEN deadline <= {_NOW} THEN 'deadline' ELSE 'exhausted' END,
  last_error = CASE WHEN jobs.status = 'leased' AND deadline > {_NOW} THEN 'lease lost on last attempt'
    ELSE last_error END
FROM doomed WHERE jobs.seq = doomed.seq
RETURNING jobs.id, doomed.status, doomed.token, doomed.attempts, doomed.owner
"""  # noqa: S608 - a constant, joined from constants

# --- reports -----------------------------------------------------------------------------------------

_ITEM: Final = "unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[]"
_TICKET: Final = f"""
jobs.id = item.id AND jobs.status = 'leased' AND jobs.token = {_same("item.token", 3, "bigint")}
  AND jobs.qty = {_same("item.qty", 4, "bigint")} AND jobs.owner = {_same("item.owner", 5)}
  AND jobs.attempts = {_same("item.attempt", 6, "bigint")}
"""

_AGAIN: Final = f"""
(item.outcome = 'retry' AND attempts < max_attempts AND {_NOW} + item.delay_ms < deadline)
"""

FINISH: Final = f"""
UPDATE asyncqueue.jobs SET
  status = CASE WHEN {_AGAIN} THEN 'pending' WHEN item.outcome = 'ok' THEN 'done' ELSE 'dead' END,
  reason = CASE WHEN {_AGAIN} THEN 'retry' WHEN item.outcome = 'ok' THEN NULL
    WHEN item.outcome = 'permanent' THEN 'permanent'
    WHEN attempts >= max_attempts THEN 'exhausted' ELSE 'deadline' END,
  available_at = CASE WHEN {_AGAIN} THEN {_NOW} + item.delay_ms ELSE {_NOW} END,
  finished_at = CASE WHEN {_AGAIN} THEN NULL ELSE {_NOW} END,
  last_error = coalesce(item.error, last_error), owner = NULL, lease_until = NULL
FROM {_ITEM}, $7::text[], $8::bigint[], $9::text[])
  AS item(id, token, qty, owner, attempt, outcome, delay_ms, error)
WHERE {_TICKET} AND ($10::boolean OR {_NOW} < jobs.lease_until)
RETURNING jobs.id, jobs.status
"""  # noqa: S608 - a constant, joined from constants
FINISH_OK: Final = f"""
UPDATE asyncqueue.jobs SET status = 'done', reason = NULL, available_at = {_NOW}, finished_at = {_NOW},
  owner = NULL, lease_until = NULL
FROM {_ITEM}) AS item(id, token, qty, owner, attempt)
WHERE {_TICKET} AND ($7::boolean OR {_NOW} < jobs.lease_until)
RETURNING jobs.id, jobs.status
"""  # noqa: S608 - a constant, joined from constants

_LEASED: Final = (
    *("id", "qty", "owner", "token", "attempts", "lease_until", "queue", "kind", "payload", "priority"),
    *("max_attempts", "deadline", "lease_ms", "seq", "was", "had_token", "had_attempts", "had_owner", "signs"),
)


def _later(statement: str, places: int) -> str:
    """Return a statement whose parameters come so many places later, but for the first one, the time."""
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + (places if found[1] != '1' else 0)}", statement)


# FINISH_OK ($10-$15: its $2-$7), then CLAIM from a floor on if anything was finished, and the history of leases
# that were lost ($16 what is said of them). What was finished comes as rows of an id, a status as `signs`, and
# nothing else. No row is changed twice by one statement: what is counted is finished before anything is picked.
FINISH_AND_CLAIM: Final = f"""
WITH finished AS ({_later(FINISH_OK, 8)}),
{_PICKED.format(gate=f"(SELECT count(*) FROM finished) > 0 AND {_STILL_SO}")},
leased({", ".join(_LEASED)}) AS ({_LEASE}),
lost AS (
  INSERT INTO asyncqueue.attempts (id, token, attempt, owner, at_ms, outcome, certainty, error)
  SELECT id, had_token, had_attempts, had_owner, {_NOW}, 'lost', 'unknown', $16::text
  FROM leased WHERE was = 'leased')
SELECT id, {", ".join(f"NULL AS {name}" for name in _LEASED[1:-1])}, status AS signs FROM finished
UNION ALL SELECT * FROM leased
"""  # noqa: S608 - a constant, joined from constants
# If its answer is lost: which of the tickets $1, $2 are done, and by which transaction.
DONE_BEFORE: Final = """
SELECT jobs.id, jobs.xmin::text FROM unnest($1::text[], $2::bigint[]) AS item(id, token)
JOIN asyncqueue.jobs ON jobs.id = item.id WHERE jobs.status = 'done' AND jobs.token = item.token
"""
# What the transactions $6 have leased for $5 of queue $3 at level $2, from fine bucket $4 on; $7 the most. It
# walks over the live jobs until it has so many.
LEASED_BEFORE: Final = f"""
SELECT id, qty, owner, token, attempts, lease_until, queue, kind, payload, priority, max_attempts, deadline,
  lease_until - {_NOW}, seq
FROM asyncqueue.jobs
WHERE due IS NOT NULL AND -priority = $2 AND queue = $3 AND seq >> 7 >= $4
  AND status = 'leased' AND owner = $5 AND xmin::text = ANY($6::text[]) AND due > {_NOW}
ORDER BY -priority, queue, seq >> 7 LIMIT $7
"""  # noqa: S608 - a constant, joined from a constant

RENEW: Final = f"""
UPDATE asyncqueue.jobs SET lease_until = least(greatest(lease_until, {_NOW} + item.lease_ms), deadline)
FROM {_ITEM}, $7::bigint[]) AS item(id, token, qty, owner, attempt, lease_ms)
WHERE {_TICKET} AND {_NOW} < jobs.lease_until
RETURNING jobs.id, lease_until
"""  # noqa: S608 - a constant, joined from constants

RELEASE: Final = f"""
UPDATE asyncqueue.jobs SET status = 'pending', attempts = attempts - 1, available_at = {_NOW} + item.delay_ms,
  owner = NULL, lease_until = NULL, reason = NULL, last_error = coalesce(item.error, last_error)
FROM {_ITEM}, $7::bigint[], $8::text[]) AS item(id, token, qty, owner, attempt, delay_ms, error)
WHERE {_TICKET} AND {_NOW} < jobs.lease_until
RETURNING jobs.id, jobs.status
"""  # noqa: S608 - a constant, joined from constants

# A row that the history does not accept is left out: it must not cost the rows beside it.
HISTORY_APPEND: Final = f"""
INSERT INTO asyncqueue.attempts (id, token, attempt, owner, at_ms, outcome, certainty, error, http_status)
SELECT item.id, item.token, item.attempt, item.owner, {_NOW}, item.outcome, item.certainty, item.error,
  item.http_status
FROM unnest($2::text[], $3::bigint[], $4::int[], $5::text[], $6::text[], $7::text[], $8::text[], $9::int[])
  AS item(id, token, attempt, owner, outcome, certainty, error, http_status)
WHERE EXISTS (SELECT FROM asyncqueue.jobs WHERE jobs.id = item.id)
  AND item.outcome IN ('ok','retry','permanent','release','left','lost','cancelled')
  AND item.certainty IN ('not-sent','unknown','refused','accepted')
"""  # noqa: S608 - a constant, joined from a constant
HISTORY_BEGIN: Final = "SAVEPOINT asyncqueue_history"
HISTORY_UNDO: Final = "ROLLBACK TO asyncqueue_history"
HISTORY_END: Final = "RELEASE asyncqueue_history"

# What went wrong with a lease that is left to run out, as long as it is still the current one.
NOTE: Final = """
UPDATE asyncqueue.jobs SET last_error = item.error
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS item(id, token, error)
WHERE jobs.id = item.id AND jobs.token = item.token AND jobs.status = 'leased'
"""

STATUS_OF: Final = "SELECT id, status FROM asyncqueue.jobs WHERE id = ANY($1::text[])"
# What each was before, locked first: the answer and the history are about that.
CANCEL: Final = f"""
WITH found AS MATERIALIZED (
  SELECT id, status, token, attempts, owner FROM asyncqueue.jobs WHERE id = ANY($2::text[])
  ORDER BY id FOR UPDATE),
ended AS (
  UPDATE asyncqueue.jobs SET status = 'dead', reason = 'cancelled', owner = NULL, lease_until = NULL,
    finished_at = {_NOW}
  FROM found WHERE jobs.id = found.id AND found.status IN ('pending','leased'))
SELECT id, status, token, attempts, owner FROM found
"""  # noqa: S608 - a constant, joined from a constant

EFFECT_BEGIN: Final = "SAVEPOINT asyncqueue_effect"
EFFECT_UNDO: Final = "ROLLBACK TO asyncqueue_effect"
EFFECT_END: Final = "RELEASE asyncqueue_effect"
# Effects are the caller's own SQL: while they run, the planner has its usual freedom.
EFFECTS_FREE: Final = ";".join(
    f"SET LOCAL {name} = {'auto' if name == 'plan_cache_mode' else 'on'}" for name in _PLANNER
)
EFFECTS_OVER: Final = ";".join(f"SET LOCAL {name} = {value}" for name, value in _PLANNER.items())

# --- redrive -----------------------------------------------------------------------------------------

REDRIVE: Final = f"""
WITH dead AS MATERIALIZED (
  SELECT jobs.id, jobs.token, jobs.reason, jobs.attempts, item.ttl_ms, item.note, item.actor
  FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[]) AS item(id, ttl_ms, note, actor)
  JOIN asyncqueue.jobs ON jobs.id = item.id
  WHERE jobs.status = 'dead' FOR UPDATE OF jobs),
audit AS (
  INSERT INTO asyncqueue.redrives (id, token, at_ms, note, actor, reason_before, attempts_before)
  SELECT id, token, {_NOW}, note, actor, reason, attempts FROM dead)
UPDATE asyncqueue.jobs SET status = 'pending', attempts = 0, available_at = {_NOW},
  deadline = {_NOW} + dead.ttl_ms, owner = NULL, lease_until = NULL, reason = NULL, finished_at = NULL
FROM dead WHERE jobs.id = dead.id
RETURNING jobs.id
"""  # noqa: S608 - a constant, joined from a constant

# --- housekeeping ------------------------------------------------------------------------------------

PAUSE: Final = """
INSERT INTO asyncqueue.queues (name, paused) SELECT DISTINCT name, $2::boolean FROM unnest($1::text[]) AS name
WHERE $2::boolean OR name IN (SELECT name FROM asyncqueue.queues)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused
"""
PURGE: Final = f"""
DELETE FROM asyncqueue.jobs WHERE seq = ANY(ARRAY(
  SELECT seq FROM asyncqueue.jobs
  WHERE due IS NULL AND status = $2 AND coalesce(finished_at, available_at) <= {_NOW} - $3::bigint
  ORDER BY coalesce(finished_at, available_at) LIMIT $4 FOR UPDATE SKIP LOCKED))
RETURNING id
"""  # noqa: S608 - a constant, joined from a constant
PURGE_HISTORY: Final = "DELETE FROM asyncqueue.attempts WHERE id = ANY($1::text[])"

# --- reading -----------------------------------------------------------------------------------------

_COLUMNS: Final = """seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, owner,
  lease_until, reason, queue, kind, payload, priority, created_at, finished_at, last_error"""

GET: Final = f"SELECT {_COLUMNS} FROM asyncqueue.jobs WHERE id = ANY($1::text[])"  # noqa: S608 - constants

# $2 status, $3 queue, $4 kind, $5 reason, $6 prefix of the id, $7 age; of a page $8 after which seq, $9 its length
_FILTER: Final = f"""
  AND ($3::text IS NULL OR queue = $3) AND ($4::text IS NULL OR kind = $4)
  AND ($5::text IS NULL OR reason = $5) AND ($6::text IS NULL OR starts_with(id, $6))
  AND ($7::bigint IS NULL OR coalesce(finished_at, available_at) <= {_NOW} - $7)
"""
LIST: Final = f"""
SELECT {_COLUMNS} FROM asyncqueue.jobs WHERE ($2::text IS NULL OR status = $2) {_FILTER}
  AND seq > $8 ORDER BY seq LIMIT $9
"""  # noqa: S608 - a constant, joined from constants
LIST_DEAD: Final = f"""
SELECT {_COLUMNS} FROM asyncqueue.jobs WHERE status = 'dead' AND $2::text = 'dead' {_FILTER}
  AND seq > $8 ORDER BY seq LIMIT $9
"""  # noqa: S608 - a constant, joined from constants
COUNT: Final = f"""
SELECT count(*) FROM asyncqueue.jobs WHERE ($2::text IS NULL OR status = $2) {_FILTER}
"""  # noqa: S608 - a constant, joined from constants
COUNT_DEAD: Final = f"""
SELECT count(*) FROM asyncqueue.jobs WHERE status = 'dead' AND $2::text = 'dead' {_FILTER}
"""  # noqa: S608 - a constant, joined from constants

# In the order of tokens, which only grow. A redrive comes after the attempt whose token it found.
HISTORY: Final = """
SELECT at_ms, outcome, token, attempt, owner, certainty, error, http_status FROM (
  SELECT at_ms, outcome, token, attempt, owner, certainty, error, http_status, 0 AS place, seq
  FROM asyncqueue.attempts WHERE id = $1
  UNION ALL
  SELECT at_ms, 'redrive', token, NULL, actor, NULL, note, NULL, 1, seq FROM asyncqueue.redrives WHERE id = $1
) AS line ORDER BY token, place, seq LIMIT $2
"""

QUEUES: Final = """
SELECT name, coalesce((SELECT paused FROM asyncqueue.queues WHERE queues.name = names.name), false)
FROM (SELECT queue AS name FROM asyncqueue.counts UNION SELECT name FROM asyncqueue.queues) AS names
ORDER BY name COLLATE "C"
"""
STATS: Final = """
SELECT queue, status, sum(jobs)::bigint FROM asyncqueue.counts GROUP BY queue, status HAVING sum(jobs) > 0
"""
REDRIVES: Final = "SELECT coalesce(sum(rows_now), 0)::bigint FROM asyncqueue.totals WHERE name = 'redrives'"

# The smallest due time over all coarse buckets that hold live jobs: one seek a bucket.
_WALK: Final = f"""
WITH RECURSIVE walk(p, q, b, due) AS (
  (SELECT -priority, queue, seq >> 14, due FROM asyncqueue.jobs WHERE {_LIVE}
   ORDER BY -priority, queue, seq >> 14, due LIMIT 1)
  UNION ALL
  SELECT further.* FROM walk CROSS JOIN LATERAL (
    SELECT -priority, queue, seq >> 14, due FROM asyncqueue.jobs
    WHERE {_LIVE} AND (-priority, queue, seq >> 14) > (p, q, b)
    ORDER BY -priority, queue, seq >> 14, due LIMIT 1) AS further
)
"""  # noqa: S608 - a constant, joined from a constant
NEXT_DUE: Final = f"""{_WALK}
SELECT min(due), {_NOW} FROM walk WHERE NOT EXISTS (SELECT FROM asyncqueue.queues WHERE name = q AND paused)
"""  # noqa: S608 - a constant, joined from constants
# The same of the queues $2: a seek for each of them at each level, and for each of their buckets, whatever other
# queues there are.
NEXT_DUE_OF_QUEUES: Final = f"""
WITH RECURSIVE {_LEVELS}
SELECT min(due), {_NOW} FROM unnest($2::text[]) AS wanted(name) CROSS JOIN levels
CROSS JOIN LATERAL (
  WITH RECURSIVE walk(b, due) AS (
    (SELECT seq >> 14, due FROM asyncqueue.jobs WHERE {_LIVE} AND -priority = p AND queue = name
     ORDER BY -priority, queue, seq >> 14, due LIMIT 1)
    UNION ALL
    SELECT further.* FROM walk CROSS JOIN LATERAL (
      SELECT seq >> 14, due FROM asyncqueue.jobs
      WHERE {_LIVE} AND -priority = p AND queue = name AND seq >> 14 > b
      ORDER BY -priority, queue, seq >> 14, due LIMIT 1) AS further
  )
  SELECT due FROM walk) AS bucket
WHERE NOT EXISTS (SELECT FROM asyncqueue.queues WHERE queues.name = wanted.name AND paused)
"""  # noqa: S608 - a constant, joined from constants
DUE_BY_QUEUE: Final = f"""{_WALK}
SELECT q, min(due) FROM walk WHERE NOT EXISTS (SELECT FROM asyncqueue.queues WHERE name = q AND paused) GROUP BY q
"""  # noqa: S608 - a constant, joined from constants
# The same for some kinds. No index knows the kind, so this passes over the live jobs.
NEXT_DUE_OF_KINDS: Final = f"""
SELECT min(due), {_NOW} FROM asyncqueue.jobs
WHERE {_LIVE} AND kind = ANY($3::text[]) AND ($2::text[] IS NULL OR queue = ANY($2::text[]))
  AND NOT EXISTS (SELECT FROM asyncqueue.queues WHERE name = queue AND paused)
"""  # noqa: S608 - a constant, joined from constants

# --- putting back an earlier state ---------------------------------------------------------------------

# Nobody puts a job in, or claims one, until the floor is committed.
FENCE_TURN: Final = "LOCK TABLE asyncqueue.jobs IN SHARE ROW EXCLUSIVE MODE"
# The floor of all tokens, also of ids to come: those that had been given out are forgotten, and may come again. It
# stands in the function, too: whoever inserts need not be allowed to read the table.
FENCE_MAKE: Final = (
    """
CREATE TABLE IF NOT EXISTS asyncqueue.token_floor (
  one integer PRIMARY KEY CHECK (one = 1),
  token bigint NOT NULL
)
""",
    """
CREATE OR REPLACE FUNCTION asyncqueue.token_floor_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.token := greatest(NEW.token, {floor});
  RETURN NEW;
END $$
""",
    """
CREATE OR REPLACE TRIGGER token_floor_kept BEFORE INSERT ON asyncqueue.jobs
FOR EACH ROW EXECUTE FUNCTION asyncqueue.token_floor_kept()
""",
)
FENCE_COLUMNS: Final = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = to_regclass('asyncqueue.token_floor') AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
FENCE_LOOK: Final = "SELECT coalesce(max(token), 0) FROM asyncqueue.token_floor"
FENCE_MOST: Final = f"SELECT {_NOW}, coalesce((SELECT max(token) FROM asyncqueue.jobs), 0)"  # noqa: S608 - a constant
FENCE_SET: Final = """
INSERT INTO asyncqueue.token_floor AS f (one, token) VALUES (1, $1)
ON CONFLICT (one) DO UPDATE SET token = greatest(f.token, excluded.token)
"""
# Done jobs are never claimed again.
FENCE_RAISE: Final = "UPDATE asyncqueue.jobs SET token = $1 WHERE status <> 'done' AND token < $1"

# --- moving to another store --------------------------------------------------------------------------

# Where a store stands in a move. `is_open` is true only inside a transaction of the mover itself, which sets it
# back: so nobody but the mover can change a sealed table, whatever program and however long it has been connected.
MOVED: Final = "AQ001"  # a SQLSTATE of our own
MOVE_MAKE: Final = """
CREATE TABLE IF NOT EXISTS asyncqueue.moving (
  one integer PRIMARY KEY CHECK (one = 1),
  move text COLLATE "C" NOT NULL,
  role text COLLATE "C" NOT NULL CHECK (role IN ('source','target')),
  peer text COLLATE "C" NOT NULL,
  stage text COLLATE "C" NOT NULL CHECK (stage IN ('copying','done')),
  is_open boolean NOT NULL DEFAULT false
)
"""
_SEALED: Final = ("jobs", "redrives", "attempts", "queues")
MOVE_SEAL: Final = (
    f"""
CREATE OR REPLACE FUNCTION asyncqueue.moving_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM asyncqueue.moving WHERE is_open) THEN
    RAISE EXCEPTION 'this queue was moved, or is being moved, to another store: see asyncqueue migrate-store'
      USING ERRCODE = '{MOVED}';
  END IF;
  RETURN NULL;
END $$
""",
    *(
        "CREATE OR REPLACE TRIGGER moving_sealed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE "
        f"ON asyncqueue.{table} FOR EACH STATEMENT EXECUTE FUNCTION asyncqueue.moving_refuse()"
        for table in _SEALED
    ),
)
MOVE_UNSEAL: Final = (
    *(f"DROP TRIGGER IF EXISTS moving_sealed ON asyncqueue.{table}" for table in _SEALED),
    "DROP FUNCTION IF EXISTS asyncqueue.moving_refuse()",
)
# The columns of whatever is named so in the schema $1: it may be somebody else's.
MOVE_COLUMNS: Final = """
SELECT attname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_attribute ON attrelid = c.oid
WHERE nspname = $1 AND relname = 'moving' AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
MOVE_LOOK: Final = "SELECT move, role, peer, stage FROM asyncqueue.moving"
MOVE_MARK: Final = """
INSERT INTO asyncqueue.moving (one, move, role, peer, stage) VALUES (1, $1, $2, $3, $4)
ON CONFLICT (one) DO UPDATE SET
  move = excluded.move, role = excluded.role, peer = excluded.peer, stage = excluded.stage
"""
MOVE_FORGET: Final = "DELETE FROM asyncqueue.moving"
MOVE_OPEN: Final = "UPDATE asyncqueue.moving SET is_open = $1"
MOVE_LEASES: Final = f"""
SELECT count(*), max(lease_until) FROM asyncqueue.jobs
WHERE {_LIVE} AND status = 'leased' AND lease_until > {_NOW}
"""  # noqa: S608 - a constant, joined from a constant
_NUMBERED: Final = ("jobs", "redrives", "attempts")
MOVE_NUMBERS: Final = " UNION ALL ".join(
    f"SELECT '{name}', coalesce(pg_sequence_last_value("
    f"pg_get_serial_sequence('asyncqueue.{name}', 'seq')::regclass), 0)"
    for name in _NUMBERED
)
# $1 the last number that was given out.
MOVE_NUMBER: Final = {
    name: f"SELECT setval(pg_get_serial_sequence('asyncqueue.{name}', 'seq'), $1::bigint)" for name in _NUMBERED
}
MOVED_COLUMNS: Final = {
    "queues": ("name", "paused"),
    "jobs": (
        *("seq", "id", "qty", "status", "attempts", "max_attempts", "token", "available_at", "deadline", "owner"),
        *(
            "lease_until",
            "reason",
            "queue",
            "kind",
            "payload",
            "priority",
            "created_at",
            "finished_at",
            "last_error",
        ),
    ),
    "redrives": ("seq", "id", "token", "at_ms", "note", "actor", "reason_before", "attempts_before"),
    "attempts": (
        *("seq", "id", "token", "attempt", "owner", "at_ms", "outcome", "certainty", "error", "http_status"),
    ),
}
_MOVED_KEY: Final = {"queues": ("name", "text"), **dict.fromkeys(_NUMBERED, ("seq", "bigint"))}
MOVE_COUNT: Final = {name: f"SELECT count(*) FROM asyncqueue.{name}" for name in _MOVED_KEY}  # noqa: S608 - constants
MOVE_LAST: Final = {
    name: f"SELECT max({key}) FROM asyncqueue.{name}"  # noqa: S608 - constants
    for name, (key, _kind) in _MOVED_KEY.items()
}
MOVE_PAGE: Final = {
    name: f"SELECT {', '.join(MOVED_COLUMNS[name])} FROM asyncqueue.{name} "  # noqa: S608 - constants
    f"WHERE {key} > $1::{kind} ORDER BY {key} LIMIT $2"
    for name, (key, kind) in _MOVED_KEY.items()
}
MOVE_EMPTY: Final = {
    name: f"DELETE FROM asyncqueue.{name} "  # noqa: S608 - constants
    f"WHERE {key} IN (SELECT {key} FROM asyncqueue.{name} LIMIT $1) RETURNING 1"
    for name, (key, _kind) in _MOVED_KEY.items()
}
