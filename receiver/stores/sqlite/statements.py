"""Every SQL statement of the SQLite inbox. Sets travel as one JSON array (`json_each`), one hop each."""

from typing import Final

__all__ = [
    "ACCEPT",
    "CONFLICT",
    "EFFECT_BEGIN",
    "EFFECT_END",
    "EFFECT_UNDO",
    "FORGET",
    "GET",
    "JUDGE",
    "KNOWN",
    "LEDGER",
    "SCHEMA_MARK",
    "SCHEMA_STATE",
    "SEEN_AGAIN",
    "TOTALS",
    "TOTALS_ADD",
]

SCHEMA_STATE: Final = """
SELECT (SELECT user_version FROM pragma_user_version),
       (SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'),
       (SELECT count(*) FROM sqlite_schema
        WHERE type = 'table' AND name IN ('inbox','ledger','conflicts','totals'))
"""
SCHEMA_MARK: Final = "PRAGMA user_version = 1"

# Answers with one row, and ACCEPT with none: the driver lets go of Python's lock for each row that it fetches, and
# under load getting it back costs more than the row.
KNOWN: Final = """
SELECT json_group_array(inbox.id) FROM json_each(:items) AS item CROSS JOIN inbox ON inbox.id = item.value ->> 0
"""
ACCEPT: Final = """
INSERT INTO inbox (id, qty, payload, result, received_at, token, attempt)
SELECT value ->> 0, value ->> 1, value ->> 2, 'accepted', :now, value ->> 3, value ->> 4
FROM json_each(:items) WHERE true
ON CONFLICT (id) DO NOTHING
"""
LEDGER: Final = "INSERT INTO ledger (id, qty) SELECT value ->> 0, value ->> 1 FROM json_each(:items)"
JUDGE: Final = """
SELECT item.key, inbox.qty = item.value ->> 1 AND inbox.payload IS item.value ->> 2
FROM json_each(:items) AS item CROSS JOIN inbox ON inbox.id = item.value ->> 0
"""
SEEN_AGAIN: Final = """
UPDATE inbox SET times = times + (item.value ->> 1) FROM json_each(:items) AS item
WHERE inbox.id = item.value ->> 0
"""
# An item is [id, qty, payload, times, ordinal]: the ordinal counts the kinds of conflict of its id within the set,
# as the rows that this very statement adds cannot be counted by it.
CONFLICT: Final = """
INSERT INTO conflicts (id, kept_qty, qty, payload, first_at, last_at, times)
SELECT item.value ->> 0, (SELECT qty FROM inbox WHERE inbox.id = item.value ->> 0), item.value ->> 1,
       item.value ->> 2, :now, :now, item.value ->> 3
FROM json_each(:items) AS item
WHERE (SELECT count(*) FROM conflicts WHERE conflicts.id = item.value ->> 0) + (item.value ->> 4) < :per_id_max
   OR EXISTS (SELECT 1 FROM conflicts WHERE conflicts.id = item.value ->> 0
              AND conflicts.qty = item.value ->> 1 AND conflicts.payload = item.value ->> 2)
ON CONFLICT (id, qty, payload) DO UPDATE SET times = times + excluded.times, last_at = excluded.last_at
"""
EFFECT_BEGIN: Final = "SAVEPOINT inbox_effect"
EFFECT_UNDO: Final = "ROLLBACK TO inbox_effect"
EFFECT_END: Final = "RELEASE inbox_effect"
FORGET: Final = "DELETE FROM inbox WHERE id IN (SELECT value FROM json_each(:ids))"
TOTALS_ADD: Final = """
UPDATE totals SET messages = messages + :messages, quantity = quantity + :quantity,
  duplicates = duplicates + :duplicates, conflicts = conflicts + :conflicts
"""

GET: Final = "SELECT id, qty, payload, result, received_at, token, attempt, times FROM inbox WHERE id = :id"
TOTALS: Final = "SELECT messages, quantity, duplicates, conflicts FROM totals"
