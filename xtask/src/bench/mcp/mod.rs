//! The cost of a call beyond its recorded run, what many calls leave behind, the cost of much
//! output for the server, the duration of a search in it, and a comparison with others.

mod client;
mod peers;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use retake_engine::{Cancel, Keeper, KeeperSettings, Launch, LiveOutput};
use retake_store::Store;
use serde_json::{Value, json};

use client::Client;

use super::exec::{intent, plain, scratch};
use super::median;
use super::record::outcome;
use crate::page::Page;

const ROUNDS: usize = 500;
const CALLS: usize = 1000;

pub(crate) fn run() -> Result<(), String> {
    let own = std::env::current_exe().map_err(text)?;
    let retake = own.with_file_name("retake");
    let place = scratch()?;
    let mut page = Page::new(
        "mcp: the cost of a call",
        "`cargo xtask bench mcp` writes this page. Medians of interleaved rounds; compare ratios, not times.",
    );
    latency(&mut page, &retake, &place)?;
    leaks(&mut page, &retake, &place)?;
    flood(&mut page, &retake, &place)?;
    peers::compare(&mut page, &retake, &place)?;
    page.write("mcp.md")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A policy with rules of each kind.
const POLICY: &str =
    "mcp:\n  policy:\n    preset: careful\n    deny: [\"git push\", \"rm -rf\", \"npm publish\"]\n";

fn latency(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    page.section(
        "A call of `exec` with `true`",
        "From the request's first byte to the answer's last, against the same run recorded by the engine and the \
         store in this program. The policy is `careful` and three more rules. Target: at most 1.3x, in a sandbox at \
         most 1.4x.",
    );
    // Each has its own record, as the engine does here: a record that another program writes to
    // in between must be read again each time.
    let project = |name: &str| {
        let project = place.join(name);
        fs::create_dir_all(project.join(".agent")).map_err(text)?;
        fs::write(project.join(".agent/config.yml"), POLICY).map_err(text)?;
        Ok::<_, String>(project)
    };
    let (plain_project, confined_project) = (project("project")?, project("confined")?);
    let mut keeper = Keeper::start(KeeperSettings::default()).map_err(text)?;
    let cancel = Cancel::new().map_err(text)?;
    let command =
        retake_engine::Command::new(Launch::new(["true"])).map_err(|p| format!("{p:?}"))?;
    let mut store = Store::open(&place.join("store")).map_err(text)?;
    let mut clients = [
        (
            "exec over MCP, not confined",
            Client::retake(retake, &plain_project, &["--sandbox=off"])?,
        ),
        ("exec over MCP, confined", Client::retake(retake, &confined_project, &["--sandbox"])?),
    ];
    let mut engine = Vec::new();
    let mut calls = clients.each_ref().map(|_| Vec::new());
    for round in 0..ROUNDS {
        if round % 100 == 0 {
            eprint!("\rcalls: round {round} of {ROUNDS}");
        }
        let start = Instant::now();
        let recording = store.begin(&plain(intent())).map_err(text)?;
        keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
        recording.finish(&mut store, plain(outcome(0, b""))).map_err(text)?;
        engine.push(start.elapsed().as_secs_f64() * 1e6);
        for ((_, client), calls) in clients.iter_mut().zip(&mut calls) {
            let (_, took) = client.exec_timed(&json!({"argv": ["true"]}))?;
            calls.push(took.as_secs_f64() * 1e6);
        }
    }
    eprintln!();
    let engine = median(&engine);
    let mut rows = vec![vec!["recorded engine run".into(), format!("{engine:.0}"), "1.00".into()]];
    for ((name, _), calls) in clients.iter().zip(&calls) {
        let calls = median(calls);
        rows.push(vec![(*name).into(), format!("{calls:.0}"), format!("{:.2}", calls / engine)]);
    }
    page.table(&["", "microseconds", "ratio"], &rows);
    Ok(())
}

fn leaks(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    page.section(
        "1,000 calls in a row",
        "After 100 calls, and after 1,000 more. Target: no descriptor, process or thread \
         remains.",
    );
    let mut client = Client::retake(retake, &place.join("project"), &[])?;
    let mut rows = Vec::new();
    for (calls, name) in [(100, "after 100 calls"), (CALLS, "after 1,000 more")] {
        for _ in 0..calls {
            client.exec(&json!({"argv": ["true"]}))?;
        }
        rows.push(vec![
            name.to_owned(),
            client.descriptors()?.to_string(),
            client.children()?.to_string(),
            client.status("Threads:")?.to_string(),
            format!("{:.1}", client.status("VmRSS:")? as f64 / 1024.0),
        ]);
    }
    page.table(&["", "descriptors", "processes", "threads", "resident MiB"], &rows);
    Ok(())
}

fn flood(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    page.section(
        "1 GiB of output",
        "One call whose command writes 1 GiB of lines, with an error in its middle, and fails; then a search with \
         `runs_logs`, before and after the output is compressed. The server's peak. Targets: under 32 MiB for the \
         call, under 2 seconds for a search.",
    );
    let project = place.join("project");
    let mut client = Client::retake(retake, &project, &["--sandbox=off"])?;
    let file = gigabyte(place)?;
    let start = Instant::now();
    let line = format!("cat {}; exit 1", file.display());
    let arguments = json!({"argv": ["sh", "-c", line], "timeout_seconds": 600});
    let result = client.exec(&arguments)?;
    let seconds = start.elapsed().as_secs_f64();
    let told = result["content"][0]["text"].as_str().unwrap_or_default();
    let shown = if told.contains(NEEDLE) { "shown" } else { "NOT SHOWN" };
    let peak = |client: &Client| client.status("VmHWM:").map(|kib| kib as f64 / 1024.0);
    let mut rows = vec![vec![
        "exec, error in the middle".into(),
        format!("{seconds:.2}"),
        format!("{:.0}", (1u64 << 30) as f64 / 1e6 / seconds),
        format!("{:.1}", peak(&client)?),
        format!("{shown}, {} characters", told.chars().count()),
    ]];
    let run = result["structuredContent"]["runId"].clone();
    drop(client);
    for (name, compact) in [("runs_logs, as written", false), ("runs_logs, compressed", true)] {
        if compact {
            let mut compact = std::process::Command::new(retake);
            compact.args(["runs", "prune", "--older-than", "3650d"]).current_dir(&project);
            // Maintenance of the record compresses large output.
            compact.env_remove("RETAKE_STORE").stdout(std::process::Stdio::null());
            crate::test::succeed(&mut compact)?;
        }
        let mut client = Client::retake(retake, &project, &["--sandbox=off"])?;
        let mut times = Vec::new();
        let mut matches = Value::Null;
        for _ in 0..5 {
            let start = Instant::now();
            let asked = json!({"run": run, "pattern": "the .eedle"});
            matches = client.call("runs_logs", &asked)?["structuredContent"]["matches"].clone();
            times.push(start.elapsed().as_secs_f64());
        }
        let seconds = median(&times);
        rows.push(vec![
            name.into(),
            format!("{seconds:.2}"),
            format!("{:.0}", (1u64 << 30) as f64 / 1e6 / seconds),
            format!("{:.1}", peak(&client)?),
            format!("{matches} match"),
        ]);
    }
    page.table(&["", "seconds", "MB/s", "peak MiB", ""], &rows);
    Ok(())
}

const NEEDLE: &str = "src/cart.c:17:3: error: the needle";

/// A file of 1 GiB, with one relevant line.
fn gigabyte(place: &Path) -> Result<std::path::PathBuf, String> {
    let file = place.join("lines");
    if file.exists() {
        return Ok(file);
    }
    let mut out = std::io::BufWriter::new(fs::File::create(&file).map_err(text)?);
    let (mut written, mut number, mut found) = (0, 0u64, false);
    while written < 1 << 30 {
        let line = format!(
            "{number:08} INFO worker {}: handled request in {} ms\n",
            number % 7,
            number % 97
        );
        out.write_all(line.as_bytes()).map_err(text)?;
        (written, number) = (written + line.len(), number + 1);
        if written > 1 << 29 && !found {
            found = true;
            writeln!(out, "{NEEDLE}").map_err(text)?;
        }
    }
    out.flush().map_err(text)?;
    Ok(file)
}
