//! How fast the page answers over a large record, how soon it shows new output, and the
//! server's use of resources.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::exec::{intent, plain, program, scratch};
use super::record::{fill, outcome};
use crate::page::Page;

const READERS: usize = 8;
const ROUNDS: usize = 40;
/// Together a million results.
const TEST_RUNS: u64 = 2000;
const TESTS: u64 = 500;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(crate) fn run() -> Result<(), String> {
    let mut page = Page::new(
        "ui: the page over a large record",
        "`cargo xtask bench ui` writes this page. Times are those of a client on the same machine, with a connection \
         for each request, so they include more than the server's own.",
    );
    let directory = scratch()?;
    let retake = program("retake")?;
    let root = directory.join("store");
    fill(&root)?;
    fill_tests(&root)?;
    let mut store = retake_store::Store::open(&root).map_err(text)?;
    while store.compact(Duration::from_secs(10)).map_err(text)?.more {}
    drop(store);
    let output = large_output(&retake, &root)?;
    let server = Server::start(&retake, &root)?;
    pages(&mut page, &server, &output)?;
    live(&mut page, &server, &retake, &root)?;
    page.section("Memory", "The largest resident memory of the server during all of the above.");
    page.table(&["", "MiB"], &[vec!["server".into(), format!("{:.1}", server.peak_mib()?)]]);
    drop(server);
    std::fs::remove_dir_all(&directory).map_err(text)?;
    page.write("ui.md")
}

/// Runs of a large suite: most tests pass, some are flaky, and some broke recently.
fn fill_tests(root: &Path) -> Result<(), String> {
    let mut store = retake_store::Store::open(root).map_err(text)?;
    let mut lines = String::new();
    for n in 0..TEST_RUNS {
        let mut failed = 0;
        let details: Vec<serde_json::Value> = (0..TESTS)
            .map(|test| {
                let fails = match test % 50 {
                    7 => (n * 31 + test) % 5 == 0,
                    9 => n + 40 > TEST_RUNS,
                    _ => false,
                };
                failed += u64::from(fails);
                let name = format!("suite_{}::case_{test}", test / 25);
                let status = if fails { "failed" } else { "passed" };
                serde_json::json!({"name": name, "status": status, "durationMs": 1 + (test * 7 + n) % 90})
            })
            .collect();
        let mut intent = intent();
        intent.request.command.text = "cargo test --workspace".to_owned();
        let results = serde_json::json!({"total": TESTS, "passed": TESTS - failed, "failed": failed, "details": details});
        let effects = serde_json::json!({"testResults": results});
        let mut outcome = outcome(i32::from(failed > 0), b"");
        outcome.duration_ms = 20_000 + n % 700 * 10;
        outcome.effects = Some(serde_json::from_value(effects).map_err(text)?);
        let (intent, outcome) = (plain(intent), plain(outcome));
        let run = serde_json::json!({"run": {"intent": intent, "ending": outcome, "chunks": ""}});
        lines.push_str(&format!("{run}\n"));
        if n % 200 == 199 {
            eprint!("\rfilling: {} of {TEST_RUNS} runs with tests", n + 1);
            store.import(&mut lines.as_bytes()).map_err(text)?;
            lines.clear();
        }
    }
    Ok(())
}

pub(super) struct Server {
    child: Child,
    port: u16,
    token: String,
}

impl Server {
    pub(super) fn start(retake: &Path, root: &Path) -> Result<Self, String> {
        let mut child = Command::new(retake)
            .args(["--store", &root.display().to_string(), "ui", "--port", "0"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("no stdout")?;
        BufReader::new(stdout).read_line(&mut line).map_err(text)?;
        let address = line.trim().strip_prefix("http://127.0.0.1:").ok_or_else(|| line.clone())?;
        let (port, token) = address.split_once("/?token=").ok_or_else(|| line.clone())?;
        Ok(Self { child, port: port.parse().map_err(text)?, token: token.to_owned() })
    }

    fn send(&self, path: &str) -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(text)?;
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            self.port, self.token
        );
        stream.write_all(head.as_bytes()).map_err(text)?;
        Ok(stream)
    }

    /// Milliseconds until the whole answer has arrived, and the answer.
    pub(super) fn get(&self, path: &str) -> Result<(f64, String), String> {
        let start = Instant::now();
        let mut answer = Vec::new();
        self.send(path)?.read_to_end(&mut answer).map_err(text)?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if !answer.starts_with("HTTP/1.1 200") {
            return Err(format!("{path}: {}", answer.lines().next().unwrap_or_default()));
        }
        Ok((took, answer))
    }

    pub(super) fn peak_mib(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).map_err(text)?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).ok_or("no VmHWM")?;
        let kb: f64 = line.split_whitespace().nth(1).ok_or("no size")?.parse().map_err(text)?;
        Ok(kb / 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It runs until it is killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn percentile(times: &mut [f64], percent: usize) -> f64 {
    times.sort_by(f64::total_cmp);
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// A run that wrote a gigabyte.
fn large_output(retake: &Path, root: &Path) -> Result<String, String> {
    let output = Command::new(retake)
        .args(["--store", &root.display().to_string(), "exec", "--json", "--", "sh", "-c"])
        .arg("yes 'a line of output, as long as lines usually are, or a little longer' | head -c 1073741824")
        .output()
        .map_err(text)?;
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(text)?;
    Ok(run["id"].as_str().ok_or("no id")?.to_owned())
}

fn pages(page: &mut Page, server: &Server, large: &str) -> Result<(), String> {
    let (first, overview) = server.get("/")?;
    let mut cursor = String::new();
    let (_, answer) = server.get("/api/v1/runs?limit=500")?;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let document: serde_json::Value = serde_json::from_str(body).map_err(text)?;
    cursor.push_str(document["next"].as_str().unwrap_or_default());
    let windows = format!("/api/v1/runs/{large}/logs?stream=stdout&spans=1&near=");
    let names: [(&str, String); 15] = [
        ("overview", "/".into()),
        ("list", "/runs".into()),
        ("list, a later page", format!("/runs?cursor={cursor}")),
        ("list of failures", "/runs?status=failed".into()),
        ("list, slowest first", "/runs?sort=slowest".into()),
        ("list of failures, slowest first", "/runs?sort=slowest&status=failed".into()),
        ("list of one machine", "/runs?host=bench".into()),
        ("tests", "/tests".into()),
        ("tests, flakiest first", "/tests?sort=flaky".into()),
        ("one test", "/test?name=suite_0%3A%3Acase_7".into()),
        ("API: 50 runs", "/api/v1/runs".into()),
        ("API: overview", "/api/v1/overview".into()),
        ("search, a rare word", "/runs?q=needle500000".into()),
        ("run with 1 GiB of output", format!("/runs/{large}")),
        ("window of 64 KiB anywhere in 1 GiB", windows.clone()),
    ];
    // Counts over all runs are made once and then renewed in the background.
    let (by_duration, _) = server.get("/runs?sort=slowest")?;
    let (tests, _) = server.get("/tests")?;
    let mut rows = Vec::new();
    for (name, path) in &names {
        let (mut times, mut size) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS)
                .map(|reader| {
                    scope.spawn(move || {
                        let each = (0..ROUNDS).map(|round| {
                            let place = (reader * ROUNDS + round) as u64 * 3_355_443;
                            let path = if path.ends_with("near=") {
                                format!("{path}{place}")
                            } else {
                                path.clone()
                            };
                            let (time, answer) = server.get(&path)?;
                            Ok::<_, String>((time, answer.len()))
                        });
                        each.collect::<Result<Vec<_>, _>>()
                    })
                })
                .collect();
            for reader in readers {
                let seen = reader.join().map_err(|_| "a reader died".to_owned())??;
                size = seen.iter().map(|(_, length)| *length).max().unwrap_or(0).max(size);
                times.extend(seen.into_iter().map(|(time, _)| time));
            }
            Ok::<_, String>(())
        })?;
        let (half, most) = (percentile(&mut times, 50), percentile(&mut times, 95));
        rows.push(vec![
            (*name).to_owned(),
            format!("{half:.1}"),
            format!("{most:.1}"),
            format!("{:.1}", size as f64 / 1000.0),
        ]);
    }
    page.section(
        "1,000,000 runs, 1,000,000 test results, 8 readers at once",
        &format!(
            "Each reader asks {ROUNDS} times, as fast as it can. What covers all runs was counted before, by the first \
             answer: the figures of the overview in {first:.0} ms, the order by duration in {by_duration:.0} ms, the \
             tests in {tests:.0} ms; it is counted again in the background."
        ),
    );
    page.table(&["", "median ms", "p95 ms", "KB"], &rows);
    find_in_all(page, server, large)?;
    let mut transfer = overview.len();
    for part in overview.split('"').filter(|part| part.starts_with("/assets/")) {
        transfer += server.get(part)?.1.len();
    }
    page.section("First paint", "The overview with its style, script and icon, not compressed.");
    page.table(&["", "KB"], &[vec!["transfer".into(), format!("{:.1}", transfer as f64 / 1000.0)]]);
    Ok(())
}

/// The time to search a gigabyte for a word that does not occur, step by step as the page
/// does.
fn find_in_all(page: &mut Page, server: &Server, large: &str) -> Result<(), String> {
    let start = Instant::now();
    let (mut offset, mut steps) = (0, 0);
    loop {
        let path = format!("/api/v1/runs/{large}/count?stream=stdout&text=needle&offset={offset}");
        let (_, answer) = server.get(&path)?;
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        let document: serde_json::Value = serde_json::from_str(body).map_err(text)?;
        steps += 1;
        let (looked_to, length) = (document["lookedTo"].as_u64(), document["length"].as_u64());
        offset = looked_to.ok_or("no place")?;
        if looked_to >= length {
            break;
        }
    }
    let took = start.elapsed().as_secs_f64() * 1e3;
    page.section("A word in 1 GiB of output", "A word that does not occur: all output is read.");
    page.table(&["", "ms"], &[vec![format!("{steps} requests"), format!("{took:.0}")]]);
    Ok(())
}

/// The delay from writing a line in a program to receiving it.
fn live(page: &mut Page, server: &Server, retake: &Path, root: &Path) -> Result<(), String> {
    let mut child = Command::new(retake)
        .args(["--store", &root.display().to_string(), "exec", "--", "sh", "-c"])
        .arg("for n in $(seq 200); do date +%s%N; sleep 0.02; done")
        .stdout(Stdio::null())
        .spawn()
        .map_err(text)?;
    let id = loop {
        let (_, answer) = server.get("/api/v1/runs?status=running")?;
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        let document: serde_json::Value = serde_json::from_str(body).map_err(text)?;
        if let Some(id) = document["runs"][0]["id"].as_str() {
            break id.to_owned();
        }
    };
    let reader = BufReader::new(server.send(&format!("/api/v1/runs/{id}/events"))?);
    let mut times = Vec::new();
    for line in reader.lines() {
        let line = line.map_err(text)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(text)?.as_nanos();
        if line.starts_with("event: end") {
            break;
        }
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let data: serde_json::Value = serde_json::from_str(data).map_err(text)?;
        for piece in data["pieces"].as_array().into_iter().flatten() {
            let stamps = piece["text"].as_str().unwrap_or_default().lines();
            let stamps = stamps.filter_map(|stamp| stamp.parse::<u128>().ok());
            times.extend(stamps.map(|stamp| now.saturating_sub(stamp) as f64 / 1e6));
        }
    }
    child.wait().map_err(text)?;
    // Lines written before the listener connected are not measured.
    let mut times = times.split_off(times.len().min(20));
    if times.is_empty() {
        return Err("nothing was heard".into());
    }
    let (half, most) = (percentile(&mut times, 50), percentile(&mut times, 95));
    page.section(
        "Live output",
        "From a line being written by a program under `retake exec` to its arrival at a listener.",
    );
    page.table(
        &["", "median ms", "p95 ms"],
        &[vec![format!("{} lines", times.len()), format!("{half:.0}"), format!("{most:.0}")]],
    );
    Ok(())
}
