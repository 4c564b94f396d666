//! The record of a team: projects are kept apart, databases of earlier releases are upgraded,
//! and queries use an index.

use std::path::PathBuf;
use std::process::Command;

use super::push::Base;
use crate::common::{Called, called};

const VERSION_1: &str = include_str!("../../../postgres/src/schema_v1.sql");
const GUIDE: &str = include_str!("../../../../docs/guides/postgres.md");

impl Base {
    /// A repository with this remote, and projects in these directories of it.
    pub(crate) fn repository(&self, name: &str, remote: &str, projects: &[&str]) -> PathBuf {
        let top = self.sandbox.dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(&top).unwrap();
        let git = |arguments: &[&str]| {
            let mut command = self.sandbox.command("git");
            let done = called(command.current_dir(&top).args(arguments));
            assert_eq!(done.code, 0, "{}", done.snapshot());
        };
        git(&["init", "-q"]);
        git(&["remote", "add", "origin", remote]);
        for project in projects {
            std::fs::create_dir_all(top.join(project).join(".agent")).unwrap();
        }
        top
    }

    pub(crate) fn retake_in(&self, dir: &std::path::Path, arguments: &[&str]) -> Called {
        let called = called(self.command(arguments).current_dir(dir));
        assert_eq!(called.code, 0, "{}", called.snapshot());
        called
    }

    fn push_from(&self, dir: &std::path::Path) {
        self.retake_in(dir, &["runs", "push", "--to", &self.postgres.url()]);
    }
}

/// Prints a metric, and the result of a test.
fn matrix(value: u32) -> String {
    format!("command: 'echo metric: load={value}'\niterations: 3\naxes: {{n: [1]}}\n")
}

pub(crate) fn test_output(base: &Base, status: &str) -> PathBuf {
    let text = format!(
        "running 1 test\ntest works ... {status}\n\n\
         test result: {status}. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    base.sandbox.file(&format!("said.{status}"), &text)
}

#[test]
fn projects_with_the_same_matrix_and_the_same_tests_are_never_mixed() {
    let Some(base) = Base::start() else { return };
    let one = base.repository("one", "https://joe:Zq7secret@example.org/team/one.git", &["."]);
    let two = base.repository("two", "git@example.org:team/two.git", &["."]);
    for (dir, value, status) in [(&one, 50, "ok"), (&two, 500, "FAILED")] {
        std::fs::write(dir.join("matrix.yml"), matrix(value)).unwrap();
        base.retake_in(dir, &["matrix", "run", "-q"]);
        let said = test_output(&base, status);
        base.retake_in(dir, &["exec", "-q", "--tests", "--", "cat", said.to_str().unwrap()]);
        base.push_from(dir);
    }
    let medians = base
        .postgres
        .ask("SELECT project, median FROM retake.matrix_medians WHERE metric = 'load' ORDER BY 1");
    assert_eq!(medians, "example.org/team/one|50\nexample.org/team/two|500");
    assert_eq!(base.postgres.ask("SELECT count(*) FROM retake.test_flips"), "0");
    assert_eq!(base.count("test_results"), 2);
    // A clone of the first one with another URL, on another machine.
    let clone = base.repository("clone", "ssh://git@example.org/team/one", &["."]);
    std::fs::write(clone.join("matrix.yml"), matrix(50)).unwrap();
    base.retake_in(&clone, &["matrix", "run", "-q"]);
    base.push_from(&clone);
    assert_eq!(base.count("projects"), 2);
    let runs = "SELECT runs FROM retake.matrix_medians
                WHERE metric = 'load' AND project = 'example.org/team/one'";
    assert_eq!(base.postgres.ask(runs), "6");
    let secret =
        "SELECT count(*) FROM retake.projects WHERE name LIKE '%Zq7%' OR name LIKE '%joe%'";
    assert_eq!(base.postgres.ask(secret), "0");
}

#[test]
fn projects_of_one_repository_are_told_apart_and_a_renamed_one_is_one() {
    let Some(base) = Base::start() else { return };
    let top = base.repository("mono", "https://example.org/team/mono", &["a", "b"]);
    for project in ["a", "b"] {
        base.retake_in(&top.join(project), &["exec", "-q", "--", "true"]);
    }
    base.push_from(&top);
    let rates = || base.postgres.ask("SELECT project, runs FROM retake.failure_rate ORDER BY 1");
    assert_eq!(rates(), "example.org/team/mono//a|1\nexample.org/team/mono//b|1");
    let done = base
        .postgres
        .ask("SELECT retake.rename_project('example.org/team/mono//a', 'example.org/team/new')");
    assert_eq!(done, "");
    base.retake_in(&top.join("a"), &["exec", "-q", "--", "true"]);
    base.push_from(&top);
    assert_eq!(rates(), "example.org/team/mono//b|1\nexample.org/team/new|2");
    let shown = base.retake_in(&top, &["runs", "database", "--to", &base.postgres.url()]);
    let said = "example.org/team/new, earlier example.org/team/mono//a: 2 runs";
    assert!(shown.stdout.contains(said), "{}", shown.stdout);
}

#[test]
fn a_project_without_a_remote_has_the_id_that_init_made() {
    let Some(base) = Base::start() else { return };
    let dir = base.sandbox.dir.path().join("plain");
    std::fs::create_dir(&dir).unwrap();
    base.retake_in(&dir, &["init"]);
    let id = std::fs::read_to_string(dir.join(".agent/project-id")).unwrap();
    base.retake_in(&dir, &["exec", "-q", "--", "true"]);
    base.push_from(&dir);
    let name = base.postgres.ask("SELECT name FROM retake.projects");
    assert_eq!(name, format!("project:{}", id.trim()));
}

/// Converts a database to the state of version 1.
fn back_to_version_1(base: &Base) {
    let ask = |sql: &str| {
        let said = base.postgres.ask(sql);
        assert!(!said.contains("ERROR"), "{sql}: {said}");
    };
    for table in ["records", "ledger", "runs", "outputs", "loops", "events"] {
        ask(&format!("CREATE TABLE public.{table} AS SELECT * FROM retake.{table}"));
    }
    ask("ALTER TABLE public.records DROP outputs_pushed, DROP outputs_limit");
    ask("ALTER TABLE public.runs DROP outcome_seq, DROP project, DROP reported_by");
    ask("ALTER TABLE public.loops DROP project");
    ask("DROP SCHEMA retake CASCADE");
    ask(VERSION_1);
    ask("INSERT INTO retake.version VALUES (1)");
    for table in ["records", "ledger", "runs", "outputs", "loops", "events"] {
        ask(&format!("INSERT INTO retake.{table} SELECT * FROM public.{table}"));
    }
}

#[test]
fn a_database_of_version_1_is_upgraded_by_a_push_and_loses_nothing() {
    let Some(base) = Base::start() else { return };
    let top = base.repository("old", "https://example.org/team/old", &["."]);
    std::fs::write(top.join("matrix.yml"), matrix(7)).unwrap();
    base.retake_in(&top, &["matrix", "run", "-q"]);
    let said = test_output(&base, "ok");
    base.retake_in(&top, &["exec", "-q", "--tests", "--", "cat", said.to_str().unwrap()]);
    let push = ["runs", "push", "--json", "--outputs", "1K", "--to", &base.postgres.url()];
    base.retake_in(&top, &push);
    let tables =
        ["records", "ledger", "runs", "outputs", "loops", "events", "test_results", "metrics"];
    let counts = || tables.map(|table| base.count(table));
    let answers = || {
        let rates = base.postgres.ask("SELECT * FROM retake.failure_rate ORDER BY command");
        let medians = base.postgres.ask("SELECT * FROM retake.matrix_medians ORDER BY metric");
        let outcomes = base.postgres.ask("SELECT id, outcome_seq FROM retake.runs ORDER BY id");
        (rates, medians, outcomes)
    };
    let before = (counts(), answers());
    back_to_version_1(&base);
    // Several at once: one of them upgrades, the others wait.
    let children: Vec<_> = (0..3)
        .map(|n| {
            let dir = base.repository(&format!("new{n}"), "https://example.org/team/new", &["."]);
            base.retake_in(&dir, &["exec", "-q", "--", "true"]);
            base.command(&["runs", "push", "--to", &base.postgres.url()])
                .current_dir(dir)
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(base.postgres.ask("SELECT max(number) FROM retake.version"), "2");
    let unnamed = "SELECT count(*) FROM retake.runs AS run JOIN retake.projects AS project
                   ON project.id = run.project WHERE project.name LIKE 'record:%'";
    assert_eq!(base.postgres.ask(unnamed), "4", "not known before its record is pushed again");
    let pushed = base.retake_in(&top, &push).json();
    assert_eq!((&pushed["entries"], &pushed["outputs"]), (&0.into(), &0.into()), "{pushed}");
    assert_eq!(base.postgres.ask(unnamed), "0");
    let gone = base.postgres.ask(
        "WITH gone AS (DELETE FROM retake.runs WHERE record IN
           (SELECT id FROM retake.records WHERE path LIKE '%/new_/%') RETURNING 1)
         SELECT count(*) FROM gone",
    );
    assert_eq!(gone, "3");
    base.postgres.ask(
        "DELETE FROM retake.command_days AS days USING retake.projects AS project
         WHERE project.id = days.project AND project.name LIKE '%/new'",
    );
    assert_eq!(before.1, answers());
    assert_eq!(before.0[2..], counts()[2..], "but the ledgers of the others");
}

#[test]
fn a_newer_database_is_refused_in_words() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    assert_eq!(base.push(&[]).code, 0);
    base.postgres.ask("INSERT INTO retake.version VALUES (3)");
    let refused = base.push(&[]);
    assert_eq!(refused.code, 1, "{}", refused.snapshot());
    assert!(
        refused.stderr.contains("version 3, which this retake does not know"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_push_without_output_creates_no_temporary_table() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("echo x");
    assert_eq!(base.push(&["--outputs", "1K"]).code, 0);
    base.postgres.ask("CREATE ROLE plain LOGIN PASSWORD 'plain'");
    base.postgres.ask("GRANT USAGE ON SCHEMA retake TO plain");
    base.postgres.ask("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA retake TO plain");
    base.postgres.ask("REVOKE TEMP ON DATABASE postgres FROM PUBLIC");
    let url = base.postgres.url().replace("retake@", "plain@");
    let push = || {
        let arguments = ["runs", "push", "--outputs", "1K", "--to", &url];
        called(base.command(&arguments).env("PGPASSWORD", "plain"))
    };
    let may = ["SELECT has_database_privilege('plain', 'postgres', 'TEMP')"];
    assert_eq!(may.map(|sql| base.postgres.ask(sql)), ["f"]);
    let nothing = push();
    assert_eq!(nothing.code, 0, "{}", nothing.snapshot());
    // Output is sent through a temporary table, and there is some to send now.
    base.sandbox.recorded("echo y");
    let something = push();
    assert_eq!(something.code, 1, "{}", something.snapshot());
    assert!(something.stderr.contains("temporary tables"), "{}", something.snapshot());
    // New runs are not.
    assert_eq!(base.count("runs"), 2);
}

#[test]
fn many_machines_push_at_once_and_every_run_counts_once() {
    const MACHINES: usize = 6;
    let Some(base) = Base::start() else { return };
    let tops: Vec<PathBuf> = (0..MACHINES)
        .map(|n| {
            let top = base.repository(&format!("m{n}"), "https://example.org/team/many", &["."]);
            // The same commands in another order: their sums are the same rows.
            for at in 0..4 {
                let command = format!("exit {}", (at + n) % 4);
                let mut command = base.command(&["exec", "-q", "--", "sh", "-c", &command]);
                called(command.current_dir(&top));
            }
            top
        })
        .collect();
    let push = |top: &PathBuf| {
        let mut command = base.command(&["runs", "push", "--to", &base.postgres.url()]);
        command.current_dir(top).spawn().unwrap()
    };
    for mut child in tops.iter().chain(&tops).map(push).collect::<Vec<_>>() {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!((base.count("runs"), base.count("records")), (4 * MACHINES, MACHINES));
    let sums = "SELECT count(*), sum(runs), sum(failed) FROM retake.command_days";
    assert_eq!(base.postgres.ask(sums), format!("4|{}|{}", 4 * MACHINES, 3 * MACHINES));
}

#[test]
fn a_project_that_is_renamed_while_runs_are_sent_keeps_them() {
    let Some(base) = Base::start() else { return };
    let top = base.repository("r", "https://example.org/team/before", &["."]);
    base.retake_in(&top, &["exec", "-q", "--", "true"]);
    base.push_from(&top);
    base.retake_in(&top, &["exec", "-q", "--", "true"]);
    // Like a push in progress: it locks the project, and then sends a run of it.
    let sql = "BEGIN; SELECT id FROM retake.projects WHERE id = 1 FOR KEY SHARE;
               DO $$ BEGIN WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted) LOOP
                 PERFORM pg_sleep(0.05); END LOOP; END $$;
               INSERT INTO retake.runs SELECT (left(id::text, 24) || 'feedfeedfeed')::uuid, record, 0,
                 kind, loop_id, iteration, parent_id, command, arguments, working_directory, host,
                 user_name, version, start_time, timeout_ms, labels, correlation_ids, outcome,
                 exit_code, signal, end_time, duration_ms, user_cpu_ms, system_cpu_ms, max_rss_kb,
                 stdout_bytes, stderr_bytes, error_code, error, node, effects, outcome_seq, project,
                 reported_by FROM retake.runs LIMIT 1; COMMIT";
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| base.postgres.ask(sql));
        let held = "SELECT count(*) FROM pg_locks AS held JOIN pg_stat_activity AS who USING (pid)
                    WHERE held.relation = 'retake.projects'::regclass AND who.query LIKE 'BEGIN;%'";
        crate::common::eventually("the project is held", || base.postgres.ask(held) != "0");
        let renamed =
            "SELECT retake.rename_project('example.org/team/before', 'example.org/team/after')";
        assert_eq!(base.postgres.ask(renamed), "");
        assert!(!sending.join().unwrap().contains("ERROR"));
    });
    base.push_from(&top);
    let lost =
        "SELECT count(*) FROM retake.runs WHERE project NOT IN (SELECT id FROM retake.projects)";
    assert_eq!((base.postgres.ask(lost), base.count("runs")), ("0".to_owned(), 3));
}

#[test]
fn the_retention_is_set_by_its_command_only_and_removes_whole_months() {
    let Some(base) = Base::start() else { return };
    let id = base.sandbox.recorded("echo kept");
    let line = base.sandbox.retake(&["runs", "export"]).stdout;
    // The same run in January 2021.
    let old = line.replace(&id, "0176bb3e-7000-7000-8000-000000000001");
    let start = serde_json::from_str::<serde_json::Value>(line.lines().next().unwrap()).unwrap();
    let start =
        start.pointer("/run/intent/startTime").and_then(|time| time.as_str()).unwrap().to_owned();
    let file = base.sandbox.file("old", &old.replace(&start, "2021-01-01T00:00:00Z"));
    assert_eq!(base.sandbox.retake(&["runs", "import", file.to_str().unwrap()]).code, 0);
    assert_eq!(base.push(&["--outputs", "1K"]).code, 0);
    assert_eq!((base.count("runs"), base.count("runs_2021_01"), base.count("outputs")), (2, 1, 2));
    let database = |more: &[&str]| {
        let fixed = ["runs", "database", "--json", "--to", &base.postgres.url()];
        called(&mut base.command(&[&fixed[..], more].concat()))
    };
    assert_eq!(database(&[]).json()["retention"], "forever");
    assert_eq!(base.push(&[]).code, 0);
    assert_eq!(base.count("runs"), 2);
    let set = database(&["--retention", "12"]);
    assert_eq!(set.code, 0, "{}", set.snapshot());
    assert_eq!(
        (&set.json()["removedMonths"], &set.json()["retention"]["months"]),
        (&1.into(), &12.into())
    );
    assert_eq!((base.count("runs"), base.count("outputs")), (1, 1));
    let bodies = base.postgres.ask("SELECT count(*) FROM retake.ledger WHERE body IS NULL");
    assert_eq!(bodies, "2", "the intent and the outcome; the hashes stay");
    let rate = base.postgres.ask("SELECT runs FROM retake.failure_rate");
    assert_eq!(rate, "1");
    assert_eq!(base.push(&[]).json()["entries"], 0);
    assert_eq!(database(&["--retention", "0"]).code, 2);
    assert_eq!(database(&["--retention", "forever"]).json()["retention"], "forever");
}

/// The statements of the guide.
fn guide_statements() -> Vec<String> {
    let mut statements = Vec::new();
    let mut open: Option<String> = None;
    for line in GUIDE.lines() {
        let Some(line) = line.strip_prefix("    ") else { continue };
        if line.starts_with("SELECT ") {
            open = Some(String::new());
        }
        if let Some(statement) = &mut open {
            statement.push_str(line);
            statement.push('\n');
            if line.trim_end().ends_with(';') {
                statements.extend(open.take());
            }
        }
    }
    statements
}

#[test]
fn every_question_of_the_guide_is_answered_and_those_over_many_rows_use_an_index() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    assert_eq!(base.push(&[]).code, 0);
    // Enough rows for a realistic plan: two years, ten projects, and few failures.
    let done = base.postgres.ask(
        "INSERT INTO retake.projects (name) SELECT 'example.org/team/p' || n FROM generate_series(1, 200) n;
         SELECT retake.add_month(m::date) FROM generate_series(date_trunc('month', now()) - interval '23 months', date_trunc('month', now()), interval '1 month') AS m;
         INSERT INTO retake.test_results
           SELECT (left(retake.id_at(now() - n * interval '2 minutes')::text, 13) || '-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
                  1, 2 + n % 200, 'test ' || n % 200, CASE WHEN n % 97 = 0 THEN 'failed' ELSE 'passed' END,
                  n % 50, now() - n * interval '2 minutes', 'host', 'sha' || n / 1000
           FROM generate_series(1, 400000) AS n;
         INSERT INTO retake.metrics
           SELECT run, 'wall', project, 'cell ' || test, 'ms', duration_ms, start_time, repo_sha FROM retake.test_results;
         INSERT INTO retake.matrix_cells SELECT DISTINCT project, metric, cell, '{}'::jsonb FROM retake.metrics;
         INSERT INTO retake.runs (id, record, seq, kind, loop_id, iteration, command, arguments, working_directory, host,
             user_name, version, start_time, labels, correlation_ids, duration_ms, node, project)
           SELECT run, id, 0, 'exec', run, 0, 'c', '[]', '/', result.host, 'u', '1', start_time, '{}', '{}', 5,
                  CASE WHEN status = 'failed' THEN 'n1' END, project
           FROM retake.test_results AS result, retake.records WHERE run >= retake.since('90 days');
         ANALYZE retake.test_results, retake.metrics, retake.projects, retake.runs, retake.matrix_cells;",
    );
    assert!(!done.contains("ERROR"), "{done}");
    let statements = guide_statements();
    assert!(statements.len() >= 8, "{statements:?}");
    for statement in &statements {
        let answer = base.postgres.ask(statement);
        assert!(!answer.contains("ERROR"), "{statement}: {answer}");
        let plan = base.postgres.ask(&format!("EXPLAIN {statement}"));
        for table in ["test_results", "metrics", "runs"] {
            let scanned = plan.lines().filter(|line| {
                // A table without rows costs nothing.
                line.contains(&format!("Seq Scan on {table}_")) && !line.contains("cost=0.00..0.00")
            });
            let scanned: Vec<&str> = scanned.collect();
            assert!(scanned.is_empty(), "{statement}\n{plan}");
        }
    }
}

#[test]
fn every_panel_of_the_dashboard_asks_what_the_schema_answers() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    assert_eq!(base.push(&[]).code, 0);
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../../docs/grafana/retake.json")).unwrap();
    let queries = dashboard["panels"].as_array().unwrap().iter();
    let queries = queries.flat_map(|panel| panel["targets"].as_array().unwrap());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let queries = queries.chain(variables.iter().filter(|one| one["type"] == "query"));
    let mut asked = 0;
    for query in queries {
        let mut sql = query["rawSql"].as_str().unwrap().replace("$project", "'a', 'b'");
        sql = sql.replace("$metric", "wall").replace("$__timeFrom()", "now() - interval '1 day'");
        while let Some((before, after)) = sql.split_once("$__timeFilter(") {
            let (column, after) =
                after.split_once(") ").unwrap_or((after.trim_end_matches(')'), ""));
            let range = "BETWEEN now() - interval '1 day' AND now()";
            sql = format!("{before}{column} {range} {after}");
        }
        let answer = base.postgres.ask(&sql);
        assert!(!answer.starts_with("failed"), "{sql}: {answer}");
        asked += 1;
    }
    assert_eq!(asked, 10);
}

#[test]
fn the_grants_of_the_guide_suffice_to_read_everything() {
    let Some(base) = Base::start() else { return };
    base.sandbox.recorded("true");
    assert_eq!(base.push(&[]).code, 0);
    base.postgres.ask("CREATE ROLE analyst LOGIN PASSWORD 'analyst'");
    let grants = GUIDE.lines().filter_map(|line| line.strip_prefix("    "));
    let grants: Vec<&str> = grants.filter(|line| line.contains(" TO analyst;")).collect();
    assert!(grants.len() >= 3, "{grants:?}");
    for grant in grants {
        base.postgres.ask(grant);
    }
    let url = base.postgres.url().replace("retake@", "analyst@");
    let psql = |sql: &str| {
        let mut command = Command::new("psql");
        command.env("PGPASSWORD", "analyst").args(["-At", &url, "-c", sql]);
        called(&mut command)
    };
    assert_eq!(psql("SELECT count(*) FROM retake.failure_rate").stdout.trim(), "1");
    assert_ne!(psql("DELETE FROM retake.runs").code, 0);
}
