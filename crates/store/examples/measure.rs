//! Measures what the store costs: `cargo run --release -p retake-store --example measure [RUNS]`.
//! With a number it also fills a store with that many runs and times the lists.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_event::{
    CorrelationIds, Ending, EnvPolicy, Intent, Kind, Limits, LoopId, RunId, Stream, Usage, Word,
};
use retake_store::redact::Redactor;
use retake_store::{Filter, Status, Store};

fn intent(command: &str) -> Intent {
    Intent {
        id: RunId::new(),
        kind: Kind::Exec,
        loop_id: LoopId::new(),
        iteration: 1,
        parent_id: None,
        command: command.to_owned(),
        arguments: vec![command.to_owned()],
        arguments_base64: None,
        shell: false,
        working_directory: "/home/user/project".to_owned(),
        environment: EnvPolicy::default(),
        timeout_ms: Some(300_000),
        limits: Limits::default(),
        correlation_ids: CorrelationIds::default(),
        labels: BTreeMap::new(),
        start_time: Timestamp::now(),
        host: "host".to_owned(),
        user: "user".to_owned(),
        version: "0.1.0".to_owned(),
        redacted: true,
    }
}

fn ending(code: i32) -> Ending {
    Ending {
        outcome: Word::Exited,
        exit_code: Some(code),
        signal: None,
        end_time: Timestamp::now(),
        duration_ms: 5,
        stdout_bytes: 0,
        stderr_bytes: 0,
        stdout_raw_bytes: 0,
        stderr_raw_bytes: 0,
        stdout_blake3: None,
        stderr_blake3: None,
        truncated: false,
        leaked: false,
        left_processes: Vec::new(),
        error: None,
        usage: Usage::default(),
        redactions: 0,
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn timed(rounds: usize, mut work: impl FnMut()) -> Duration {
    let rounds = (0..rounds).map(|_| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    });
    median(rounds.collect())
}

/// Log-like lines: times, levels, paths, addresses, an URL now and then.
fn log_text(bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 200);
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let line = match state % 5 {
            0 => format!(
                "2026-11-15T22:{:02}:{:02}Z INFO server: GET https://example.org/api/v1/items/{} 200 in {} ms\n",
                state % 60,
                state % 59,
                state % 100_000,
                state % 900
            ),
            1 => format!(
                "   Compiling crate-{} v0.{}.{} (/home/user/project/crates/c{})\n",
                state % 97,
                state % 9,
                state % 30,
                state % 50
            ),
            2 => format!("test module_{}::case_{} ... ok\n", state % 300, state % 1000),
            3 => format!(
                "[{:>8.3}] warning: unused variable `value_{}` at src/lib.rs:{}:{}\n",
                state as f64 / 1e18,
                state % 77,
                state % 999,
                state % 80
            ),
            _ => format!(
                "{:016x} {:016x} task-{} disk-{} password prompt skipped\n",
                state,
                state.rotate_left(9),
                state % 10,
                state % 4
            ),
        };
        text.extend_from_slice(line.as_bytes());
    }
    text.truncate(bytes);
    text
}

/// As they are: hex keys, base64 tokens, passwords of words.
fn secret(i: u64) -> Vec<u8> {
    let hash = blake3::hash(&i.to_le_bytes());
    match i % 3 {
        0 => hash.to_hex()[..40].to_owned(),
        1 => format!("{}-Horse-{}", ["Correct", "Battery", "staple"][i as usize / 3 % 3], i),
        _ => hash.as_bytes().iter().map(|byte| char::from(b'!' + byte % 90)).take(24).collect(),
    }
    .into_bytes()
}

fn rate(bytes: usize, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

fn redaction() {
    let text = log_text(64 << 20);
    for count in [0, 1, 20, 60, 200] {
        let mut builder = Redactor::builder();
        for i in 0..count {
            builder.secret(format!("SECRET_{i}"), secret(i));
        }
        let build = timed(50, || drop(builder.build().unwrap()));
        let redactor = builder.build().unwrap();
        for chunk in [4 << 10, 256 << 10] {
            let mut out = 0;
            let time = timed(5, || {
                let mut stream = redactor.stream();
                for piece in text.chunks(chunk) {
                    stream.push(piece, &mut |bytes| out += bytes.len());
                }
                stream.finish(&mut |bytes| out += bytes.len());
            });
            println!(
                "redact, {count} secrets, {} KiB pieces: {} (built in {build:?})",
                chunk >> 10,
                rate(text.len(), time)
            );
        }
    }
}

fn capture(root: &Path) {
    let text = log_text(256 << 10);
    let mut store = Store::open(root).unwrap();
    let total = 1 << 30;
    let mut builder = Redactor::builder();
    for i in 0..20 {
        builder.secret(format!("SECRET_{i}"), secret(i));
    }
    let redactor = builder.build().unwrap();
    for (name, redactor) in [("", Redactor::off()), (" and redaction of 20 secrets", redactor)] {
        let mut recording = store.begin(&intent("capture")).unwrap();
        let id = recording.id();
        let mut stream = redactor.stream();
        let begun = Instant::now();
        for _ in 0..total / text.len() {
            stream.push(&text, &mut |bytes| recording.append(Stream::Stdout, bytes));
        }
        stream.finish(&mut |bytes| recording.append(Stream::Stdout, bytes));
        println!("append with hash{name}: {}", rate(total, begun.elapsed()));
        recording.finish(&mut store, ending(0)).unwrap();
        store.delete(id).unwrap();
    }
}

fn durable(root: &Path) {
    let mut store = Store::open(root).unwrap();
    let mut file = std::fs::File::create(root.join("bare")).unwrap();
    let (mut recorded, mut begins, mut bare, mut spoken) = (vec![], vec![], vec![], vec![]);
    for _ in 0..400 {
        let begun = Instant::now();
        let recording = store.begin(&intent("true")).unwrap();
        begins.push(begun.elapsed());
        recording.finish(&mut store, ending(0)).unwrap();
        recorded.push(begun.elapsed());

        let begun = Instant::now();
        let mut recording = store.begin(&intent("echo")).unwrap();
        recording.append(Stream::Stdout, b"hello\n");
        recording.finish(&mut store, ending(0)).unwrap();
        spoken.push(begun.elapsed());

        let begun = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        bare.push(begun.elapsed());
    }
    let mean = |times: &[Duration]| times.iter().sum::<Duration>() / times.len() as u32;
    println!("begin: median {:?}", median(begins));
    println!("begin + finish, silent: mean {:?}", mean(&recorded));
    println!("begin + finish, silent: median {:?}", median(recorded));
    println!("begin + append + finish: mean {:?}", mean(&spoken));
    println!("begin + append + finish: median {:?}", median(spoken));
    println!("bare 4 KiB append + fdatasync: mean {:?}", mean(&bare));
    println!("bare 4 KiB append + fdatasync: median {:?}", median(bare));
    drop(store);
    let cold = timed(200, || drop(Store::open(root).unwrap()));
    println!("open: median {cold:?}");
    let cold = timed(200, || {
        let mut store = Store::open(root).unwrap();
        let recording = store.begin(&intent("true")).unwrap();
        recording.finish(&mut store, ending(0)).unwrap();
    });
    println!("open + begin + finish + close: median {cold:?}");
}

fn lists(root: &Path, runs: u64) {
    let mut store = Store::open(root).unwrap();
    let begun = Instant::now();
    let mut lines = Vec::new();
    for i in 0..runs {
        let mut intent = intent(&format!("cargo test case_{}", i % 500));
        intent.correlation_ids.session_id = Some(format!("session-{}", i / 100));
        if i % 50 == 0 {
            intent.labels.insert("nightly".into(), "yes".into());
        }
        let code = i32::from(i % 20 == 0);
        lines.push(
            serde_json::json!({"run": {"intent": intent, "ending": ending(code), "chunks": ""}}),
        );
        if lines.len() == 1000 {
            let text: String = lines.drain(..).map(|line| format!("{line}\n")).collect();
            store.import(&mut text.as_bytes()).unwrap();
        }
    }
    println!("{runs} runs imported in {:?}", begun.elapsed());
    let size: u64 = std::fs::metadata(store.database_path()).unwrap().len();
    println!("database: {} bytes per run", size / runs.max(1));
    let label = ("nightly".to_owned(), "yes".to_owned());
    for (name, filter) in [
        ("newest 50", Filter::default()),
        ("failed", Filter { status: Some(Status::Failed), ..Filter::default() }),
        ("session", Filter { session_id: Some("session-3".into()), ..Filter::default() }),
        ("label", Filter { labels: vec![label], ..Filter::default() }),
    ] {
        let time = timed(20, || drop(Store::open(root).unwrap().list(&filter, None, 50).unwrap()));
        println!("open + list {name}: {time:?}");
    }
    let begun = Instant::now();
    println!("verify: {:?} in {:?}", store.verify(None).is_ok(), begun.elapsed());
}

fn main() {
    let temp = tempfile::tempdir_in(".").unwrap();
    redaction();
    capture(&temp.path().join("capture"));
    durable(&temp.path().join("durable"));
    if let Some(runs) = std::env::args().nth(1) {
        lists(&temp.path().join("lists"), runs.parse().unwrap());
    }
}
