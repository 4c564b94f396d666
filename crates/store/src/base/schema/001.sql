-- The truth: append only. A body is NULL once it was erased, and then a later marker names it.
CREATE TABLE ledger (
  seq       INTEGER PRIMARY KEY,
  body      BLOB,
  body_hash BLOB NOT NULL,
  hash      BLOB NOT NULL
) STRICT;

-- What the ledger says of each run, in columns; `seq` is that of the intent.
-- status: NULL unfinished, 0 ok, 1 exited, 2 signaled, 3 timed_out, 4 cancelled,
-- 5 limit_exceeded, 6 not_started, 7 interrupted.
CREATE TABLE runs (
  seq          INTEGER PRIMARY KEY,
  id           BLOB NOT NULL UNIQUE,
  kind         INTEGER NOT NULL,
  loop         BLOB NOT NULL,
  iteration    INTEGER NOT NULL,
  parent       BLOB,
  start_us     INTEGER NOT NULL,
  cwd          TEXT NOT NULL,
  command      TEXT NOT NULL,
  run_id       TEXT,
  session_id   TEXT,
  task_id      TEXT,
  step_id      TEXT,
  tool_call_id TEXT,
  worktree_id  TEXT,
  repo_sha     TEXT,
  outcome_seq  INTEGER,
  status       INTEGER,
  exit_code    INTEGER,
  duration_ms  INTEGER,
  chunks       BLOB
) STRICT;

CREATE INDEX runs_start     ON runs (start_us);
CREATE INDEX runs_status    ON runs (status, start_us) WHERE status IS NOT NULL;
CREATE INDEX runs_failed    ON runs (start_us) WHERE status > 0;
CREATE INDEX runs_kind      ON runs (kind, start_us) WHERE kind > 0;
CREATE INDEX runs_loop      ON runs (loop, start_us);
CREATE INDEX runs_parent    ON runs (parent, start_us) WHERE parent IS NOT NULL;
CREATE INDEX runs_cwd       ON runs (cwd, start_us);
CREATE INDEX runs_command   ON runs (command, start_us);
CREATE INDEX runs_run_id    ON runs (run_id, start_us) WHERE run_id IS NOT NULL;
CREATE INDEX runs_session   ON runs (session_id, start_us) WHERE session_id IS NOT NULL;
CREATE INDEX runs_task      ON runs (task_id, start_us) WHERE task_id IS NOT NULL;
CREATE INDEX runs_step      ON runs (step_id, start_us) WHERE step_id IS NOT NULL;
CREATE INDEX runs_tool_call ON runs (tool_call_id, start_us) WHERE tool_call_id IS NOT NULL;
CREATE INDEX runs_worktree  ON runs (worktree_id, start_us) WHERE worktree_id IS NOT NULL;
CREATE INDEX runs_repo_sha  ON runs (repo_sha, start_us) WHERE repo_sha IS NOT NULL;

CREATE TABLE labels (
  key      TEXT NOT NULL,
  value    TEXT NOT NULL,
  start_us INTEGER NOT NULL,
  run      INTEGER NOT NULL,
  PRIMARY KEY (key, value, start_us, run)
) STRICT, WITHOUT ROWID;

-- One row for each stream that has bytes. place = 2 * runs.seq + stream, and so is its place in
-- `search`. storage: 0 in `content`, 1 the raw spool file, 2 a compressed file named by `hash`.
-- pending: still to be compressed or indexed.
CREATE TABLE outputs (
  place   INTEGER PRIMARY KEY,
  bytes   INTEGER NOT NULL,
  hash    BLOB NOT NULL,
  storage INTEGER NOT NULL,
  pending INTEGER NOT NULL,
  content BLOB
) STRICT;

CREATE INDEX outputs_pending ON outputs (place, bytes) WHERE pending = 1;
CREATE INDEX outputs_shared  ON outputs (hash) WHERE storage = 2;

-- More than the search index takes in: the middle has to be scanned.
CREATE INDEX outputs_large   ON outputs (place, bytes) WHERE bytes > 131072;

CREATE VIRTUAL TABLE search USING fts5 (
  text, content = '', columnsize = 0, tokenize = "unicode61 remove_diacritics 2"
);
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);

CREATE TABLE loops (
  id          BLOB PRIMARY KEY,
  kind        INTEGER NOT NULL,
  plan        TEXT NOT NULL,
  state       TEXT NOT NULL,
  stop_reason TEXT,
  start_us    INTEGER NOT NULL,
  end_us      INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX loops_start ON loops (start_us);

CREATE TABLE events (
  loop  BLOB NOT NULL,
  seq   INTEGER NOT NULL,
  at_us INTEGER NOT NULL,
  body  TEXT NOT NULL,
  PRIMARY KEY (loop, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE settings (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
