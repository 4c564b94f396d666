//! Output as shown: its lines, its size, what is left out and how to get that.

use serde_json::{Value, json};

use crate::client::{Client, run_id, text};
use crate::common::{Sandbox, eventually};

fn shown(result: &Value, stream: &str) -> String {
    result["structuredContent"][stream]["text"].as_str().unwrap().to_owned()
}

#[test]
fn new_output_has_the_line_numbers_that_runs_logs_accepts() {
    let sandbox = Sandbox::new();
    sandbox.file("count", "seq 1 1000\nread go\nseq 1001 2000\nread go\n");
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec_start", json!({"argv": ["sh", "count"]})));
    let first = client.tool(
        "exec_wait",
        json!({"run": run, "pattern": "^1000$", "seconds": 30, "max_chars": 200}),
    );
    assert_eq!(first["structuredContent"]["stdout"]["lines"], 1000, "{first}");
    client.tool("exec_input", json!({"run": run, "text": "\n"}));
    let second = client.tool(
        "exec_wait",
        json!({"run": run, "pattern": "^2000$", "seconds": 30, "max_chars": 200}),
    );
    let facts = &second["structuredContent"]["stdout"];
    assert_eq!((&facts["lines"], &facts["bytes"]), (&json!(2000), &json!(8893)), "{second}");
    assert_eq!((&facts["complete"], &facts["sinceLine"]), (&json!(false), &json!(1001)));
    assert!(text(&second).contains("; from line 1001 on ---\n1001\n"), "{second}");
    // The lines that it says are left out exist.
    let given = regex::Regex::new(r#""lines":"(\d+)-(\d+)""#).unwrap();
    let told = text(&second);
    let range = given.captures(&told).unwrap();
    let asked = json!({"run": run, "stream": "stdout", "lines": format!("{}-{}", &range[1], &range[2]), "max_chars": 100_000});
    let rest = shown(
        &json!({"structuredContent": {"x": client.tool("runs_logs", asked)["structuredContent"]}}),
        "x",
    );
    let rest: Vec<&str> = rest.lines().filter(|line| !line.starts_with('[')).collect();
    let mut all: Vec<u32> = shown(&second, "stdout")
        .lines()
        .filter(|line| !line.starts_with('['))
        .chain(rest)
        .map(|line| line.parse().unwrap())
        .collect();
    all.sort_unstable();
    assert_eq!(all, (1001..=2000).collect::<Vec<u32>>());
    let nothing = client.text("exec_wait", json!({"run": run, "seconds": 0.01}));
    assert!(nothing.contains("2000 lines, 8.68 KiB; nothing new ---"), "{nothing}");
    let stopped = client.tool("exec_stop", json!({"run": run}));
    assert_eq!(stopped["structuredContent"]["stdout"]["complete"], false, "{stopped}");
    assert!(!text(&stopped).contains("(no output)"), "{stopped}");
}

#[test]
fn patterns_match_lines_as_they_are_shown() {
    let sandbox = Sandbox::new();
    sandbox.file(
        "serve",
        "printf '\\033[32mserver\\033[0m ready\\n'\nread go\necho again\nprintf '> '\nread go\necho more\nprintf '> '\nread go\n",
    );
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec_start", json!({"argv": ["sh", "serve"]})));
    let ready = json!({"run": run, "pattern": "^server ready$", "seconds": 30});
    let seen = client.tool("exec_wait", ready);
    assert!(text(&seen).contains("The pattern was found."), "{seen}");
    let prompt = json!({"run": run, "pattern": "^> $|^> more$", "seconds": 30});
    client.tool("exec_input", json!({"run": run, "text": "\n"}));
    let seen = client.tool("exec_wait", prompt.clone());
    assert!(text(&seen).contains("The pattern was found."), "{seen}");
    assert_eq!(shown(&seen, "stdout"), "again\n> ");
    // A shown prompt does not count as new, but the text after it is on its line.
    let mut briefly = prompt.clone();
    briefly["seconds"] = json!(0.05);
    let none = client.text("exec_wait", briefly);
    assert!(none.contains("not found yet"), "{none}");
    client.tool("exec_input", json!({"run": run, "text": "\n"}));
    let next = client.tool("exec_wait", prompt);
    assert!(text(&next).contains("The pattern was found."), "{next}");
    assert!(shown(&next, "stdout").starts_with("more\n"), "{next}");
    let found = client.text("runs_logs", json!({"run": run, "pattern": "^server ready$"}));
    assert!(found.contains(", 1 match\n") && found.contains("\nserver ready\n"), "{found}");
}

#[test]
fn the_rest_of_an_output_with_several_gaps_is_one_range_over_all_of_them() {
    let sandbox = Sandbox::new();
    sandbox.file("fail", "seq 3000\necho 'error: no space left'\nseq 3002 6000\nexit 1\n");
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["sh", "fail"], "max_chars": 1500}));
    let told = text(&result);
    let gap = regex::Regex::new(r"\[lines (\d+)-(\d+) left out\]").unwrap();
    let gaps: Vec<(String, String)> =
        gap.captures_iter(&told).map(|gap| (gap[1].to_owned(), gap[2].to_owned())).collect();
    assert_eq!(gaps.len(), 2, "{told}");
    let run = run_id(&result);
    let (short, from, to) = (&run[run.len() - 8..], &gaps[0].0, &gaps[1].1);
    let all = format!(
        r#"The rest: runs_logs {{"run":"{short}","stream":"stdout","lines":"{from}-{to}"}}"#
    );
    assert!(told.contains(&all), "{told}");
}

#[test]
fn all_of_a_long_line_can_be_read() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let result = client.tool("exec", json!({"argv": ["seq", "-s,", "20000"], "max_chars": 300}));
    let run = run_id(&result);
    let told = text(&result);
    assert!(shown(&result, "stdout").starts_with("1,2,3,"), "{told}");
    assert!(told.contains(r#""lines":"1","columns":""#), "{told}");
    // From page to page.
    let (mut read, mut asked) =
        (String::new(), json!({"run": run, "lines": "1", "max_chars": 20_000}));
    loop {
        let page = client.tool("runs_logs", asked.clone());
        let page = &page["structuredContent"];
        read.push_str(page["text"].as_str().unwrap().trim_end());
        if page["next"].is_null() {
            break;
        }
        asked["lines"] = page["next"].clone();
        asked["columns"] = page["nextColumns"].clone();
    }
    let whole: Vec<String> = (1..=20_000).map(|n| n.to_string()).collect();
    assert_eq!(read, whole.join(","));
    for pattern in [",3456,", ",19999,20000$"] {
        let found = client.text("runs_logs", json!({"run": run, "pattern": pattern}));
        assert!(found.contains(", 1 match\n"), "{found}");
        assert!(found.contains(pattern.trim_end_matches('$')), "{found}");
        assert!(found.len() < 2000, "{found}");
    }
    let all = client.tool("exec", json!({"argv": ["seq", "-s,", "5000"], "max_chars": 100_000}));
    assert_eq!(all["structuredContent"]["stdout"]["complete"], true);
}

#[test]
fn the_budget_is_one_of_characters_and_is_kept() {
    let sandbox = Sandbox::new();
    sandbox.file(
        "fail",
        "i=0; while [ $i -lt 20 ]; do i=$((i+1)); printf 'error %0900d\\n' $i >&2; echo out $i; done\nexit 1\n",
    );
    sandbox
        .file("japanese", "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo 日本語の出力; done\n");
    let mut client = Client::new(&sandbox);
    let failed = client.tool("exec", json!({"argv": ["sh", "fail"], "max_chars": 300}));
    let (stdout, stderr) = (shown(&failed, "stdout"), shown(&failed, "stderr"));
    assert!(stdout.len() + stderr.len() <= 300, "{failed}");
    assert!(stdout.contains("out ") && stderr.contains("error 0"), "{failed}");
    let japanese = client.tool("exec", json!({"argv": ["sh", "japanese"], "max_chars": 3000}));
    let chars = shown(&japanese, "stdout").chars().count();
    assert!((2900..=3000).contains(&chars), "{chars}");
    client.text("exec", json!({"argv": ["echo", "x".repeat(100_000)], "max_chars": 500}));
    let long = client.text("runs_show", json!({"run": "last", "max_chars": 500}));
    assert!(long.len() < 3000 && long.contains("characters more]"), "{}", long.len());
}

#[test]
fn overwritten_and_invisible_text_is_shown() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let mut of =
        |text: &str| shown(&client.tool("exec", json!({"argv": ["printf", text]})), "stdout");
    assert_eq!(of("error: disk on fire\\rdone\\n"), "error: disk on fire\u{240d}done\n");
    assert_eq!(of(" 10%%\\r 50%%\\r100%%\\r\\n"), "100%\n");
    assert_eq!(of("a\u{202e}b\u{e0041}\\n"), "a\\u{202e}b\\u{e0041}\n");
}

#[test]
fn a_search_goes_on_where_it_stopped() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec", json!({"argv": ["seq", "1000"]})));
    let mut asked = json!({"run": run, "pattern": "00$", "context": 100, "max_chars": 400});
    let mut found = Vec::new();
    loop {
        let page = client.tool("runs_logs", asked.clone());
        let facts = &page["structuredContent"];
        let lines = facts["text"].as_str().unwrap().lines();
        found.extend(lines.filter(|line| line.ends_with("00")).map(str::to_owned));
        if facts["next"].is_null() {
            break;
        }
        assert!(text(&page).contains("continue with the same pattern and \"lines\""), "{page}");
        asked["lines"] = facts["next"].clone();
    }
    assert_eq!(found, (1..=10).map(|n| format!("{n}00")).collect::<Vec<_>>());
    let beyond = client.text("runs_logs", json!({"run": run, "lines": "9999-"}));
    assert!(beyond.contains("There is no line 9999."), "{beyond}");
    let wrong = client.text("runs_logs", json!({"run": run, "lines": "12-10"}));
    assert!(wrong.contains("ends before it begins") && !wrong.contains("not run"), "{wrong}");
}

#[test]
fn without_a_record_a_run_works_and_says_it_is_not_recorded() {
    let sandbox = Sandbox::new();
    let blocked = sandbox.file("blocked", "no directory");
    let mut client = Client::with(&sandbox, |command| {
        command.env("RETAKE_STORE", blocked.join("store"));
    });
    sandbox.file("work", "echo hello\nread x\n");
    let started = client.tool("exec_start", json!({"argv": ["sh", "work"]}));
    assert_eq!(
        (&started["isError"], &started["structuredContent"]["state"]),
        (&json!(false), &json!("running")),
        "{started}"
    );
    assert_eq!(started["structuredContent"]["recorded"], false);
    assert!(text(&started).contains("This run is not recorded"), "{started}");
    let run = run_id(&started);
    eventually("it has printed", || {
        client
            .text("exec_wait", json!({"run": run, "seconds": 0.01}))
            .contains("1 line, 6 B; not shown")
    });
    client.tool("exec_input", json!({"run": run, "close": true}));
    let ended = client.tool("exec_wait", json!({"run": run, "seconds": 30}));
    assert_eq!(shown(&ended, "stdout"), "hello\n", "{ended}");
    let large = client.tool("exec", json!({"argv": ["seq", "100000"], "max_chars": 400}));
    let facts = &large["structuredContent"]["stdout"];
    assert_eq!((&facts["lines"], &facts["bytes"]), (&json!(100_000), &json!(588_895)), "{large}");
    assert_eq!(facts["complete"], false);
    let told = text(&large);
    assert!(
        !told.contains("runs_logs") && told.contains("output that is not shown here is lost"),
        "{told}"
    );
    assert!(told.contains("bytes not kept]\n") && told.contains("\n99999\n100000\n"), "{told}");
    let listed = client.text("runs_list", json!({}));
    assert!(listed.starts_with("the record cannot be used"), "{listed}");
}

#[test]
fn altered_output_is_an_error_and_not_an_answer() {
    use std::os::unix::fs::FileExt;
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let run = run_id(&client.tool("exec", json!({"argv": ["seq", "1", "400000"]})));
    let spool = sandbox.project().join(format!(".agent/data/spool/{run}.stdout"));
    let file = std::fs::OpenOptions::new().write(true).open(spool).unwrap();
    file.write_all_at(b"FORGED", 1_500_000).unwrap();
    for arguments in [
        json!({"run": run, "stream": "stdout", "lines": "230000-230010"}),
        json!({"run": run, "pattern": "FORGED"}),
    ] {
        let answer = client.tool("runs_logs", arguments);
        assert_eq!(answer["isError"], true, "{answer}");
        assert!(text(&answer).contains("was altered"), "{answer}");
        assert!(!text(&answer).contains("FORGED"), "{answer}");
    }
    let resource =
        client.request("resources/read", json!({"uri": format!("retake://runs/{run}/stdout")}));
    assert!(!resource.to_string().contains("FORGED"), "{resource}");
}
