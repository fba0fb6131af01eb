-- Priorities first, then queues: so a claim finds the best priority anywhere, and the next queues at it, by one seek
-- each, however many queues there are. Frozen once released.
DROP INDEX asyncqueue.jobs_walk_coarse;
DROP INDEX asyncqueue.jobs_walk_fine;
CREATE INDEX jobs_turn_coarse ON asyncqueue.jobs ((-priority), queue, (seq >> 14), due) WHERE due IS NOT NULL;
CREATE INDEX jobs_turn_fine ON asyncqueue.jobs ((-priority), queue, (seq >> 7), due) WHERE due IS NOT NULL;

-- Only jobs that wait are told of. Transactions that notify commit one after the other on the whole server: those
-- that end jobs, which is what dispatchers do all day, must not.
CREATE OR REPLACE FUNCTION asyncqueue.count_updated() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  is_news boolean;
BEGIN
  WITH changes AS (
    SELECT queue, status, sum(n) AS jobs FROM (
      SELECT queue, status, -1 AS n FROM old_rows UNION ALL SELECT queue, status, 1 FROM new_rows) AS rows
    GROUP BY queue, status HAVING sum(n) <> 0
  ), counted AS (
    INSERT INTO asyncqueue.counts AS c SELECT queue, status, asyncqueue.slot(), jobs FROM changes
    ON CONFLICT (queue, status, slot) DO UPDATE SET jobs = c.jobs + excluded.jobs
  )
  SELECT coalesce(bool_or(jobs > 0 AND status = 'pending'), false) INTO is_news FROM changes;
  IF is_news THEN
    PERFORM pg_notify(TG_TABLE_SCHEMA, '');
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION asyncqueue.count_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO asyncqueue.counts AS c
  SELECT queue, status, asyncqueue.slot(), -count(*) FROM old_rows GROUP BY queue, status
  ON CONFLICT (queue, status, slot) DO UPDATE SET jobs = c.jobs + excluded.jobs;
  RETURN NULL;
END $$;
