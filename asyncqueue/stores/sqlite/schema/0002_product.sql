-- The product's columns and tables beside the contract's. Frozen once released.
ALTER TABLE jobs ADD COLUMN queue TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'job';
ALTER TABLE jobs ADD COLUMN payload TEXT;
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN finished_at INTEGER;
ALTER TABLE jobs ADD COLUMN last_error TEXT;

ALTER TABLE redrives ADD COLUMN actor TEXT;
ALTER TABLE redrives ADD COLUMN reason_before TEXT;
ALTER TABLE redrives ADD COLUMN attempts_before INTEGER;

CREATE INDEX redrives_by_id ON redrives(id);

CREATE TABLE attempts (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL,
  token INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  owner TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  outcome TEXT NOT NULL CHECK(outcome IN ('ok','retry','permanent','release','left','lost','cancelled')),
  certainty TEXT NOT NULL CHECK(certainty IN ('not-sent','unknown','refused','accepted')),
  error TEXT,
  http_status INTEGER
);
CREATE INDEX attempts_by_id ON attempts(id, seq);

CREATE TABLE queues (
  name TEXT PRIMARY KEY,
  paused INTEGER NOT NULL DEFAULT 0 CHECK(paused IN (0, 1))
) WITHOUT ROWID;

-- The claim walks live jobs in (queue, priority, seq) order and hops over buckets of 16384 and 128 seqs in
-- which nothing is due; the last column is when a job falls due: its time if pending, its lease if leased.
DROP INDEX IF EXISTS contract_live;
CREATE INDEX jobs_walk_coarse ON jobs(
  queue, priority DESC, seq >> 14, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
) WHERE status IN ('pending','leased');
CREATE INDEX jobs_walk_fine ON jobs(
  queue, priority DESC, seq >> 7, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
) WHERE status IN ('pending','leased');
-- The sweep: live jobs by deadline, and the few whose attempts are used up.
CREATE INDEX jobs_deadline ON jobs(deadline) WHERE status IN ('pending','leased');
CREATE INDEX jobs_spent ON jobs(seq) WHERE status IN ('pending','leased') AND attempts >= max_attempts;
CREATE INDEX jobs_dead ON jobs(seq) WHERE status = 'dead';
-- The purge: ended jobs by the time of their end. The contract's functions keep it in available_at.
CREATE INDEX jobs_ended ON jobs(status, ifnull(finished_at, available_at)) WHERE status IN ('done','dead');

-- The contract's redrive does not know finished_at, which would make the job's next end look old to the purge.
CREATE TRIGGER jobs_revived AFTER UPDATE OF status ON jobs
WHEN old.status = 'dead' AND new.status = 'pending' AND new.finished_at IS NOT NULL BEGIN
  UPDATE jobs SET finished_at = NULL WHERE seq = new.seq;
END;

-- How many jobs are where, kept by triggers so that the contract's functions cannot make it wrong.
CREATE TABLE counts (
  queue TEXT NOT NULL,
  status TEXT NOT NULL,
  jobs INTEGER NOT NULL,
  PRIMARY KEY (queue, status)
) WITHOUT ROWID;
INSERT INTO counts SELECT queue, status, count(*) FROM jobs GROUP BY queue, status;
CREATE TRIGGER jobs_counted AFTER INSERT ON jobs BEGIN
  INSERT INTO counts VALUES (new.queue, new.status, 1)
  ON CONFLICT (queue, status) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER jobs_recounted AFTER UPDATE OF status ON jobs WHEN old.status <> new.status BEGIN
  UPDATE counts SET jobs = jobs - 1 WHERE queue = old.queue AND status = old.status;
  INSERT INTO counts VALUES (new.queue, new.status, 1)
  ON CONFLICT (queue, status) DO UPDATE SET jobs = jobs + 1;
END;
CREATE TRIGGER jobs_uncounted AFTER DELETE ON jobs BEGIN
  UPDATE counts SET jobs = jobs - 1 WHERE queue = old.queue AND status = old.status;
END;
CREATE TABLE totals (
  name TEXT PRIMARY KEY,
  rows_now INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO totals SELECT 'redrives', count(*) FROM redrives;
CREATE TRIGGER redrives_counted AFTER INSERT ON redrives BEGIN
  UPDATE totals SET rows_now = rows_now + 1 WHERE name = 'redrives';
END;
CREATE TRIGGER redrives_uncounted AFTER DELETE ON redrives BEGIN
  UPDATE totals SET rows_now = rows_now - 1 WHERE name = 'redrives';
END;
