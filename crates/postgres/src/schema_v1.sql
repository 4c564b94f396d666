-- Everything lies in the schema `retake`. Times are in UTC, names as in `retake runs show --json`.
CREATE SCHEMA IF NOT EXISTS retake;

CREATE TABLE IF NOT EXISTS retake.version (number integer NOT NULL);

-- One row for each record that pushes here. `pushed` is the number of the last ledger entry that is
-- here, `head` its hash.
CREATE TABLE IF NOT EXISTS retake.records (
  id        uuid PRIMARY KEY,
  host      text NOT NULL,
  path      text NOT NULL,
  pushed    bigint NOT NULL DEFAULT 0,
  head      text,
  pushed_at timestamptz NOT NULL DEFAULT now()
);

-- The ledgers, entry by entry. `body` is the JSON that `body_hash` was made of, to the byte; NULL
-- once it was erased.
CREATE TABLE IF NOT EXISTS retake.ledger (
  record    uuid NOT NULL REFERENCES retake.records,
  seq       bigint NOT NULL,
  hash      text NOT NULL,
  body_hash text NOT NULL,
  body      text,
  PRIMARY KEY (record, seq)
);

CREATE TABLE IF NOT EXISTS retake.runs (
  id                uuid PRIMARY KEY,
  record            uuid NOT NULL REFERENCES retake.records,
  seq               bigint NOT NULL,
  kind              text NOT NULL,
  loop_id           uuid NOT NULL,
  iteration         bigint NOT NULL,
  parent_id         uuid,
  command           text NOT NULL,
  arguments         jsonb NOT NULL,
  working_directory text NOT NULL,
  host              text NOT NULL,
  user_name         text NOT NULL,
  version           text NOT NULL,
  start_time        timestamptz NOT NULL,
  timeout_ms        bigint,
  labels            jsonb NOT NULL,
  correlation_ids   jsonb NOT NULL,
  outcome           text,
  exit_code         integer,
  signal            text,
  end_time          timestamptz,
  duration_ms       bigint,
  user_cpu_ms       bigint,
  system_cpu_ms     bigint,
  max_rss_kb        bigint,
  stdout_bytes      bigint,
  stderr_bytes      bigint,
  error_code        text,
  error             text,
  node              text,
  effects           jsonb
);

CREATE INDEX IF NOT EXISTS runs_record  ON retake.runs (record, seq);
CREATE INDEX IF NOT EXISTS runs_start   ON retake.runs (start_time);
CREATE INDEX IF NOT EXISTS runs_loop    ON retake.runs (loop_id);
CREATE INDEX IF NOT EXISTS runs_command ON retake.runs (command, start_time);

CREATE TABLE IF NOT EXISTS retake.outputs (
  run       uuid NOT NULL REFERENCES retake.runs ON DELETE CASCADE,
  stream    text NOT NULL,
  bytes     bigint NOT NULL,
  truncated boolean NOT NULL,
  content   bytea NOT NULL,
  PRIMARY KEY (run, stream)
);

CREATE TABLE IF NOT EXISTS retake.loops (
  id          uuid PRIMARY KEY,
  record      uuid NOT NULL REFERENCES retake.records,
  kind        text NOT NULL,
  plan        text NOT NULL,
  state       text NOT NULL,
  stop_reason text,
  start_time  timestamptz NOT NULL,
  end_time    timestamptz
);

CREATE TABLE IF NOT EXISTS retake.events (
  loop_id uuid NOT NULL REFERENCES retake.loops,
  seq     bigint NOT NULL,
  at      timestamptz NOT NULL,
  body    text NOT NULL,
  PRIMARY KEY (loop_id, seq)
);

-- How often each command fails. Runs that were cancelled or lost say nothing about it.
CREATE OR REPLACE VIEW retake.failure_rate AS
SELECT command,
       count(*) AS runs,
       count(*) FILTER (WHERE outcome <> 'exited' OR exit_code <> 0) AS failed,
       round(count(*) FILTER (WHERE outcome <> 'exited' OR exit_code <> 0)::numeric / count(*), 4)
         AS rate,
       max(start_time) AS latest
FROM retake.runs
WHERE outcome IS NOT NULL AND outcome NOT IN ('cancelled', 'interrupted')
GROUP BY command;

-- The middle of each metric of each cell of a matrix, over all machines.
CREATE OR REPLACE VIEW retake.matrix_medians AS
SELECT labels ->> 'matrix.key' AS cell,
       (SELECT jsonb_object_agg(substr(key, 13), value) FROM jsonb_each(min(labels::text)::jsonb)
         WHERE key LIKE 'matrix.axis.%') AS axes,
       metric.key AS metric,
       min(metric.value ->> 'unit') AS unit,
       count(*) AS runs,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY (metric.value ->> 'value')::double precision)
         AS median
FROM retake.runs, jsonb_each(effects -> 'metrics') AS metric
WHERE kind = 'matrix' AND outcome = 'exited' AND exit_code = 0 AND labels ? 'matrix.key'
GROUP BY labels ->> 'matrix.key', metric.key;

-- Every result of every test.
CREATE OR REPLACE VIEW retake.test_results AS
SELECT run.id AS run, run.start_time, run.host, run.correlation_ids ->> 'repoSha' AS repo_sha,
       test ->> 'name' AS test, test ->> 'status' AS status,
       (test ->> 'durationMs')::double precision AS duration_ms
FROM retake.runs AS run,
     jsonb_array_elements(run.effects -> 'testResults' -> 'details') AS test
WHERE jsonb_typeof(run.effects -> 'testResults' -> 'details') = 'array';

-- Tests that changed from one run to the next, and when.
CREATE OR REPLACE VIEW retake.test_flips AS
SELECT test, run, start_time, host, repo_sha, before, status AS after
FROM (
  SELECT *, lag(status) OVER (PARTITION BY test ORDER BY start_time, run) AS before
  FROM retake.test_results WHERE status IN ('passed', 'failed', 'error')
) AS results
WHERE before IS DISTINCT FROM status AND before IS NOT NULL;
