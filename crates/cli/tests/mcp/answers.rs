//! Answers as a model sees them.

use serde_json::json;

use crate::client::{Client, steady};
use crate::common::Sandbox;

#[test]
fn a_successful_command_returns_its_output_and_exit_code() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"command": "echo hello"}));
    assert_eq!(result["isError"], false);
    let facts = &result["structuredContent"];
    assert_eq!(facts["success"], true);
    assert_eq!(facts["exitCode"], 0);
    assert_eq!(facts["stdout"]["text"], "hello\n");
    assert_eq!(
        steady(&crate::client::text(&result)),
        "ok: exit code 0 after TIME [run ID]\nhello\n"
    );
}

#[test]
fn a_failing_build_shows_its_errors_not_its_noise() {
    let sandbox = Sandbox::new();
    let mut script = String::from("#!/bin/sh\n");
    script.push_str("i=0; while [ $i -lt 600 ]; do i=$((i+1)); printf '   Compiling dependency number %d v1.0.0\\n' $i >&2; ");
    script.push_str("[ $i = 300 ] && printf '\\033[31merror[E0308]\\033[0m: mismatched types\\n  --> src/lib.rs:4:5\\n   |\\n 4 |     \"no\"\\n   |     ^^^^ expected `u32`, found `&str`\\n' >&2; done\n");
    script.push_str(
        "echo 'error: could not compile `thing` (lib) due to 1 previous error' >&2\nexit 101\n",
    );
    sandbox.file("build", &script);
    let mut client = Client::new(&sandbox);
    let text = client.text("exec", json!({"argv": ["sh", "build"], "max_chars": 1500}));
    assert_eq!(
        steady(&text),
        "failed: exit code 101 after TIME [run ID]
--- stderr: 606 lines, 24.7 KiB ---
[the first error]
   Compiling dependency number 299 v1.0.0
   Compiling dependency number 300 v1.0.0
error[E0308]: mismatched types
  --> src/lib.rs:4:5
   |
 4 |     \"no\"
   |     ^^^^ expected `u32`, found `&str`
   Compiling dependency number 301 v1.0.0
   Compiling dependency number 302 v1.0.0
[the beginning]
   Compiling dependency number 1 v1.0.0
   Compiling dependency number 2 v1.0.0
   Compiling dependency number 3 v1.0.0
   Compiling dependency number 4 v1.0.0
   Compiling dependency number 5 v1.0.0
   Compiling dependency number 6 v1.0.0
   Compiling dependency number 7 v1.0.0
[lines 8-298 left out]
[lines 299-307 are above]
[lines 308-588 left out]
   Compiling dependency number 584 v1.0.0
   Compiling dependency number 585 v1.0.0
   Compiling dependency number 586 v1.0.0
   Compiling dependency number 587 v1.0.0
   Compiling dependency number 588 v1.0.0
   Compiling dependency number 589 v1.0.0
   Compiling dependency number 590 v1.0.0
   Compiling dependency number 591 v1.0.0
   Compiling dependency number 592 v1.0.0
   Compiling dependency number 593 v1.0.0
   Compiling dependency number 594 v1.0.0
   Compiling dependency number 595 v1.0.0
   Compiling dependency number 596 v1.0.0
   Compiling dependency number 597 v1.0.0
   Compiling dependency number 598 v1.0.0
   Compiling dependency number 599 v1.0.0
   Compiling dependency number 600 v1.0.0
error: could not compile `thing` (lib) due to 1 previous error
---
Not all of stderr is shown. The rest: runs_logs {\"run\":\"ID\",\"stream\":\"stderr\",\"lines\":\"8-588\"}, or \"pattern\" to search it.
"
    );
}

#[test]
fn a_failing_test_run_begins_with_its_tests() {
    let sandbox = Sandbox::new();
    sandbox.file(
        "output",
        "running 3 tests
test adds ... ok
test subtracts ... FAILED
test divides ... ignored

failures:

---- subtracts stdout ----

thread 'subtracts' panicked at src/lib.rs:9:5:
assertion `left == right` failed
  left: 2
 right: 3


failures:
    subtracts

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

",
    );
    sandbox.file("test", "#!/bin/sh\ncat output\nexit 101\n");
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["sh", "test"], "max_chars": 500}));
    let facts = &result["structuredContent"]["tests"];
    assert_eq!(
        (&facts["passed"], &facts["failed"], &facts["skipped"]),
        (&json!(1), &json!(1), &json!(1))
    );
    assert_eq!(facts["failures"][0]["name"], "subtracts");
    let text = steady(&crate::client::text(&result));
    assert!(
        text.starts_with(
            "failed: exit code 101 after TIME [run ID]
tests (cargo): 1 passed, 1 failed, 1 skipped
  FAILED subtracts
    thread 'subtracts' panicked at src/lib.rs:9:5:
    assertion `left == right` failed
      left: 2
     right: 3
--- stdout ---
running 3 tests
"
        ),
        "{text}"
    );
}

#[test]
fn a_timeout_keeps_what_was_printed_and_says_what_to_do() {
    let sandbox = Sandbox::new();
    sandbox.file("wait", "#!/bin/sh\necho connecting to the database\nsleep 60\n");
    let mut client = Client::new(&sandbox);
    let text = client.text("exec", json!({"argv": ["sh", "wait"], "timeout_seconds": 0.5}));
    assert_eq!(
        steady(&text),
        "timed out after TIME: it was terminated, with everything it had started [run ID]
connecting to the database
---
Check the last output for what it waited for. Allow more time with timeout_seconds, or start it with exec_start if it is meant to keep running.
"
    );
}

#[test]
fn a_huge_log_fits_and_can_be_read_on() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["seq", "1000000"], "max_chars": 100}));
    let text = steady(&crate::client::text(&result));
    assert_eq!(
        text,
        "ok: exit code 0 after TIME [run ID]
--- stdout: 1000000 lines, 6.57 MiB ---
1
2
3
4
5
6
7
8
9
10
11
12
13
14
15
16
[lines 17-999996 left out]
999997
999998
999999
1000000
---
Not all of stdout is shown. The rest: runs_logs {\"run\":\"ID\",\"stream\":\"stdout\",\"lines\":\"17-999996\"}, or \"pattern\" to search it.
"
    );
    let run = crate::client::run_id(&result);
    let lines = client.text("runs_logs", json!({"run": run, "lines": "500000-500002"}));
    assert!(
        lines.contains("\n500000\n500001\n500002\n[lines 500003-1000000 left out]\n"),
        "{lines}"
    );
    let around = client.text("runs_logs", json!({"run": run, "pattern": "^77777$", "context": 1}));
    assert!(around.contains("1 match\n") && around.contains("\n77776\n77777\n77778\n"), "{around}");
}

#[test]
fn invalid_utf8_is_shown_with_replacement_characters() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["printf", "a\\377b\\033[1mc\\0d\\n"]}));
    assert_eq!(result["structuredContent"]["stdout"]["text"], "a\u{fffd}bcd\n");
}

#[test]
fn binary_output_is_not_shown() {
    let sandbox = Sandbox::new();
    let bytes: Vec<u8> =
        (0..5u32 << 10).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(sandbox.project().join("image"), &bytes).unwrap();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["cat", "image"]}));
    assert_eq!(
        steady(&crate::client::text(&result)),
        "ok: exit code 0 after TIME [run ID]\n--- stdout: binary, 5 KiB, not shown ---\n"
    );
    let facts = &result["structuredContent"]["stdout"];
    assert_eq!((&facts["binary"], &facts["text"]), (&json!(true), &json!("")), "{facts}");
    assert_eq!(facts["bytes"], 5120);
    let logs = client.text("runs_logs", json!({"run": "last"}));
    assert!(logs.contains("binary, 5 KiB, not shown") && logs.len() < 300, "{logs}");
    assert!(client.text("runs_logs", json!({"run": "last", "lines": "1"})).contains('\u{fffd}'));
}

#[test]
fn exit_codes_are_those_of_the_command_line() {
    let sandbox = Sandbox::new();
    sandbox.file("die", "kill -TERM $$\n");
    let mut client = Client::new(&sandbox);
    for (arguments, code) in [
        (json!({"argv": ["sh", "-c", "exit 3"]}), 3),
        (json!({"argv": ["sleep", "60"], "timeout_seconds": 0.2}), 124),
        (json!({"argv": ["no-such-program"]}), 127),
        (json!({"argv": ["/etc/passwd"]}), 126),
        (json!({"argv": ["sh", "die"]}), 143),
        (json!({"command": "no-such-program | cat; exit 7"}), 7),
    ] {
        let facts = client.tool("exec", arguments.clone())["structuredContent"].clone();
        assert_eq!(facts["exitCode"], code, "{arguments}: {facts}");
        let run = facts["runId"].as_str().unwrap();
        assert_eq!(sandbox.retake(&["runs", "show", run, "--json"]).json()["exitCode"], code);
        let shown = client.tool("runs_show", json!({"run": run}));
        assert_eq!(shown["structuredContent"]["exitCode"], code, "{arguments}");
    }
}

#[test]
fn a_wrong_argument_suggests_the_right_one() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    for (tool, arguments, meant) in [
        ("exec", json!({"cmd": "ls"}), "did you mean command?"),
        ("exec", json!({"command": "ls", "timeout": 5}), "did you mean timeout_seconds?"),
        ("exec_wait", json!({"run": "x", "until": "ready"}), "did you mean pattern?"),
        ("runs_logs", json!({"run_id": "last"}), "did you mean run?"),
        (
            "exec",
            json!({"command": "ls", "limits": {"memory": 5}}),
            "did you mean limits.memory_mb?",
        ),
    ] {
        let answer = client.tool(tool, arguments.clone());
        assert_eq!(answer["isError"], true);
        assert!(crate::client::text(&answer).contains(meant), "{arguments}: {answer}");
    }
}

#[test]
fn a_small_answer_is_hardly_longer_than_the_output() {
    let sandbox = Sandbox::new();
    // 446 bytes of `ls -la`.
    let listing = "total 28\ndrwxr-xr-x 4 user user 4096 Nov 17 12:00 .\ndrwxr-xr-x 9 user user 4096 Nov 17 11:58 ..\n-rw-r--r-- 1 user user  512 Nov 17 12:00 Cargo.toml\n-rw-r--r-- 1 user user 9021 Nov 17 12:00 README.md\n-rw-r--r-- 1 user user   87 Nov 17 12:00 build.rs\n-rw-r--r-- 1 user user 1070 Nov 17 12:00 LICENSE-MIT\ndrwxr-xr-x 3 user user 4096 Nov 17 12:00 src\ndrwxr-xr-x 2 user user 4096 Nov 17 12:00 tests\n";
    sandbox.file("listing", listing);
    let mut client = Client::new(&sandbox);
    let text = client.text("exec", json!({"command": "cat listing"}));
    assert!(text.len() * 10 <= listing.len() * 12, "{} for {}: {text}", text.len(), listing.len());
    let listed = client.request("tools/list", json!({}))["result"].to_string();
    assert!(listed.len() < 20_000, "{}", listed.len());
}

#[test]
fn clients_that_ignore_text_get_no_structured_content() {
    let sandbox = Sandbox::new();
    for (name, has_data) in [("claude-code", false), ("codex-mcp-client", false), ("other", true)] {
        let mut client = Client::named(&sandbox, name);
        let result = client.tool("exec", json!({"argv": ["echo", "hello"]}));
        assert!(crate::client::text(&result).ends_with("]\nhello\n"), "{result}");
        assert_eq!(result.get("structuredContent").is_some(), has_data, "{name}: {result}");
        let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
        for tool in tools.as_array().unwrap() {
            assert_eq!(tool.get("outputSchema").is_some(), has_data, "{name}: {tool}");
        }
    }
}

#[test]
fn secrets_do_not_reach_the_model() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool(
        "exec",
        json!({"argv": ["printenv", "DEPLOY_TOKEN"], "env": {"DEPLOY_TOKEN": "hunter2hunter2"}}),
    );
    assert!(!result.to_string().contains("hunter2"), "{result}");
    assert_eq!(result["structuredContent"]["stdout"]["text"], "[redacted:DEPLOY_TOKEN]\n");
}

#[test]
fn changed_files_are_listed() {
    let sandbox = Sandbox::new();
    sandbox.file("old", "1\n");
    let mut client = Client::new(&sandbox);
    let text = client.text("exec", json!({"argv": ["cp", "old", "new"], "track_changes": true}));
    assert!(text.contains("\ncreated: new\n"), "{text}");
}
