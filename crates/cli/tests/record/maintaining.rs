//! Proving, moving, erasing and repairing the record with the real program, and the
//! configuration around it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, alive, called, eventually, on_disk};

#[test]
fn an_untouched_record_verifies_and_a_touched_one_does_not() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo one");
    sandbox.recorded("echo two");
    let head = sandbox.retake(&["audit", "head"]).stdout.trim().to_owned();
    assert_eq!(
        sandbox.settled_call(&["audit", "verify"]),
        "exit 0\n\
         stdout: OK 4:HASH\n\
         stderr: retake: 2 runs in 4 entries; 8 B of output read\n\
         stderr: retake: keep this head elsewhere: `retake audit verify --expect HEAD` then also detects a truncated or rewritten chain\n"
    );
    let json = sandbox.retake(&["audit", "verify", "--json", "--expect", &head]).json();
    assert_eq!(
        (&json["ok"], &json["head"], &json["runs"]),
        (&true.into(), &head.as_str().into(), &2.into())
    );
    assert_eq!(sandbox.retake(&["audit", "head", "--json"]).json()["entries"], 4);
    assert_eq!(sandbox.retake(&["audit", "verify", "--expect", "nonsense"]).code, 2);

    sandbox.tamper(
        "UPDATE ledger SET body = CAST(replace(CAST(body AS TEXT), 'echo two', 'echo 2wo') AS BLOB) WHERE seq = 3",
    );
    assert_eq!(
        sandbox.settled_call(&["audit", "verify"]),
        "exit 1\n\
         stdout: BROKEN entry 3: its body was edited\n\
         stderr: retake: the record was changed after retake wrote it; compare it with a backup (`retake runs show` can still read it)\n"
    );
    let broken = sandbox.retake(&["audit", "verify", "--json"]);
    assert_eq!(broken.code, 1);
    assert_eq!(
        (&broken.json()["kind"], &broken.json()["entry"]),
        (&"edited_body".into(), &3.into())
    );
}

#[test]
fn a_cut_tail_is_found_with_a_head_kept_elsewhere() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo one");
    sandbox.recorded("true");
    let head = sandbox.retake(&["audit", "head"]).stdout.trim().to_owned();
    sandbox.tamper("DELETE FROM runs WHERE seq = 3; DELETE FROM ledger WHERE seq > 2");
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0, "the rest is a chain");
    let cut = sandbox.retake(&["audit", "verify", "--expect", &head]);
    assert_eq!(cut.code, 1);
    assert_eq!(
        cut.stdout,
        "BROKEN the ledger ends at entry 2, but 4 were expected: the tail was cut off\n"
    );
    // Grown to the same length again: a different chain.
    sandbox.recorded("true");
    let rewritten = sandbox.retake(&["audit", "verify", "--expect", &head, "--json"]);
    assert_eq!((rewritten.code, &rewritten.json()["kind"]), (1, &"rewritten".into()));
}

#[test]
fn a_killed_runner_leaves_an_interrupted_run_and_no_processes() {
    let sandbox = Sandbox::new();
    let script = "echo partial; sleep 99 & echo $! >&2; wait";
    let mut runner = sandbox
        .command(RETAKE)
        .args(["exec", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(runner.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let sleeper: i32 = line.trim().parse().unwrap();
    let pid = runner.id() as i32;
    let keeper = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let keeper: i32 = keeper.split_whitespace().next().unwrap().parse().unwrap();
    // SAFETY: a signal to a process this test started.
    let signal = |pid: i32, signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    // Each of the two would kill the sleeper when the other dies: both must die unnoticed, so
    // that only the next start can.
    signal(pid, libc::SIGSTOP);
    eventually("the runner has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    });
    signal(keeper, libc::SIGKILL);
    eventually("the keeper is gone", || !alive(keeper));
    signal(pid, libc::SIGKILL);
    runner.wait().unwrap();
    assert!(alive(sleeper), "else there is nothing to prove");

    let list = sandbox.retake(&["runs", "list"]);
    assert_eq!(
        sandbox.settled(&list.snapshot()).replace(&sleeper.to_string(), "PID"),
        "exit 0\n\
         stdout: ID  STARTED  OUTCOME  TOOK  COMMAND\n\
         stdout: ID  TIME  interrupted  ≥TOOK  sh -c 'echo partial; sleep 99 & echo $! >&2; wait'\n\
         stderr: retake: run RUN was interrupted, its retake process died: sh -c 'echo partial; sleep 99 & echo $! >&2; wait' (1 process left over, now terminated)\n"
    );
    assert!(!alive(sleeper));
    let left = &sandbox.retake(&["runs", "show", "last", "--json"]).json()["leftProcesses"];
    assert_eq!(*left, serde_json::json!([{"pid": sleeper, "command": "sleep", "fate": "ended"}]));
    assert_eq!(
        sandbox.retake(&["runs", "logs", "last", "--stdout"]).snapshot(),
        "exit 0\nstdout: partial\n"
    );
    let run = sandbox.retake(&["runs", "show", "last", "--json"]).json();
    assert_eq!((&run["state"], &run["outcome"]), (&"interrupted".into(), &"interrupted".into()));
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
    assert_eq!(sandbox.retake(&["doctor"]).code, 0);
}

#[test]
fn runs_move_to_another_record_without_loss() {
    let sandbox = Sandbox::new();
    let id = sandbox
        .recorded_with(&["--label", "a=b", "--session-id", "s"], "echo out; echo err >&2; exit 3");
    sandbox.recorded("seq 100000");
    let exported = sandbox.retake(&["runs", "export"]);
    sandbox.file("runs.jsonl", &exported.stdout);
    let import = sandbox.retake(&["--store", "other", "runs", "import", "runs.jsonl"]);
    assert_eq!(import.snapshot(), "exit 0\nstderr: retake: 2 runs imported, 0 already recorded\n");
    let other = |arguments: &[&str]| sandbox.retake(&[&["--store", "other"], arguments].concat());
    assert_eq!(
        other(&["runs", "list", "--json"]).stdout,
        sandbox.retake(&["runs", "list", "--json"]).stdout
    );
    for id in [&id, "last"] {
        assert_eq!(
            other(&["runs", "logs", id]).stdout,
            sandbox.retake(&["runs", "logs", id]).stdout
        );
    }
    assert_eq!(other(&["audit", "verify"]).code, 0);
    assert_eq!(other(&["runs", "export"]).stdout, exported.stdout);
    let twice = sandbox.sh("retake --store other runs import --json < runs.jsonl").json();
    assert_eq!(twice, serde_json::json!({"imported": [], "known": 2}));
    sandbox.file("broken.jsonl", "{\n");
    let broken = other(&["runs", "import", "broken.jsonl"]);
    assert_eq!(broken.code, 1);
    assert!(broken.stderr.contains("line 1 of the import is not usable"), "{}", broken.stderr);
    let missing = sandbox.retake(&["--store", "third", "runs", "import", "no.jsonl"]);
    assert_eq!(missing.code, 1);
    assert!(!sandbox.project().join("third").exists(), "a wrong name makes no record");
}

#[test]
fn audit_records_and_reports_have_their_shape() {
    let sandbox = Sandbox::new();
    sandbox.retake(&[
        "exec",
        "-q",
        "--run-id",
        "run-123",
        "--task-id",
        "task-789",
        "--worktree-id",
        "main",
        "--repo-sha",
        "abc123",
        "true",
    ]);
    sandbox.retake(&["exec", "-q", "--", "sh", "-c", "echo '<oops>' >&2; exit 3"]);
    sandbox.retake(&["exec", "-q", "no-such-program"]);
    let audit = sandbox.retake(&["runs", "export", "--format", "audit"]).stdout;
    let first = audit.lines().next().unwrap();
    let first = sandbox.settled(first).replace("\"durationMs\":1,", "\"durationMs\":2,");
    let settled =
        regex::Regex::new("\"durationMs\":\\d+").unwrap().replace(&first, "\"durationMs\":MS");
    assert_eq!(
        settled,
        "{\"eventType\":\"command_execution\",\"timestamp\":\"TIME\",\"runId\":\"run-123\",\"sessionId\":null,\
         \"taskId\":\"task-789\",\"stepId\":null,\"toolCallId\":null,\"worktreeId\":\"main\",\"repoSha\":\"abc123\",\
         \"command\":\"true\",\"exitCode\":0,\"durationMs\":MS}"
    );
    assert_eq!(audit.lines().count(), 3);
    let failed = sandbox.retake(&["runs", "export", "--format", "audit", "--failed"]).stdout;
    assert_eq!(failed.lines().count(), 2);
    let lines: Vec<serde_json::Value> =
        audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let array = sandbox.retake(&["runs", "export", "--format", "audit", "--json"]).json();
    assert_eq!(array, serde_json::Value::from(lines));
    let none = sandbox.retake(&["runs", "export", "--json", "--session-id", "none"]).json();
    assert_eq!(none, serde_json::json!([]));
    assert_eq!(sandbox.retake(&["runs", "export", "--format", "junit", "--json"]).code, 2);
    assert_eq!(sandbox.retake(&["runs", "export", "--format", "xml"]).code, 2);
}

#[test]
fn erased_runs_leave_no_bytes_and_the_rest_still_verifies() {
    let sandbox = Sandbox::new();
    let id = sandbox.recorded("echo unforgettable; seq 30000");
    sandbox.recorded("exit 3");
    sandbox.recorded("true");
    assert_eq!(sandbox.retake(&["runs", "search", "unforgettable"]).stdout.lines().count(), 2);
    let deleted = sandbox.settled_call(&["runs", "delete", &id]);
    assert_eq!(
        deleted,
        "exit 0\nstderr: retake: run RUN erased: sh -c 'echo unforgettable; seq 30000'\n"
    );
    assert_eq!(sandbox.retake(&["runs", "show", &id]).code, 1);
    assert!(!on_disk(&sandbox.store(), b"unforgettable"));

    let prune = |options: &[&str]| sandbox.retake(&[&["runs", "prune"], options].concat());
    assert_eq!(prune(&["--older-than", "1h"]).stderr, "retake: 0 runs with 0 B of output erased\n");
    let dry = prune(&["--older-than", "0s", "--dry-run"]);
    assert_eq!(dry.stderr, "retake: 2 runs with 0 B of output would be erased\n");
    assert_eq!(sandbox.listed(&[]).len(), 2);
    assert_eq!(
        prune(&["--older-than", "0s", "--kind", "agent"]).stderr,
        "retake: 0 runs with 0 B of output erased\n"
    );
    let pruned = prune(&["--older-than", "0s", "--keep-failed", "--json"]).json();
    assert_eq!((pruned["runs"].as_array().unwrap().len(), &pruned["dryRun"]), (1, &false.into()));
    assert_eq!(sandbox.listed(&[]), ["sh -c 'exit 3'"]);
    let verified = sandbox.retake(&["audit", "verify"]);
    assert_eq!(verified.code, 0);
    assert!(
        verified.stderr.starts_with(
            "retake: 1 run in 8 entries, 4 of them of erased runs; 0 B of output read\n"
        ),
        "{}",
        verified.stderr
    );
    let deleted = sandbox.retake(&["runs", "delete", "last", "--json"]).json();
    assert_eq!(deleted["runs"].as_array().unwrap().len(), 1);
    assert_eq!(prune(&[]).code, 2, "an age has to be given");
}

#[test]
fn old_runs_go_by_themselves() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo old");
    let exported = sandbox.retake(&["runs", "export"]).stdout;
    let year = &regex::Regex::new("\"startTime\":\"\\d{4}").unwrap();
    let aged = Sandbox::new();
    aged.file("old.jsonl", &year.replace_all(&exported, "\"startTime\":\"2001"));
    aged.retake(&["runs", "import", "old.jsonl"]);
    // As if the import were as old as the imported runs.
    aged.tamper("DELETE FROM settings WHERE name LIKE 'import:%'");
    let run = |days: &str| {
        aged.retake_with(
            &[("RETAKE_EXECUTION__AUDIT__RETENTION_DAYS", days)],
            &["exec", "--", "echo", "new"],
        )
    };
    assert_eq!(run("0").snapshot(), "exit 0\nstdout: new\n", "0 keeps them for ever");
    assert_eq!(
        run("1").snapshot(),
        "exit 0\nstdout: new\nstderr: retake: 1 run older than 1 day erased (execution.audit.retention_days)\n"
    );
    assert_eq!(run("1").snapshot(), "exit 0\nstdout: new\n", "once a day is enough");
    assert_eq!(aged.listed(&[]).len(), 3);
}

#[test]
fn errors_of_the_configuration_are_problems_for_doctor_and_name_their_file_in_exec() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "execution:\n  max_output_kbs: 7\n");
    let error = "PROJECT/.agent/config.yml:2:3: there is no key execution.max_output_kbs; did you mean execution.max_output_kb?";
    let found = sandbox.settled_call(&["doctor"]);
    assert!(found.starts_with("exit 1\n"), "{found}");
    assert!(found.contains(&format!("stdout: config  {error}\n")), "{found}");
    assert!(found.contains("stdout: result  1 problem\n"), "{found}");
    let json = sandbox.retake(&["doctor", "--json"]);
    assert_eq!((json.code, &json.json()["ok"]), (1, &false.into()));
    assert_eq!(sandbox.settled(json.json()["config"][0].as_str().unwrap()), error);
    assert_eq!(sandbox.retake(&["doctor", "--report", "report.md"]).code, 1);
    let report = std::fs::read_to_string(sandbox.project().join("report.md")).unwrap();
    assert!(report.contains("config    ") && report.contains("1 problem"), "{report}");

    assert_eq!(
        sandbox.settled_call(&["exec", "--", "true"]),
        format!(
            "exit 125\n\
             stderr: retake: ACODE-EXE-005 {error}\n\
             stderr: retake: hint: nothing was started; correct PROJECT/.agent/config.yml and run it again\n"
        )
    );
    sandbox.file(".agent/config.yml", "");
    assert_eq!(sandbox.retake(&["doctor"]).code, 0);
    let variable = [("RETAKE_EXECUTION__GRACE_SECONDS", "soon")];
    let wrong = sandbox.retake_with(&variable, &["exec", "--", "true"]);
    assert!(wrong.stderr.contains("correct the variable and run it again"), "{}", wrong.stderr);
    assert_eq!(sandbox.retake_with(&variable, &["doctor"]).code, 1);
}

#[test]
fn doctor_finds_problems_and_repairs_what_it_can() {
    let sandbox = Sandbox::new();
    let fresh = sandbox.settled_call(&["doctor"]);
    // What the machine can confine is a separate matter.
    let fresh: String =
        fresh.split_inclusive('\n').filter(|line| !line.starts_with("stdout: sandbox")).collect();
    assert_eq!(
        fresh,
        "exit 0\n\
         stdout: store  PROJECT/.agent/data\n\
         stdout: location  the record of the project PROJECT\n\
         stdout: retake  0.1.0\n\
         stdout: runs  nothing was recorded here yet\n\
         stdout: result  no problems\n"
    );
    sandbox.recorded("echo one");
    let healthy = sandbox.settled_call(&["doctor", "--deep"]);
    assert!(
        healthy.starts_with("exit 0\n") && healthy.contains("runs  1, 0 of them running\n"),
        "{healthy}"
    );
    let json = sandbox.retake(&["doctor", "--json"]).json();
    assert_eq!(
        (&json["ok"], &json["runs"], &json["problems"]),
        (&true.into(), &1.into(), &serde_json::json!([]))
    );
    assert!(json["sqliteVersion"].is_string() && json["schemaVersion"].is_number());

    let database = sandbox.store().join("retake.db");
    std::fs::set_permissions(&database, PermissionsExt::from_mode(0o644)).unwrap();
    let orphan = sandbox.store().join("spool/nobodys");
    std::fs::write(&orphan, "x").unwrap();
    let ill = sandbox.settled_call(&["doctor"]);
    assert!(ill.starts_with("exit 1\n"), "{ill}");
    assert!(
        ill.contains("problem  PROJECT/.agent/data/retake.db can be read by others (mode 644)"),
        "{ill}"
    );
    assert!(ill.contains("problem  PROJECT/.agent/data/spool/nobodys belongs to no run"), "{ill}");
    assert!(ill.ends_with("result  2 problems\n"), "{ill}");
    std::fs::set_permissions(&database, PermissionsExt::from_mode(0o600)).unwrap();
    let repaired = sandbox.settled_call(&["doctor", "--repair"]);
    assert!(
        repaired.starts_with("exit 0\n") && repaired.contains("repaired  an orphaned file is now"),
        "{repaired}"
    );
    assert!(!orphan.exists());
}

#[test]
fn doctor_finds_and_ends_processes_of_runs_that_are_over() {
    let sandbox = Sandbox::new();
    let id = sandbox.recorded("true");
    let mut left = sandbox
        .command("sleep")
        .arg("99")
        .env("RETAKE_PARENT_ID", &id)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let found = sandbox.retake(&["doctor"]);
    assert_eq!(found.code, 1);
    let problem = format!("sleep 99 ({}) is left over from run {id}, which has ended", left.id());
    assert!(found.stdout.contains(&problem), "{}", found.stdout);
    assert_eq!(left.try_wait().unwrap(), None, "looking changes nothing");
    let repaired = sandbox.retake(&["doctor", "--repair"]);
    assert_eq!(repaired.code, 0, "{}", repaired.snapshot());
    assert!(!left.wait().unwrap().success());
}

#[test]
fn a_damaged_database_is_not_overwritten_and_can_be_repaired() {
    let sandbox = Sandbox::new();
    for _ in 0..20 {
        sandbox.recorded("echo keep");
    }
    sandbox.tamper("PRAGMA wal_checkpoint(TRUNCATE)");
    let database = sandbox.store().join("retake.db");
    let mut bytes = std::fs::read(&database).unwrap();
    // The header knows how many pages are in use; the file has space beyond them.
    let page = 4096;
    let used = u32::from_be_bytes(bytes[28..32].try_into().unwrap()) as usize * page;
    bytes[used - 3 * page..used - page].fill(0xA5);
    std::fs::write(&database, &bytes).unwrap();
    let ill = sandbox.retake(&["doctor"]);
    assert_eq!(ill.code, 1, "{}", ill.snapshot());
    assert!(ill.stdout.contains("doctor --repair"), "{}", ill.stdout);
    let repaired = sandbox.retake(&["doctor", "--repair"]);
    assert!(
        repaired.stdout.contains("the database as it was is kept in"),
        "{}",
        repaired.snapshot()
    );
    assert_eq!(sandbox.retake(&["runs", "list"]).code, 0);
    std::fs::write(&database, b"this is no database at all, but a text of some length").unwrap();
    for command in [&["runs", "list"][..], &["audit", "verify"], &["doctor"]] {
        let called = sandbox.retake(command);
        assert_eq!(called.code, 1, "{}", called.snapshot());
    }
    let kept = std::fs::read(&database).unwrap();
    assert!(kept.starts_with(b"this is no database"), "nothing was overwritten");
    let run = sandbox.retake(&["exec", "--", "echo", "still works"]);
    assert_eq!((run.code, run.stdout.as_str()), (0, "still works\n"));
    assert!(
        run.stderr.contains("this run is not recorded") && run.stderr.contains("doctor --repair"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_record_that_cannot_be_written_is_a_warning_or_a_refusal() {
    let sandbox = Sandbox::new();
    sandbox.file("file", "");
    let run = sandbox.retake(&["--store", "file/store", "exec", "--json", "echo hello"]);
    assert_eq!((run.code, &run.json()["stdout"]), (0, &"hello\n".into()));
    assert_eq!(run.json()["recorded"], false);
    assert!(run.stderr.starts_with("retake: this run is not recorded: "), "{}", run.stderr);
    let required = sandbox.retake_with(
        &[("RETAKE_EXECUTION__AUDIT__REQUIRED", "true")],
        &["--store", "file/store", "exec", "touch ran"],
    );
    assert_eq!((required.code, required.stdout.as_str()), (125, ""));
    assert!(required.stderr.contains("execution.audit.required is set"), "{}", required.stderr);
    assert!(!sandbox.project().join("ran").exists(), "nothing runs unrecorded");
}

#[test]
fn init_makes_a_project_and_overwrites_nothing() {
    let sandbox = Sandbox::new();
    let place = sandbox.project().join("new");
    std::fs::create_dir(&place).unwrap();
    let init = || called(sandbox.command(RETAKE).arg("init").current_dir(&place));
    assert_eq!(
        sandbox.settled(&init().snapshot()),
        "exit 0\n\
         stderr: retake: created PROJECT/new/.agent/config.yml\n\
         stderr: retake: created PROJECT/new/.agent/.gitignore\n\
         stderr: retake: created PROJECT/new/.agent/project-id\n\
         stderr: retake: runs below this directory are no longer recorded in PROJECT/.agent\n"
    );
    assert_eq!(
        sandbox.settled(&init().snapshot()),
        "exit 1\nstderr: retake: this is already a project: PROJECT/new/.agent/config.yml exists; edit it, or remove it first\n"
    );
    let committed =
        sandbox.sh("cd new && git init -q . && retake exec -q true && git add -A && git ls-files");
    assert_eq!(committed.stdout, ".agent/.gitignore\n.agent/config.yml\n.agent/project-id\n");
    assert!(place.join(".git/retake/retake.db").exists());
}

#[test]
fn every_value_is_explained_and_every_mistake_reported() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "execution:\n  max_output_kb: 7\n  detach_ok: [sccache]\n");
    let user = sandbox.dir.path().join("home/config/retake");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.yml"), "execution:\n  max_output_kb: 8\n  grace_seconds: 9\n")
        .unwrap();
    let variables = [("RETAKE_EXECUTION__DEFAULT_TIMEOUT_SECONDS", "77")];
    let explained = sandbox.retake_with(&variables, &["config", "--explain"]);
    let explained = sandbox.settled(&explained.stdout);
    for line in [
        "execution.max_output_kb  7  PROJECT/.agent/config.yml:2",
        "execution.detach_ok  [sccache]  PROJECT/.agent/config.yml:3",
        "execution.default_timeout_seconds  77  $RETAKE_EXECUTION__DEFAULT_TIMEOUT_SECONDS",
        "execution.audit.retention_days  30  default",
    ] {
        assert!(explained.lines().any(|found| found == line), "{line}\n{explained}");
    }
    assert!(explained.contains("execution.grace_seconds  9  /"), "{explained}");
    let values = sandbox.retake_with(&variables, &["config", "--json"]).json();
    assert_eq!(
        (&values["execution.max_output_kb"], &values["execution.default_timeout_seconds"]),
        (&7.into(), &77.into())
    );
    let plain = sandbox.retake(&["config"]).stdout;
    assert!(plain.contains("execution.max_output_kb: 7\n"), "{plain}");
    let list = sandbox.retake_with(&variables, &["config", "--json", "--explain"]).json();
    let key = "execution.default_timeout_seconds";
    let entry = list.as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap();
    assert_eq!(entry["source"], "$RETAKE_EXECUTION__DEFAULT_TIMEOUT_SECONDS");
    let run = sandbox.retake_with(&variables, &["exec", "--json", "true"]).json();
    assert_eq!(run["timeoutMs"], 77_000, "and it is what runs use");

    sandbox.file(".agent/config.yml", "execution:\n  max_output_kbs: 7\n  use_shell: maybe\n");
    let wrong = sandbox.retake_with(&[("RETAKE_EXECUTION__GRACE_SECONDS", "soon")], &["config"]);
    assert_eq!(
        sandbox.settled(&wrong.snapshot()),
        "exit 2\n\
         stderr: retake: PROJECT/.agent/config.yml:2:3: there is no key execution.max_output_kbs; did you mean execution.max_output_kb?\n\
         stderr: retake: PROJECT/.agent/config.yml:3:14: execution.use_shell: takes one of auto, true, false, not maybe\n\
         stderr: retake: $RETAKE_EXECUTION__GRACE_SECONDS: takes a whole number from 0 to 86400, not soon\n"
    );
    assert_eq!(sandbox.retake(&["runs", "list"]).code, 0, "the record can still be read");
}
