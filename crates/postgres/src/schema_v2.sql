-- Version 2. Everything lies in the schema `retake`. Times are in UTC, names as in
-- `retake runs show --json`.
CREATE SCHEMA IF NOT EXISTS retake;

CREATE TABLE IF NOT EXISTS retake.version (number integer NOT NULL);

-- What holds for everyone who uses this database, such as the retention.
CREATE TABLE retake.settings (name text PRIMARY KEY, value text NOT NULL);

-- One row for each project: host and path of its repository, and `//` and the path inside of it for
-- one of several projects of a repository; `project:ID` without a remote repository.
CREATE TABLE retake.projects (
  id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE
);

-- Earlier names of projects: what is pushed under one goes to the project.
CREATE TABLE retake.project_aliases (
  name    text PRIMARY KEY,
  project integer NOT NULL REFERENCES retake.projects
);

-- One row for each record that pushes here. `pushed` is the number of the last ledger entry that is
-- here, `head` its hash. `outputs_pushed` and `outputs_limit`: output was sent of all runs up to this
-- entry, and at most so many bytes of each.
CREATE TABLE IF NOT EXISTS retake.records (
  id        uuid PRIMARY KEY,
  host      text NOT NULL,
  path      text NOT NULL,
  pushed    bigint NOT NULL DEFAULT 0,
  head      text,
  pushed_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE retake.records
  ADD COLUMN outputs_pushed bigint NOT NULL DEFAULT 0,
  ADD COLUMN outputs_limit  bigint NOT NULL DEFAULT 0;

-- The ledgers, entry by entry. `body` is the JSON that `body_hash` was made of, to the byte; NULL
-- once it was erased.
CREATE TABLE IF NOT EXISTS retake.ledger (
  record    uuid NOT NULL,
  seq       bigint NOT NULL,
  hash      text NOT NULL,
  body_hash text NOT NULL,
  body      text,
  PRIMARY KEY (record, seq)
);
-- Tables with many rows refer to nothing: that would cost a look for each row that is sent. Who
-- sends rows holds the rows of their record and of their projects instead.
ALTER TABLE retake.ledger DROP CONSTRAINT IF EXISTS ledger_record_fkey;

-- `reported_by`: nothing of this run was seen by the record that has it. It was reported, by the
-- confined run or the bundle that is named here.
CREATE TABLE retake.runs (
  id                uuid PRIMARY KEY,
  record            uuid NOT NULL,
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
  effects           jsonb,
  outcome_seq       bigint,
  project           integer NOT NULL,
  reported_by       uuid
) PARTITION BY RANGE (id);

-- By time they are found by their id.
CREATE INDEX runs_by_record  ON retake.runs (record, seq);
CREATE INDEX runs_by_loop    ON retake.runs (loop_id);
CREATE INDEX runs_by_project ON retake.runs (project, id);
CREATE INDEX runs_by_command ON retake.runs (project, command, id);
CREATE INDEX runs_by_cell    ON retake.runs ((labels ->> 'matrix.key'), id) WHERE kind = 'matrix';
CREATE INDEX runs_by_node    ON retake.runs (node, id) INCLUDE (duration_ms) WHERE node IS NOT NULL;

CREATE TABLE retake.outputs (
  run       uuid NOT NULL,
  stream    text NOT NULL,
  bytes     bigint NOT NULL,
  truncated boolean NOT NULL,
  content   bytea NOT NULL,
  PRIMARY KEY (run, stream)
) PARTITION BY RANGE (run);

-- Every result of every test.
CREATE TABLE retake.test_results (
  run         uuid NOT NULL,
  number      integer NOT NULL,
  project     integer NOT NULL,
  test        text NOT NULL,
  status      text NOT NULL,
  duration_ms double precision,
  start_time  timestamptz NOT NULL,
  host        text NOT NULL,
  repo_sha    text,
  PRIMARY KEY (run, number)
) PARTITION BY RANGE (run);

CREATE INDEX test_results_by_test   ON retake.test_results (project, test, run);
CREATE INDEX test_results_by_status ON retake.test_results (project, status, run);
CREATE INDEX test_results_by_commit ON retake.test_results (project, test, repo_sha);

-- Every metric of every successful iteration of a matrix.
CREATE TABLE retake.metrics (
  run        uuid NOT NULL,
  metric     text NOT NULL,
  project    integer NOT NULL,
  cell       text NOT NULL,
  unit       text,
  value      double precision NOT NULL,
  start_time timestamptz NOT NULL,
  repo_sha   text,
  PRIMARY KEY (run, metric)
) PARTITION BY RANGE (run);

-- Has all that a median is made of: rows of one project are far from each other in the table.
CREATE INDEX metrics_by_metric ON retake.metrics (project, metric, run)
  INCLUDE (cell, value, unit, start_time, repo_sha);

-- The cells of matrices, and what was measured of each.
CREATE TABLE retake.matrix_cells (
  project integer NOT NULL,
  metric  text NOT NULL,
  cell    text NOT NULL,
  axes    jsonb NOT NULL,
  PRIMARY KEY (project, metric, cell)
);

-- What has an id that is not of a month.
CREATE TABLE retake.runs_other         PARTITION OF retake.runs         DEFAULT;
CREATE TABLE retake.outputs_other      PARTITION OF retake.outputs      DEFAULT;
CREATE TABLE retake.test_results_other PARTITION OF retake.test_results DEFAULT;
CREATE TABLE retake.metrics_other      PARTITION OF retake.metrics      DEFAULT;

-- Sums for each day, so that a view over years reads few rows.
CREATE TABLE retake.command_days (
  project integer NOT NULL,
  day     date NOT NULL,
  command text NOT NULL,
  runs    bigint NOT NULL,
  failed  bigint NOT NULL,
  latest  timestamptz NOT NULL,
  PRIMARY KEY (project, day, command)
);

CREATE TABLE retake.test_days (
  project integer NOT NULL,
  day     date NOT NULL,
  test    text NOT NULL,
  results bigint NOT NULL,
  failed  bigint NOT NULL,
  timed   bigint NOT NULL,
  sum_ms  double precision NOT NULL,
  PRIMARY KEY (project, day, test)
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
ALTER TABLE retake.loops ADD COLUMN project integer REFERENCES retake.projects;
CREATE INDEX loops_by_record ON retake.loops (record, id);
CREATE INDEX loops_by_kind   ON retake.loops (kind, start_time);
CREATE INDEX loops_by_project ON retake.loops (project, kind);

CREATE TABLE IF NOT EXISTS retake.events (
  loop_id uuid NOT NULL REFERENCES retake.loops,
  seq     bigint NOT NULL,
  at      timestamptz NOT NULL,
  body    text NOT NULL,
  PRIMARY KEY (loop_id, seq)
);

-- The smallest id of a run that began at this time or later.
CREATE FUNCTION retake.id_at(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
          || '00000000000000000000')::uuid
$$;

-- The same for runs of the last days: `WHERE run >= retake.since('7 days')`.
CREATE FUNCTION retake.since(past interval) RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT retake.id_at(now() - past)
$$;

-- Makes the partitions of a month, given by its first day.
CREATE FUNCTION retake.add_month(first date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  part text := to_char(first, 'YYYY_MM');
  lower uuid := retake.id_at(first::timestamp AT TIME ZONE 'UTC');
  upper uuid := retake.id_at((first + interval '1 month') AT TIME ZONE 'UTC');
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['runs', 'outputs', 'test_results', 'metrics'] LOOP
    EXECUTE format('CREATE TABLE IF NOT EXISTS retake.%I PARTITION OF retake.%I FOR VALUES FROM (%L) TO (%L)',
                   name || '_' || part, name, lower, upper);
  END LOOP;
END $$;

-- Removes the runs of months that ended before this day, with all that belongs to them. The ledger
-- keeps the hashes. Gives how many months were removed.
CREATE FUNCTION retake.remove_before(day date) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  month record;
  name text;
  removed integer := 0;
BEGIN
  FOR month IN
    SELECT substr(relname, 6) AS part FROM pg_class
    WHERE relnamespace = 'retake'::regnamespace AND relkind = 'r' AND relname ~ '^runs_\d{4}_\d\d$'
      AND to_date(substr(relname, 6), 'YYYY_MM') + interval '1 month' <= day
  LOOP
    EXECUTE format('UPDATE retake.ledger AS entry SET body = NULL FROM retake.%I AS run
                    WHERE entry.record = run.record AND entry.seq IN (run.seq, run.outcome_seq)',
                   'runs_' || month.part);
    FOREACH name IN ARRAY ARRAY['outputs', 'test_results', 'metrics', 'runs'] LOOP
      EXECUTE format('DROP TABLE retake.%I', name || '_' || month.part);
    END LOOP;
    DELETE FROM retake.command_days AS known WHERE known.day >= to_date(month.part, 'YYYY_MM')
      AND known.day < to_date(month.part, 'YYYY_MM') + interval '1 month';
    DELETE FROM retake.test_days AS known WHERE known.day >= to_date(month.part, 'YYYY_MM')
      AND known.day < to_date(month.part, 'YYYY_MM') + interval '1 month';
    removed := removed + 1;
  END LOOP;
  RETURN removed;
END $$;

-- The number of a project, made if it is new.
CREATE FUNCTION retake.project_of(wanted text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  known integer;
BEGIN
  SELECT project INTO known FROM retake.project_aliases WHERE name = wanted;
  IF known IS NULL THEN
    SELECT id INTO known FROM retake.projects WHERE name = wanted;
  END IF;
  IF known IS NULL THEN
    INSERT INTO retake.projects (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    SELECT id INTO known FROM retake.projects WHERE name = wanted;
  END IF;
  RETURN known;
END $$;

-- A project has another name from now on. What was pushed under the first name, and what will be,
-- belongs to the second.
CREATE FUNCTION retake.rename_project(before text, after text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  source integer := retake.project_of(before);
  target integer := retake.project_of(after);
BEGIN
  IF source = target THEN
    RETURN;
  END IF;
  -- Who is sending runs of it ends first.
  PERFORM FROM retake.projects WHERE id = source FOR UPDATE;
  UPDATE retake.runs SET project = target WHERE project = source;
  UPDATE retake.test_results SET project = target WHERE project = source;
  UPDATE retake.metrics SET project = target WHERE project = source;
  INSERT INTO retake.matrix_cells SELECT target, metric, cell, axes FROM retake.matrix_cells
    WHERE project = source ON CONFLICT DO NOTHING;
  DELETE FROM retake.matrix_cells WHERE project = source;
  UPDATE retake.loops SET project = target WHERE project = source;
  INSERT INTO retake.command_days AS known
    SELECT target, day, command, runs, failed, latest FROM retake.command_days
    WHERE project = source
    ON CONFLICT (project, day, command) DO UPDATE SET runs = known.runs + excluded.runs,
      failed = known.failed + excluded.failed, latest = greatest(known.latest, excluded.latest);
  DELETE FROM retake.command_days WHERE project = source;
  INSERT INTO retake.test_days AS known
    SELECT target, day, test, results, failed, timed, sum_ms FROM retake.test_days
    WHERE project = source
    ON CONFLICT (project, day, test) DO UPDATE SET results = known.results + excluded.results,
      failed = known.failed + excluded.failed, timed = known.timed + excluded.timed,
      sum_ms = known.sum_ms + excluded.sum_ms;
  DELETE FROM retake.test_days WHERE project = source;
  UPDATE retake.project_aliases SET project = target WHERE project = source;
  DELETE FROM retake.projects WHERE id = source;
  INSERT INTO retake.project_aliases (name, project) VALUES (before, target);
END $$;

-- Whether a run counts in `command_days`: one that was cancelled or lost says nothing about its
-- command.
CREATE FUNCTION retake.counts(outcome text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT outcome IS NOT NULL AND outcome NOT IN ('cancelled', 'interrupted')
$$;

CREATE FUNCTION retake.fails(outcome text, exit_code integer) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT outcome <> 'exited' OR exit_code IS DISTINCT FROM 0
$$;

-- Adds what follows from runs that have their outcome since now (`sign` 1), or takes it back from the
-- sums (`sign` -1).
CREATE FUNCTION retake.derive(ids uuid[], sign integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  -- Only the partitions between them are looked at.
  lower uuid := (SELECT id FROM unnest(ids) AS id ORDER BY id LIMIT 1);
  upper uuid := (SELECT id FROM unnest(ids) AS id ORDER BY id DESC LIMIT 1);
BEGIN
  IF sign > 0 THEN
    INSERT INTO retake.test_results
      SELECT run.id, test.number, run.project, test.value ->> 'name', test.value ->> 'status',
             (test.value ->> 'durationMs')::double precision, run.start_time, run.host,
             run.correlation_ids ->> 'repoSha'
      FROM retake.runs AS run,
           jsonb_array_elements(CASE jsonb_typeof(run.effects -> 'testResults' -> 'details')
             WHEN 'array' THEN run.effects -> 'testResults' -> 'details' END)
             WITH ORDINALITY AS test (value, number)
      WHERE run.id = ANY (ids) AND run.id BETWEEN lower AND upper
        AND test.value ->> 'name' IS NOT NULL AND test.value ->> 'status' IS NOT NULL
      ON CONFLICT DO NOTHING;
    INSERT INTO retake.metrics
      SELECT run.id, metric.key, run.project, run.labels ->> 'matrix.key',
             metric.value ->> 'unit', (metric.value ->> 'value')::double precision,
             run.start_time, run.correlation_ids ->> 'repoSha'
      FROM retake.runs AS run,
           jsonb_each(CASE jsonb_typeof(run.effects -> 'metrics')
             WHEN 'object' THEN run.effects -> 'metrics' END) AS metric
      WHERE run.id = ANY (ids) AND run.id BETWEEN lower AND upper
        AND run.kind = 'matrix' AND run.outcome = 'exited'
        AND run.exit_code = 0 AND run.labels ? 'matrix.key'
        AND jsonb_typeof(metric.value -> 'value') = 'number'
      ON CONFLICT DO NOTHING;
    INSERT INTO retake.matrix_cells
      SELECT DISTINCT ON (one.project, one.metric, one.cell) one.project, one.metric, one.cell,
             (SELECT coalesce(jsonb_object_agg(substr(label.key, 13), label.value), '{}')
              FROM jsonb_each(run.labels) AS label WHERE label.key LIKE 'matrix.axis.%')
      FROM retake.metrics AS one JOIN retake.runs AS run ON run.id = one.run
      WHERE one.run = ANY (ids) AND one.run BETWEEN lower AND upper
        AND run.id BETWEEN lower AND upper
        AND NOT EXISTS (SELECT FROM retake.matrix_cells AS known
                        WHERE (known.project, known.metric, known.cell)
                              = (one.project, one.metric, one.cell))
      ORDER BY 1, 2, 3
      ON CONFLICT DO NOTHING;
  END IF;
  -- In the order of the keys: whoever pushes at the same time waits, and does not deadlock.
  INSERT INTO retake.command_days AS known
    SELECT project, (start_time AT TIME ZONE 'UTC')::date, command, sign * count(*),
           sign * count(*) FILTER (WHERE retake.fails(outcome, exit_code)), max(start_time)
    FROM retake.runs
    WHERE id = ANY (ids) AND id BETWEEN lower AND upper AND retake.counts(outcome)
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (project, day, command) DO UPDATE SET runs = known.runs + excluded.runs,
      failed = known.failed + excluded.failed, latest = greatest(known.latest, excluded.latest);
  INSERT INTO retake.test_days AS known
    SELECT project, (start_time AT TIME ZONE 'UTC')::date, test, sign * count(*),
           sign * count(*) FILTER (WHERE status IN ('failed', 'error')),
           sign * count(duration_ms), sign * coalesce(sum(duration_ms), 0)
    FROM retake.test_results
    WHERE run = ANY (ids) AND run BETWEEN lower AND upper AND status <> 'skipped'
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (project, day, test) DO UPDATE SET results = known.results + excluded.results,
      failed = known.failed + excluded.failed, timed = known.timed + excluded.timed,
      sum_ms = known.sum_ms + excluded.sum_ms;
  IF sign < 0 THEN
    DELETE FROM retake.test_results WHERE run = ANY (ids) AND run BETWEEN lower AND upper;
    DELETE FROM retake.metrics WHERE run = ANY (ids) AND run BETWEEN lower AND upper;
  END IF;
END $$;

-- How often each command fails. Runs that were cancelled or lost say nothing about it.
CREATE VIEW retake.failure_rate AS
SELECT project.name AS project, command, sum(runs)::bigint AS runs, sum(failed)::bigint AS failed,
       round(sum(failed) / sum(runs), 4) AS rate, max(latest) AS latest
FROM retake.command_days AS days JOIN retake.projects AS project ON project.id = days.project
GROUP BY project.name, command HAVING sum(runs) > 0;

-- The middle of each metric of each cell of a matrix, over all machines. One project after the other,
-- so that a question about one reads its values only.
CREATE VIEW retake.matrix_medians AS
SELECT project.name AS project, middle.cell, known.axes, middle.metric, middle.unit, middle.runs,
       middle.median
FROM retake.projects AS project
CROSS JOIN LATERAL (
  SELECT metric, cell, min(unit) AS unit, count(*) AS runs,
         percentile_cont(0.5) WITHIN GROUP (ORDER BY value) AS median
  FROM retake.metrics AS one WHERE one.project = project.id GROUP BY metric, cell
) AS middle
JOIN retake.matrix_cells AS known ON known.project = project.id
  AND known.metric = middle.metric AND known.cell = middle.cell;

-- The same for each commit.
CREATE VIEW retake.matrix_medians_by_commit AS
SELECT project.name AS project, middle.cell, known.axes, middle.metric, middle.repo_sha,
       middle.first_run, middle.unit, middle.runs, middle.median
FROM retake.projects AS project
CROSS JOIN LATERAL (
  SELECT metric, cell, repo_sha, min(start_time) AS first_run, min(unit) AS unit,
         count(*) AS runs, percentile_cont(0.5) WITHIN GROUP (ORDER BY value) AS median
  FROM retake.metrics AS one WHERE one.project = project.id AND repo_sha IS NOT NULL
  GROUP BY metric, cell, repo_sha
) AS middle
JOIN retake.matrix_cells AS known ON known.project = project.id
  AND known.metric = middle.metric AND known.cell = middle.cell;

-- The metrics of each project.
CREATE VIEW retake.metric_names AS
SELECT DISTINCT project.name AS project, known.metric
FROM retake.matrix_cells AS known JOIN retake.projects AS project ON project.id = known.project;

-- Tests that changed from one run to the next, and when.
CREATE VIEW retake.test_flips AS
SELECT project.name AS project, result.test, result.run, result.start_time, result.host,
       result.repo_sha, earlier.status AS before, result.status AS after
FROM retake.test_results AS result
JOIN retake.projects AS project ON project.id = result.project
CROSS JOIN LATERAL (
  SELECT known.status FROM retake.test_results AS known
  WHERE known.project = result.project AND known.test = result.test AND known.run < result.run
    AND known.status IN ('passed', 'failed', 'error')
  ORDER BY known.run DESC LIMIT 1
) AS earlier
WHERE result.status IN ('passed', 'failed', 'error') AND earlier.status <> result.status;

-- Tests that both passed and failed at one commit in the last 30 days.
CREATE VIEW retake.flaky_tests AS
SELECT project.name AS project, result.test, count(*) AS failed,
       count(DISTINCT result.repo_sha) AS commits, max(result.start_time) AS latest
FROM retake.test_results AS result
JOIN retake.projects AS project ON project.id = result.project
WHERE result.status IN ('failed', 'error') AND result.run >= retake.since('30 days')
  AND result.repo_sha IS NOT NULL
  AND EXISTS (SELECT FROM retake.test_results AS known
              WHERE known.project = result.project AND known.test = result.test
                AND known.repo_sha = result.repo_sha AND known.status = 'passed')
GROUP BY project.name, result.test;

-- The mean time of each test in the last 30 days and in the 30 days before.
CREATE VIEW retake.slower_tests AS
SELECT project, test, before_ms, now_ms, round((now_ms / before_ms)::numeric, 3) AS ratio, results
FROM (
  SELECT project.name AS project, test,
         sum(sum_ms) FILTER (WHERE day < current_date - 30)
           / nullif(sum(timed) FILTER (WHERE day < current_date - 30), 0) AS before_ms,
         sum(sum_ms) FILTER (WHERE day >= current_date - 30)
           / nullif(sum(timed) FILTER (WHERE day >= current_date - 30), 0) AS now_ms,
         sum(timed)::bigint AS results
  FROM retake.test_days AS days JOIN retake.projects AS project ON project.id = days.project
  WHERE day >= current_date - 60
  GROUP BY project.name, test
) AS times
WHERE before_ms > 0 AND now_ms IS NOT NULL;

-- A text as a number; NULL if it is none.
CREATE FUNCTION retake.number(value text) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value ~ '^\d+(\.\d+)?([eE][+-]?\d{1,2})?$' THEN value::double precision END
$$;

-- What agents cost, by week. An iteration is in its loop as often as it was written down; the last
-- time counts.
CREATE VIEW retake.agent_costs AS
SELECT project.name AS project, spent.week, spent.agent, spent.loops, spent.cost_usd, spent.tokens
FROM retake.projects AS project
CROSS JOIN LATERAL (
  SELECT date_trunc('week', one.at)::date AS week, one.agent, count(DISTINCT one.loop_id) AS loops,
         sum(retake.number(one.cost)) AS cost_usd, sum(retake.number(one.tokens))::bigint AS tokens
  FROM (
    SELECT DISTINCT ON (agent_loop.id, entry.kind, entry.number)
           agent_loop.id AS loop_id, event.at, agent_loop.plan::jsonb ->> 'agent' AS agent,
           entry.cost, entry.tokens
    FROM retake.loops AS agent_loop
    JOIN retake.events AS event ON event.loop_id = agent_loop.id
    CROSS JOIN LATERAL (
      SELECT body ->> 'type' AS kind,
             CASE body ->> 'type' WHEN 'iteration' THEN body #>> '{iteration,number}'
                                  ELSE event.seq::text END AS number,
             CASE body ->> 'type' WHEN 'iteration' THEN body #>> '{iteration,metadata,costUsd}'
                                  ELSE body ->> 'costUsd' END AS cost,
             CASE body ->> 'type' WHEN 'iteration' THEN body #>> '{iteration,metadata,tokens}'
                                  ELSE body ->> 'tokens' END AS tokens
      FROM (SELECT event.body::jsonb AS body) AS parsed
      WHERE body ->> 'type' IN ('iteration', 'attempt', 'verified', 'unverified')
    ) AS entry
    WHERE agent_loop.kind = 'agent' AND agent_loop.project = project.id
    ORDER BY agent_loop.id, entry.kind, entry.number, event.seq DESC
  ) AS one
  GROUP BY 1, 2
) AS spent;
