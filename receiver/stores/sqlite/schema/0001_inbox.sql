-- The inbox. Frozen once released.
CREATE TABLE inbox (
  id TEXT PRIMARY KEY,
  qty INTEGER NOT NULL,
  payload TEXT,
  result TEXT NOT NULL CHECK(result = 'accepted'),
  received_at INTEGER NOT NULL,
  token INTEGER,
  attempt INTEGER,
  times INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;

-- The default effect: what was received of each id.
CREATE TABLE ledger (
  id TEXT PRIMARY KEY,
  qty INTEGER NOT NULL
) WITHOUT ROWID;

-- Evidence: other quantities or payloads (their beginning) offered under a known id; a bounded number per id.
CREATE TABLE conflicts (
  id TEXT NOT NULL,
  kept_qty INTEGER NOT NULL,
  qty INTEGER NOT NULL,
  payload TEXT NOT NULL,
  first_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  times INTEGER NOT NULL DEFAULT 1,
  PRIMARY KEY (id, qty, payload)
) WITHOUT ROWID;

CREATE TABLE totals (
  one INTEGER PRIMARY KEY CHECK(one = 1),
  messages INTEGER NOT NULL,
  quantity INTEGER NOT NULL,
  duplicates INTEGER NOT NULL,
  conflicts INTEGER NOT NULL
);
INSERT INTO totals VALUES (1, 0, 0, 0, 0);
