-- From version 1 to 2, after the tables of version 2 were made: what was put aside is taken over. Which
-- project a run belongs to was not noted, so until its record is pushed again that is the record.
SELECT retake.add_month(month::date)
FROM (SELECT DISTINCT date_trunc('month', start_time AT TIME ZONE 'UTC') AS month
      FROM retake.runs_version_1
      WHERE start_time BETWEEN '2020-01-01' AND now() + interval '1 month') AS months;
INSERT INTO retake.projects (name)
  SELECT DISTINCT 'record:' || record FROM retake.runs_version_1 ORDER BY 1;
INSERT INTO retake.runs
  SELECT run.*, NULL, project.id, NULL FROM retake.runs_version_1 AS run
  JOIN retake.projects AS project ON project.name = 'record:' || run.record;
UPDATE retake.runs AS run SET outcome_seq = entry.seq
  FROM (SELECT record, seq, (body::jsonb #>> '{outcome,run}')::uuid AS run FROM retake.ledger
        WHERE body LIKE '{"outcome":%') AS entry
  WHERE run.id = entry.run AND run.record = entry.record;
UPDATE retake.loops AS known SET project = project.id FROM retake.projects AS project
  WHERE project.name = 'record:' || known.record;
INSERT INTO retake.outputs SELECT * FROM retake.outputs_version_1;
DROP TABLE retake.outputs_version_1;
DROP TABLE retake.runs_version_1;
SELECT retake.derive(array_agg(id), 1) FROM retake.runs WHERE outcome IS NOT NULL;
