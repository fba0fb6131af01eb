-- The contract's tables, column for column. Frozen: later migrations only add to them.
CREATE TABLE IF NOT EXISTS jobs (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  qty INTEGER NOT NULL,
  status TEXT NOT NULL CHECK(status IN ('pending','leased','done','dead')),
  attempts INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  token INTEGER NOT NULL,
  available_at INTEGER NOT NULL,
  deadline INTEGER NOT NULL,
  owner TEXT,
  lease_until INTEGER,
  reason TEXT
);
CREATE TABLE IF NOT EXISTS redrives (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  token INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  note TEXT NOT NULL
);
