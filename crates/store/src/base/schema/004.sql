-- How many tests ran; NULL where no tests were seen. vouches: 1 where a test that the run does not name
-- did not fail in it: the results are complete, and name every test that failed but not all that ran.
ALTER TABLE effects ADD COLUMN tests INTEGER;
ALTER TABLE effects ADD COLUMN vouches INTEGER NOT NULL DEFAULT 0;

CREATE INDEX effects_vouching ON effects (start_us) WHERE vouches = 1;
