-- From version 1 to 2, before the tables of version 2 are made: what has another shape there is put
-- aside.
DROP VIEW retake.test_flips, retake.test_results, retake.matrix_medians, retake.failure_rate;
ALTER TABLE retake.runs RENAME TO runs_version_1;
ALTER TABLE retake.outputs RENAME TO outputs_version_1;
