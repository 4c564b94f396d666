//! `retake exec` as users see it: the real program, its output, exit codes and behaviour.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, called};

#[test]
fn the_scenarios_of_the_specification() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.retake(&["exec", "echo hello"]).snapshot(), "exit 0\nstdout: hello\n");
    assert_eq!(sandbox.retake(&["exec", "exit 42"]).snapshot(), "exit 42\n");
    assert_eq!(
        sandbox.retake(&["exec", "sleep 60", "--timeout", "0.3"]).snapshot(),
        "exit 124\n\
         stderr: retake: ACODE-EXE-002 timed out after 300ms\n\
         stderr: retake: hint: allow more time with --timeout, or check the output for what it waited for\n"
    );
    let cwd = sandbox.retake(&["exec", "pwd", "--cwd", "/usr"]);
    assert_eq!(cwd.snapshot(), "exit 0\nstdout: /usr\n");
    let env = sandbox.retake(&["exec", "printenv NODE_ENV", "--env", "NODE_ENV=test"]);
    assert_eq!(env.snapshot(), "exit 0\nstdout: test\n");
}

#[test]
fn streams_pass_through_as_they_are() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command(RETAKE)
        .args(["exec", "--", "sh", "-c", r"printf 'a\0\377b'; printf 'e\n' >&2"])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"a\0\xffb");
    assert_eq!(output.stderr, b"e\n");
}

#[test]
fn output_passes_through_live() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command(RETAKE)
        .args(["exec", "--stdin", "inherit", "--", "sh", "-c", "echo first; read x; echo second"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n", "before the command has ended");
    drop(child.stdin.take());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "first\nsecond\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn json_has_every_promised_key() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&[
        "exec",
        "--json",
        "--session-id",
        "s1",
        "--label",
        "k=v",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    ]);
    assert_eq!(called.code, 3);
    let json = called.json();
    for key in [
        "id",
        "command",
        "workingDirectory",
        "exitCode",
        "success",
        "timedOut",
        "startTime",
        "endTime",
        "durationMs",
        "stdout",
        "stderr",
        "correlationIds",
        "arguments",
        "shell",
        "outcome",
        "signal",
        "error",
        "truncated",
        "stdoutBytes",
        "stderrBytes",
        "leaked",
        "leftProcesses",
        "usage",
    ] {
        assert!(json.get(key).is_some(), "{key} is missing in {json}");
    }
    assert_eq!(json["outcome"], "exited");
    assert_eq!(json["exitCode"], 3);
    assert_eq!(json["stdout"], "out\n");
    assert_eq!(json["stderr"], "err\n");
    assert_eq!(
        json["arguments"],
        serde_json::json!(["sh", "-c", "echo out; echo err >&2; exit 3"])
    );
    assert_eq!(json["error"]["code"], "ACODE-EXE-003");
    assert_eq!(json["correlationIds"]["sessionId"], "s1");
    assert_eq!(json["correlationIds"].as_object().unwrap().len(), 7);
    assert_eq!(json["labels"]["k"], "v");
    assert!(json["durationMs"].as_u64().unwrap() > 0);
    assert!(json["usage"]["maxRssKb"].as_u64().unwrap() > 0);
    assert_eq!(json["recorded"], true);
    assert!(json.get("stdoutBase64").is_none());
}

#[test]
fn bytes_that_are_not_text_come_in_base64_too() {
    let json = Sandbox::new().retake(&["exec", "--json", "--", "printf", r"\377\000a"]).json();
    assert_eq!(json["stdoutBase64"], "/wBh");
    assert_eq!(json["stdout"], "\u{fffd}\0a");
}

#[test]
fn a_value_or_a_command_in_the_wrong_place_is_explained() {
    let sandbox = Sandbox::new();
    let twice = "there is a command before and after --; give only one";
    for (arguments, expected) in [
        (
            &["--sandbox", "strict", "--", "ls"][..],
            "(a value of --sandbox needs `=`, as in --sandbox=strict)",
        ),
        (&["--track", "/tmp", "--", "true"], "(a value of --track needs `=`, as in --track=/tmp)"),
        (&["ls", "--", "true"], twice),
        (
            &["--", "ls -l"],
            "after -- the program and each argument are separate words, as in: retake exec -- ls -l",
        ),
        (&["--", "no-such-program", "a b"], "check the spelling and PATH"),
    ] {
        let called = sandbox.retake(&[&["exec"], arguments].concat());
        assert!(called.stderr.contains(expected), "{arguments:?}: {}", called.snapshot());
        assert_eq!(called.code == 125, called.stderr.contains(twice), "{}", called.snapshot());
        let explained = called.stderr.contains("needs `=`");
        assert_eq!(explained, expected.contains("needs `=`"), "{}", called.snapshot());
    }
}

#[test]
fn outcomes_have_one_word_one_code_and_one_error() {
    let sandbox = Sandbox::new();
    let cases: [(&[&str], &str, i64, &str); 8] = [
        (&["--", "true"], "exited", 0, ""),
        (&["--", "sh", "-c", "kill -SEGV $$"], "signaled", 139, "ACODE-EXE-003"),
        (&["--timeout", "0.2", "--", "sleep", "60"], "timed_out", 124, "ACODE-EXE-002"),
        (&["--", "no-such-program"], "not_started", 127, "ACODE-EXE-001"),
        (&["--", "/etc/passwd"], "not_started", 126, "ACODE-EXE-001"),
        (&["--cwd", "/no/such", "--", "true"], "not_started", 125, "ACODE-EXE-006"),
        (&["--timeout", "-1", "--", "true"], "not_started", 125, "ACODE-EXE-005"),
        (
            &["--limit", "fsize=1K", "--", "sh", "-c", "exec head -c 9999 /dev/zero > big"],
            "limit_exceeded",
            153,
            "ACODE-EXE-007",
        ),
    ];
    for (arguments, word, code, error) in cases {
        let called = sandbox.retake(&[&["exec", "--json"], arguments].concat());
        let json = called.json();
        assert_eq!(json["outcome"], word, "{arguments:?}");
        assert_eq!(json["exitCode"], code, "{arguments:?}");
        assert_eq!(i64::from(called.code), code, "{arguments:?}");
        assert_eq!(json["error"]["code"].as_str().unwrap_or(""), error, "{arguments:?}");
        assert_eq!(json["success"], code == 0);
        assert_eq!(json["timedOut"], word == "timed_out");
    }
}

#[test]
fn a_refused_request_names_every_problem() {
    let sandbox = Sandbox::new();
    let arguments = [
        "exec",
        "",
        "--timeout",
        "0",
        "--cwd",
        "/no/such",
        "--env",
        "1A=x",
        "--env-file",
        "nope",
        "--limit",
        "memory=much",
        "--nice",
        "99",
        "--capture",
        "some",
        "--label",
        "x",
    ];
    let called = sandbox.retake(&arguments);
    assert_eq!(called.code, 125);
    for expected in [
        "the timeout is 0; give a positive number",
        "--env-file nope: No such file",
        "\"1A\" is not a valid variable name",
        "--limit memory: \"much\" is not a size",
        "--nice: \"99\" is not between -20 and 19",
        "--capture takes one of all, stdout, stderr, none, not some",
        "--label x: write KEY=VALUE",
        "the command is empty",
        "working directory /no/such: there is no such directory",
    ] {
        assert!(called.stderr.contains(expected), "{expected}: {}", called.stderr);
    }
    let json = sandbox.retake(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(json["outcome"], "not_started");
    assert_eq!(json["error"]["code"], "ACODE-EXE-005");
    assert_eq!(json["error"]["problems"].as_array().unwrap().len(), 9);
}

#[test]
fn usage_errors_of_exec_are_refusals_too() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.retake(&["exec", "--bogus"]).code, 125);
    let called = sandbox.retake(&["exec", "--json", "--bogus"]);
    assert_eq!(called.code, 125);
    assert_eq!(called.json()["error"]["code"], "ACODE-EXE-005");
    let called = sandbox.retake(&["exec", "cargo", "test", "--timeout", "5"]);
    assert_eq!(called.code, 125);
    assert!(called.stderr.contains("retake exec -- cargo test"), "{}", called.stderr);
    assert!(!called.stderr.contains("the command is empty"), "{}", called.stderr);
    assert_eq!(sandbox.retake(&["nonsense"]).code, 2);
}

#[test]
fn a_shell_is_used_only_when_needed_and_allowed() {
    let sandbox = Sandbox::new();
    let json = sandbox.retake(&["exec", "--json", "echo plain words"]).json();
    assert_eq!(
        (json["shell"].as_bool(), json["stdout"].as_str()),
        (Some(false), Some("plain words\n"))
    );
    let json = sandbox.retake(&["exec", "--json", "echo a | tr a b"]).json();
    assert_eq!((json["shell"].as_bool(), json["stdout"].as_str()), (Some(true), Some("b\n")));
    let called = sandbox.retake(&["exec", "--shell", "false", "exit 42"]);
    assert_eq!(called.code, 125);
    assert!(
        called.stderr.contains("`exit` is a shell builtin")
            && called.stderr.contains("--shell true")
    );
    let json = sandbox.retake(&["exec", "--json", "--", "echo", "$HOME", "a;b"]).json();
    assert_eq!(json["stdout"], "$HOME a;b\n");
}

#[test]
fn environment_modes() {
    let sandbox = Sandbox::new();
    let variables = |arguments: &[&str]| {
        let mut command = sandbox.command(RETAKE);
        command
            .env("LD_PRELOAD_X", "1")
            .env("NODE_OPTIONS", "--x")
            .env("MY_API_TOKEN", "abc")
            .env("CI_TOKEN", "t");
        called(command.arg("exec").args(arguments).args(["--", "/usr/bin/env"])).stdout
    };
    let all = variables(&["--env", "A=1", "--unset", "HOME"]);
    assert!(
        all.contains("A=1\n") && all.contains("NODE_OPTIONS=") && !all.contains("\nHOME="),
        "{all}"
    );
    assert!(all.contains("RETAKE_PARENT_ID=") && all.contains("RETAKE_STORE="), "{all}");
    assert_eq!(variables(&["--env-mode", "replace", "--env", "A=1"]), "A=1\n");
    sandbox.file(".agent/config.yml", "execution:\n  environment:\n    allow: [CI_TOKEN]\n");
    let merged = variables(&["--env-mode", "merge"]);
    assert!(!merged.contains("NODE_OPTIONS") && !merged.contains("MY_API_TOKEN"), "{merged}");
    assert!(merged.contains("CI_TOKEN=t\n") && merged.contains("PATH="), "{merged}");
}

#[test]
fn quiet_and_capture() {
    let sandbox = Sandbox::new();
    let both = ["--", "sh", "-c", "echo out; echo err >&2"];
    assert_eq!(sandbox.retake(&[&["exec", "--quiet"], &both[..]].concat()).snapshot(), "exit 0\n");
    let none = sandbox.retake(&[&["exec", "--capture", "none"], &both[..]].concat());
    assert_eq!(none.snapshot(), "exit 0\nstdout: out\nstderr: err\n");
    let json =
        sandbox.retake(&[&["exec", "--json", "--capture", "stderr"], &both[..]].concat()).json();
    assert_eq!((json["stdout"].as_str(), json["stderr"].as_str()), (Some(""), Some("err\n")));
    assert_eq!(json["stdoutRawBytes"], 4);
}

#[test]
fn large_output_is_carried_as_head_and_tail() {
    let sandbox = Sandbox::new();
    let called = sandbox.retake(&["exec", "--json", "--max-output-kb", "1", "--", "seq", "100000"]);
    assert_eq!(called.code, 0);
    let json = called.json();
    assert_eq!(json["success"], true);
    assert_eq!(json["truncated"], true);
    assert_eq!(json["error"]["code"], "ACODE-EXE-004");
    assert_eq!(json["stdoutBytes"], 588_895);
    let text = json["stdout"].as_str().unwrap();
    assert!(text.starts_with("1\n2\n") && text.ends_with("99999\n100000\n"), "{text}");
    assert!(text.contains("bytes left out here]") && text.len() < 1200);
}

#[test]
fn secrets_reach_the_child_and_the_terminal_but_not_the_result() {
    let sandbox = Sandbox::new();
    let secret = "hunter2-very-secret";
    let run = |arguments: &[&str]| {
        let mut command = sandbox.command(RETAKE);
        called(command.env("DB_PASSWORD", secret).arg("exec").args(arguments).args([
            "--",
            "sh",
            "-c",
            "echo pw=$DB_PASSWORD",
        ]))
    };
    assert_eq!(run(&[]).stdout, format!("pw={secret}\n"));
    let json = run(&["--json"]).json();
    assert_eq!(json["stdout"], "pw=[redacted:DB_PASSWORD]\n");
    assert_eq!(json["redactions"], 1);
    assert_eq!(run(&["--json", "--no-redact"]).json()["stdout"], format!("pw={secret}\n"));
    let other = sandbox.retake(&[
        "exec",
        "--json",
        "--env",
        "PLAIN=opensesame1",
        "--secret",
        "PLAIN",
        "--",
        "printenv",
        "PLAIN",
    ]);
    assert_eq!(other.json()["stdout"], "[redacted:PLAIN]\n");
    assert!(!other.stdout.contains("opensesame1"));
    // Four characters occur everywhere: a promise to hide them could not be kept.
    let short = ["exec", "--env", "PIN=1234", "--secret", "PIN", "--", "true"];
    let refused = sandbox.retake(&short);
    assert_ne!(refused.code, 0);
    assert!(
        refused.stderr.contains("the secret PIN has fewer than 6 characters"),
        "{}",
        refused.stderr
    );
}

#[test]
fn nested_runs_link_up() {
    let sandbox = Sandbox::new();
    let json =
        sandbox.retake(&["exec", "--json", "--", "retake", "exec", "--json", "--", "true"]).json();
    let inner: serde_json::Value = serde_json::from_str(json["stdout"].as_str().unwrap()).unwrap();
    assert_eq!(inner["parentId"], json["id"]);
    assert_eq!(json["parentId"], serde_json::Value::Null);
}

#[test]
fn the_commit_is_found_without_asking_git() {
    let sandbox = Sandbox::new();
    let git = "git init -q . && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m x && git rev-parse HEAD";
    let sha = sandbox.sh(git).stdout;
    let json = sandbox.retake(&["exec", "--json", "--", "true"]).json();
    assert_eq!(json["correlationIds"]["repoSha"], sha.trim());
    assert_eq!(json["correlationIds"]["worktreeId"], "main");
    let given = sandbox.retake(&["exec", "--json", "--repo-sha", "abc", "--", "true"]).json();
    assert_eq!(given["correlationIds"]["repoSha"], "abc");
}

#[test]
fn a_line_of_a_hundred_megabytes_is_counted_exactly() {
    let sandbox = Sandbox::new();
    let json = sandbox
        .retake(&["exec", "--json", "--", "sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x"])
        .json();
    assert_eq!(json["stdoutBytes"], 100_000_000);
    assert_eq!(json["truncated"], true);
}

#[test]
fn descriptors_of_the_shell_reach_the_command() {
    let called = called(
        Sandbox::new().command("bash").args(["-c", "retake exec -- cat <(echo one) <(echo two)"]),
    );
    assert_eq!(called.snapshot(), "exit 0\nstdout: one\nstdout: two\n");
}

#[test]
fn a_command_in_its_own_terminal() {
    let sandbox = Sandbox::new();
    let called =
        sandbox.retake(&["exec", "--pty", "--", "sh", "-c", "test -t 1 && echo yes; echo err >&2"]);
    assert_eq!(called.snapshot(), "exit 0\nstdout: yes\nstdout: err\n");
}

#[test]
fn stdin_is_read_only_if_requested() {
    let sandbox = Sandbox::new();
    sandbox.file("in", "content");
    let run = |from: &str| {
        let mut child = sandbox
            .command(RETAKE)
            .args(["exec", "--stdin", from, "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"typed").unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        text
    };
    assert_eq!(run("null"), "");
    assert_eq!(run("inherit"), "typed");
    assert_eq!(run("in"), "content");
}

#[test]
fn limits_bind() {
    let sandbox = Sandbox::new();
    let memory = "import time\nx = bytearray(600 << 20)\ntime.sleep(100)";
    let json = sandbox
        .retake(&["exec", "--json", "--limit", "memory=200M", "--", "python3", "-c", memory])
        .json();
    assert_eq!(json["outcome"], "limit_exceeded", "{json}");
    assert!(json["error"]["message"].as_str().unwrap().contains("memory limit"));
    let json = sandbox
        .retake(&["exec", "--json", "--limit", "cpu=0.3s", "--", "sh", "-c", "while :; do :; done"])
        .json();
    assert_eq!(json["outcome"], "limit_exceeded");
    assert_eq!(json["error"]["code"], "ACODE-EXE-007");
    let called = sandbox.retake(&["exec", "--limit", "files=40", "--", "sh", "-c", "ulimit -n"]);
    assert_eq!(called.stdout, "40\n");
}

#[test]
fn an_odd_inherited_variable_is_passed_on() {
    let called = Sandbox::new().sh("env '=C:=x' retake exec -- env | grep -c '^=C:=x$'");
    assert_eq!(called.stdout, "1\n", "{}", called.stderr);
}

#[test]
fn a_program_is_told_the_directory_it_is_in() {
    let sandbox = Sandbox::new();
    let below = sandbox.project().join("below");
    std::fs::create_dir(&below).expect("made");
    let told = |options: &[&str], pwd: &str| {
        let words = [&["exec"], options, &["--", "printenv", "PWD"]].concat();
        called(sandbox.command(RETAKE).args(words).env("PWD", pwd)).stdout.trim_end().to_owned()
    };
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let (project, below) = (text(&sandbox.project()), text(&below));
    assert_eq!(told(&["--cwd", "below"], &project), below);
    assert_eq!(told(&[], "/"), project);
    assert_eq!(told(&["--cwd", "below", "--env", "PWD=/given"], "/"), "/given");
    // Another name of the same directory works, too.
    let link = sandbox.dir.path().join("link");
    std::os::unix::fs::symlink(&project, &link).expect("made");
    assert_eq!(told(&[], &text(&link)), text(&link));
}
