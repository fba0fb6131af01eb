-- Who puts jobs in is a transaction with a number before the first `seq` is drawn. So whoever gets a later number
-- can tell, once no older transaction is under way, that no smaller `seq` will turn up any more. Frozen once released.
CREATE FUNCTION asyncqueue.number_transaction() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_current_xact_id();
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_numbered BEFORE INSERT ON asyncqueue.jobs
  FOR EACH STATEMENT EXECUTE FUNCTION asyncqueue.number_transaction();
