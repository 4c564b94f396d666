//! `retake self-test`: verifies on this machine what retake promises, with real runs in a temporary
//! project.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use retake_runner::confined;
use retake_runner::project::Project;
use retake_types::SandboxLevel;
use serde::Serialize;

use super::{Exit, Failure};
use crate::own_runs::{Answer, OwnRuns};
use crate::term;

/// Check that capture, processes, limits, record and sandbox work on this machine
///
/// Takes less than a minute. Real commands run in a temporary project, which is removed
/// afterwards. Exits 1 when something does not work, and reports what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// One promise and whether it is kept here.
#[derive(Serialize)]
struct CheckResult {
    area: &'static str,
    promise: &'static str,
    /// Kept, or not promised here.
    ok: bool,
    promised: bool,
    /// What was observed instead, or why it is not promised here.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    ok: bool,
    retake_version: &'static str,
    checks: &'a [CheckResult],
}

/// The result of a check.
enum Seen {
    Kept,
    /// What happened instead.
    Broken(String),
    /// Why it cannot be kept on this machine, as the guide describes.
    NotPromised(String),
}

struct Check {
    area: &'static str,
    promise: &'static str,
    run: fn(&mut OwnRuns) -> io::Result<Seen>,
}

const CHECKS: [Check; 15] = [
    Check { area: "capture", promise: "output passes through byte for byte", run: bytes_pass },
    Check { area: "capture", promise: "output is recorded byte for byte", run: bytes_are_recorded },
    Check { area: "capture", promise: "exit codes pass through", run: exit_codes },
    Check { area: "processes", promise: "a timeout terminates the whole tree", run: timeout },
    Check { area: "processes", promise: "a daemon that detaches is terminated", run: daemon },
    Check { area: "processes", promise: "nothing survives kill -9 of retake", run: killed_runner },
    Check { area: "limits", promise: "CPU time of a tree", run: cpu_limit },
    Check { area: "limits", promise: "memory of a tree", run: memory_limit },
    Check { area: "limits", promise: "processes of a tree", run: process_limit },
    Check { area: "record", promise: "a run killed in the middle is marked", run: interrupted },
    Check { area: "record", promise: "secrets do not reach the disk", run: secrets },
    Check { area: "sandbox", promise: "writing outside of the project is denied", run: outside },
    Check { area: "sandbox", promise: "the record cannot be read from inside", run: own_record },
    Check { area: "sandbox", promise: "there is no network", run: network },
    // Must be last: it damages the record.
    Check { area: "record", promise: "an edit of the record is found", run: tampering },
];

pub(crate) fn self_test(args: &Args) -> Result<Exit, Failure> {
    let mut runs = OwnRuns::new("self-test")?;
    let made = runs.ask(&[], &["init"]);
    let mut results = Vec::new();
    for check in &CHECKS {
        let seen = match (&made, (check.run)(&mut runs)) {
            (Err(error), _) => Seen::Broken(format!("could not create a project: {error}")),
            (_, Ok(seen)) => seen,
            (_, Err(error)) => Seen::Broken(error.to_string()),
        };
        if runs.is_stopped() {
            break;
        }
        let result = CheckResult::new(check, seen);
        if !args.json {
            term::data(result.line().as_bytes())?;
        }
        results.push(result);
    }
    if let Some(signal) = runs.end() {
        term::say(&format!("stopped after {} of {} checks", results.len(), CHECKS.len()));
        return Ok(Exit::Signal(signal));
    }
    let broken = results.iter().filter(|result| !result.ok).count();
    if args.json {
        let document = Document {
            ok: broken == 0,
            retake_version: env!("CARGO_PKG_VERSION"),
            checks: &results,
        };
        term::document(&document)?;
    } else if broken == 0 {
        term::data(b"everything works here\n")?;
    } else {
        let of = CHECKS.len();
        term::data(format!("{broken} of {of} checks failed; please report it together with the file that `retake doctor --report FILE` writes\n").as_bytes())?;
    }
    Ok(if broken == 0 { Exit::OK } else { Exit::FAILED })
}

impl CheckResult {
    fn new(check: &Check, seen: Seen) -> Self {
        let (ok, promised, why) = match seen {
            Seen::Kept => (true, true, None),
            Seen::Broken(why) => (false, true, Some(why)),
            Seen::NotPromised(why) => (true, false, Some(why)),
        };
        Self { area: check.area, promise: check.promise, ok, promised, why }
    }

    fn line(&self) -> String {
        let mark = match (self.ok, self.promised) {
            (false, _) => '✗',
            (true, true) => '✓',
            (true, false) => '-',
        };
        let why = self.why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
        format!("{mark} {:<11}{}{}\n", self.area, self.promise, term::visible(&why))
    }
}

/// Broken with this message unless `holds`.
fn unless(holds: bool, what: impl FnOnce() -> String) -> io::Result<Seen> {
    Ok(if holds { Seen::Kept } else { Seen::Broken(what()) })
}

/// How a run ended instead.
fn ended(answer: &Answer) -> String {
    let last = String::from_utf8_lossy(&answer.stderr);
    let last = last.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
    match answer.exit_code {
        Some(code) => format!("exit code {code}, {last}"),
        None => format!("killed, {last}"),
    }
}

/// Every byte except those that end a line.
fn every_byte() -> (String, Vec<u8>) {
    let script: String = (0..=255).map(|byte| format!("\\{byte:03o}")).collect();
    (format!("printf '{script}'"), (0..=255).collect())
}

fn bytes_pass(runs: &mut OwnRuns) -> io::Result<Seen> {
    let (script, expected) = every_byte();
    let answer = runs.ask(&[], &["exec", "--", "sh", "-c", &script])?;
    unless(answer.stdout == expected, || ended(&answer))
}

fn bytes_are_recorded(runs: &mut OwnRuns) -> io::Result<Seen> {
    let (script, expected) = every_byte();
    runs.ask(&[], &["exec", "--quiet", "--", "sh", "-c", &script])?;
    let answer = runs.ask(&[], &["runs", "logs", "last"])?;
    unless(answer.stdout == expected, || ended(&answer))
}

fn exit_codes(runs: &mut OwnRuns) -> io::Result<Seen> {
    let answer = runs.ask(&[], &["exec", "--", "sh", "-c", "exit 42"])?;
    unless(answer.exit_code == Some(42), || ended(&answer))
}

fn timeout(runs: &mut OwnRuns) -> io::Result<Seen> {
    let tree = "setsid sh -c 'echo $$ > inner.pid; exec sleep 600' & wait";
    let answer = runs.ask(&[], &["exec", "--timeout", "1", "--", "sh", "-c", tree])?;
    if answer.exit_code != Some(124) {
        return Ok(Seen::Broken(ended(&answer)));
    }
    is_gone(runs, "inner.pid")
}

fn daemon(runs: &mut OwnRuns) -> io::Result<Seen> {
    let daemon = "(setsid sh -c 'echo $$ > daemon.pid; exec sleep 600' > /dev/null 2>&1 &)
        while [ ! -s daemon.pid ]; do sleep 0.01; done";
    let answer = runs.ask(&[], &["exec", "--", "sh", "-c", daemon])?;
    if answer.exit_code != Some(0) {
        return Ok(Seen::Broken(ended(&answer)));
    }
    is_gone(runs, "daemon.pid")
}

/// Starts a run, kills its runner, and waits until the command is gone.
const KILL: &str = r#"
    "$RETAKE" exec -- sh -c 'echo $$ > child.pid; exec sleep 600' &
    runner=$!
    while [ ! -s child.pid ]; do sleep 0.01; done
    kill -KILL $runner
    tries=0
    while kill -0 "$(cat child.pid)" 2> /dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 500 ] || exit 1
        sleep 0.01
    done
    exit 0"#;

fn killed_runner(runs: &mut OwnRuns) -> io::Result<Seen> {
    let answer = runs.script(KILL)?;
    unless(answer.exit_code == Some(0), || "the command still runs five seconds later".to_owned())
}

fn interrupted(runs: &mut OwnRuns) -> io::Result<Seen> {
    // The run of the check before this one, whose runner was killed.
    let answer = runs.ask(&[], &["runs", "list", "--json"])?;
    let list: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    let marked = list.as_array().is_some_and(|runs| {
        runs.iter().any(|run| run["state"] == "interrupted" || run["outcome"] == "interrupted")
    });
    unless(marked, || "no run in the list is marked as interrupted".to_owned())
}

fn cpu_limit(runs: &mut OwnRuns) -> io::Result<Seen> {
    limit(runs, "cpu=0.2s", "while :; do :; done")
}

fn memory_limit(runs: &mut OwnRuns) -> io::Result<Seen> {
    // A single line without an end, which tail keeps in memory.
    limit(runs, "memory=64M", "head -c 300000000 /dev/zero | tail -n 1")
}

/// A command that exceeds a limit is terminated because of it.
fn limit(runs: &mut OwnRuns, limit: &str, script: &str) -> io::Result<Seen> {
    let line = ["exec", "--quiet", "--json", "--limit", limit, "--timeout", "20", "--"];
    let answer = runs.ask(&[], &[&line[..], &["sh", "-c", script]].concat())?;
    let run: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    unless(run["outcome"] == "limit_exceeded", || ended(&answer))
}

fn process_limit(runs: &mut OwnRuns) -> io::Result<Seen> {
    // Prints a dot for each process that could be started. Without a cgroup the tree is counted and
    // terminated a moment later.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 5 & printf .; done; wait";
    let line = ["exec", "--quiet", "--json", "--limit", "procs=6", "--", "sh", "-c", script];
    let answer = runs.ask(&[], &line)?;
    let run: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    let started = run["stdout"].as_str().unwrap_or_default().len();
    let ended_by_limit = run["outcome"] == "limit_exceeded";
    unless(ended_by_limit || (1..6).contains(&started), || {
        format!("{started} processes could be started")
    })
}

fn secrets(runs: &mut OwnRuns) -> io::Result<Seen> {
    let value = "self-test-0451-not-a-real-secret";
    let answer = runs.ask(
        &[("API_TOKEN", value)],
        &["exec", "--", "sh", "-c", "echo using $API_TOKEN; echo $API_TOKEN >&2"],
    )?;
    if answer.exit_code != Some(0) {
        return Ok(Seen::Broken(ended(&answer)));
    }
    let store = store(runs)?;
    let found = first_with(&store, value.as_bytes())?;
    unless(found.is_none(), || format!("{} has it", found.unwrap_or_default().display()))
}

/// The first file below a directory that contains these bytes.
fn first_with(directory: &Path, bytes: &[u8]) -> io::Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if let Some(found) = first_with(&path, bytes)? {
                return Ok(Some(found));
            }
        } else if kind.is_file() {
            let content = match std::fs::read(&path) {
                // A temporary file of the record that is gone.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                content => content?,
            };
            if content.windows(bytes.len()).any(|window| window == bytes) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

fn tampering(runs: &mut OwnRuns) -> io::Result<Seen> {
    let before = runs.ask(&[], &["audit", "verify"])?;
    if before.exit_code != Some(0) {
        return Ok(Seen::Broken(format!(
            "the record is damaged before the edit: {}",
            ended(&before)
        )));
    }
    let database = store(runs)?.join("retake.db");
    let connection = rusqlite::Connection::open(&database).map_err(io::Error::other)?;
    let edited = connection
        .execute("UPDATE runs SET exit_code = 0, status = 0 WHERE exit_code = 42", [])
        .map_err(io::Error::other)?;
    drop(connection);
    let after = runs.ask(&[], &["audit", "verify"])?;
    unless(edited > 0 && after.exit_code == Some(1), || ended(&after))
}

fn outside(runs: &mut OwnRuns) -> io::Result<Seen> {
    let file = runs.home().join("outside");
    let path = file.to_string_lossy().into_owned();
    let script = "echo inside > inside && echo outside > \"$1\"";
    if let Some(broken) = confined(runs, &["sh", "-c", script, "sh", &path])?.err() {
        return Ok(Seen::Broken(broken));
    }
    if !runs.project().join("inside").is_file() {
        return Ok(Seen::Broken("writing to the project is denied, too".to_owned()));
    }
    unless(!file.exists(), || format!("{path} was written"))
}

fn own_record(runs: &mut OwnRuns) -> io::Result<Seen> {
    if confined::probe().level == Some(SandboxLevel::Landlock) {
        return Ok(Seen::NotPromised(
            "without namespaces a record inside the project cannot be protected".to_owned(),
        ));
    }
    let database = store(runs)?.join("retake.db");
    let path = database.to_string_lossy().into_owned();
    match confined(runs, &["cat", &path])? {
        Err(broken) => Ok(Seen::Broken(broken)),
        Ok(answer) => unless(!answer.stdout.starts_with(b"SQLite"), || "it can be read".to_owned()),
    }
}

fn network(runs: &mut OwnRuns) -> io::Result<Seen> {
    let host = std::net::TcpListener::bind("127.0.0.1:0")?;
    host.set_nonblocking(true)?;
    let port = host.local_addr()?.port().to_string();
    // Most machines have bash, which can connect. Another shell fails, which also counts as kept.
    let script = "exec 3<> \"/dev/tcp/127.0.0.1/$1\"";
    let shell = if Path::new("/bin/bash").exists() { "bash" } else { "sh" };
    if let Some(broken) = confined(runs, &[shell, "-c", script, "sh", &port])?.err() {
        return Ok(Seen::Broken(broken));
    }
    let reached = host.accept().is_ok();
    unless(!reached, || "a server on this machine was reached".to_owned())
}

/// Runs a command in the strictest sandbox that this machine supports; `Err` with the reason without one.
fn confined(runs: &mut OwnRuns, words: &[&str]) -> io::Result<Result<Answer, String>> {
    let probe = confined::probe();
    let lacking =
        || probe.lacking.as_ref().map_or_else(String::new, |lacking| format!(": {lacking}"));
    let mode = match probe.level {
        Some(SandboxLevel::Full) => "--sandbox=strict",
        Some(SandboxLevel::Landlock) => "--sandbox=best-effort",
        None => return Ok(Err(format!("this machine supports no sandbox{}", lacking()))),
    };
    runs.ask(&[], &[&["exec", mode, "--"], words].concat()).map(Ok)
}

fn store(runs: &OwnRuns) -> io::Result<PathBuf> {
    let project = Project::find(&runs.project(), None).map_err(io::Error::other)?;
    project.store().map(Path::to_owned).map_err(io::Error::other)
}

/// The process whose pid is in a file no longer runs.
fn is_gone(runs: &OwnRuns, file: &str) -> io::Result<Seen> {
    let pid = std::fs::read_to_string(runs.project().join(file))?;
    let status = Path::new("/proc").join(pid.trim()).join("comm");
    let command = std::fs::read_to_string(status).unwrap_or_default();
    unless(command.trim() != "sleep", || format!("process {} still runs", pid.trim()))
}
