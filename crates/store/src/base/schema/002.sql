-- What runs did, as their outcomes say, so that runs can be found by it. Derived from the ledger.
-- tests_failed: NULL where no tests were seen.
CREATE TABLE effects (
  run          INTEGER PRIMARY KEY,
  start_us     INTEGER NOT NULL,
  tests_failed INTEGER
) STRICT;

CREATE INDEX effects_tests_failed ON effects (start_us) WHERE tests_failed > 0;

-- Absolute paths.
CREATE TABLE changes (
  path     TEXT NOT NULL,
  start_us INTEGER NOT NULL,
  run      INTEGER NOT NULL,
  PRIMARY KEY (path, start_us, run)
) STRICT, WITHOUT ROWID;

-- status: 0 passed, 1 failed, 2 skipped, 3 error.
CREATE TABLE tests (
  name        TEXT NOT NULL,
  start_us    INTEGER NOT NULL,
  run         INTEGER NOT NULL,
  status      INTEGER NOT NULL,
  duration_ms INTEGER,
  PRIMARY KEY (name, start_us, run)
) STRICT, WITHOUT ROWID;
