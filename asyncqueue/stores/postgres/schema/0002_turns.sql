-- Priorities first, then queues: so a claim finds the best priority anywhere, and the next queues at it, by one seek
-- each, however many queues there are. Frozen once released.
DROP INDEX asyncqueue.jobs_walk_coarse;
DROP INDEX asyncqueue.jobs_walk_fine;
CREATE INDEX jobs_turn_coarse ON asyncqueue.jobs ((-priority), queue, (seq >> 14), due) WHERE due IS NOT NULL;
CREATE INDEX jobs_turn_fine ON asyncqueue.jobs ((-priority), queue, (seq >> 7), due) WHERE due IS NOT NULL;
