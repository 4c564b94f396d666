//! A record with examples of everything, for the page.

use jiff::{SignedDuration, Timestamp};
use retake_store::Store;
use retake_store::redact::Redactor;
use retake_types::request::{CommandRequest, LoopPosition, RunRequest};
use retake_types::{
    Intent, Kind, LoopId, Outcome, Redacted, RedactedParts, RunId, RunOutcome, StopReason, Stream,
    Usage,
};
use serde_json::json;

use super::Sandbox;

/// An example run.
pub(crate) struct Shown<'a> {
    pub(crate) command: &'a str,
    pub(crate) ago_minutes: i64,
    pub(crate) ms: u64,
    pub(crate) code: i32,
    pub(crate) output: &'a str,
    pub(crate) of: Option<(Kind, LoopId, u64)>,
    pub(crate) labels: Vec<(String, String)>,
    /// Its effects, as recorded: metrics, test results.
    pub(crate) effects: Option<serde_json::Value>,
}

impl Sandbox {
    pub(crate) fn gallery_store(&self) -> Store {
        Store::open(&self.project().join(".agent/data")).expect("a store")
    }
}

pub(crate) fn add(store: &mut Store, shown: &Shown<'_>) -> RunId {
    let begun = Timestamp::now() - SignedDuration::from_mins(shown.ago_minutes);
    let (kind, loop_id, iteration) = shown.of.unwrap_or((Kind::Exec, LoopId::new(), 0));
    let position = LoopPosition { kind, id: loop_id, iteration };
    let command = CommandRequest::arguments(shown.command, shown.command.split(' '));
    let mut request = RunRequest::new(position, command, "/home/ada/engine");
    request.environment.set("RUST_BACKTRACE", "1");
    request.timeout_ms = Some(600_000);
    request.limits.memory_bytes = Some(4 << 30);
    request.labels = shown.labels.iter().cloned().collect();
    let intent = Intent {
        request,
        redacted: RedactedParts::default(),
        parent_id: None,
        reported_by: None,
        start_time: begun,
        host: "analytical".to_owned(),
        user: "ada".to_owned(),
        version: "0.1.0".to_owned(),
        program: None,
        variables: None,
        inherited_secrets: Vec::new(),
    };
    let mut redactor = Redactor::off();
    let intent = Redacted::new(intent, &mut redactor);
    let mut recording = store.begin(&intent).expect("begun");
    let output = shown.output.as_bytes();
    redactor.stream().push(output, &mut |bytes| recording.append(Stream::Stdout, bytes));
    let ended = begun + SignedDuration::from_millis(shown.ms as i64);
    let outcome = RunOutcome {
        duration_ms: shown.ms,
        stdout_raw_bytes: shown.output.len() as u64,
        usage: Usage { user_cpu_us: shown.ms * 500, max_rss_kb: 210_000, ..Usage::default() },
        effects: shown
            .effects
            .as_ref()
            .map(|effects| serde_json::from_value(effects.clone()).expect("effects")),
        ..RunOutcome::bare(&Outcome::Exited(shown.code), ended)
    };
    recording.finish(store, Redacted::new(outcome, &mut redactor)).expect("finished");
    intent.id()
}

fn plain(command: &str, ago_minutes: i64, ms: u64, code: i32) -> Shown<'_> {
    let output = match code {
        0 => {
            "    Checking engine v0.3.0\n    \u{1b}[1;32mFinished\u{1b}[0m `dev` profile in 4.1s\n"
        }
        _ => {
            "    Checking engine v0.3.0\n\u{1b}[1;31merror\u{1b}[0m[E0308]: mismatched types\n  \
             --> src/planner.rs:41:9\n"
        }
    };
    let (of, labels, effects) = (None, Vec::new(), None);
    Shown { command, ago_minutes, ms, code, output, of, labels, effects }
}

const MODULES: [&str; 6] = ["cart", "checkout", "orders", "parser", "planner", "payment"];
const CASES: [&str; 6] =
    ["adds", "is_idempotent", "never_spins", "rejects_nothing", "round_trip", "survives_a_restart"];

/// A suite in which one test is flaky, one became slower, and one broke towards the end: its exit code, output
/// and results.
fn suite(n: u64) -> (i32, String, serde_json::Value) {
    let mut output =
        "   Compiling engine v0.3.0\n    \u{1b}[1;32mFinished\u{1b}[0m `test` profile in 4.1s\n\n"
            .to_owned();
    let (mut details, mut failed) = (Vec::new(), Vec::new());
    for (at, module) in MODULES.iter().enumerate() {
        for (place, case) in CASES.iter().enumerate() {
            let name = format!("{module}::{case}");
            let fails = match name.as_str() {
                "payment::is_idempotent" => n > 260,
                "planner::never_spins" => n % 7 == 4 || n % 11 == 8,
                _ => false,
            };
            let slower = if name == "orders::survives_a_restart" && n > 240 { 90 } else { 0 };
            let ms = 4 + (at * 31 + place * 17) as u64 % 120 + (n * 7 + at as u64) % 6 + slower;
            let word = if fails { "\u{1b}[31mFAILED" } else { "\u{1b}[32mok" };
            output += &format!("test {name} ... {word}\u{1b}[0m\n");
            let error = fails
                .then_some("assertion `left == right` failed: charged twice\n  left: 2\n right: 1");
            let status = if fails { "failed" } else { "passed" };
            details.push(json!({"name": name, "status": status, "durationMs": ms, "error": error}));
            failed.extend(fails.then_some(name));
        }
    }
    for name in &failed {
        let file = name.split("::").next().unwrap_or_default();
        output += &format!(
            "\n---- {name} stdout ----\nthread '{name}' panicked at src/{file}.rs:214:9:\nassertion `left == right` failed: charged twice\n  left: 2\n right: 1\n"
        );
    }
    let (total, bad) = (details.len(), failed.len());
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    output += &format!("\ntest result: {word}. {} passed; {bad} failed; 0 ignored\n", total - bad);
    let results = json!({"framework": "cargo", "total": total, "passed": total - bad, "failed": bad,
        "skipped": 0, "details": details});
    (if failed.is_empty() { 0 } else { 101 }, output, json!({"testResults": results}))
}

/// Ordinary runs over a week, with idle nights.
pub(crate) fn ordinary(store: &mut Store) {
    let commands = [
        "cargo test --workspace",
        "cargo clippy --all-targets",
        "npm run build",
        "./scripts/deploy.sh --environment staging --region eu-central-1 --wait-for-healthy 120s",
    ];
    for n in 0..300u64 {
        let (day, of_day) = (n / 43, n % 43);
        let ago = (7 * 24 * 60 - day * 24 * 60 - of_day * 24) as i64;
        let ms = 2000 + (n * 7919 % 20_000) * (1 + n % 4);
        let code = i32::from(n % 11 == 3);
        let shown = plain(commands[(n % 4) as usize], ago, ms, code);
        if n % 4 == 0 {
            let (code, output, effects) = suite(n);
            add(store, &Shown { code, output: &output, effects: Some(effects), ..shown });
        } else {
            add(store, &shown);
        }
    }
}

/// A matrix of two versions and two sizes, one of which became slower.
pub(crate) fn matrix(store: &mut Store, purpose: &str) -> LoopId {
    let refs = ["v1.0", "v1.1", "v1.2", "main"];
    let axes = json!({"code": refs, "size": ["small", "large"]});
    let plan = json!({"purpose": purpose, "command": "./bench --size {size}", "axes": axes});
    let recording =
        store.begin_loop(Kind::Matrix, &Redacted::new(plan, &mut Redactor::off())).expect("begun");
    let id = recording.id();
    for iteration in 0..12u64 {
        for (at, code) in refs.iter().enumerate() {
            for (place, size) in ["small", "large"].iter().enumerate() {
                let slower = if at >= 2 { 1.35 } else { 1.0 - at as f64 * 0.08 };
                let noise = 1.0 + ((iteration * 37 + at as u64 * 11) % 13) as f64 / 150.0;
                let value = 120.0 * slower * noise * (1.0 + place as f64 * 1.8);
                let key = format!("{:032x}", at * 2 + place + 1);
                let labels = [
                    ("matrix.key", key.as_str()),
                    ("matrix.axis.code", code),
                    ("matrix.axis.size", size),
                ];
                add(
                    store,
                    &Shown {
                        command: "./bench",
                        of: Some((Kind::Matrix, id, iteration)),
                        labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
                        effects: Some(json!({"metrics": {
                            "wall": {"value": value, "unit": "ms", "better": "lower"},
                            "parse": {"value": value / 3.0, "unit": "ms", "better": "lower"},
                        }})),
                        ..plain(
                            "",
                            40 + iteration as i64 * 800,
                            value as u64,
                            i32::from(purpose.starts_with("bisect") && at >= 2),
                        )
                    },
                );
            }
        }
    }
    recording.finish(store, &StopReason::Completed).expect("ended");
    id
}

/// A bisection over commits by a metric: the points between two ends, measured in turn with the good
/// one, and its answer.
pub(crate) fn bisection(store: &mut Store) -> LoopId {
    const FIRST_BAD: usize = 13;
    let commit = |n: u64| {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{mixed:016x}{:016x}{n:08x}", mixed.rotate_left(29))
    };
    let commits: Vec<String> = (1..=24).map(commit).collect();
    let plan = json!({"purpose": "bisect code", "command": "./bench --size small",
        "axes": {"code": commits}});
    let mut recording =
        store.begin_loop(Kind::Matrix, &Redacted::new(plan, &mut Redactor::off())).expect("begun");
    let id = recording.id();
    let mut judged = Vec::new();
    let mut n = 0u64;
    for (point, samples) in [(23, 5), (11, 5), (17, 4), (14, 5), (12, 7), (13, 6)] {
        for _ in 0..samples {
            for at in [0, point] {
                let slower = if at >= FIRST_BAD { 1.21 } else { 1.0 };
                let value = 120.0 * slower * (1.0 + (n * 37 % 13) as f64 / 150.0);
                let key = format!("{:032x}", at + 100);
                let labels = [("matrix.key", key.as_str()), ("matrix.axis.code", &commits[at])];
                let metrics = json!({"wall": {"value": value, "unit": "ms", "better": "lower"}});
                let shown = Shown {
                    command: "./bench",
                    of: Some((Kind::Matrix, id, n)),
                    labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
                    effects: Some(json!({"metrics": metrics})),
                    ..plain("", 9000 - n as i64 * 140, value as u64, 0)
                };
                add(store, &shown);
                n += 1;
            }
        }
        let verdict = if point >= FIRST_BAD { "bad" } else { "good" };
        judged.push(json!({"point": commits[point], "verdict": verdict, "samples": samples}));
    }
    judged.push(json!({"point": commits[0], "verdict": "good", "samples": n / 2}));
    let (good, bad) = (&commits[FIRST_BAD - 1], &commits[FIRST_BAD]);
    let sentence = format!("{good} is the last good and {bad} the first bad commit (99.2 % sure)");
    let answer = json!({"axis": "code", "lastGood": good, "firstBad": bad, "confidence": 0.992,
        "monotone": true, "steps": judged, "subject": "parse headers eagerly", "sentence": sentence});
    let answer = json!({"event": "answer", "answer": answer});
    recording.append(store, &[answer], &mut Redactor::off()).expect("told");
    recording.finish(store, &StopReason::Completed).expect("ended");
    id
}

/// The events of a crash loop: too many for one page.
pub(crate) fn crash(store: &mut Store) -> LoopId {
    let plan = json!({"purpose": "run", "command": "./ledger --append 60", "root": "/home/ada/ledger",
        "verify": "./ledger --check", "model": "ext4", "jobs": 2, "verifyTimeoutMs": 30000, "seed": 0,
        "recovery": false});
    let mut recording =
        store.begin_loop(Kind::Crash, &Redacted::new(plan, &mut Redactor::off())).expect("begun");
    let id = recording.id();
    let mut steps = Vec::new();
    let (mut number, mut acknowledgements, mut labels) = (0, 0, 0);
    let mut operation = |event: &str, call: &str, text: String| {
        number += 1;
        json!({"event": event, "number": number, "sort": "content", "call": call, "task": 1,
            "files": ["wal.log"], "text": text})
    };
    for n in 0..320 {
        let place = format!("write `wal.log` bytes {}–{}", n * 128, n * 128 + 128);
        steps.push(operation("operation", "pwrite64", place));
        if n % 5 == 4 {
            steps.push(operation("sync", "fdatasync", "sync the bytes of `wal.log`".to_owned()));
            acknowledgements += 1;
            steps.push(json!({"event": "acknowledgement", "sort": "acknowledgement", "task": 0,
                "text": format!("entry {n}")}));
        }
        if n % 40 == 0 {
            labels += 1;
            steps.push(json!({"event": "label", "sort": "label", "task": 0,
                "text": format!("batch {}", n / 40)}));
        }
    }
    let mut events = vec![json!({"event": "recorded", "run": null, "operations": number,
        "calls": {"pwrite64": 320, "fdatasync": 64}, "acknowledgements": acknowledgements,
        "labels": {"batch": labels}, "labelsLeftOut": 0, "stepsLeftOut": 0})];
    events.extend(steps);
    events.push(json!({"event": "states", "points": number + 1, "states": 5120, "distinct": 2304,
        "coverage": format!("{} crash points, 2304 distinct states", number + 1)}));
    for (id, lost) in [("F1", 41), ("F2", 380)] {
        events.push(json!({"event": "finding", "id": id, "states": 12, "key": "k", "files": ["wal.log", "index"],
            "sentence": format!("the write of `wal.log` (op {lost}) is lost though `entry 34` was acknowledged: `fdatasync` it before"),
            "lostOperations": [lost, lost - 1], "operation": lost + 1, "label": "batch 0", "acknowledgements": 7,
            "verdict": "exits with 1", "output": "entry 34 is gone\n",
            "repro": format!("retake crash repro {id} .agent/data/crash/1.log")}));
    }
    events.push(json!({"event": "finished", "verified": 2304, "complete": true}));
    recording.append(store, &events, &mut Redactor::off()).expect("told");
    recording.finish(store, &StopReason::Findings).expect("ended");
    id
}
