//! What a call costs beyond the recorded run it is for, what many calls leave behind, and what a
//! flood of output costs the server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use retake_engine::{Cancel, Keeper, KeeperSettings, Launch, LiveOutput};
use retake_store::Store;
use serde_json::{Value, json};

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
    fs::create_dir_all(place.join("project/.agent")).map_err(text)?;
    let mut page = Page::new(
        "mcp: the cost of a call",
        "`cargo xtask bench mcp` writes this page. Medians of interleaved rounds; compare ratios, not times.",
    );
    latency(&mut page, &retake, &place)?;
    leaks(&mut page, &retake, &place)?;
    flood(&mut page, &retake, &place)?;
    page.write("mcp.md")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

struct Client {
    server: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
}

impl Client {
    fn start(retake: &Path, project: &Path) -> Result<Self, String> {
        let mut server = Command::new(retake)
            .arg("mcp")
            .current_dir(project)
            .env_remove("RETAKE_STORE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let stdin = server.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::new(server.stdout.take().ok_or("no stdout")?);
        let mut client = Self { server, stdin, stdout, next: 0 };
        client.request(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}),
        )?;
        Ok(client)
    }

    fn request(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.next += 1;
        let message =
            json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush()).map_err(text)?;
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(text)?;
        let answer: Value = serde_json::from_str(&line).map_err(text)?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(line),
        }
    }

    fn exec(&mut self, arguments: &Value) -> Result<(), String> {
        let result =
            self.request("tools/call", &json!({"name": "exec", "arguments": arguments}))?;
        match &result["structuredContent"]["recorded"] {
            Value::Bool(true) => Ok(()),
            _ => Err(result.to_string()),
        }
    }

    /// A number in `/proc/PID/status`.
    fn status(&self, name: &str) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.server.id());
        let status = fs::read_to_string(path).map_err(text)?;
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such field")?;
        line.trim().trim_end_matches(" kB").parse().map_err(text)
    }

    fn descriptors(&self) -> Result<usize, String> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.server.id())).map_err(text)?.count())
    }

    fn children(&self) -> Result<usize, String> {
        let mut count = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.server.id())).map_err(text)? {
            // A thread may end between the look and the read.
            let list = fs::read_to_string(task.map_err(text)?.path().join("children"));
            count += list.map_or(0, |list| list.split_whitespace().count());
        }
        Ok(count)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It is of no use to anyone any more.
        _ = self.server.kill();
        _ = self.server.wait();
    }
}

fn latency(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    page.section(
        "A call of `exec` with `true`",
        "From the request's first byte to the answer's last, against the same run recorded by the engine and the \
         store in this program. Target: at most 1.5x.",
    );
    let mut keeper = Keeper::start(KeeperSettings::default()).map_err(text)?;
    let cancel = Cancel::new().map_err(text)?;
    let command =
        retake_engine::Command::new(Launch::new(["true"])).map_err(|p| format!("{p:?}"))?;
    let mut store = Store::open(&place.join("store")).map_err(text)?;
    let mut client = Client::start(retake, &place.join("project"))?;
    let (mut engine, mut calls) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        if round % 100 == 0 {
            eprint!("\rcalls: round {round} of {ROUNDS}");
        }
        let start = Instant::now();
        let recording = store.begin(&plain(intent())).map_err(text)?;
        keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
        recording.finish(&mut store, plain(outcome(0, b""))).map_err(text)?;
        engine.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        client.exec(&json!({"argv": ["true"]}))?;
        calls.push(start.elapsed().as_secs_f64() * 1e6);
    }
    eprintln!();
    let (engine, calls) = (median(&engine), median(&calls));
    page.table(
        &["", "microseconds", "ratio"],
        &[
            vec!["recorded engine run".into(), format!("{engine:.0}"), "1.00".into()],
            vec!["exec over MCP".into(), format!("{calls:.0}"), format!("{:.2}", calls / engine)],
        ],
    );
    Ok(())
}

fn leaks(page: &mut Page, retake: &Path, place: &Path) -> Result<(), String> {
    page.section(
        "1,000 calls in a row",
        "After 100 calls, and after 1,000 more. Target: nothing is left behind.",
    );
    let mut client = Client::start(retake, &place.join("project"))?;
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
        "One call whose command writes 1 GiB of lines; the server's peak. Target: under 32 MiB.",
    );
    let mut client = Client::start(retake, &place.join("project"))?;
    let file = place.join("lines");
    let line = format!("{}\n", "x".repeat(99));
    let block = line.repeat((1 << 20) / line.len());
    let mut out = fs::File::create(&file).map_err(text)?;
    for _ in 0..(1usize << 30).div_ceil(block.len()) {
        out.write_all(block.as_bytes()).map_err(text)?;
    }
    drop(out);
    let start = Instant::now();
    client.exec(&json!({"argv": ["cat", file.to_string_lossy()], "timeout_seconds": 600}))?;
    let seconds = start.elapsed().as_secs_f64();
    let peak = client.status("VmHWM:")? as f64 / 1024.0;
    page.table(
        &["", "MB/s", "peak MiB"],
        &[vec![
            "exec over MCP".into(),
            format!("{:.0}", (1u64 << 30) as f64 / 1e6 / seconds),
            format!("{peak:.1}"),
        ]],
    );
    Ok(())
}
