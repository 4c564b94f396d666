//! Every command of a client is confined, unless configured otherwise.

use serde_json::json;

use crate::client::{Client, run_id, text};
use crate::common::{RETAKE, Sandbox, WITHOUT, own_readable};

#[test]
fn every_way_to_run_something_is_confined() {
    let sandbox = Sandbox::new();
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.file(".agent/config.yml", "");
    // Recorded unconfined; repeated by the client it is confined.
    let path = outside.to_str().unwrap();
    assert_eq!(sandbox.retake(&["exec", "--", "touch", path]).code, 0);
    std::fs::remove_file(&outside).unwrap();
    for options in [&[][..], &["--sandbox"], &["--sandbox=best-effort"]] {
        let mut client = Client::with(&sandbox, |command| {
            command.args(options);
        });
        let again = client.tool("again", json!({"run": "last"}));
        let made = client.tool("exec", json!({"argv": ["touch", "made"]}));
        client.tool("exec", json!({"argv": ["touch", path]}));
        let denied = client.tool("exec", json!({"argv": ["touch", ".agent/config.yml"]}));
        client.tool("exec_start", json!({"argv": ["touch", path]}));
        assert!(sandbox.project().join("made").exists(), "{}", text(&made));
        assert!(text(&denied).contains("denied by the sandbox: "), "{denied}");
        let shown =
            sandbox.retake(&["runs", "show", &run_id(&made), "--json"]).json()["sandbox"].clone();
        assert_eq!(shown["level"], "full", "{shown}");
        client.leave();
        assert!(!outside.exists(), "{options:?}: {}", text(&again));
        std::fs::remove_file(sandbox.project().join("made")).unwrap();
        let last = sandbox.retake(&["exec", "--", "touch", path]);
        assert_eq!(last.code, 0, "{}", last.snapshot());
        std::fs::remove_file(&outside).unwrap();
    }
}

#[test]
fn inside_the_wall_shell_lines_are_allowed_and_outside_of_it_they_are_not() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let line = json!({"command": "echo a | tr a b && git --version > version.txt"});
    let mut client = Client::new(&sandbox);
    assert_eq!(client.tool("exec", line.clone())["structuredContent"]["stdout"]["text"], "b\n");
    let refused = |client: &mut Client| {
        let answer = client.tool("exec", line.clone());
        answer["isError"] == true && text(&answer).contains("mcp.policy.shell")
    };
    let mut off = Client::with(&sandbox, |command| {
        command.arg("--sandbox=off");
    });
    assert!(refused(&mut off));
    for (config, is_refused) in [
        ("sandbox:\n  mcp: off\n", true),
        ("sandbox:\n  mode: off\n", true),
        ("sandbox:\n  mode: off\n  mcp: strict\n", false),
        ("sandbox:\n  mcp: off\nmcp:\n  policy:\n    shell: true\n", false),
        ("mcp:\n  policy:\n    shell: false\n", true),
    ] {
        sandbox.file(".agent/config.yml", config);
        assert_eq!(refused(&mut Client::new(&sandbox)), is_refused, "{config}");
        // `--check` agrees with the server.
        let check = sandbox.retake(&["mcp", "--check", line["command"].as_str().unwrap()]);
        assert_eq!(check.code, i32::from(is_refused), "{config}: {}", check.snapshot());
    }
}

#[test]
fn an_answer_names_the_hosts_that_were_refused() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.file(".agent/config.yml", "sandbox:\n  allow_net: [allowed.example]\n");
    let mut client = Client::new(&sandbox);
    let fetch = "import urllib.request, sys\nfor host in sys.argv[1:]:\n  try: urllib.request.urlopen(f'http://{host}:8080/', timeout=20)\n  except Exception as error: print(error)\n";
    let asked = client
        .tool("exec", json!({"argv": ["python3", "-c", fetch, "refused.example", "b.example"]}));
    assert_eq!(
        asked["structuredContent"]["refusedHosts"],
        json!(["refused.example:8080", "b.example:8080"]),
        "{asked}"
    );
    let told = text(&asked);
    assert!(
        told.contains("refused by the sandbox: refused.example:8080, b.example:8080 (the user can allow hosts: sandbox.allow_net)"),
        "{told}"
    );
    let info = client.instructions();
    assert!(info.contains("reach only allowed.example"), "{info}");
}

#[test]
fn a_server_inside_of_a_sandbox_adds_none() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    sandbox.file(".agent/config.yml", "sandbox:\n  mcp: strict\n");
    let outside = sandbox.dir.path().canonicalize().unwrap().join("outside");
    let mut command = sandbox.command(RETAKE);
    command.args(["exec", "--sandbox", &own_readable(), "--stdin", "inherit", "--no-timeout"]);
    command.args(["--", RETAKE, "mcp"]);
    let mut client = Client::speaking(command);
    let line = format!("echo a | tr a b; touch made; touch {}", outside.display());
    let result = client.tool("exec", json!({"command": line}));
    assert!(text(&result).contains("b\n"), "{result}");
    let shown = client.tool("runs_show", json!({"run": run_id(&result)}));
    assert!(shown["structuredContent"]["denied"].is_null(), "it reports nothing itself: {shown}");
    assert!(client.instructions().contains("Commands run in a sandbox."));
    client.leave();
    assert!(sandbox.project().join("made").exists() && !outside.exists());
}

#[test]
fn sandbox_limits_of_the_machine_are_reported_and_the_default_stays() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let start = |what: &str| {
        let mut command = sandbox.command("python3");
        command.args(["-c", WITHOUT, what, RETAKE, "mcp"]);
        let mut client = Client::speaking(command);
        let line = client.tool("exec", json!({"command": "echo a | cat"}));
        let plain = client.tool("exec", json!({"argv": ["echo", "a"]}));
        client.leave();
        (client.said(), line["isError"] == true, plain["structuredContent"]["success"] == true)
    };
    // The record is in the project, which is writable at this level.
    let (said, is_refused, runs) = start("namespaces");
    assert!(is_refused && runs, "{said}");
    assert!(said.contains("the record can be read and written; shell lines stay off"), "{said}");
    let (said, is_refused, runs) = start("namespaces,landlock");
    assert!(is_refused && runs, "{said}");
    assert!(said.contains("commands of clients are not confined, because"), "{said}");
    assert!(said.contains("shell lines stay off"), "{said}");
    let (said, is_refused, _) = start("");
    assert!(!is_refused && said.is_empty(), "{said}");
    // A requested sandbox is never dropped.
    sandbox.file(".agent/config.yml", "sandbox:\n  mcp: strict\n");
    let (said, is_refused, runs) = start("namespaces,landlock");
    assert!(is_refused && !runs, "{said}");
    assert!(said.contains("no command can run"), "{said}");
}

#[test]
fn directories_of_the_policy_are_writable_too() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let shared = sandbox.dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    sandbox
        .file(".agent/config.yml", "mcp:\n  policy:\n    directories: [../shared, ../missing]\n");
    let mut client = Client::new(&sandbox);
    let made = client.tool("exec", json!({"argv": ["touch", "made"], "cwd": "../shared"}));
    assert!(shared.join("made").exists(), "{made}");
}

/// A server keeps its sandboxes for further commands; each command reports the runs inside it, once.
#[test]
fn runs_that_a_command_records_inside_are_reported_once() {
    let sandbox = Sandbox::new();
    if !sandbox.can_be_confined() {
        return;
    }
    let mut client = Client::with(&sandbox, |command| {
        command.args(["--sandbox", &own_readable()]);
    });
    let ids = ["one", "two"].map(|word| {
        let argv = json!({"argv": [RETAKE, "exec", "-q", "--", "echo", word]});
        let called = client.tool("exec", argv);
        assert_eq!(called["structuredContent"]["exitCode"], 0, "{called}");
        run_id(&called)
    });
    client.leave();
    let listed = sandbox.retake(&["runs", "list", "--json"]).json();
    let runs = listed.as_array().unwrap();
    for (word, id) in ["one", "two"].iter().zip(&ids) {
        let inside: Vec<_> =
            runs.iter().filter(|run| run["command"] == format!("echo {word}")).collect();
        assert_eq!(inside.len(), 1, "{listed:#}");
        assert_eq!(inside[0]["reportedBy"], id.as_str(), "{listed:#}");
        let outer = sandbox.retake(&["runs", "show", id, "--json"]).json();
        assert_eq!(outer["sandbox"]["reported"], json!({"runs": 1}), "{outer:#}");
    }
}
