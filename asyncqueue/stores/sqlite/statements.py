"""Every SQL statement of the SQLite store, in the order of a job's life.

Sets travel as one JSON array per statement (`json_each`), so a set costs one hop to the driver's thread.
`:now` is the transaction's time in milliseconds.
"""

from typing import Final

__all__ = [
    "BACKUP_BEGIN",
    "BACKUP_CHECK",
    "BACKUP_JOURNAL",
    "BACKUP_SYNC",
    "BEGIN",
    "CANCEL",
    "CANCELLED",
    "CLAIM",
    "CLAIMED",
    "COMMIT",
    "CONDEMN",
    "CONDEMN_UNORDERED",
    "CONTRACT_AUDIT",
    "CONTRACT_CLAIM",
    "CONTRACT_ENQUEUE",
    "CONTRACT_FINISH",
    "CONTRACT_LIVE_INDEX",
    "CONTRACT_PRAGMAS",
    "CONTRACT_QTY",
    "CONTRACT_REDRIVE",
    "CONTRACT_SWEEP",
    "CONTRACT_TABLES",
    "COUNT",
    "COUNT_DEAD",
    "DATA_VERSION",
    "DUE_BY_QUEUE",
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
    "FINISH",
    "FINISH_OK",
    "FORGET_PAGES",
    "GET",
    "HISTORY",
    "HISTORY_APPEND",
    "LEVELS",
    "LEVELS_OF_KINDS",
    "LIST",
    "LIST_DEAD",
    "LOOK",
    "LOST",
    "MOVED",
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
    "MOVE_NUMBER_FORGET",
    "MOVE_OPEN",
    "MOVE_PAGE",
    "MOVE_PUT",
    "MOVE_SEAL",
    "MOVE_UNSEAL",
    "NEXT_DUE",
    "NEXT_DUE_OF_DEFAULT",
    "NEXT_DUE_OF_KINDS",
    "NOTE",
    "PAUSE",
    "PENDING",
    "PICK",
    "PICK_JSON",
    "PICK_OF_KIND",
    "PICK_OF_KIND_JSON",
    "PICK_OF_LEVEL",
    "PICK_OF_LEVEL_JSON",
    "PLACE",
    "PRAGMAS",
    "PURGE",
    "PURGEABLE",
    "PURGE_HISTORY",
    "QUEUES",
    "REDRIVE",
    "REDRIVES",
    "REDRIVE_AUDIT",
    "RELEASE",
    "RENEW",
    "RING_OF_KIND",
    "RING_OF_LEVEL",
    "RING_OF_ZERO",
    "SCHEMA_MARK",
    "SCHEMA_NAMES",
    "SCHEMA_STATE",
    "SCHEMA_VERSION",
    "STATS",
    "STATUS_OF",
    "SWEEP",
    "SWEEPABLE",
    "VALID",
]

# --- the contract layer (asyncqueue/worker.py), one job at a time --------------------------------------

CONTRACT_PRAGMAS: Final = ("PRAGMA journal_mode=DELETE", "PRAGMA synchronous=FULL")
CONTRACT_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('jobs','redrives')"
# Made only together with the tables: the claim's search then costs the live jobs, not the whole history.
CONTRACT_LIVE_INDEX: Final = "CREATE INDEX contract_live ON jobs(seq) WHERE status IN ('pending','leased')"

CONTRACT_QTY: Final = "SELECT qty FROM jobs WHERE id = :id"
CONTRACT_ENQUEUE: Final = """
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline)
VALUES (:id, :qty, 'pending', 0, :max_attempts, 0, :now, :now + :ttl_ms)
"""

CONTRACT_SWEEP: Final = """
UPDATE jobs SET status = 'dead', owner = NULL, lease_until = NULL,
  reason = CASE WHEN deadline <= :now THEN 'deadline' ELSE 'exhausted' END
WHERE status IN ('pending','leased') AND (status = 'pending' OR lease_until <= :now)
  AND (deadline <= :now OR attempts >= max_attempts)
"""
CONTRACT_CLAIM: Final = """
UPDATE jobs SET status = 'leased', attempts = attempts + 1, token = token + 1, owner = :owner,
  lease_until = min(:now + :lease_ms, deadline), reason = NULL
WHERE seq = (
  SELECT seq FROM jobs
  WHERE status IN ('pending','leased')
    AND CASE status WHEN 'pending' THEN available_at ELSE lease_until END <= :now
  ORDER BY seq LIMIT 1)
RETURNING id, qty, owner, token, attempts, lease_until
"""

# The fence is the WHERE: every part of the ticket and both time limits, or nothing changes.
CONTRACT_FINISH: Final = """
UPDATE jobs SET
  status = CASE
    WHEN :outcome = 'ok' THEN 'done'
    WHEN :outcome = 'permanent' OR attempts >= max_attempts OR :now + :delay_ms >= deadline THEN 'dead'
    ELSE 'pending' END,
  reason = CASE
    WHEN :outcome = 'ok' THEN NULL
    WHEN :outcome = 'permanent' THEN 'permanent'
    WHEN attempts >= max_attempts THEN 'exhausted'
    WHEN :now + :delay_ms >= deadline THEN 'deadline'
    ELSE 'retry' END,
  available_at = CASE
    WHEN :outcome = 'retry' AND attempts < max_attempts AND :now + :delay_ms < deadline THEN :now + :delay_ms
    ELSE :now END,
  owner = NULL, lease_until = NULL
WHERE id = :id AND status = 'leased' AND qty = :qty AND owner = :owner AND token = :token
  AND attempts = :attempt AND lease_until = :lease_until AND :now < lease_until AND :now < deadline
RETURNING status
"""

CONTRACT_AUDIT: Final = """
INSERT INTO redrives (id, token, at_ms, note)
SELECT id, token, :now, :note FROM jobs WHERE id = :id AND status = 'dead'
RETURNING seq
"""
CONTRACT_REDRIVE: Final = """
UPDATE jobs SET status = 'pending', attempts = 0, available_at = :now, deadline = :now + :ttl_ms,
  owner = NULL, lease_until = NULL, reason = NULL
WHERE id = :id AND status = 'dead'
"""

# --- connection and schema ---------------------------------------------------------------------------

PRAGMAS: Final = {
    "delete": ("PRAGMA journal_mode=DELETE", "PRAGMA synchronous=EXTRA"),
    "wal": ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"),
    "keep": ("PRAGMA journal_mode", "PRAGMA synchronous=EXTRA"),
}
BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
DATA_VERSION: Final = "PRAGMA data_version"
# Drops the cached pages: one that was read wrong once would otherwise be believed until somebody else commits.
FORGET_PAGES: Final = "PRAGMA shrink_memory"

SCHEMA_STATE: Final = """
SELECT (SELECT user_version FROM pragma_user_version),
       (SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'),
       (SELECT group_concat(name) FROM pragma_table_info('jobs')),
       (SELECT group_concat(name) FROM pragma_table_info('redrives'))
"""
SCHEMA_NAMES: Final = """
SELECT name FROM sqlite_schema WHERE lower(name) IN (SELECT value FROM json_each(:names)) ORDER BY name
"""
SCHEMA_VERSION: Final = "PRAGMA user_version"
SCHEMA_MARK: Final = "PRAGMA user_version = 3"

# --- enqueue -----------------------------------------------------------------------------------------

ENQUEUE: Final = """
INSERT INTO jobs (id, qty, status, attempts, max_attempts, token, available_at, deadline,
                  queue, kind, payload, priority, created_at)
SELECT value ->> 0, value ->> 1, 'pending', 0, value ->> 2, 0, :now + (value ->> 3), :now + (value ->> 4),
       value ->> 5, value ->> 6, value ->> 7, value ->> 8, :now
FROM json_each(:jobs) WHERE true
ON CONFLICT (id) DO NOTHING
"""
EXISTING: Final = """
SELECT json_group_array(json_array(id, qty, queue, kind, payload)) FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids))
"""

# The file that this connection's transaction puts jobs into: that of the first database with such a table, in
# the order in which SQLite looks for it.
PLACE: Final = """
SELECT opened.name, opened.file FROM pragma_table_list('jobs') AS found JOIN pragma_database_list AS opened
  ON opened.name = found.schema
ORDER BY iif(opened.name = 'temp', -1, opened.seq) LIMIT 1
"""

PENDING: Final = "SELECT ifnull(sum(jobs), 0) FROM counts WHERE status = 'pending'"

# --- claim -------------------------------------------------------------------------------------------

# Live jobs that must die instead, and why; split so that each part has its own partial index.
SWEEPABLE: Final = """
SELECT seq, 'deadline' AS reason FROM jobs INDEXED BY jobs_deadline
WHERE status IN ('pending','leased') AND deadline <= :now AND (status = 'pending' OR lease_until <= :now)
UNION ALL
SELECT seq, 'exhausted' FROM jobs INDEXED BY jobs_spent
WHERE status IN ('pending','leased') AND attempts >= max_attempts AND deadline > :now
  AND (status = 'pending' OR lease_until <= :now)
"""

_LIVE: Final = "status IN ('pending','leased')"
_DUE: Final = "CASE status WHEN 'pending' THEN available_at ELSE lease_until END"
_DUE_OF_NEXT: Final = "CASE nxt.status WHEN 'pending' THEN nxt.available_at ELSE nxt.lease_until END"

# A bucket whose first time is NULL, of a damaged row, is looked into.
_FOUND: Final = """
offsets(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM offsets WHERE i < 127)
SELECT seq, priority, status FROM (
  SELECT j.seq, j.priority, j.status
  FROM walk CROSS JOIN offsets CROSS JOIN jobs AS j INDEXED BY jobs_walk_fine
  WHERE ifnull(walk.due, :now) <= :now
    AND j.status IN ('pending','leased') AND j.queue = :queue AND j.priority = p
    AND j.seq >> 7 = (b << 7) + i
    AND CASE j.status WHEN 'pending' THEN j.available_at ELSE j.lease_until END <= :now
    AND j.deadline > :now AND j.attempts < j.max_attempts
    AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
  LIMIT :limit + 127)
ORDER BY priority DESC, seq LIMIT :limit
"""

# The first :limit eligible jobs of one queue, in order. `walk` visits the (priority, coarse bucket) pairs that
# hold live jobs by one seek each, which tells when the first job of the bucket falls due as well; a bucket in
# which nothing is due is left out; inside one, each of its 128 fine buckets is a range of the fine index. A fine
# bucket holds at most 128 rows, so the first limit+127 rows in bucket order contain the first :limit rows in seq
# order.
PICK: Final = f"""
WITH RECURSIVE
walk(p, b, due) AS (
  SELECT * FROM (
    SELECT priority, seq >> 14, {_DUE} FROM jobs INDEXED BY jobs_walk_coarse
    WHERE {_LIVE} AND queue = :queue ORDER BY priority DESC, seq >> 14, {_DUE} LIMIT 1)
  UNION ALL
  SELECT nxt.priority, nxt.seq >> 14, {_DUE_OF_NEXT}
  FROM walk CROSS JOIN jobs AS nxt
  WHERE nxt.seq = ifnull(
    (SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
     WHERE {_LIVE} AND queue = :queue AND priority = p AND seq >> 14 > b
     ORDER BY seq >> 14, {_DUE} LIMIT 1),
    (SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
     WHERE {_LIVE} AND queue = :queue AND priority < p
     ORDER BY priority DESC, seq >> 14, {_DUE} LIMIT 1))
),
{_FOUND}"""  # noqa: S608 - a constant, joined from constants

PICK_JSON: Final = f"SELECT json_group_array(json_array(seq, priority, status)) FROM ({PICK})"  # noqa: S608 - constants

# What a claim must know first, in one hop: jobs to sweep (at most :sweep), and two queues with live jobs that are
# not paused; if there is only one, the claim need not take turns. Of :queues if given, live or not.
LOOK: Final = f"""
WITH RECURSIVE names(name) AS (
  SELECT min(queue) FROM jobs INDEXED BY jobs_walk_coarse
  WHERE status IN ('pending','leased') AND :queues IS NULL
  UNION ALL
  SELECT (SELECT min(queue) FROM jobs INDEXED BY jobs_walk_coarse
          WHERE status IN ('pending','leased') AND queue > name)
  FROM names WHERE name IS NOT NULL
),
wanted(name) AS (SELECT name FROM names UNION ALL SELECT DISTINCT value FROM json_each(:queues))
SELECT * FROM (
  SELECT name, NULL AS seq FROM wanted
  WHERE name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM queues WHERE queues.name = wanted.name AND paused)
  LIMIT 2)
UNION ALL
SELECT NULL, seq FROM (SELECT seq FROM ({SWEEPABLE}) LIMIT :sweep)
"""  # noqa: S608 - a constant, joined from a constant

CLAIM: Final = """
UPDATE jobs SET status = 'leased', attempts = attempts + 1, token = token + 1, owner = :owner,
  lease_until = min(:now + :lease_ms, deadline), reason = NULL
WHERE seq IN (SELECT value FROM json_each(:seqs))
"""
# In the order of :seqs.
CLAIMED: Final = """
SELECT json_group_array(json_array(jobs.id, qty, owner, token, attempts, lease_until, queue, kind, payload,
  priority, max_attempts, deadline, lease_until - :now))
FROM json_each(:seqs) AS item CROSS JOIN jobs ON jobs.seq = item.value
"""

# Rows that cannot be read, so that they cannot be carried out: somebody else wrote them.
_CONDEMN: Final = """
UPDATE jobs SET status = 'dead', reason = 'permanent', owner = NULL, lease_until = NULL, finished_at = :now,
  last_error = 'the row is damaged: a value has a type that no verb writes'
"""
CONDEMN: Final = f"{_CONDEMN} WHERE seq IN (SELECT value FROM json_each(:seqs))"  # noqa: S608 - a constant
# Passes over all live jobs; for the moment at which they cannot even be put in order.
CONDEMN_UNORDERED: Final = f"""{_CONDEMN}
WHERE status IN ('pending','leased')
  AND (typeof(priority) <> 'integer' OR typeof(queue) <> 'text' OR typeof(kind) <> 'text')
"""

SWEEP: Final = """
UPDATE jobs SET status = 'dead', owner = NULL, lease_until = NULL, finished_at = :now,
  reason = CASE WHEN deadline <= :now THEN 'deadline' ELSE 'exhausted' END,
  last_error = CASE WHEN status = 'leased' AND deadline > :now THEN 'lease lost on last attempt'
    ELSE last_error END
WHERE seq IN (SELECT value FROM json_each(:seqs))
RETURNING id
"""

# The attempts that end without a report, since their lease is taken away. A row that the history does not accept
# is left out (OR IGNORE): it must not cost the rows beside it, here and below.
LOST: Final = """
INSERT OR IGNORE INTO attempts (id, token, attempt, owner, at_ms, outcome, certainty, error)
SELECT id, token, attempts, owner, :now, 'lost', 'unknown', 'lease ran out without a report' FROM jobs
WHERE status = 'leased' AND seq IN (SELECT value FROM json_each(:seqs))
"""

# --- turns between queues, and kinds -------------------------------------------------------------------

# These find their way level by level: a level is one priority. A claim that takes turns asks for the levels, for
# the queues that have something due at the best one, then picks from those.

# The priorities other than 0 that live jobs have, best first: one seek each.
LEVELS: Final = """
WITH RECURSIVE levels(p) AS (
  SELECT max(priority) FROM jobs INDEXED BY jobs_levels WHERE status IN ('pending','leased') AND priority <> 0
  UNION ALL
  SELECT (SELECT priority FROM jobs INDEXED BY jobs_levels
          WHERE status IN ('pending','leased') AND priority <> 0 AND priority < p ORDER BY priority DESC LIMIT 1)
  FROM levels WHERE p IS NOT NULL
)
SELECT json_group_array(p) FROM levels WHERE p IS NOT NULL
"""
LEVELS_OF_KINDS: Final = """
WITH RECURSIVE levels(k, p) AS (
  SELECT value, (SELECT priority FROM jobs INDEXED BY jobs_kinds
                 WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = value
                 ORDER BY priority DESC LIMIT 1)
  FROM json_each(:kinds)
  UNION ALL
  SELECT k, (SELECT priority FROM jobs INDEXED BY jobs_kinds
             WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = k AND priority < p
             ORDER BY priority DESC LIMIT 1)
  FROM levels WHERE p IS NOT NULL
)
SELECT json_group_array(json_array(k, p)) FROM levels WHERE p IS NOT NULL
"""


def _ring(index: str, next_queue: str, jobs: str, bits: int) -> str:
    """Return the statement for the first :count queues after :after, by name, that have a job due at a level.

    It hops from queue to queue by `next_queue` (or takes :queues) and in each from bucket to bucket of `bits`
    bits, by `index`, until one is due; `jobs` says which jobs count.
    """
    return f"""
WITH RECURSIVE names(name) AS (
  SELECT queue FROM (
    SELECT queue FROM jobs INDEXED BY {index} WHERE {next_queue} AND queue > :after AND :queues IS NULL
    ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM jobs INDEXED BY {index} WHERE {next_queue} AND queue > name ORDER BY queue LIMIT 1)
  FROM names WHERE name IS NOT NULL
),
wanted(name) AS (
  SELECT name FROM names WHERE name IS NOT NULL
  UNION ALL
  SELECT value FROM (SELECT DISTINCT value FROM json_each(:queues) WHERE value > :after ORDER BY value)
)
SELECT name FROM wanted
WHERE (:until IS NULL OR name <= :until)
  AND NOT EXISTS (SELECT 1 FROM queues WHERE queues.name = wanted.name AND paused)
  AND EXISTS (
    WITH RECURSIVE buckets(b, due) AS (
      SELECT * FROM (
        SELECT seq >> {bits}, {_DUE} FROM jobs INDEXED BY {index} WHERE {jobs} AND queue = name
        ORDER BY seq >> {bits}, {_DUE} LIMIT 1)
      UNION ALL
      SELECT nxt.seq >> {bits}, CASE nxt.status WHEN 'pending' THEN nxt.available_at ELSE nxt.lease_until END
      FROM buckets CROSS JOIN jobs AS nxt
      WHERE due > :now AND nxt.seq = (
        SELECT seq FROM jobs INDEXED BY {index} WHERE {jobs} AND queue = name AND seq >> {bits} > b
        ORDER BY seq >> {bits}, {_DUE} LIMIT 1)
    )
    SELECT 1 FROM buckets WHERE due <= :now)
LIMIT :count
"""  # noqa: S608 - built from constants, at import


_LEVEL: Final = f"{_LIVE} AND priority <> 0 AND priority = :level"
_KIND: Final = f"{_LIVE} AND kind <> 'job' AND kind = :kind AND priority = :level"
RING_OF_LEVEL: Final = _ring("jobs_levels", _LEVEL, _LEVEL, 14)
RING_OF_ZERO: Final = _ring("jobs_walk_coarse", _LIVE, f"{_LIVE} AND priority = :level", 14)
RING_OF_KIND: Final = _ring("jobs_kinds", _KIND, _KIND, 8)

# The first :limit eligible jobs of one queue and level, in order; see PICK.
PICK_OF_LEVEL: Final = f"""
WITH RECURSIVE
walk(p, b, due) AS (
  SELECT * FROM (
    SELECT priority, seq >> 14, {_DUE} FROM jobs INDEXED BY jobs_walk_coarse
    WHERE {_LIVE} AND queue = :queue AND priority = :level ORDER BY seq >> 14, {_DUE} LIMIT 1)
  UNION ALL
  SELECT p, nxt.seq >> 14, {_DUE_OF_NEXT}
  FROM walk CROSS JOIN jobs AS nxt
  WHERE nxt.seq = (
    SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
    WHERE {_LIVE} AND queue = :queue AND priority = p AND seq >> 14 > b ORDER BY seq >> 14, {_DUE} LIMIT 1)
),
{_FOUND}"""  # noqa: S608 - a constant, joined from constants
PICK_OF_LEVEL_JSON: Final = f"SELECT json_group_array(json_array(seq, priority, status)) FROM ({PICK_OF_LEVEL})"  # noqa: S608 - constants

# The same of one kind. A bucket holds at most 256 rows, so the first limit+255 rows in bucket order contain the
# first :limit rows in seq order.
PICK_OF_KIND: Final = f"""
WITH RECURSIVE walk(b, due) AS (
  SELECT * FROM (
    SELECT seq >> 8, {_DUE} FROM jobs INDEXED BY jobs_kinds WHERE {_KIND} AND queue = :queue
    ORDER BY seq >> 8, {_DUE} LIMIT 1)
  UNION ALL
  SELECT nxt.seq >> 8, CASE nxt.status WHEN 'pending' THEN nxt.available_at ELSE nxt.lease_until END
  FROM walk CROSS JOIN jobs AS nxt
  WHERE nxt.seq = (
    SELECT seq FROM jobs INDEXED BY jobs_kinds WHERE {_KIND} AND queue = :queue AND seq >> 8 > b
    ORDER BY seq >> 8, {_DUE} LIMIT 1)
)
SELECT seq, priority, status FROM (
  SELECT j.seq, j.priority, j.status FROM walk CROSS JOIN jobs AS j INDEXED BY jobs_kinds
  WHERE walk.due <= :now AND j.status IN ('pending','leased') AND j.kind <> 'job' AND j.kind = :kind
    AND j.priority = :level AND j.queue = :queue AND j.seq >> 8 = walk.b
    AND CASE j.status WHEN 'pending' THEN j.available_at ELSE j.lease_until END <= :now
    AND j.deadline > :now AND j.attempts < j.max_attempts
  LIMIT :limit + 255)
ORDER BY seq LIMIT :limit
"""  # noqa: S608 - a constant, joined from constants
PICK_OF_KIND_JSON: Final = f"SELECT json_group_array(json_array(seq, priority, status)) FROM ({PICK_OF_KIND})"  # noqa: S608 - constants

# --- reports -----------------------------------------------------------------------------------------

_TICKET: Final = """
jobs.id = item.value ->> 0 AND jobs.status = 'leased' AND jobs.token = item.value ->> 1
  AND jobs.qty = item.value ->> 2 AND jobs.owner = item.value ->> 3 AND jobs.attempts = item.value ->> 4
"""

_AGAIN: Final = """
(item.value ->> 5 = 'retry' AND attempts < max_attempts AND :now + (item.value ->> 6) < deadline)
"""

FINISH: Final = f"""
UPDATE jobs SET
  status = CASE WHEN {_AGAIN} THEN 'pending' WHEN item.value ->> 5 = 'ok' THEN 'done' ELSE 'dead' END,
  reason = CASE WHEN {_AGAIN} THEN 'retry' WHEN item.value ->> 5 = 'ok' THEN NULL
    WHEN item.value ->> 5 = 'permanent' THEN 'permanent'
    WHEN attempts >= max_attempts THEN 'exhausted' ELSE 'deadline' END,
  available_at = CASE WHEN {_AGAIN} THEN :now + (item.value ->> 6) ELSE :now END,
  finished_at = CASE WHEN {_AGAIN} THEN NULL ELSE :now END,
  last_error = ifnull(item.value ->> 7, last_error), owner = NULL, lease_until = NULL
FROM json_each(:items) AS item
WHERE {_TICKET} AND (:late OR :now < jobs.lease_until)
RETURNING id, status
"""  # noqa: S608 - a constant, joined from constants

# The places in :items of the tickets that are valid now.
VALID: Final = f"""
SELECT json_group_array(item.key) FROM json_each(:items) AS item CROSS JOIN jobs
WHERE {_TICKET} AND (:late OR :now < jobs.lease_until)
"""  # noqa: S608 - a constant, joined from a constant
FINISH_OK: Final = """
UPDATE jobs SET status = 'done', reason = NULL, available_at = :now, finished_at = :now, owner = NULL,
  lease_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids))
"""

RENEW: Final = f"""
UPDATE jobs SET lease_until = min(max(lease_until, :now + (item.value ->> 5)), deadline)
FROM json_each(:items) AS item
WHERE {_TICKET} AND :now < jobs.lease_until
RETURNING id, lease_until
"""  # noqa: S608 - a constant, joined from a constant

RELEASE: Final = f"""
UPDATE jobs SET status = 'pending', attempts = attempts - 1, available_at = :now + (item.value ->> 5),
  owner = NULL, lease_until = NULL, reason = NULL, last_error = ifnull(item.value ->> 6, last_error)
FROM json_each(:items) AS item
WHERE {_TICKET} AND :now < jobs.lease_until
RETURNING id, status
"""  # noqa: S608 - a constant, joined from a constant

HISTORY_APPEND: Final = """
INSERT OR IGNORE INTO attempts (id, token, attempt, owner, at_ms, outcome, certainty, error, http_status)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, :now, value ->> 4, value ->> 5, value ->> 6, value ->> 7
FROM json_each(:rows) WHERE EXISTS (SELECT 1 FROM jobs WHERE jobs.id = value ->> 0)
"""

# What went wrong with a lease that is left to run out, as long as it is still the current one.
NOTE: Final = """
UPDATE jobs SET last_error = item.value ->> 6 FROM json_each(:rows) AS item
WHERE jobs.id = item.value ->> 0 AND jobs.token = item.value ->> 1 AND jobs.status = 'leased'
"""

STATUS_OF: Final = "SELECT id, status FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))"
CANCELLED: Final = """
INSERT OR IGNORE INTO attempts (id, token, attempt, owner, at_ms, outcome, certainty, error)
SELECT id, token, attempts, owner, :now, 'cancelled', 'unknown', 'cancelled while it was leased' FROM jobs
WHERE status = 'leased' AND id IN (SELECT value FROM json_each(:ids))
"""
CANCEL: Final = """
UPDATE jobs SET status = 'dead', reason = 'cancelled', owner = NULL, lease_until = NULL, finished_at = :now
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('pending','leased')
RETURNING id
"""

EFFECT_BEGIN: Final = "SAVEPOINT asyncqueue_effect"
EFFECT_UNDO: Final = "ROLLBACK TO asyncqueue_effect"
EFFECT_END: Final = "RELEASE asyncqueue_effect"

# --- redrive -----------------------------------------------------------------------------------------

REDRIVE_AUDIT: Final = """
INSERT INTO redrives (id, token, at_ms, note, actor, reason_before, attempts_before)
SELECT jobs.id, jobs.token, :now, item.value ->> 2, item.value ->> 3, jobs.reason, jobs.attempts
FROM json_each(:items) AS item CROSS JOIN jobs ON jobs.id = item.value ->> 0
WHERE jobs.status = 'dead'
"""
REDRIVE: Final = """
UPDATE jobs SET status = 'pending', attempts = 0, available_at = :now, deadline = :now + (item.value ->> 1),
  owner = NULL, lease_until = NULL, reason = NULL, finished_at = NULL
FROM json_each(:items) AS item
WHERE jobs.id = item.value ->> 0 AND jobs.status = 'dead'
RETURNING id
"""

# --- housekeeping ------------------------------------------------------------------------------------

PAUSE: Final = """
INSERT INTO queues (name, paused) SELECT value, :paused FROM json_each(:names)
WHERE :paused OR value IN (SELECT name FROM queues)
ON CONFLICT (name) DO UPDATE SET paused = excluded.paused
"""
PURGEABLE: Final = """
SELECT id FROM jobs INDEXED BY jobs_ended
WHERE status IN ('done','dead') AND status = :status AND ifnull(finished_at, available_at) <= :before
ORDER BY ifnull(finished_at, available_at) LIMIT :limit
"""
PURGE_HISTORY: Final = "DELETE FROM attempts WHERE id IN (SELECT value FROM json_each(:ids))"
PURGE: Final = "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING id"

# --- reading -----------------------------------------------------------------------------------------

_COLUMNS: Final = """seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, owner,
  lease_until, reason, queue, kind, payload, priority, created_at, finished_at, last_error"""

GET: Final = f"SELECT {_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(:ids))"  # noqa: S608 - constants

_FILTER: Final = """
  AND (:queue IS NULL OR queue = :queue) AND (:kind IS NULL OR kind = :kind)
  AND (:reason IS NULL OR reason = :reason) AND (:before IS NULL OR ifnull(finished_at, available_at) <= :before)
  AND (:prefix IS NULL OR substr(id, 1, length(:prefix)) = :prefix)
"""
LIST: Final = f"""
SELECT {_COLUMNS} FROM jobs
WHERE seq > :after_seq AND (:status IS NULL OR status = :status) {_FILTER}
ORDER BY seq LIMIT :limit
"""  # noqa: S608 - a constant, joined from constants
LIST_DEAD: Final = f"""
SELECT {_COLUMNS} FROM jobs INDEXED BY jobs_dead
WHERE status = 'dead' AND :status = 'dead' AND seq > :after_seq {_FILTER}
ORDER BY seq LIMIT :limit
"""  # noqa: S608 - a constant, joined from constants
COUNT: Final = f"""
SELECT count(*) FROM jobs WHERE (:status IS NULL OR status = :status) {_FILTER}
"""  # noqa: S608 - a constant, joined from constants
COUNT_DEAD: Final = f"""
SELECT count(*) FROM jobs INDEXED BY jobs_dead WHERE status = 'dead' AND :status = 'dead' {_FILTER}
"""  # noqa: S608 - a constant, joined from constants

# In the order of tokens, which only grow: clocks of two processes may disagree. A redrive comes after the attempt
# whose token it found.
HISTORY: Final = """
SELECT at_ms, outcome, token, attempt, owner, certainty, error, http_status FROM (
  SELECT at_ms, outcome, token, attempt, owner, certainty, error, http_status, 0 AS place, seq
  FROM attempts WHERE id = :id
  UNION ALL
  SELECT at_ms, 'redrive', token, NULL, actor, NULL, note, NULL, 1, seq FROM redrives WHERE id = :id
) ORDER BY token, place, seq LIMIT :limit
"""

QUEUES: Final = """
SELECT name, ifnull((SELECT paused FROM queues WHERE queues.name = names.name), 0)
FROM (SELECT queue AS name FROM counts UNION SELECT name FROM queues) AS names ORDER BY name
"""
STATS: Final = "SELECT queue, status, jobs FROM counts WHERE jobs > 0"
REDRIVES: Final = "SELECT rows_now FROM totals WHERE name = 'redrives'"

# The smallest due time over all coarse buckets that hold live jobs: two seeks a bucket.
_WALK: Final = """
WITH RECURSIVE walk(q, p, b, due) AS (
  SELECT queue, priority, bucket, due FROM (
    SELECT queue, priority, seq >> 14 AS bucket,
      CASE status WHEN 'pending' THEN available_at ELSE lease_until END AS due
    FROM jobs INDEXED BY jobs_walk_coarse WHERE status IN ('pending','leased')
    ORDER BY queue, priority DESC, seq >> 14,
      CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1)
  UNION ALL
  SELECT nxt.queue, nxt.priority, nxt.seq >> 14,
    CASE nxt.status WHEN 'pending' THEN nxt.available_at ELSE nxt.lease_until END
  FROM walk CROSS JOIN jobs AS nxt
  WHERE nxt.seq = ifnull(
    (SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
     WHERE status IN ('pending','leased') AND queue = q AND priority = p AND seq >> 14 > b
     ORDER BY seq >> 14, CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1),
    ifnull(
    (SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
     WHERE status IN ('pending','leased') AND queue = q AND priority < p
     ORDER BY priority DESC, seq >> 14, CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1),
    (SELECT seq FROM jobs INDEXED BY jobs_walk_coarse
     WHERE status IN ('pending','leased') AND queue > q
     ORDER BY queue, priority DESC, seq >> 14,
       CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1)))
)
"""
NEXT_DUE: Final = f"""{_WALK}
SELECT min(due) FROM walk WHERE q NOT IN (SELECT name FROM queues WHERE paused)
  AND (:queues IS NULL OR q IN (SELECT value FROM json_each(:queues)))
"""  # noqa: S608 - a constant, joined from constants
DUE_BY_QUEUE: Final = f"""{_WALK}
SELECT q, min(due) FROM walk WHERE q NOT IN (SELECT name FROM queues WHERE paused) GROUP BY q
"""  # noqa: S608 - a constant, joined from constants
# The same for kinds other than the default one: two seeks for each of their buckets.
NEXT_DUE_OF_KINDS: Final = """
WITH RECURSIVE walk(k, p, q, b, due) AS (
  SELECT kind, priority, queue, seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
  FROM json_each(:kinds) AS wanted CROSS JOIN jobs
  WHERE seq = (
    SELECT seq FROM jobs INDEXED BY jobs_kinds
    WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = wanted.value
    ORDER BY priority DESC, queue, seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
    LIMIT 1)
  UNION ALL
  SELECT k, nxt.priority, nxt.queue, nxt.seq >> 8,
    CASE nxt.status WHEN 'pending' THEN nxt.available_at ELSE nxt.lease_until END
  FROM walk CROSS JOIN jobs AS nxt
  WHERE nxt.seq = ifnull(
    (SELECT seq FROM jobs INDEXED BY jobs_kinds
     WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = k AND priority = p AND queue = q
       AND seq >> 8 > b
     ORDER BY seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1),
    ifnull(
    (SELECT seq FROM jobs INDEXED BY jobs_kinds
     WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = k AND priority = p AND queue > q
     ORDER BY queue, seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END LIMIT 1),
    (SELECT seq FROM jobs INDEXED BY jobs_kinds
     WHERE status IN ('pending','leased') AND kind <> 'job' AND kind = k AND priority < p
     ORDER BY priority DESC, queue, seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
     LIMIT 1)))
)
SELECT min(due) FROM walk WHERE q NOT IN (SELECT name FROM queues WHERE paused)
  AND (:queues IS NULL OR q IN (SELECT value FROM json_each(:queues)))
"""
# The same for the default kind. No index knows it, since that would cost every claim and report of everybody: this
# passes over the live jobs.
NEXT_DUE_OF_DEFAULT: Final = """
SELECT min(CASE status WHEN 'pending' THEN available_at ELSE lease_until END)
FROM jobs INDEXED BY jobs_walk_coarse
WHERE status IN ('pending','leased') AND kind = 'job'
  AND queue NOT IN (SELECT name FROM queues WHERE paused)
  AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
"""

# --- putting back an earlier state ---------------------------------------------------------------------

BACKUP_BEGIN: Final = "BEGIN"
BACKUP_SYNC: Final = "PRAGMA synchronous=EXTRA"
BACKUP_JOURNAL: Final = "PRAGMA journal_mode=MEMORY"  # no second file beside it
BACKUP_CHECK: Final = "PRAGMA integrity_check(1)"

# The floor of all tokens, also of ids to come: those that had been given out are forgotten, and may come again.
FENCE_MAKE: Final = (
    "CREATE TABLE IF NOT EXISTS token_floor (one INTEGER PRIMARY KEY CHECK(one = 1), token INTEGER NOT NULL)",
    """
CREATE TRIGGER IF NOT EXISTS token_floor_kept AFTER INSERT ON jobs
WHEN new.token < (SELECT token FROM token_floor) BEGIN
  UPDATE jobs SET token = (SELECT token FROM token_floor) WHERE seq = new.seq;
END
""",
)
FENCE_COLUMNS: Final = "SELECT name FROM pragma_table_info('token_floor') ORDER BY cid"
FENCE_LOOK: Final = "SELECT ifnull(max(token), 0) FROM token_floor"
FENCE_MOST: Final = "SELECT ifnull(max(token), 0) FROM jobs"
FENCE_SET: Final = """
INSERT INTO token_floor (one, token) VALUES (1, :floor)
ON CONFLICT (one) DO UPDATE SET token = max(token, excluded.token)
"""
# Done jobs are never claimed again.
FENCE_RAISE: Final = "UPDATE jobs SET token = :floor WHERE status <> 'done' AND token < :floor"

# --- moving to another store --------------------------------------------------------------------------

# Where a store stands in a move. `is_open` is 1 only inside a transaction of the mover itself, which sets it back:
# so nobody but the mover can change a sealed table, whatever program and however long it has had the file open.
MOVED: Final = "this queue was moved, or is being moved, to another store: see asyncqueue migrate-store"
MOVE_MAKE: Final = """
CREATE TABLE IF NOT EXISTS moving (
  one INTEGER PRIMARY KEY CHECK(one = 1),
  move TEXT NOT NULL,
  role TEXT NOT NULL CHECK(role IN ('source','target')),
  peer TEXT NOT NULL,
  stage TEXT NOT NULL CHECK(stage IN ('copying','done')),
  is_open INTEGER NOT NULL DEFAULT 0
)
"""
_SEALED: Final = tuple(
    (table, verb)
    for table in ("jobs", "redrives", "attempts", "queues")
    for verb in ("INSERT", "UPDATE", "DELETE")
)
MOVE_SEAL: Final = tuple(
    f"CREATE TRIGGER moving_{table}_{verb.lower()} BEFORE {verb} ON {table} "  # noqa: S608 - constants
    f"WHEN NOT EXISTS (SELECT 1 FROM moving WHERE is_open) BEGIN SELECT raise(ABORT, '{MOVED}'); END"
    for table, verb in _SEALED
)
MOVE_UNSEAL: Final = tuple(f"DROP TRIGGER IF EXISTS moving_{table}_{verb.lower()}" for table, verb in _SEALED)
# The triggers are silent as long as no row is changed: this asks one of them, where they are, and does nothing
# elsewhere.
MOVE_ASK: Final = (
    "INSERT INTO queues (name, paused) SELECT '', 0 "
    "FROM sqlite_master WHERE type = 'trigger' AND name = 'moving_queues_insert'"
)
# The columns of whatever is named so: it may be somebody else's.
MOVE_COLUMNS: Final = "SELECT name FROM pragma_table_info('moving') ORDER BY cid"
MOVE_LOOK: Final = "SELECT move, role, peer, stage FROM moving"
MOVE_MARK: Final = (
    "INSERT OR REPLACE INTO moving (one, move, role, peer, stage) VALUES (1, :move, :role, :peer, :stage)"
)
MOVE_FORGET: Final = "DELETE FROM moving"
MOVE_OPEN: Final = "UPDATE moving SET is_open = :is_open"
MOVE_LEASES: Final = "SELECT count(*), max(lease_until) FROM jobs WHERE status = 'leased' AND lease_until > :now"
MOVE_NUMBERS: Final = "SELECT name, seq FROM sqlite_sequence WHERE name IN ('jobs','redrives','attempts')"
MOVE_NUMBER_FORGET: Final = "DELETE FROM sqlite_sequence WHERE name = :name"
MOVE_NUMBER: Final = "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)"

_MOVED_COLUMNS: Final = {
    "queues": "name, paused",
    "jobs": "seq, id, qty, status, attempts, max_attempts, token, available_at, deadline, owner, lease_until, "
    "reason, queue, kind, payload, priority, created_at, finished_at, last_error",
    "redrives": "seq, id, token, at_ms, note, actor, reason_before, attempts_before",
    "attempts": "seq, id, token, attempt, owner, at_ms, outcome, certainty, error, http_status",
}
_MOVED_KEY: Final = {"queues": "name", "jobs": "seq", "redrives": "seq", "attempts": "seq"}
MOVE_COUNT: Final = {name: f"SELECT count(*) FROM {name}" for name in _MOVED_KEY}  # noqa: S608 - constants
MOVE_LAST: Final = {name: f"SELECT max({key}) FROM {name}" for name, key in _MOVED_KEY.items()}  # noqa: S608 - constants
MOVE_PAGE: Final = {
    name: f"SELECT {_MOVED_COLUMNS[name]} FROM {name} WHERE {key} > :after ORDER BY {key} LIMIT :limit"  # noqa: S608 - constants
    for name, key in _MOVED_KEY.items()
}
MOVE_PUT: Final = {
    name: f"INSERT INTO {name} ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})"  # noqa: S608 - constants
    for name, columns in _MOVED_COLUMNS.items()
}
MOVE_EMPTY: Final = {
    name: f"DELETE FROM {name} WHERE {key} IN (SELECT {key} FROM {name} LIMIT :limit) RETURNING 1"  # noqa: S608 - constants
    for name, key in _MOVED_KEY.items()
}
