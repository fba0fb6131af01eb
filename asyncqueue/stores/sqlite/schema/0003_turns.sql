-- Claims over many queues and of some kinds, at a cost that does not grow with the live jobs of others. Each index
-- is partial, so that a job without a priority or a kind of its own costs nothing more. Frozen once released.

-- The priorities that are in use, and the queues of each in order; priority 0 is found by jobs_walk_coarse.
CREATE INDEX jobs_levels ON jobs(
  priority DESC, queue, seq >> 14, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
) WHERE status IN ('pending','leased') AND priority <> 0;

-- The same for one kind, with buckets of 256 seqs, small enough to be sorted by each pick.
CREATE INDEX jobs_kinds ON jobs(
  kind, priority DESC, queue, seq >> 8, CASE status WHEN 'pending' THEN available_at ELSE lease_until END
) WHERE status IN ('pending','leased') AND kind <> 'job';
