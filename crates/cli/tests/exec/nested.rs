//! Runs that a retake inside of a sandbox records: they are imported into the outer record, as reported.

use serde_json::Value;

use crate::common::{Called, RETAKE, Sandbox, called, on_disk, own_readable};

fn confined(sandbox: &Sandbox, script: &str) -> Called {
    sandbox.retake(&["exec", "--sandbox", &own_readable(), "--json", "--", "sh", "-c", script])
}

fn runs(sandbox: &Sandbox) -> Vec<Value> {
    let listed = sandbox.retake(&["runs", "list", "--json", "-n", "5000"]).json();
    listed.as_array().unwrap().clone()
}

fn with_command<'a>(runs: &'a [Value], command: &str) -> &'a Value {
    let found = runs.iter().find(|run| run["command"] == command);
    found.unwrap_or_else(|| panic!("{command}: {runs:#?}"))
}

#[test]
fn runs_inside_are_recorded_outside_as_reported() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let script = "retake exec -- retake exec -- sh -c 'echo inner; exit 3'; \
                  env -i $(command -v retake) exec --label a=b -- echo bare";
    let outer = confined(&sandbox, script).json();
    assert_eq!(outer["sandbox"]["reported"], serde_json::json!({"runs": 3}), "{outer:#}");
    let runs = runs(&sandbox);
    let inner = with_command(&runs, "sh -c 'echo inner; exit 3'");
    let middle = with_command(&runs, "retake exec -- sh -c 'echo inner; exit 3'");
    let bare = with_command(&runs, "echo bare");
    for run in [inner, middle, bare] {
        assert_eq!(run["reportedBy"], outer["id"], "{run:#}");
        assert_eq!((&run["host"], &run["user"]), (&outer["host"], &outer["user"]));
        assert_eq!(run["kind"], "exec");
        assert_ne!(run["loopId"], outer["loopId"]);
    }
    assert!(outer.get("reportedBy").is_none());
    assert_eq!(inner["exitCode"], 3);
    assert_eq!(inner["parentId"], middle["id"]);
    assert_eq!((&middle["parentId"], &bare["parentId"]), (&outer["id"], &outer["id"]));
    assert_eq!(bare["labels"]["a"], "b");
    let id = inner["id"].as_str().unwrap();
    assert_eq!(sandbox.retake(&["runs", "logs", id]).stdout, "inner\n");
    let shown = sandbox.retake(&["runs", "show", id]).stdout;
    assert!(shown.contains("exit 3 (reported)"), "{shown}");
    assert!(shown.contains("from inside the sandbox of"), "{shown}");
    let outer_id = outer["id"].as_str().unwrap();
    let shown = sandbox.retake(&["runs", "show", outer_id]).stdout;
    assert!(shown.contains("3 runs inside") && shown.contains("ok (reported)"), "{shown}");
    let listed = sandbox.retake(&["runs", "list"]).stdout;
    assert!(listed.contains("exit 3 (reported)") && listed.contains("ok (reported)"), "{listed}");
    let last = sandbox.retake(&["runs", "show", "last", "--json"]).json();
    assert_eq!(last["id"], outer["id"], "what was reported is not what was run last");
    let again = sandbox.retake(&["again", id]);
    assert_eq!(again.code, 125);
    assert!(again.stderr.contains("reported"), "{}", again.stderr);
    let verified = sandbox.retake(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.snapshot());
}

#[test]
fn a_report_cannot_change_existing_runs_or_claim_impossible_ones() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.retake(&["exec", "--", "echo", "original"]);
    let original = with_command(&runs(&sandbox), "echo original").clone();
    let exported = sandbox.sh("retake runs export > known.jsonl");
    assert_eq!(exported.code, 0, "{}", exported.snapshot());
    let text = std::fs::read_to_string(sandbox.project().join("known.jsonl")).unwrap();
    let id = original["id"].as_str().unwrap();
    // Another id, but with a time before the sandbox began.
    let other = text.replace(id, "01900000-0000-7000-8000-000000000001");
    let past = long_ago(&other);
    sandbox.file("forged.jsonl", &format!("{text}{past}"));
    let script = "retake runs import forged.jsonl && retake exec -- echo honest";
    let outer = confined(&sandbox, script).json();
    assert_eq!(
        outer["sandbox"]["reported"],
        serde_json::json!({"runs": 1, "refused": 3}),
        "{outer:#}"
    );
    let after = runs(&sandbox);
    assert_eq!(with_command(&after, "echo original"), &original);
    assert!(after.iter().all(|run| run["id"] != "01900000-0000-7000-8000-000000000001"));
    assert!(with_command(&after, "echo honest")["reportedBy"].is_string());
}

/// The same lines with times many years ago.
fn long_ago(text: &str) -> String {
    let mut replaced = String::new();
    for (number, part) in text.split("Time\":\"20").enumerate() {
        if number > 0 {
            replaced.push_str("Time\":\"20");
            replaced.push_str("01");
            replaced.push_str(&part[2..]);
        } else {
            replaced.push_str(part);
        }
    }
    replaced
}

#[test]
fn a_damaged_report_from_inside_is_ignored_and_the_run_continues() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let outer = confined(&sandbox, "echo rubbish > /dev/retake/retake.db; echo done");
    let json = outer.json();
    assert_eq!((&json["exitCode"], &json["stdout"]), (&0.into(), &"done\n".into()));
    assert_eq!(json["sandbox"]["reported"], serde_json::json!({"runs": 0, "incomplete": true}));
    assert!(outer.stderr.contains("inside of the sandbox"), "{}", outer.snapshot());
    assert_eq!(runs(&sandbox).len(), 2);
}

#[test]
fn secrets_of_the_run_do_not_come_in_by_a_report() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let secret = "hunter2-is-not-a-shape-anyone-knows";
    let script =
        "retake exec --no-redact --label t=$GIVEN_TOKEN -- sh -c \"echo a $GIVEN_TOKEN b\"";
    let run = called(
        sandbox
            .command(RETAKE)
            .args(["exec", "--sandbox", &own_readable(), "--json", "--env"])
            .arg(format!("GIVEN_TOKEN={secret}"))
            .args(["--", "sh", "-c", script]),
    );
    assert_eq!(run.json()["sandbox"]["reported"]["runs"], 1, "{}", run.snapshot());
    assert!(!run.stdout.contains(secret), "{}", run.stdout);
    assert!(!on_disk(sandbox.dir.path(), secret.as_bytes()));
    let all = runs(&sandbox);
    let reported = all.iter().find(|run| run["reportedBy"].is_string()).unwrap();
    let logs = sandbox.retake(&["runs", "logs", reported["id"].as_str().unwrap()]);
    assert_eq!(logs.stdout, "a [redacted:GIVEN_TOKEN] b\n");
}

#[test]
fn large_output_is_cut_and_marked() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let outer = confined(&sandbox, "retake exec -q -- head -c 3000000 /dev/zero");
    assert_eq!(outer.json()["sandbox"]["reported"], serde_json::json!({"runs": 1}));
    let all = runs(&sandbox);
    let reported = with_command(&all, "head -c 3000000 /dev/zero");
    assert_eq!(
        (&reported["stdoutBytes"], &reported["truncated"]),
        (&(1 << 20).into(), &true.into())
    );
    assert_eq!(reported["stdoutRawBytes"], 3_000_000);
}

/// A run that was in progress inside when everything was terminated counts as interrupted.
#[test]
fn runs_inside_a_sandbox_at_its_timeout_are_reported_as_interrupted() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let script = "retake exec -- sh -c 'echo begun; sleep 100'";
    let outer = sandbox.retake(&[
        "exec",
        "--sandbox",
        &own_readable(),
        "--json",
        "--timeout",
        "3",
        "--grace",
        "0",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let json = outer.json();
    assert_eq!(json["outcome"], "timed_out", "{}", outer.snapshot());
    assert_eq!(json["sandbox"]["reported"]["runs"], 1, "{json:#}");
    let all = runs(&sandbox);
    let inner = with_command(&all, "sh -c 'echo begun; sleep 100'");
    assert_eq!((&inner["outcome"], &inner["reportedBy"]), (&"interrupted".into(), &json["id"]));
}

#[test]
fn runs_inside_are_reported_without_namespaces_too() {
    let sandbox = Sandbox::new();
    let none = "echo 0 >/proc/sys/user/max_user_namespaces";
    if sandbox.sh(&format!("unshare -Ur sh -c '{none}'")).code != 0 {
        return;
    }
    let run = sandbox.sh(&format!(
        "unshare -Ur sh -c '{none}; retake exec --sandbox=best-effort --json -- retake exec -- echo inner'"
    ));
    let json = run.json();
    if json["error"]["code"] == "ACODE-EXE-010" {
        return; // Neither mechanism.
    }
    assert_eq!(json["sandbox"]["level"], "landlock");
    assert_eq!(json["sandbox"]["reported"], serde_json::json!({"runs": 1}), "{}", run.snapshot());
}

/// The project's configuration is about commands on the host: inside, everything is confined
/// already.
#[test]
fn a_project_that_confines_by_default_can_be_used_inside() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.file(".agent/config.yml", "sandbox:\n  mode: strict\n");
    let outer = sandbox.retake(&["exec", "--json", "--", "retake", "exec", "--", "echo", "inner"]);
    let json = outer.json();
    assert_eq!(
        (&json["sandbox"]["level"], &json["exitCode"]),
        (&"full".into(), &0.into()),
        "{}",
        outer.snapshot()
    );
    assert_eq!(json["sandbox"]["reported"], serde_json::json!({"runs": 1}));
}
