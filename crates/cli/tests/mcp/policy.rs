//! What clients may not do.

use serde_json::json;

use crate::client::{Client, text};
use crate::common::Sandbox;

#[test]
fn a_denied_call_is_explained_and_recorded() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    deny: [touch, \"git push\"]\n");
    let mut client = Client::new(&sandbox);
    let denied = client.tool("exec", json!({"argv": ["env", "A=1", "touch", "made"]}));
    assert_eq!(denied["isError"], true);
    let why = text(&denied);
    assert!(why.contains("the rule `touch` denies `touch made`"), "{why}");
    assert!(!sandbox.project().join("made").exists());
    let listed = sandbox.retake(&["runs", "list", "--json"]).json();
    assert_eq!(listed[0]["command"], "env A=1 touch made");
    assert_eq!(listed[0]["outcome"], "not_started");
    let message = listed[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("refused by policy: the rule `touch` denies"), "{message}");
    assert!(why.contains(&listed[0]["id"].as_str().unwrap()[28..]), "{why}");
    // The other ways to run something do not bypass it.
    for (tool, arguments) in [
        ("exec_start", json!({"argv": ["touch", "made"]})),
        ("again", json!({"run": "last"})),
        ("exec", json!({"command": "touch made"})),
    ] {
        let denied = client.tool(tool, arguments);
        assert!(text(&denied).contains("refused by this project's policy"), "{tool}: {denied}");
    }
    assert!(!sandbox.project().join("made").exists());
}

#[test]
fn a_shell_and_places_outside_need_permission() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    shell: false\n");
    let mut client = Client::new(&sandbox);
    std::os::unix::fs::symlink("/", sandbox.project().join("root")).unwrap();
    for arguments in [
        json!({"command": "echo a | cat"}),
        json!({"command": "echo a", "shell": true}),
        json!({"argv": ["sh", "-c", "echo a"]}),
        json!({"argv": ["ls"], "cwd": ".."}),
        json!({"argv": ["ls"], "cwd": "root/tmp"}),
        json!({"argv": ["ls"], "env": {"LD_PRELOAD": "x.so"}}),
    ] {
        let denied = client.tool("exec", arguments.clone());
        assert!(
            text(&denied).contains("refused by this project's policy"),
            "{arguments}: {denied}"
        );
    }
    sandbox
        .file(".agent/config.yml", "mcp:\n  policy:\n    shell: true\n    directories: [/tmp]\n");
    let mut client = Client::new(&sandbox);
    let piped = client.tool("exec", json!({"command": "echo a | tr a b"}));
    assert_eq!(piped["structuredContent"]["stdout"]["text"], "b\n");
    let outside = client.tool("exec", json!({"argv": ["pwd"], "cwd": "root/tmp"}));
    assert_eq!(outside["isError"], false, "{outside}");
}

#[test]
fn caps_are_enforced_and_reported() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    max_timeout_seconds: 1\n");
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["sleep", "60"], "timeout_seconds": 3600}));
    assert_eq!(result["structuredContent"]["outcome"], "timed_out");
    assert_eq!(result["structuredContent"]["timeoutMs"], 1000);
    assert!(text(&result).contains("The policy allows at most 1s"), "{result}");
}

#[test]
fn variables_are_merged_not_inherited() {
    let sandbox = Sandbox::new();
    let mut client = Client::with(&sandbox, |command| {
        command.env("SOME_API_TOKEN", "abcdefabcdef").env("PLAIN", "yes");
    });
    let result = client.tool("exec", json!({"argv": ["env"], "env": {"HOME": null}}));
    let text = result["structuredContent"]["stdout"]["text"].as_str().unwrap();
    assert!(text.contains("PLAIN=yes\n"), "{text}");
    assert!(!text.contains("SOME_API_TOKEN") && !text.contains("\nHOME="), "{text}");
}

#[test]
fn check_says_what_the_policy_would_say() {
    let sandbox = Sandbox::new();
    sandbox.file(
        ".agent/config.yml",
        "mcp:\n  policy:\n    allow: [\"git status\", ls]\n    shell: true\n",
    );
    let check = |line: &str| sandbox.retake(&["mcp", "--check", line]);
    let allowed = check("git status --short");
    assert_eq!((allowed.code, allowed.stdout.as_str()), (0, "allowed\n"));
    assert_eq!(check("ls && git status").code, 0);
    let refused = check("git push");
    assert_eq!(
        (refused.code, refused.stdout.as_str()),
        (1, "refused\n  no rule allows `git push`\n")
    );
    assert_eq!(sandbox.retake(&["mcp", "--check", "ls", "--cwd", "/"]).code, 1);
    let empty = check(" ");
    assert_eq!(empty.code, 2, "{}", empty.snapshot());
    assert!(empty.stderr.contains("nothing to run"), "{}", empty.stderr);
    // Nothing was run, so nothing is recorded.
    assert!(sandbox.retake(&["runs", "list"]).stdout.is_empty());
}

#[test]
fn the_server_and_check_agree_about_lines() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    deny: [touch]\n    shell: true\n");
    let mut client = Client::new(&sandbox);
    for line in [
        "for f in made; do touch $f; done",
        "echo \"$(touch made)\"",
        "x=touch; $x made",
        "echo \\' ; touch made ; echo \\'",
        "bash -euo pipefail -c 'touch made'",
        "retake exec -- touch made",
    ] {
        let denied = client.tool("exec", json!({"command": line}));
        assert!(text(&denied).contains("refused by this project's policy"), "{line}: {denied}");
        assert_eq!(sandbox.retake(&["mcp", "--check", line]).code, 1, "{line}");
    }
    assert!(!sandbox.project().join("made").exists());
    let fine = "for f in a b; do echo \"$f\"; done";
    let ran = client.tool("exec", json!({"command": fine}));
    assert_eq!(ran["structuredContent"]["stdout"]["text"], "a\nb\n");
    assert_eq!(sandbox.retake(&["mcp", "--check", fine]).code, 0);
}

#[test]
fn a_policy_that_cannot_be_read_is_no_policy_at_all() {
    let sandbox = Sandbox::new();
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    denny: [rm]\n");
    let called = sandbox.retake(&["mcp"]);
    assert_eq!(called.code, 2);
    assert!(called.stderr.contains("did you mean mcp.policy.deny?"), "{}", called.stderr);
    sandbox.file(".agent/config.yml", "mcp:\n  policy:\n    deny: [\"rm 'x\"]\n");
    let called = sandbox.retake(&["mcp"]);
    assert_eq!(called.code, 2);
    assert!(called.stderr.contains("a quote is not closed"), "{}", called.stderr);
}
