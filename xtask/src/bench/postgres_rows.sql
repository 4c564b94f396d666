-- Indexes are built after all rows are inserted: building them row by row takes four times as long.
SET maintenance_work_mem = '512MB';
SET work_mem = '256MB';
CREATE TEMP TABLE dropped AS
  SELECT index.oid::regclass::text AS index, constraints.conname AS key, constraints.conrelid::regclass::text AS keyed,
    CASE WHEN constraints.oid IS NULL THEN replace(pg_get_indexdef(index.oid), ' ON ONLY ', ' ON ')
      ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', constraints.conrelid::regclass, constraints.conname,
        pg_get_constraintdef(constraints.oid)) END AS made
  FROM pg_class AS index LEFT JOIN pg_constraint AS constraints ON constraints.conindid = index.oid
  WHERE index.relkind = 'I' AND index.relnamespace = 'retake'::regnamespace;
DO $$ DECLARE one record; BEGIN
  FOR one IN SELECT * FROM dropped LOOP
    EXECUTE CASE WHEN one.key IS NULL THEN format('DROP INDEX %s', one.index)
      ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', one.keyed, one.key) END;
  END LOOP;
END $$;
INSERT INTO retake.projects (name) SELECT 'example.org/team/p' || n FROM generate_series(1, 50) n;
SELECT retake.add_month(m::date) FROM generate_series(date_trunc('month', now()) - interval '23 months',
  date_trunc('month', now()), interval '1 month') AS m;
CREATE TEMP TABLE ids AS SELECT n, now() - n * interval 'STEP' AS at,
  (left(retake.id_at(now() - n * interval 'STEP')::text, 13) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id
  FROM generate_series(1, ROWS) AS n;
INSERT INTO retake.runs (id, record, seq, kind, loop_id, iteration, command, arguments, working_directory, host,
    user_name, version, start_time, labels, correlation_ids, outcome, exit_code, end_time, duration_ms, node, project)
  SELECT ids.id, records.id, n, 'exec', ids.id, 0, 'cmd ' || n % 100, '[]', '/p', 'h', 'u', '1', at, '{}', '{}', 'exited',
    CASE WHEN n % 10 = 0 THEN 1 ELSE 0 END, at, 5, CASE WHEN n % 3 = 0 THEN 'n' || n % 7 END, 1 + n % 50
  FROM ids, retake.records;
INSERT INTO retake.test_results SELECT id, 1, 1 + n % 50, 'test ' || n % 200,
    CASE WHEN n % 97 = 0 THEN 'failed' ELSE 'passed' END, n % 50, at, 'host', 'sha' || n / 1000 FROM ids;
INSERT INTO retake.metrics SELECT id, CASE n % 3 WHEN 0 THEN 'wall' ELSE 'rss' END, 1 + n % 50, 'cell ' || n % 40,
    'ms', n % 50, at, 'sha' || n / 1000 FROM ids;
INSERT INTO retake.matrix_cells SELECT DISTINCT project, metric, cell, '{}'::jsonb FROM retake.metrics;
INSERT INTO retake.command_days SELECT project, (start_time AT TIME ZONE 'UTC')::date, command, count(*),
    count(*) FILTER (WHERE exit_code <> 0), max(start_time) FROM retake.runs GROUP BY 1, 2, 3;
INSERT INTO retake.test_days SELECT project, (start_time AT TIME ZONE 'UTC')::date, test, count(*),
    count(*) FILTER (WHERE status = 'failed'), count(*), sum(duration_ms) FROM retake.test_results GROUP BY 1, 2, 3;
DO $$ DECLARE one record; BEGIN
  FOR one IN SELECT * FROM dropped LOOP EXECUTE one.made; END LOOP;
END $$;
