-- Each walk can be planned on its own index only: until a table is analyzed both look alike to the planner, and a fine
-- bucket that is looked for in the coarse index costs its whole coarse bucket. Frozen once released.
DROP INDEX asyncqueue.jobs_turn_coarse;
DROP INDEX asyncqueue.jobs_turn_fine;
CREATE INDEX jobs_turn_coarse ON asyncqueue.jobs ((-priority), queue, (seq >> 14), due)
  WHERE due IS NOT NULL AND seq >> 14 IS NOT NULL;
CREATE INDEX jobs_turn_fine ON asyncqueue.jobs ((-priority), queue, (seq >> 7), due)
  WHERE due IS NOT NULL AND seq >> 7 IS NOT NULL;
