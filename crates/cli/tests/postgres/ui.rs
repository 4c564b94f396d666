//! `retake ui --from`: the page over the record of many machines.

use std::path::Path;

use super::push::Base;
use super::team::test_output;
use crate::common::{Answer, Ui, called, request};

const GUIDE: &str = include_str!("../../../../docs/guides/postgres.md");
const ONE: &str = "example.org/team/one";
const TWO: &str = "example.org/team/two";

/// Two projects of a team, pushed from two records; with the first 8 bytes of each output.
fn team(base: &Base) {
    for (name, status) in [("one", "ok"), ("two", "FAILED")] {
        let dir = base.repository(name, &format!("https://example.org/team/{name}.git"), &["."]);
        let matrix = "command: 'echo metric: load=3'\niterations: 2\naxes: {n: [1, 2]}\n";
        std::fs::write(dir.join("matrix.yml"), matrix).unwrap();
        base.retake_in(&dir, &["matrix", "run", "-q"]);
        let said = test_output(base, status);
        base.retake_in(&dir, &["exec", "-q", "--tests", "--", "cat", said.to_str().unwrap()]);
        run(base, &dir, &format!("echo the needle of {name}; exit 3"));
        base.retake_in(&dir, &["runs", "push", "--outputs", "14", "--to", &base.postgres.url()]);
    }
}

fn run(base: &Base, dir: &Path, script: &str) {
    let mut command = base.command(&["exec", "-q", "--", "sh", "-c", script]);
    assert_eq!(called(command.current_dir(dir)).code, 3);
}

/// The address for the role from the guide.
fn reader(base: &Base) -> String {
    for line in GUIDE.lines().filter_map(|line| line.strip_prefix("    ")) {
        if line.starts_with("CREATE ROLE analyst") || line.contains("TO analyst;") {
            let said = base.postgres.ask(&line.replace('…', "analysts-own"));
            assert!(!said.starts_with("failed"), "{line}: {said}");
        }
    }
    let url = base.postgres.url();
    let (_, rest) = url.split_once('@').expect("a user");
    format!("postgres://analyst@{rest}")
}

fn page(base: &Base) -> Ui {
    let from = reader(base);
    let mut command = base.command(&["ui", "--port", "0", "--from", &from]);
    Ui::started(command.env("PGPASSWORD", "analysts-own"))
}

fn commands(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let runs = answer.json()["runs"].as_array().unwrap().clone();
    runs.iter().map(|run| run["command"].as_str().unwrap().to_owned()).collect()
}

/// The whole content of the database.
fn contents(base: &Base) -> String {
    let tables = ["runs", "ledger", "outputs", "loops", "events", "records", "projects"];
    let sums = tables.map(|table| {
        let sum = "SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM retake.";
        base.postgres.ask(&format!("{sum}{table} AS t"))
    });
    sums.join(" ")
}

#[test]
fn a_page_shows_the_record_of_many_machines_and_keeps_projects_apart() {
    let Some(base) = Base::start() else { return };
    team(&base);
    base.postgres.ask("UPDATE retake.runs SET node = 'n7' WHERE command LIKE '%needle of two%'");
    let before = contents(&base);
    let ui = page(&base);
    let projects = ui.get("/api/v1/projects").json();
    assert_eq!(projects["projects"], serde_json::json!([ONE, TWO]));
    // All of it, one project, one machine.
    assert_eq!(commands(&ui.get("/api/v1/runs")).len(), 12);
    let of_one = commands(&ui.get(&format!("/api/v1/runs?project={ONE}")));
    assert!(of_one.len() == 6 && of_one[0].contains("needle of one"), "{of_one:?}");
    assert!(commands(&ui.get("/api/v1/runs?host=n7"))[0].contains("needle of two"));
    assert_eq!(commands(&ui.get(&format!("/api/v1/runs?host=n7&project={ONE}"))).len(), 0);
    assert_eq!(commands(&ui.get("/api/v1/runs?status=failed&kind=exec")).len(), 2);
    assert_eq!(commands(&ui.get("/api/v1/runs?command=needle")).len(), 2);
    assert_eq!(commands(&ui.get("/api/v1/runs?tests_failed=1")).len(), 1);
    // Page by page each run once, in both directions.
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = ui.get(&format!("/api/v1/runs?limit=5{cursor}"));
        let page = answer.json();
        seen.extend(page["runs"].as_array().unwrap().iter().map(|run| run["id"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let mut once = seen.clone();
    once.sort();
    once.dedup();
    assert_eq!((seen.len(), once.len()), (12, 12));
    // Tests of the same name are not mixed.
    let tests = |project: &str| ui.get(&format!("/api/v1/tests?project={project}")).json();
    assert_eq!(tests(ONE)["tests"][0]["status"], "passed", "{}", tests(ONE));
    assert_eq!(tests(TWO)["tests"][0]["status"], "failed", "{}", tests(TWO));
    assert_eq!(ui.get("/api/v1/tests").json()["count"], 0);
    assert_eq!(ui.get("/api/v1/runs?project=example.org/none").status, 404);
    let overview = ui.get(&format!("/api/v1/overview?project={ONE}")).json();
    assert_eq!((&overview["runs"], &overview["failed"]), (&6.into(), &1.into()), "{overview}");
    // Nothing was changed, and nothing can be.
    assert_eq!(contents(&base), before);
    let id = ui.get("/api/v1/runs?limit=1").json()["runs"][0]["id"].as_str().unwrap().to_owned();
    let again = ui.post(&format!("/api/v1/runs/{id}/again"), &serde_json::json!({}));
    assert!((400..500).contains(&again.status), "{}", again.text());
    let line = std::fs::read(format!("/proc/{}/cmdline", ui.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&line).contains("analysts-own"));
}

#[test]
fn every_page_of_a_shared_record_is_there_and_says_what_was_not_pushed() {
    let Some(base) = Base::start() else { return };
    team(&base);
    let ui = page(&base);
    let ids = |path: &str, list: &str| -> Vec<String> {
        let found = ui.get(path).json()[list].as_array().unwrap().clone();
        found.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    let runs = ids("/api/v1/runs?command=needle", "runs");
    let loops = ids("/api/v1/loops", "loops");
    assert_eq!((runs.len(), loops.len()), (2, 2));
    let two = format!("?project={TWO}");
    for path in [
        "/".to_owned(),
        "/?range=all".to_owned(),
        "/runs".to_owned(),
        "/runs?kind=matrix".to_owned(),
        "/runs?sort=slowest".to_owned(),
        "/runs?sort=oldest&status=ok".to_owned(),
        format!("/tests{two}"),
        format!("/test{two}&name=works"),
        "/loops".to_owned(),
        format!("/loops/{}", loops[0]),
        format!("/compare?run={}&run={}", runs[0], runs[1]),
        format!("/runs/{}?view=merged", runs[0]),
        format!("/runs/{}/raw?stream=stdout", runs[0]),
        format!("/api/v1/loops/{}", loops[0]),
        format!("/api/v1/runs/{}/logs?stream=stdout", runs[0]),
    ] {
        let answer = ui.get(&path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert!(ui.get("/tests").text().contains("Choose a project above"));
    // Output is found, as far as it was pushed.
    let found = ui.get("/api/v1/search?q=needle").json();
    assert_eq!(found["hits"].as_array().unwrap().len(), 2, "{found}");
    let shown = ui.get(&format!("/runs/{}", runs[0])).text();
    assert!(shown.contains("the needle of"), "{shown}");
    let note = "Of stdout, 18 B were recorded and 14 B of that were pushed to this database.";
    assert!(shown.contains(note), "{shown}");
    assert!(shown.contains(&format!("<option value=\"{TWO}\">")), "{shown}");
    // A browser remembers the project.
    let host = ui.host();
    let (name, value) = ui.authorised();
    let chosen = ui.get(&format!("/runs{two}"));
    let cookie =
        chosen.header("set-cookie").expect("a cookie").split(';').next().unwrap().to_owned();
    assert!(chosen.text().contains(&format!("<option value=\"{TWO}\" selected>")));
    let headers = [("Host", &*host), (&*name, &*value), ("Cookie", &*cookie)];
    let remembered = request(ui.port, "GET", "/api/v1/runs?command=needle", &headers, b"");
    assert!(matches!(&commands(&remembered)[..], [one] if one.contains("of two")));
    let all = request(ui.port, "GET", "/api/v1/runs?command=needle&project=", &headers, b"");
    assert_eq!(commands(&all).len(), 2);
}

#[test]
fn an_unusable_database_is_refused_before_a_page_is_served() {
    let Some(base) = Base::start() else { return };
    let url = base.postgres.url();
    let refused = |url: &str, code: i32, said: &str| {
        let asked = called(&mut base.command(&["ui", "--port", "0", "--from", url]));
        assert_eq!(asked.code, code, "{}", asked.snapshot());
        assert!(asked.stderr.contains(said), "{}", asked.stderr);
        assert!(!asked.stderr.contains("hunter2"), "{}", asked.stderr);
    };
    refused(&url, 1, "no schema `retake`");
    refused(&url.replacen('@', ":hunter2@", 1), 2, "PGPASSWORD, ~/.pgpass or a service file");
    refused("mysql://u:hunter2@h/d", 2, "is not the address of a PostgreSQL");
    base.postgres.ask(include_str!("../../../postgres/src/schema_v1.sql"));
    base.postgres.ask("INSERT INTO retake.version VALUES (1)");
    refused(&url, 1, "has version 1, this retake reads 2");
    // A service in the user's file has everything, including the password.
    team(&base);
    let (user, rest) = url.split_once("://").unwrap().1.split_once('@').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    let (host, port) = host.rsplit_once(':').unwrap();
    let database = database.split('?').next().unwrap();
    let service = format!(
        "[team]\nhost={host}\nport={port}\ndbname={database}\nuser={user}\npassword={}\n",
        crate::common::cluster::Postgres::PASSWORD
    );
    let file = base.sandbox.file("services", &service);
    let mut command = base.command(&["ui", "--port", "0", "--from", "postgres://?service=team"]);
    let ui = Ui::started(command.env_remove("PGPASSWORD").env("PGSERVICEFILE", file));
    assert_eq!(commands(&ui.get("/api/v1/runs?command=needle")).len(), 2);
}
