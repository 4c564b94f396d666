//! Reading the record with the real program: finding runs, showing, searching and comparing them.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::common::{RETAKE, Sandbox, called};

#[test]
fn every_filter_finds_its_runs() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.project().join("sub")).unwrap();
    let run = |arguments: &[&str]| {
        sandbox.retake(&[&["exec", "-q"], arguments].concat());
    };
    run(&["--label", "suite=unit", "--label", "os=linux", "true one"]);
    run(&["--label", "suite=unit", "--label", "os=bsd", "--cwd", "sub", "true two"]);
    run(&["--run-id", "r1", "--session-id", "s1", "--task-id", "t1", "true three"]);
    run(&["sh -c 'exit 3'"]);
    run(&["--timeout", "100ms", "sleep 5"]);
    run(&["no-such-program"]);
    let all =
        ["no-such-program", "sleep 5", "sh -c 'exit 3'", "true three", "true two", "true one"];
    let three = &["true three"][..];
    for (filter, expected) in [
        (&[][..], &all[..]),
        (&["--limit", "2"], &all[..2]),
        (&["--failed"], &all[..3]),
        (&["--status", "failed"], &all[..3]),
        (&["--status", "ok"], &all[3..]),
        (&["--status", "timed_out"], &["sleep 5"]),
        (&["--status", "not_started"], &["no-such-program"]),
        (&["--status", "exited"], &all[2..]),
        (&["--status", "running"], &[]),
        (&["--status", "interrupted"], &[]),
        (&["--kind", "exec"], &all),
        (&["--kind", "agent"], &[]),
        (&["--run-id", "r1"], three),
        (&["--session-id", "s1"], three),
        (&["--task-id", "t1"], three),
        (&["--task-id", "t2"], &[]),
        (&["--label", "suite=unit"], &all[4..]),
        (&["--label", "suite=unit", "--label", "os=bsd"], &["true two"]),
        (&["--command", "true t*"], &all[3..5]),
        (&["--command", "true one"], &["true one"]),
        (&["--cwd", "sub"], &["true two"]),
        (&["--since", "1h"], &all),
        (&["--until", "1h"], &[]),
        (&["--since", "2030-01-01T00:00:00Z"], &[]),
        (&["--until", "2100-01-01T00:00:00Z"], &all),
    ] {
        assert_eq!(sandbox.listed(filter), expected, "{filter:?}");
    }
    let list = sandbox.retake(&["runs", "list", "--json", "--limit", "1"]).json();
    let loop_id = list[0]["loopId"].as_str().unwrap();
    assert_eq!(sandbox.listed(&["--loop", loop_id]), ["no-such-program"]);
    for key in ["kind", "loopId", "iteration", "state", "parentId", "labels", "recorded"] {
        assert!(list[0].get(key).is_some(), "{key}");
    }
    for wrong in [
        &["--status", "fine"][..],
        &["--since", "yesterday"],
        &["--label", "suite"],
        &["--loop", "x"],
        &["--failed", "--status", "ok"],
    ] {
        let called = sandbox.retake(&[&["runs", "list"], wrong].concat());
        assert_eq!((called.code, called.stdout.as_str()), (2, ""), "{}", called.snapshot());
    }
}

#[test]
fn a_list_for_programs_is_plain_and_whole() {
    let sandbox = Sandbox::new();
    sandbox.retake(&["exec", "-q", "true"]);
    sandbox.retake(&[
        "exec",
        "-q",
        "--",
        "sh",
        "-c",
        "exit 3 # \u{1b}[31m a command as long as two lines of a terminal are, or so",
    ]);
    assert_eq!(
        sandbox.settled_call(&["runs", "list"]),
        "exit 0\n\
         stdout: ID  STARTED  OUTCOME  TOOK  COMMAND\n\
         stdout: ID  TIME  exit 3  TOOK  sh -c 'exit 3 # \\u{1b}[31m a command as long as two lines of a terminal are, or so'\n\
         stdout: ID  TIME  ok  TOOK  true\n"
    );
    // COLUMNS describes a terminal, not this pipe.
    let piped = sandbox.retake_with(&[("COLUMNS", "30")], &["runs", "list"]);
    assert!(piped.stdout.contains("two lines of a terminal are, or so"), "{}", piped.stdout);
    let limited = sandbox.retake(&["runs", "list", "--limit", "1"]);
    assert_eq!(limited.stderr, "retake: there are older runs; --limit shows more than 1\n");
}

#[test]
fn the_newest_run_of_an_outcome_has_a_name() {
    let sandbox = Sandbox::new();
    for command in ["sh -c 'exit 3'", "true one", "sh -c 'exit 4'", "true two"] {
        sandbox.retake(&["exec", "-q", command]);
    }
    let command = |id: &str| {
        sandbox.retake(&["runs", "show", "--json", id]).json()["command"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(command("last-ok"), "true two");
    assert_eq!(command("last-failed"), "sh -c 'exit 4'");
    sandbox.retake(&["exec", "-q", "false"]);
    assert_eq!((command("last"), command("last-ok")), ("false".into(), "true two".into()));
}

#[test]
fn a_comparison_names_the_tests_whose_results_changed() {
    let sandbox = Sandbox::new();
    for output in
        ["1..2\nok 1 - adds\nnot ok 2 - divides\n", "1..2\nnot ok 1 - adds\nok 2 - divides\n"]
    {
        sandbox.file("out", output);
        sandbox.retake(&["exec", "-q", "--tests", "cat out; exit 1"]);
    }
    let runs = sandbox.retake(&["runs", "list", "--json"]).json();
    let [b, a] = [0, 1].map(|at| runs[at]["id"].as_str().unwrap().to_owned());
    let shown = sandbox.retake(&["runs", "diff", &a, &b]).stdout;
    assert!(shown.contains("tests newly failing: 1\n  adds\n"), "{shown}");
    assert!(shown.contains("tests newly passing: 1\n  divides\n"), "{shown}");
    let json = sandbox.retake(&["runs", "diff", "--json", &a, &b]).json();
    assert_eq!(json["tests"]["newlyFailing"][0], "adds");
}

#[test]
fn help_fits_the_terminal() {
    let sandbox = Sandbox::new();
    let shown = sandbox.on_terminal((60, 20), &[("PAGER", "cat")], &["exec", "--help"]);
    let about = shown.lines().find(|line| line.starts_with("The command is either")).unwrap();
    assert!(about.trim_end().chars().count() <= 60, "{about}");
}

#[test]
fn a_list_for_people_fits_their_terminal() {
    let sandbox = Sandbox::new();
    sandbox.retake(&["exec", "-q", "true"]);
    sandbox.retake(&["exec", "-q", "sh -c 'exit 3; echo a command that is longer than the line'"]);
    let list = ["runs", "list"];
    let shown = sandbox.on_terminal((60, 20), &[], &list);
    assert!(shown.contains("\u{1b}[31mexit 3\u{1b}[0m"), "{shown}");
    assert!(shown.contains("\u{1b}[32mok\u{1b}[0m"), "{shown}");
    let plain = sandbox.on_terminal((60, 20), &[("NO_COLOR", "1")], &list);
    let lines: Vec<String> = sandbox.settled(&plain).lines().map(str::to_owned).collect();
    assert_eq!(
        (&lines[0][..], &lines[2][..]),
        ("ID  WHEN  OUTCOME  TOOK  COMMAND", "ID  AGO  ok  TOOK  true")
    );
    // The cut depends on the width of the times.
    assert!(
        lines[1].starts_with("ID  AGO  exit 3  TOOK  sh -c 'exit 3;") && lines[1].ends_with('…'),
        "{plain}"
    );
    assert!(plain.lines().all(|line| line.chars().count() <= 60), "{plain}");
    // Longer than the terminal is high: through the pager, which here marks its lines.
    let paged = sandbox.on_terminal((60, 3), &[("NO_COLOR", "1"), ("PAGER", "sed s/^/P/")], &list);
    assert!(paged.lines().all(|line| line.starts_with('P')), "{paged}");
    let missing =
        sandbox.on_terminal((60, 3), &[("NO_COLOR", "1"), ("PAGER", "no-such-pager")], &list);
    assert!(sandbox.settled(&missing).contains("ID  WHEN  OUTCOME"), "{missing}");
    let json =
        sandbox.on_terminal((60, 3), &[("PAGER", "sed s/^/P/")], &["runs", "list", "--json"]);
    assert!(json.starts_with("[\n  {\n"), "{json}");
}

#[test]
fn a_run_is_shown_with_everything_known_of_it() {
    let sandbox = Sandbox::new();
    let id = sandbox.recorded_with(
        &[
            "--env",
            "COLOR=blue",
            "--env",
            "API_TOKEN=hunter2hunter2",
            "--unset",
            "LANG",
            "--label",
            "suite=unit",
            "--session-id",
            "s1",
            "--limit",
            "files=99",
            "--timeout",
            "30",
        ],
        "echo $API_TOKEN; echo oops >&2; exit 4",
    );
    let shown = "exit 0\n\
        stdout: run  RUN\n\
        stdout: command  sh -c 'echo $API_TOKEN; echo oops >&2; exit 4'\n\
        stdout: directory  PROJECT\n\
        stdout: outcome  exit 4\n\
        stdout: started  TIME (AGO)\n\
        stdout: ended  TIME\n\
        stdout: took  TOOK\n\
        stdout: stdout  21 B, written as 15 B\n\
        stdout: stderr  5 B\n\
        stdout: used  TOOK cpu, SIZE memory\n\
        stdout: redacted  2 secrets: API_TOKEN 2\n\
        stdout: timeout  TOOK\n\
        stdout: limits  files 99\n\
        stdout: environment inherit\n\
        stdout:  API_TOKEN=[redacted:API_TOKEN]\n\
        stdout:  COLOR=blue\n\
        stdout:  without LANG\n\
        stdout: session id  s1\n\
        stdout: label  suite=unit\n\
        stdout: by  SOMEONE\n";
    for name in [&id[..], "last", &id[28..], &id[..20], &id.to_uppercase()] {
        assert_eq!(sandbox.settled_call(&["runs", "show", name]), shown, "{name}");
    }
    let json = sandbox.retake(&["runs", "show", &id, "--json"]).json();
    assert_eq!(json["id"], id.as_str());
    assert_eq!(json["exitCode"], 4);
    assert_eq!(json["children"], serde_json::json!([]));
}

#[test]
fn runs_inside_a_run_are_its_tree() {
    let sandbox = Sandbox::new();
    let id = sandbox
        .recorded("retake exec -q -- sh -c 'retake exec -q -- false'; retake exec -q true; true");
    let shown = sandbox.settled(&sandbox.retake(&["runs", "show", &id]).stdout);
    let (_, tree) = shown.split_once("\n\n").unwrap();
    assert_eq!(
        tree,
        "Runs inside it:\n\
         ├─ ID  exit 1  TOOK  sh -c 'retake exec -q -- false'\n\
         │  └─ ID  exit 1  TOOK  false\n\
         └─ ID  ok  TOOK  true\n"
    );
    let json = sandbox.retake(&["runs", "show", &id, "--json"]).json();
    let inner = &json["children"][0]["children"][0];
    assert_eq!(
        (&inner["command"], &inner["parentId"]),
        (&"false".into(), &json["children"][0]["id"])
    );
    let inner = sandbox.settled_call(&["runs", "show", inner["id"].as_str().unwrap()]);
    assert!(inner.contains("inside  RUN sh -c 'retake exec -q -- false'"), "{inner}");
}

#[test]
fn an_id_that_names_no_run_or_several_is_answered() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo one");
    sandbox.recorded("echo two");
    assert_eq!(
        sandbox.settled_call(&["runs", "show", "nonsense"]),
        "exit 1\nstderr: retake: no run matches `nonsense`; `retake runs list` shows the recorded runs\n"
    );
    for command in ["show", "logs", "delete"] {
        assert_eq!(
            sandbox.settled_call(&["runs", command, "0"]),
            "exit 1\n\
             stderr: retake: `0` names several runs; give more digits of one of these:\n\
             stderr: retake: RUN  AGO  ok  sh -c 'echo two'\n\
             stderr: retake: RUN  AGO  ok  sh -c 'echo one'\n"
        );
    }
}

#[test]
fn logs_are_the_bytes_in_order_of_arrival() {
    let sandbox = Sandbox::new();
    let id = sandbox.recorded(
        r"for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.2; done; printf '\033[0m\377'",
    );
    let logs = |options: &[&str]| {
        let arguments = [&["runs", "logs", &id][..], options].concat();
        let output = sandbox.command(RETAKE).args(arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        output.stdout
    };
    assert_eq!(logs(&[]), b"out1\nerr1\nout2\nerr2\nout3\nerr3\n\x1b[0m\xff");
    assert_eq!(logs(&["--follow"]), b"out1\nerr1\nout2\nerr2\nout3\nerr3\n\x1b[0m\xff");
    assert_eq!(logs(&["--stdout"]), b"out1\nout2\nout3\n\x1b[0m\xff");
    assert_eq!(logs(&["--stderr"]), b"err1\nerr2\nerr3\n");
    assert_eq!(logs(&["--head", "2"]), b"out1\nerr1\n");
    assert_eq!(logs(&["--tail", "2"]), b"err3\n\x1b[0m\xff");
    assert_eq!(logs(&["--tail", "2", "--follow"]), b"err3\n\x1b[0m\xff");
    assert_eq!(logs(&["--stderr", "--tail", "1"]), b"err3\n");
    assert_eq!(logs(&["--stderr", "--tail", "1", "--follow"]), b"err3\n");
    assert_eq!(logs(&["--tail", "0"]), b"");
    let pieces: serde_json::Value = serde_json::from_slice(&logs(&["--json"])).unwrap();
    let pieces = pieces.as_array().unwrap();
    assert_eq!((&pieces[1]["stream"], &pieces[1]["text"]), (&"stderr".into(), &"err1\n".into()));
    assert_eq!(pieces.last().unwrap()["base64"], "G1swbf8=");
    assert!(pieces[4]["atMs"].as_u64().unwrap() >= 20);
    let errors: serde_json::Value = serde_json::from_slice(&logs(&["--stderr", "--json"])).unwrap();
    assert_eq!(errors.as_array().unwrap().len(), 3);
    for wrong in [&["--stdout", "--stderr"][..], &["--head", "1", "--tail", "1"], &["--head", "x"]]
    {
        assert_eq!(sandbox.retake(&[&["runs", "logs", &id], wrong].concat()).code, 2);
    }
    let silent = sandbox.recorded("true");
    assert_eq!(sandbox.retake(&["runs", "logs", &silent]).snapshot(), "exit 0\n");
    assert_eq!(sandbox.retake(&["runs", "logs", &silent, "--json"]).stdout, "[]\n");
}

#[test]
fn the_logs_of_a_run_can_be_followed_while_it_goes_on() {
    let sandbox = Sandbox::new();
    let mut run = sandbox
        .command(RETAKE)
        .args([
            "exec",
            "--stdin",
            "inherit",
            "--",
            "sh",
            "-c",
            "echo one; echo two; read x; echo $x >&2",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut passed = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(passed.nth(1).unwrap().unwrap(), "two", "so the run is recorded by now");
    let mut following = sandbox
        .command(RETAKE)
        .args(["runs", "logs", "last", "--follow", "--tail", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "two");
    assert_eq!(sandbox.listed(&["--status", "running"]).len(), 1);
    assert_eq!(sandbox.retake(&["runs", "delete", "last"]).code, 1, "it still runs");
    run.stdin.take().unwrap().write_all(b"three\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "three");
    assert!(lines.next().is_none(), "it ends with the run");
    assert!(following.wait().unwrap().success());
    assert!(run.wait().unwrap().success());
}

#[test]
fn search_marks_what_it_finds_and_says_what_it_did_not_look_at() {
    let sandbox = Sandbox::new();
    sandbox.recorded("echo 'all fine'; printf 'Connection\\007 to peer refused' >&2");
    sandbox.recorded("echo connection refused again");
    let found = "exit 0\n\
        stdout: ID  AGO  ok  sh -c 'echo connection refused again'\n\
        stdout:  stdout: »connection refused« again\n";
    assert_eq!(sandbox.settled_call(&["runs", "search", "connection", "refused"]), found);
    // Again, now with an index.
    assert_eq!(sandbox.settled_call(&["runs", "search", "connection refused"]), found);
    let both = sandbox.settled_call(&["runs", "search", "refus*"]);
    assert!(both.contains("stderr: Connection\\u{7} to peer »refused«"), "{both}");
    assert_eq!(
        sandbox.settled_call(&["runs", "search", "refused", "--limit", "1"]),
        "exit 0\n\
         stdout: ID  AGO  ok  sh -c 'echo connection refused again'\n\
         stdout:  stdout: connection »refused« again\n\
         stderr: retake: there are older hits; --limit shows more than 1\n"
    );
    assert_eq!(
        sandbox.settled_call(&["runs", "search", "refusal"]),
        "exit 0\nstderr: retake: no recorded output has `refusal`\n"
    );
    let json = sandbox.retake(&["runs", "search", "fine", "--json"]).json();
    let hit = &json["hits"][0];
    assert_eq!((&hit["stream"], &hit["snippet"]), (&"stdout".into(), &"all fine".into()));
    assert_eq!((&hit["matches"], &json["skippedBytes"]), (&serde_json::json!([[4, 8]]), &0.into()));
    for text in ["!!", ""] {
        let wordless = sandbox.retake(&["runs", "search", text]);
        assert_eq!(
            wordless.snapshot(),
            "exit 2\n\
             stderr: retake: the text contains no letter or digit to search for; to find other characters use `retake runs logs ID | grep -F TEXT`\n"
        );
    }
    for nothing in [&["runs", "list", "-n", "0"][..], &["runs", "search", "fine", "-n", "0"]] {
        let called = sandbox.retake(nothing);
        assert_eq!((called.code, called.stdout.as_str()), (0, ""), "{}", called.snapshot());
        assert!(!called.stderr.contains("no "), "{}", called.snapshot());
    }

    sandbox.recorded("yes | head -c 70000000");
    let skipped = sandbox.settled_call(&["runs", "search", "nothing"]);
    // All of it was searched.
    assert!(skipped.ends_with("stderr: retake: no recorded output has `nothing`\n"), "{skipped}");
}

#[test]
fn two_runs_are_compared() {
    let sandbox = Sandbox::new();
    let script = "cat input; echo done >&2; exit $CODE";
    let lines: String = (1..=9).map(|n| format!("line {n}\n")).collect();
    sandbox.file("input", &lines);
    let a = sandbox.recorded_with(&["--env", "CODE=0", "--env", "A=1"], script);
    sandbox.file("input", &lines.replace("line 5\n", "line \u{1b}five\n"));
    let b = sandbox.recorded_with(&["--env", "CODE=3"], script);
    let text = sandbox.settled_call(&["runs", "diff", &a, &b]);
    let text = text.replace("stdout: duration: TOOK -> TOOK\n", "");
    assert_eq!(
        text,
        "exit 0\n\
         stdout: --- ID  TIME  sh -c 'cat input; echo done >&2; exit $CODE'\n\
         stdout: +++ ID  TIME  sh -c 'cat input; echo done >&2; exit $CODE'\n\
         stdout: outcome: ok -> exit 3\n\
         stdout: environment A: 1 -> (none)\n\
         stdout: environment CODE: 0 -> 3\n\
         stdout: stdout: differs\n\
         stdout: @@ -2,7 +2,7 @@\n\
         stdout:  line 2\n\
         stdout:  line 3\n\
         stdout:  line 4\n\
         stdout: -line 5\n\
         stdout: +line \\u{1b}five\n\
         stdout:  line 6\n\
         stdout:  line 7\n\
         stdout:  line 8\n\
         stdout: stderr: same\n"
    );
    let json = sandbox.retake(&["runs", "diff", &a, &b, "--json"]).json();
    assert_eq!((&json["a"]["exitCode"], &json["b"]["exitCode"]), (&0.into(), &3.into()));
    assert_eq!(
        json["differences"][0],
        serde_json::json!({"what": "outcome", "a": "ok", "b": "exit 3"})
    );
    assert_eq!((&json["stdout"]["same"], &json["stderr"]["same"]), (&false.into(), &true.into()));
    let same = sandbox.settled_call(&["runs", "diff", &a, "last", "--json"]);
    assert!(same.starts_with("exit 0"), "{same}");
    let itself = sandbox.retake(&["runs", "diff", &a, &a]);
    assert!(itself.stdout.ends_with("no recorded differences\n"), "{}", itself.stdout);
}

#[test]
fn figures_over_many_runs() {
    let sandbox = Sandbox::new();
    for code in ["1", "1", "0", "0", "0"] {
        sandbox.recorded_with(&["--env", &format!("CODE={code}")], "exit $CODE");
    }
    sandbox.retake(&["exec", "-q", "false"]);
    assert_eq!(
        sandbox.settled_call(&["runs", "stats"]),
        "exit 0\n\
         stdout: 6 runs: 3 ok, 3 failed (50%), 0 unfinished\n\
         stdout: \n\
         stdout: RUNS  FAILED  P50  P95  STREAK  LONGEST  COMMAND\n\
         stdout:  5  40%  TOOK  TOOK  3 ok  3 ok, 2 failed  sh -c 'exit $CODE'\n\
         stdout:  1  100%  TOOK  TOOK  1 failed  0 ok, 1 failed  false\n"
    );
    let json = sandbox.retake(&["runs", "stats", "--json", "--failed"]).json();
    assert_eq!((&json["runs"], &json["failureRate"]), (&3.into(), &1.0.into()));
    assert_eq!(json["commands"][0]["streakOk"], false);
    let limited = sandbox.retake(&["runs", "stats", "--limit", "1"]);
    assert_eq!(limited.stderr, "retake: 1 command not shown; --limit shows more\n");
}

#[test]
fn where_nothing_was_recorded_there_is_nothing_and_no_record_is_made() {
    let sandbox = Sandbox::new();
    for (command, stdout) in [
        (&["runs", "list", "--json"][..], "[]\n"),
        (&["runs", "list"], ""),
        (&["runs", "search", "x"], ""),
        (&["runs", "stats"], "0 runs: 0 ok, 0 failed, 0 unfinished\n"),
        (&["runs", "export"], ""),
    ] {
        let called = sandbox.retake(command);
        assert_eq!((called.code, called.stdout.as_str()), (0, stdout), "{}", called.snapshot());
    }
    for command in [
        &["runs", "show", "last"][..],
        &["runs", "logs", "last"],
        &["runs", "diff", "last", "last"],
        &["runs", "prune", "--older-than", "1d"],
        &["runs", "delete", "last"],
        &["audit", "verify"],
        &["audit", "head"],
        &["runs", "list", "--store", "/no/such"],
    ] {
        let called = sandbox.retake(command);
        assert_eq!((called.code, called.stdout.as_str()), (1, ""), "{}", called.snapshot());
        assert!(called.stderr.starts_with("retake: there is no record at "), "{}", called.stderr);
    }
    assert!(!sandbox.store().exists());
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let sandbox = Sandbox::new();
    sandbox.recorded("yes | head -c 300000");
    for command in [&["runs", "list"][..], &["runs", "logs", "last"], &["runs", "export"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let called = called(sandbox.command(RETAKE).args(command).stdout(writer));
        assert_eq!(called.snapshot(), format!("exit {}\n", 128 + libc::SIGPIPE), "{command:?}");
    }
}

#[test]
fn every_command_has_help_a_page_and_a_completion() {
    let sandbox = Sandbox::new();
    let pages = sandbox.project().join("man");
    assert_eq!(sandbox.retake(&["man", pages.to_str().unwrap()]).snapshot(), "exit 0\n");
    let runs =
        ["list", "show", "logs", "search", "diff", "stats", "export", "import", "prune", "delete"];
    let commands = runs.iter().map(|name| vec!["runs", name]);
    let commands = commands.chain([vec!["audit", "verify"], vec!["audit", "head"]]);
    let others =
        ["exec", "runs", "again", "audit", "doctor", "init", "config", "completions", "man"];
    for command in commands.chain(others.map(|name| vec![name])) {
        let called = sandbox.retake(&[&command[..], &["--help"]].concat());
        assert_eq!((called.code, called.stderr.as_str()), (0, ""));
        assert!(
            called.stdout.contains(&format!("Usage: retake {}", command.join(" "))),
            "{}",
            called.stdout
        );
        assert!(pages.join(format!("retake-{}.1", command.join("-"))).exists(), "{command:?}");
    }
    let internal = |name: &str| name.contains("__") || name == "retake-help.1";
    for page in std::fs::read_dir(&pages).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        assert!(!internal(&name), "{name}");
        let text = std::fs::read_to_string(pages.join(&name)).unwrap();
        for internal in ["mock\\-agent", "report\\-runs", "run\\-one"] {
            assert!(!text.contains(internal), "{name}: {text}");
        }
    }
    let overview = sandbox.retake(&["--help"]).stdout;
    assert!(overview.contains("runs         List, show, search"), "{overview}");
    assert!(sandbox.retake(&["man"]).stdout.contains(".TH retake 1"));
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.retake(&["completions", shell]).stdout;
        assert!(script.contains("older-than") && script.contains("keep-failed"), "{shell}");
    }
    assert_eq!(sandbox.retake(&["runs", "lost"]).code, 2);
    assert_eq!(sandbox.retake(&["runs"]).code, 2);
    assert_eq!(sandbox.retake(&[]).code, 2);
}
