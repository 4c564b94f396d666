//! `retake again` with the real program: the same run, its differences, refusals.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Sandbox, on_disk};

#[test]
fn a_run_is_repeated_and_compared() {
    let sandbox = Sandbox::new();
    sandbox.file("input", "one\n");
    std::fs::create_dir(sandbox.project().join("sub")).unwrap();
    let id = sandbox.recorded_with(
        &[
            "--cwd",
            "sub",
            "--env",
            "A=x y",
            "--unset",
            "HOME",
            "--label",
            "suite=unit",
            "--no-timeout",
            "--limit",
            "files=64",
        ],
        "cat ../input; echo \"$A:$HOME\"; pwd; ulimit -n; exit 3",
    );
    let again = sandbox.retake(&["again", &id[28..]]);
    let before = sandbox.retake(&["runs", "logs", &id]).stdout;
    assert_eq!((again.code, again.stdout), (3, before));
    let remark =
        sandbox.settled(&again.stderr).replace("took TOOK, was TOOK", "took TOOK as before");
    assert_eq!(remark, "retake: outcome exit 3 as before; took TOOK as before; same output\n");
    let [old, new] = [&id, "last"].map(|id| sandbox.retake(&["runs", "show", id, "--json"]).json());
    assert_ne!(old["id"], new["id"]);
    for key in
        ["command", "arguments", "workingDirectory", "timeoutMs", "limits", "environment", "shell"]
    {
        assert_eq!(old[key], new[key], "{key}");
    }
    assert_eq!(new["labels"], serde_json::json!({"again": id, "suite": "unit"}));

    sandbox.file("input", "two\n");
    let changed = sandbox.retake(&["again", &id, "--json"]);
    assert_eq!((changed.code, &changed.json()["exitCode"]), (3, &3.into()));
    assert!(
        sandbox.settled(&changed.stderr).contains("the output differs: retake runs diff ID ID"),
        "{}",
        changed.stderr
    );
    // A line that went through a shell does so again.
    sandbox.retake(&["exec", "-q", "echo a | cat"]);
    assert_eq!(sandbox.retake(&["again", "last", "-q"]).stdout, "");
    let new = sandbox.retake(&["runs", "show", "last", "--json"]).json();
    assert_eq!((&new["command"], &new["shell"]), (&"echo a | cat".into(), &true.into()));
}

#[test]
fn again_says_what_differs_now() {
    let sandbox = Sandbox::new();
    sandbox
        .sh("git init -q . && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m one");
    let program = sandbox.file("program", "#!/bin/sh\necho one\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.retake(&["exec", "-q", "--", "./program"]);
    sandbox.sh("git -c user.name=t -c user.email=t@t commit -q --allow-empty -m two");
    std::fs::write(&program, "#!/bin/sh\necho two\n").unwrap();
    let again = sandbox.retake(&["again", "last"]);
    let stderr = sandbox.settled(&again.stderr);
    let (first, rest) = stderr.split_once('\n').unwrap();
    let sha = |line: &str| line.split([' ', ',']).filter(|word| word.len() == 40).count();
    assert!(first.starts_with("retake: the commit is now ") && sha(first) == 2, "{stderr}");
    assert!(
        rest.starts_with("retake: the program PROJECT/program has changed since (modified AGO)\n"),
        "{stderr}"
    );
    assert_eq!((again.code, again.stdout.as_str()), (0, "two\n"));
}

#[test]
fn again_names_variables_that_changed_and_programs_found_elsewhere() {
    let sandbox = Sandbox::new();
    let then = [("COLOUR", "red"), ("GONE", "1"), ("SHLVL", "1")];
    let now = [("COLOUR", "blue"), ("NEW", "1"), ("SHLVL", "7")];
    sandbox.retake_with(&then, &["exec", "-q", "--", "true"]);
    let again = sandbox.retake_with(&now, &["again", "last"]);
    let said: Vec<_> = again.stderr.lines().take(4).collect();
    assert_eq!(
        said[..3],
        [
            "retake: variables with other values: COLOUR",
            "retake: new variables: NEW",
            "retake: variables no longer set: 1",
        ]
    );
    assert!(said[3].starts_with("retake: outcome ok as before"), "{said:?}");

    let bin = sandbox.project().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/true", bin.join("true")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let again = sandbox.retake_with(&[("PATH", &path)], &["again", "last"]);
    assert!(
        sandbox.settled(&again.stderr).contains("the program is now PROJECT/bin/true, was /"),
        "{}",
        again.stderr
    );
}

#[test]
fn again_repeats_input_priority_terminal_and_capture() {
    let sandbox = Sandbox::new();
    sandbox.file("input", "from a file\n");
    let script = "cat; nice; test -t 1 && echo tty";
    let options = ["--stdin", "input", "--nice", "7", "--capture", "stdout"];
    sandbox.retake(&[&["exec", "-q"], &options[..], &["--", "sh", "-c", script]].concat());
    let again = sandbox.retake(&["again", "last"]);
    assert_eq!(again.stdout, "from a file\n7\n", "{}", again.stderr);
    sandbox.retake(&["exec", "-q", "--pty", "--", "sh", "-c", "test -t 1 && echo tty"]);
    assert_eq!(sandbox.retake(&["again", "last"]).stdout.trim_end(), "tty");
}

#[test]
fn again_takes_redacted_variables_from_now_and_refuses_redacted_arguments() {
    let sandbox = Sandbox::new();
    let script = "printf %s \"$API_TOKEN\" | wc -c; echo $API_TOKEN $OTHER";
    let secret = [("OTHER", "correcthorsebattery")];
    let first = sandbox.retake_with(
        &secret,
        &[
            "exec",
            "--env",
            "API_TOKEN=hunter2hunter2",
            "--secret",
            "OTHER",
            "--",
            "sh",
            "-c",
            script,
        ],
    );
    assert_eq!(first.stdout, "14\nhunter2hunter2 correcthorsebattery\n");
    let id = sandbox.retake(&["runs", "show", "last", "--json"]).json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let now = [("API_TOKEN", "anothersecret"), ("OTHER", "staplestaple")];
    let again = sandbox.retake_with(&now, &["again", &id]);
    assert_eq!(again.stdout, "13\nanothersecret staplestaple\n");
    assert!(
        again.stderr.starts_with("retake: API_TOKEN comes from the current environment\n"),
        "{}",
        again.stderr
    );
    // A value that was given as a secret stays one, although nothing says so any more.
    assert_eq!(
        sandbox.retake(&["runs", "logs", "last"]).stdout,
        "13\n[redacted:API_TOKEN] [redacted:OTHER]\n"
    );
    assert!(
        !on_disk(&sandbox.store(), b"staplestaple") && !on_disk(&sandbox.store(), b"anothersecret")
    );
    assert_eq!(
        sandbox.settled_call(&["again", &id]),
        "exit 125\n\
         stderr: retake: ACODE-EXE-005 the variable API_TOKEN was redacted in the record and is not set now; set it and try again\n\
         stderr: retake: hint: nothing was started; correct the request and run it again\n"
    );

    sandbox.retake(&[
        "exec",
        "-q",
        "--env",
        "API_TOKEN=hunter2hunter2",
        "--",
        "echo",
        "x",
        "key=hunter2hunter2",
    ]);
    let refused = sandbox.retake(&["again", "last"]);
    assert_eq!(refused.code, 125);
    assert!(
        refused.stderr.contains("argument 2 (key=[redacted:API_TOKEN]) was redacted"),
        "{}",
        refused.stderr
    );
    let refused = sandbox.retake(&["again", "last", "--json"]);
    assert_eq!((refused.code, &refused.json()["error"]["code"]), (125, &"ACODE-EXE-005".into()));
    let missing = sandbox.retake(&["again", "nonsense"]);
    assert_eq!(missing.code, 125);
    assert!(
        missing.stderr.starts_with("retake: ACODE-EXE-005 no run matches `nonsense`"),
        "{}",
        missing.stderr
    );
    assert_eq!(sandbox.retake(&["again"]).code, 125);
}

#[test]
fn everything_that_was_asked_is_asked_again_and_the_secret_stays_one() {
    let sandbox = Sandbox::new();
    sandbox.file("input", "from the file\n");
    let secret = [("DEPLOY_PHRASE", "correct-horse-battery")];
    let first = sandbox.retake_with(
        &secret,
        &[
            "exec",
            "--secret",
            "DEPLOY_PHRASE",
            "--label",
            "suite=unit",
            "--nice",
            "7",
            "--capture",
            "stdout",
            "--stdin",
            "input",
            "--env-mode",
            "merge",
            "--env",
            "A=x y",
            "--unset",
            "LANG",
            "--limit",
            "files=64",
            "--limit",
            "procs=200",
            "--timeout",
            "90s",
            "--grace",
            "2s",
            "--max-output-kb",
            "8",
            "--track",
            "--tests",
            "--",
            "sh",
            "-c",
            "cat; echo \"$A\"; echo \"$DEPLOY_PHRASE\"; nice",
        ],
    );
    assert_eq!(first.code, 0, "{}", first.snapshot());
    asked_again(&sandbox, &secret);
    let pty = sandbox.retake(&["exec", "--pty", "--detach-ok", "-q", "--", "test", "-t", "1"]);
    assert_eq!(pty.code, 0, "{}", pty.snapshot());
    asked_again(&sandbox, &secret);
    assert!(!on_disk(&sandbox.store(), b"correct-horse-battery"));
}

/// Repeats the last run and compares the requests.
fn asked_again(sandbox: &Sandbox, variables: &[(&str, &str)]) {
    let store = || retake_store::Store::open_read_only(&sandbox.store()).expect("a store");
    let mut then = store().find("last").expect("a run").intent.request.clone();
    let again = sandbox.retake_with(variables, &["again", "last", "--json"]);
    assert_eq!(again.code, 0, "{}", again.snapshot());
    let mut now = store().find("last").expect("a run").intent.request.clone();
    assert_eq!(now.labels.remove("again"), Some(then.id.to_string()));
    assert_ne!(then.id, now.id);
    (then.id, then.position) = (now.id, now.position);
    then.correlation_ids = now.correlation_ids.clone();
    assert_eq!(then, now);
    assert!(!again.stdout.contains("battery"), "{}", again.stdout);
}
