//! A record with more and more runs: queries of it, and additions to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use retake_store::Store;

use super::{Expected, Growth, command_ms, middle, steps, text};
use crate::bench::exec::{program, scratch, timed};
use crate::bench::record::{fill_with, size};
use crate::bench::ui::Server;
use crate::cluster::Postgres;
use crate::page::Page;

pub(super) fn run(page: &mut Page, largest: u64) -> Result<(), String> {
    page.section(
        "Runs in the record, milliseconds",
        "One run in five printed a line of its own; all of them are indexed. `push` sends the runs \
         added since the previous column to a PostgreSQL on this machine, with TLS. One reader \
         fetches the pages; counts over all runs are made by the first overview after the start, \
         and in the background from then on.",
    );
    let steps = steps(largest, 1_000);
    let mut growth = Growth::new(&steps);
    let directory = scratch()?;
    let record = Record { retake: program("retake")?, root: directory.join("store") };
    let postgres = directory.join("postgres");
    std::fs::create_dir(&postgres).map_err(text)?;
    let postgres = match Postgres::programs() {
        Some(_) => Some(Postgres::start(&postgres).map_err(text)?),
        None => None,
    };
    let mut filled = 0;
    for &runs in &steps {
        let own = std::env::current_exe().map_err(text)?;
        let mut fill = Command::new(own);
        // In a separate process: this one's peak memory would count as that of the processes it starts.
        fill.args(["spin", "growth", "fill"]).arg(&record.root);
        crate::test::succeed(fill.args([filled.to_string(), runs.to_string()]))?;
        record.measure(runs, &mut growth)?;
        if let Some(postgres) = &postgres {
            record.push(runs - filled, postgres, &mut growth)?;
        }
        record.pages(runs, &mut growth)?;
        growth.add("bytes per run on disk", Expected::Same, (size(&record.root) / runs) as f64);
        filled = runs;
    }
    growth.table(page);
    drop(postgres);
    std::fs::remove_dir_all(&directory).map_err(text)
}

/// `STORE FROM TO`: adds runs, and indexes them.
pub(super) fn spin_fill(words: &[&str]) -> Result<(), String> {
    let &[root, from, to] = words else { return Err("spin growth fill STORE FROM TO".into()) };
    let root = Path::new(root);
    fill_with(root, from.parse().map_err(text)?..to.parse().map_err(text)?)?;
    let mut store = Store::open(root).map_err(text)?;
    while store.compact(Duration::from_secs(10)).map_err(text)?.more {}
    eprintln!();
    Ok(())
}

struct Record {
    retake: PathBuf,
    root: PathBuf,
}

impl Record {
    fn command(&self, words: &[&str]) -> Vec<String> {
        let start = [&self.retake, Path::new("--store"), &self.root];
        let start = start.map(|word| word.display().to_string());
        start.into_iter().chain(words.iter().map(ToString::to_string)).collect()
    }

    /// A word that only one run printed.
    fn rare_word(runs: u64) -> String {
        format!("needle{}", runs / 10 * 5)
    }

    fn measure(&self, runs: u64, growth: &mut Growth) -> Result<(), String> {
        let rare = Self::rare_word(runs);
        let quick: [(&str, &[&str]); 8] = [
            ("exec -- true", &["exec", "--", "true"]),
            ("runs list --limit 50 --json", &["runs", "list", "--limit", "50", "--json"]),
            ("runs list --failed", &["runs", "list", "--failed"]),
            ("runs list --session-id", &["runs", "list", "--session-id", "session-7"]),
            ("runs show last", &["runs", "show", "last"]),
            ("runs search, a rare word", &["runs", "search", &rare]),
            ("runs search, a word of every output", &["runs", "search", "finished"]),
            ("runs search, a word that is nowhere", &["runs", "search", "nowhere"]),
        ];
        for (name, words) in quick {
            let words = self.command(words);
            // The first query after the fill brings the record up to date.
            timed(&words)?;
            growth.add(name, Expected::Same, command_ms(&words, 41)?);
        }
        let verify = command_ms(&self.command(&["audit", "verify"]), 3)?;
        growth.add("audit verify", Expected::Tenfold, verify);
        Ok(())
    }

    fn push(&self, runs: u64, postgres: &Postgres, growth: &mut Growth) -> Result<(), String> {
        let words = ["runs", "push", "--to", &postgres.url()];
        let line: Vec<String> = self.command(&words);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let password = format!("PGPASSWORD={}", Postgres::PASSWORD);
        let push: Vec<String> = [&["env", password.as_str()], &line[..]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let all = timed(&push)?.0 / 1000.0;
        growth.add("push, for each 1,000 new runs", Expected::Same, all * 1000.0 / runs as f64);
        growth.add("push, nothing new", Expected::Same, command_ms(&push, 11)?);
        let exec = self.command(&["exec", "--", "true"]);
        let one = middle(11, || {
            timed(&exec)?;
            Ok(timed(&push)?.0 / 1000.0)
        })?;
        growth.add("push, one new run", Expected::Same, one);
        Ok(())
    }

    fn pages(&self, runs: u64, growth: &mut Growth) -> Result<(), String> {
        let server = Server::start(&self.retake, &self.root)?;
        growth.add("ui: the first overview", Expected::Tenfold, server.get("/")?.0);
        let search = format!("/runs?q={}", Self::rare_word(runs));
        let pages = [
            ("ui: overview", "/"),
            ("ui: list", "/runs"),
            ("ui: list of failures", "/runs?status=failed"),
            ("ui: list, slowest first", "/runs?sort=slowest"),
            ("ui: search, a rare word", &search),
            ("ui: loops", "/loops"),
            ("ui: tests", "/tests"),
        ];
        for (name, path) in pages {
            // The first request starts the cached counts.
            server.get(path)?;
            let time = middle(21, || Ok(server.get(path)?.0))?;
            growth.add(name, Expected::Same, time);
        }
        growth.add("ui: peak MiB of the server", Expected::Same, server.peak_mib()?);
        Ok(())
    }
}
