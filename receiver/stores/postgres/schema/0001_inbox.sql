-- The inbox's tables. Frozen once released: later migrations only add to them. Every name is written with its
-- schema, `asyncqueue.`, which is replaced if another one was asked for; a queue may live in the same schema.
CREATE TABLE asyncqueue.inbox (
  id text COLLATE "C" PRIMARY KEY,
  qty integer NOT NULL,
  payload text COLLATE "C",
  result text COLLATE "C" NOT NULL CHECK (result = 'accepted'),
  received_at bigint NOT NULL,
  token bigint,
  attempt bigint,
  times bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 95, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.1);

-- The default effect: what was received of each id.
CREATE TABLE asyncqueue.ledger (
  id text COLLATE "C" PRIMARY KEY,
  qty integer NOT NULL
);

-- Evidence: other quantities or payloads (their beginning) offered under a known id; a bounded number per id. The
-- digest stands for the payload, which is too long for a key.
CREATE TABLE asyncqueue.conflicts (
  id text COLLATE "C" NOT NULL,
  kept_qty integer NOT NULL,
  qty integer NOT NULL,
  payload text COLLATE "C" NOT NULL,
  digest bytea NOT NULL,
  first_at bigint NOT NULL,
  last_at bigint NOT NULL,
  times bigint NOT NULL DEFAULT 1,
  PRIMARY KEY (id, qty, digest)
);

-- What was answered so far. Each server process counts in a slot of its own, so that no receiver waits for the
-- commit of another; the sum over the slots is the truth.
CREATE TABLE asyncqueue.inbox_totals (
  slot integer PRIMARY KEY,
  messages bigint NOT NULL,
  quantity bigint NOT NULL,
  duplicates bigint NOT NULL,
  conflicts bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
