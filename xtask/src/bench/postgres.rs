//! How fast a PostgreSQL is filled, and how fast it answers.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use retake_store::Store;

use super::exec::{intent, plain, scratch};
use super::median;
use super::record::outcome;
use super::slurm::{retake, text};
use crate::cluster::Postgres;
use crate::page::Page;

const RUNS: u64 = 100_000;
/// Rows of each large table that is queried; [`ROWS_VARIABLE`] overrides it. Ten million take some
/// minutes and 9 GB.
const ROWS: u64 = 1_000_000;
const ROWS_VARIABLE: &str = "RETAKE_BENCH_ROWS";
/// The time span of the rows.
const SPREAD_SECONDS: u64 = 60_000_000;
const ROUNDS: usize = 3;

/// The guide with the queries.
const GUIDE: &str = include_str!("../../../docs/guides/postgres.md");

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "postgres: the record of a team",
        "`cargo xtask bench postgres` writes this page, on a PostgreSQL of its own on this machine, with 32 MB of \
         shared buffers and everything else as it is installed.",
    );
    push(&mut page)?;
    questions(&mut page)?;
    page.write("postgres.md")
}

/// Pushes a record with many runs to an empty database.
fn push(page: &mut Page) -> Result<(), String> {
    page.section(
        &format!("Pushing {RUNS} runs to PostgreSQL"),
        "Into an empty database, with the password checked and TLS on; then once more, with nothing to send.",
    );
    let directory = scratch()?;
    let postgres_dir = directory.join("postgres");
    std::fs::create_dir(&postgres_dir).map_err(text)?;
    let store = directory.join("store");
    fill(&store)?;
    let postgres = Postgres::start(&postgres_dir).map_err(text)?;
    let push = || -> Result<f64, String> {
        let begun = Instant::now();
        let output = Command::new(retake()?)
            .env("PGPASSWORD", Postgres::PASSWORD)
            .arg("--store")
            .arg(&store)
            .args(["runs", "push", "--to", &postgres.url()])
            .stdin(Stdio::null())
            .output()
            .map_err(text)?;
        match output.status.success() {
            true => Ok(begun.elapsed().as_secs_f64()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    let (first, again) = (push()?, push()?);
    let there = postgres.ask("SELECT count(*) FROM retake.runs WHERE outcome = 'exited'");
    if there != RUNS.to_string() {
        return Err(format!("{there} runs arrived"));
    }
    page.table(
        &["", "wall s", "runs/s"],
        &[
            vec!["all of it".into(), format!("{first:.2}"), format!("{:.0}", RUNS as f64 / first)],
            vec!["nothing new".into(), format!("{again:.2}"), String::new()],
        ],
    );
    drop(postgres);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// The guide's queries over many runs.
fn questions(page: &mut Page) -> Result<(), String> {
    let rows = match std::env::var(ROWS_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| format!("{ROWS_VARIABLE}={text} is not a number"))?,
        Err(_) => ROWS,
    };
    page.section(
        &format!("The queries of the guide, over {rows} runs"),
        "The same number of test results and of metrics, over two years, of 50 projects. The time \
         is that of the whole query with its planning, the median of three rounds after a warm-up.",
    );
    let directory = scratch()?;
    let postgres_dir = directory.join("postgres");
    std::fs::create_dir(&postgres_dir).map_err(text)?;
    let store = directory.join("store");
    drop(Store::open(&store).map_err(text)?);
    let postgres = Postgres::start(&postgres_dir).map_err(text)?;
    let mut push = Command::new(retake()?);
    push.env("PGPASSWORD", Postgres::PASSWORD).arg("--store").arg(&store);
    let made = push.args(["runs", "push", "--to", &postgres.url()]).stdout(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        return Err("the tables could not be made".to_owned());
    }
    let step = format!("{} milliseconds", SPREAD_SECONDS * 1000 / rows.max(1));
    let fill = FILL.replace("ROWS", &rows.to_string()).replace("STEP", &step);
    let filled = postgres.ask(&fill);
    if filled.starts_with("failed") {
        return Err(filled);
    }
    // The server would do so only after a while.
    postgres.ask("VACUUM ANALYZE");
    let (mut answered, mut slowest) = (Vec::new(), 0_f64);
    for (about, statement) in statements() {
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            let begun = Instant::now();
            let answer = postgres.ask(&statement);
            if answer.starts_with("failed") {
                return Err(answer);
            }
            if round > 0 {
                times.push(begun.elapsed().as_secs_f64());
            }
        }
        slowest = slowest.max(median(&times));
        answered.push(vec![about, format!("{:.3}", median(&times))]);
    }
    answered.push(vec!["the slowest".into(), format!("{slowest:.3}")]);
    page.table(&["question", "s"], &answered);
    drop(postgres);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// The rows that many runs would leave.
const FILL: &str = include_str!("postgres_rows.sql");

/// The guide's queries, with the comment above each.
fn statements() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut about, mut open) = (String::new(), None::<String>);
    for line in GUIDE.lines().filter_map(|line| line.strip_prefix("    ")) {
        if let Some(comment) = line.strip_prefix("-- ") {
            comment.clone_into(&mut about);
        } else if line.starts_with("SELECT ") && !line.contains("rename_project") {
            open = Some(String::new());
        }
        if let Some(statement) = &mut open {
            statement.push_str(line);
            statement.push('\n');
            if line.trim_end().ends_with(';') {
                found.extend(open.take().map(|statement| (about.clone(), statement)));
            }
        }
    }
    found
}

/// Adds runs to a record, through its import.
fn fill(path: &Path) -> Result<(), String> {
    let mut store = Store::open(path).map_err(text)?;
    let mut lines = Vec::new();
    for number in 0..RUNS {
        let mut intent = intent();
        intent.request.command.text = format!("cargo test case_{}", number % 100);
        let run = serde_json::json!({"run": {
            "intent": plain(intent),
            "ending": plain(outcome(i32::from(number % 10 == 0), b"")),
            "chunks": "",
        }});
        serde_json::to_writer(&mut lines, &run).map_err(text)?;
        lines.write_all(b"\n").map_err(text)?;
    }
    store.import(&mut &lines[..]).map_err(text)?;
    Ok(())
}
