//! Output that was changed directly: found by `audit verify` and `doctor`, and refused by
//! everything that reads output, with exit 1.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde_json::json;

use crate::common::Sandbox;

/// Some megabytes of lines, each different.
const LARGE: &str = "seq 1 400000";

impl Sandbox {
    /// The only file with output.
    fn output_file(&self) -> PathBuf {
        let (mut left, mut found) = (vec![self.store()], Vec::new());
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).expect("readable") {
                let path = entry.expect("readable").path();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                if path.is_dir() {
                    left.push(path);
                } else if name.ends_with(".stdout") || name.ends_with(".zst") {
                    found.push(path);
                }
            }
        }
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        let file = fs::OpenOptions::new().write(true).open(self.output_file()).expect("opened");
        file.write_all_at(bytes, at).expect("written");
    }
}

#[test]
fn an_edited_output_is_found_and_not_shown() {
    let sandbox = Sandbox::new();
    let run = sandbox.recorded(LARGE);
    let other = sandbox.recorded("seq 1 10; echo fine >&2");
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
    sandbox.overwrite(1_500_000, b"X");

    let verified = sandbox.retake(&["audit", "verify"]);
    assert_eq!(verified.code, 1);
    assert_eq!(
        verified.stdout,
        format!(
            "BROKEN entry 2: the stdout was altered: bytes 1048576 to 2097152 are not those recorded (run {run})\n"
        )
    );
    let json = sandbox.retake(&["audit", "verify", "--json"]).json();
    assert_eq!((&json["ok"], &json["kind"]), (&json!(false), &json!("output")));
    assert_eq!(json["breaks"][0]["runId"], json!(run));
    let quick = sandbox.retake(&["audit", "verify", "--quick"]);
    assert_eq!(quick.code, 0, "contents are left out: {}", quick.snapshot());
    assert!(quick.stderr.contains("outputs were not read"), "{}", quick.stderr);
    let doctor = sandbox.retake(&["doctor"]);
    assert_eq!(doctor.code, 1);
    assert!(
        doctor.stdout.contains(&format!("the stdout of run {run} was altered")),
        "{}",
        doctor.stdout
    );
    assert_eq!(sandbox.retake(&["doctor", "--quick"]).code, 0);

    for arguments in [
        &["runs", "logs", &run][..],
        &["runs", "logs", &run, "--stdout"],
        &["runs", "logs", &run, "--json"],
        &["runs", "logs", &run, "--follow"],
        &["runs", "logs", &run, "--head", "250000"],
        &["runs", "logs", &run, "--tail", "250000"],
        &["runs", "diff", &run, &other],
        &["runs", "export"],
    ] {
        let called = sandbox.retake(arguments);
        assert_eq!(called.code, 1, "{arguments:?}: {}", called.stderr);
        assert!(called.stderr.contains("was altered"), "{arguments:?}: {}", called.stderr);
        assert!(called.stderr.contains(&run), "{arguments:?}: {}", called.stderr);
        // In an export the bytes are base64; 1.5 MB of it would have to be there.
        let shown = if arguments[1] == "export" {
            called.stdout.len() > 2_000_000
        } else {
            called.stdout.contains('X')
        };
        assert!(!shown, "{arguments:?} shows altered bytes");
    }
    // Unaltered parts are still readable.
    let tail = sandbox.retake(&["runs", "logs", &run, "--tail", "2"]);
    assert_eq!((tail.code, &*tail.stdout), (0, "399999\n400000\n"));
    assert_eq!(sandbox.retake(&["runs", "logs", &other, "--stderr"]).stdout, "fine\n");
}

#[test]
fn a_lost_or_truncated_output_is_reported_by_every_command() {
    for cut in [false, true] {
        let sandbox = Sandbox::new();
        let run = sandbox.recorded(LARGE);
        let file = sandbox.output_file();
        if cut {
            let file = fs::OpenOptions::new().write(true).open(&file).expect("opened");
            file.set_len(1000).expect("cut");
        } else {
            fs::remove_file(&file).expect("removed");
        }
        let word = if cut { "was altered" } else { "is lost" };
        for arguments in [
            &["audit", "verify"][..],
            &["audit", "verify", "--quick"],
            &["doctor"],
            &["doctor", "--quick"],
            &["runs", "logs", &run],
            &["runs", "logs", &run, "--tail", "1"],
        ] {
            let called = sandbox.retake(arguments);
            assert_eq!(called.code, 1, "{arguments:?}: {}", called.snapshot());
            let said = called.stdout + &called.stderr;
            assert!(said.contains(word), "{arguments:?}: {said}");
        }
        let shown = sandbox.retake(&["runs", "show", &run]);
        assert_eq!(shown.code, 0);
        assert!(
            shown.stdout.contains(&format!("damaged     the stdout of run {run} {word}")),
            "{}",
            shown.stdout
        );
        let found = sandbox.retake(&["runs", "search", "250000", "--all"]);
        assert_eq!(found.code, 1, "{}", found.snapshot());
        assert!(found.stderr.contains("and is omitted"), "{}", found.stderr);
        let found = sandbox.retake(&["runs", "search", "250000", "--all", "--json"]).json();
        assert_eq!(found["damaged"], json!([{"run": run, "stream": "stdout"}]));
        assert_eq!(found["hits"], json!([]));
        sandbox.retake(&["runs", "delete", &run]);
        assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
    }
}

#[test]
fn a_small_output_in_the_database_is_covered_too() {
    let sandbox = Sandbox::new();
    let run = sandbox.recorded("echo true story");
    sandbox.tamper("UPDATE outputs SET content = CAST('tall story' || char(10) AS BLOB)");
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 1);
    let logs = sandbox.retake(&["runs", "logs", &run]);
    assert_eq!((logs.code, &*logs.stdout), (1, ""), "{}", logs.stderr);
    assert!(sandbox.retake(&["runs", "search", "tall"]).stdout.is_empty());
}

#[test]
fn an_entry_that_cannot_be_read_hides_no_other_run() {
    for damage in
        ["UPDATE ledger SET body = NULL WHERE seq = 3", "DELETE FROM ledger WHERE seq = 4"]
    {
        let sandbox = Sandbox::new();
        let runs = ["one", "two", "three"].map(|word| sandbox.recorded(&format!("echo {word}")));
        sandbox.tamper(damage);
        let listed = sandbox.retake(&["runs", "list", "--json"]);
        assert_eq!(listed.code, 1, "{}", listed.snapshot());
        assert!(listed.stderr.contains("a run is left out: ledger entry"), "{}", listed.stderr);
        let list = listed.json();
        let ids: Vec<_> = list.as_array().unwrap().iter().map(|run| run["id"].clone()).collect();
        assert_eq!(ids, [json!(runs[2]), json!(runs[0])], "{damage}");
        let exported = sandbox.retake(&["runs", "export"]);
        assert_eq!(exported.code, 1, "{}", exported.stderr);
        assert!(exported.stdout.contains(&runs[0]) && exported.stdout.contains(&runs[2]));
        assert!(exported.stderr.contains("ledger entry"), "{}", exported.stderr);
        assert_eq!(sandbox.retake(&["runs", "show", &runs[1]]).code, 1);
        // Damaged output is not erased with the rest.
        assert_eq!(sandbox.retake(&["runs", "prune", "--older-than", "0s"]).code, 0);
        assert_eq!(sandbox.retake(&["audit", "verify"]).code, 1);
    }
}
