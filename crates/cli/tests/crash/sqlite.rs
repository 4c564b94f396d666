//! SQLite in its journal modes: the findings must match its documentation of
//! `PRAGMA synchronous`, no more and no less.

use serde_json::Value;

use crate::env::Env;

/// Each printed number is a committed row.
const WORKLOAD: &str = r#"
import os, sqlite3, sys
mode, synchronous = sys.argv[1:3]
base = sqlite3.connect(os.environ["FIRST_WORK_DIR"] + "/db", isolation_level=None)
base.execute("PRAGMA cache_size = 10")
base.execute("PRAGMA synchronous = " + synchronous)
base.execute("PRAGMA journal_mode = " + mode)
for number in (1, 2):
    base.execute("BEGIN")
    base.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 3000))
    base.execute("UPDATE n SET value = ?", (number,))
    base.execute("COMMIT")
    print(number, flush=True)
"#;

/// Intact, and as promised. `whole` requires only the former.
fn check(whole: bool) -> String {
    let sql = "PRAGMA integrity_check; SELECT coalesce(max(number), 0), count(*) FROM t; SELECT value FROM n;";
    let least = if whole { "0" } else { "$(wc -l < \"$FIRST_ACKS\")" };
    format!(
        "found=$(sqlite3 \"$FIRST_WORK_DIR/db\" '{sql}' | tr '\\n|' '  '); set -- $found; \
         test \"$1\" = ok && test \"$2\" = \"$3\" && test \"$2\" = \"$4\" && test \"$2\" -ge {least} \
         || {{ echo \"$found\"; exit 1; }}"
    )
}

fn answer(mode: &str, synchronous: &str, model: &str, whole: bool) -> Value {
    let env = Env::new();
    let workload = env.sandbox.file("workload.py", WORKLOAD);
    // The tables exist before: only two transactions matter.
    let made = env.sandbox.sh(
        "sqlite3 root/db 'PRAGMA page_size = 1024; CREATE TABLE t (number INTEGER, text TEXT); \
         CREATE TABLE n (value INTEGER); INSERT INTO n VALUES (0);'",
    );
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let check = check(whole);
    let workload = workload.to_str().unwrap();
    let called = env.crash(&[
        "--root",
        "root",
        "--json",
        "--model",
        model,
        "--verify",
        &check,
        "--",
        "python3",
        workload,
        mode,
        synchronous,
    ]);
    assert!(called.code < 2, "{}", called.snapshot());
    let answer = called.json();
    assert_eq!(answer["complete"], true);
    answer
}

fn clean(mode: &str, synchronous: &str, model: &str, whole: bool) -> bool {
    let answer = answer(mode, synchronous, model, whole);
    answer["findings"].as_array().unwrap().is_empty()
}

#[test]
fn a_kill_loses_nothing_whatever_is_synced() {
    for (mode, synchronous) in [("DELETE", "OFF"), ("WAL", "OFF")] {
        assert!(clean(mode, synchronous, "kill", false), "{mode} {synchronous}");
    }
}

/// "WAL mode is safe from corruption with synchronous=NORMAL", and durable from FULL on.
#[test]
fn wal_is_durable_from_full_on_and_whole_from_normal_on() {
    assert!(clean("WAL", "FULL", "ext4", false));
    assert!(clean("WAL", "EXTRA", "posix", false));
    assert!(!clean("WAL", "NORMAL", "ext4", false));
    assert!(clean("WAL", "NORMAL", "ext4", true));
}

/// EXTRA "syncs the directory containing a rollback journal after that journal is unlinked"; with
/// FULL a commit may roll back after a power loss, and nothing is corrupt.
#[test]
fn a_rollback_journal_is_durable_with_extra_and_whole_with_full() {
    assert!(clean("DELETE", "EXTRA", "ext4", false));
    assert!(!clean("DELETE", "FULL", "ext4", false));
    assert!(clean("DELETE", "FULL", "ext4", true));
    assert!(!clean("DELETE", "NORMAL", "ext4", false));
}

/// "With synchronous OFF the database might become corrupted if the operating system crashes."
#[test]
fn without_syncs_a_power_loss_corrupts() {
    assert!(!clean("DELETE", "OFF", "posix", true));
    assert!(!clean("WAL", "OFF", "posix", false));
}
