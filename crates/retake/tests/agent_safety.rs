//! What makes a loop safe to leave alone: limits, budgets, ends that are ends, restarts.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{Sandbox, alive, eventually, on_disk};

#[test]
fn a_limit_is_waited_out_and_not_counted() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 1", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "1"]);
    assert_eq!((called.code, sandbox.calls()), (0, 2), "{}", called.snapshot());
    assert!(called.stdout.contains("limit is reached"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.stop_reason(), "completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 1);
}

#[test]
fn a_limit_can_end_the_loop() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; result", "start; limited 3600", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&["--on-limit", "stop", "--fail-incomplete"]).code, 7);
    assert_eq!(sandbox.stop_reason(), "rate_limit");
    assert_eq!(sandbox.statuses(), "1 completed");
    assert_eq!(sandbox.metadata()["status"], "in_progress");
    // The number was not used up.
    assert_eq!(sandbox.run_agent(&["--on-limit", "stop"]).code, 0);
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
}

#[test]
fn a_wait_ends_when_asked_to() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; limited 3600"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    eventually("the wait", || sandbox.logs().contains("limit is reached"));
    assert_eq!(sandbox.retake(&["agent", "stop", "task"]).code, 0);
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.stop_reason(), "stopped");
    assert_eq!(sandbox.statuses(), "");
}

#[test]
fn errors_that_pass_are_tried_again() {
    let sandbox = Sandbox::new();
    let config = "retry:\n  first: 1ms\n  longest: 5ms\n  tries: 3";
    let steps = [
        "start; failed 529; exit 1",
        "start; failed 500",
        "start; progress 1 2; result",
        "start; failed 503",
    ];
    sandbox.agent(config, &steps);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1, "{}", called.snapshot());
    // Two tries, then one that counts; then one and three more tries, which is enough.
    assert_eq!(sandbox.calls(), 7);
    assert_eq!(sandbox.statuses(), "1 completed, 2 failed");
    assert!(called.stderr.contains("Iteration 2 failed: it went wrong"), "{}", called.snapshot());
    // What does not pass is not tried again.
    let sandbox = Sandbox::new();
    sandbox.agent(config, &["start; failed 401"]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    assert_eq!(sandbox.calls(), 1);
}

#[test]
fn budgets_end_the_loop() {
    let cases = [
        // Reached by what was reported at the end.
        ("--max-cost", "0.02", "start; progress 1 9; result 0.01", "budget_cost", 2),
        ("--max-tokens", "250", "start; progress 1 9; result 0.01 100", "budget_tokens", 3),
        // Reached in the middle: the agent is ended.
        ("--max-tokens", "250", "start; used a 200; used b 100; sleep 1000", "budget_tokens", 1),
        ("--max-iteration-tokens", "50", "start; used a 60; sleep 1000", "budget_tokens", 1),
        ("--max-time", "1s", "start; sleep 1000", "budget_time", 1),
        // The agent stopped by itself at the amount that it was given.
        (
            "--max-iteration-cost",
            "0.5",
            r#"start; echo '{"type":"result","subtype":"error_max_budget_usd","is_error":true,"total_cost_usd":0.6,"usage":{}}'"#,
            "budget_cost",
            1,
        ),
    ];
    for (option, most, step, reason, calls) in cases {
        let sandbox = Sandbox::new();
        sandbox.agent("", &[step]);
        sandbox.workspace("task", &[]);
        let called = sandbox.run_agent(&[option, most]);
        assert_eq!(called.code, 0, "{option} {}", called.snapshot());
        assert_eq!((sandbox.stop_reason().as_str(), sandbox.calls()), (reason, calls), "{option}");
        assert_eq!(sandbox.run_agent(&[option, most, "--fail-incomplete"]).code, 5, "{option}");
        assert_eq!(sandbox.metadata()["status"], "in_progress");
    }
}

#[test]
fn a_budget_that_cannot_be_measured_is_refused() {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &["complete"]);
    sandbox.workspace("task", &[]);
    let command = agent.to_string_lossy().into_owned();
    for (kind, option) in
        [("custom", "--max-cost"), ("custom", "--max-tokens"), ("codex", "--max-cost")]
    {
        sandbox.file(".agent/config.yml", &format!("agent:\n  command: {command}\n"));
        let called = sandbox.run_agent(&["--agent", kind, option, "10"]);
        assert_eq!(called.code, 1);
        assert!(
            called.stderr.contains(&format!("{option} cannot be used with {kind}")),
            "{}",
            called.snapshot()
        );
    }
    assert_eq!(sandbox.calls(), 0);
    assert_eq!(sandbox.run_agent(&["--agent", "custom", "--max-time", "1m"]).code, 0);
}

#[test]
fn an_iteration_that_takes_too_long_is_ended() {
    let sandbox = Sandbox::new();
    sandbox.agent("timeout: 1s", &["start; used a 40; echo half > made; sleep 1000"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("Iteration 1 failed: it timed out"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 timed_out");
    let iteration = &sandbox.shown()["iterations"][0];
    assert_eq!(iteration["tokens"], 40);
    assert_eq!(iteration["filesCreated"], serde_json::json!(["made"]));
    assert_eq!(sandbox.shown()["summary"]["timedOutIterations"], 1);
}

#[test]
fn an_agent_that_lingers_after_its_result_is_ended() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "resultGrace: 0s",
        &["start; progress 1 2; result; sleep 1000", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 completed");
}

/// Ignores TERM, and leaves a child in a session of its own that does so too.
const STUBBORN: &str = r#"trap '' TERM INT
start
setsid sh -c 'trap "" TERM INT HUP; echo $$ > "'$dir'/child.new"; mv "'$dir'/child.new" "'$dir'/child"; while :; do sleep 1000; done' &
while [ ! -e "$dir/child" ]; do sleep 0.01; done
echo $$ > "$dir/pid.new"; mv "$dir/pid.new" "$dir/pid"
while :; do sleep 1000; done"#;

fn gone(sandbox: &Sandbox) {
    for name in ["pid", "child"] {
        let pid: i32 = sandbox.awaited(name).trim().parse().unwrap();
        eventually(name, || !alive(pid));
    }
}

#[test]
fn nothing_survives_the_end() {
    let sandbox = Sandbox::new();
    sandbox.agent("timeout: 1s", &[STUBBORN]);
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    gone(&sandbox);
    assert_eq!(sandbox.statuses(), "1 timed_out");
}

#[test]
fn an_interrupt_ends_politely() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &[
            "start; progress 1 3; result",
            "start; say 'in the middle'; used u 30; touch \"$dir/ready\"; sleep 1000",
        ],
    );
    sandbox.workspace("task", &[]);
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let running = sandbox.start_agent(&[]);
        sandbox.awaited("ready");
        running.signal(signal);
        assert_eq!(running.end().code, code);
        std::fs::remove_file(sandbox.agent_dir().join("ready")).unwrap();
        assert_eq!(sandbox.stop_reason(), "interrupted");
        assert_eq!(sandbox.metadata()["status"], "in_progress");
    }
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 interrupted");
    assert_eq!(sandbox.shown()["iterations"][1]["tokens"], 30);
    let log = sandbox.logs();
    assert!(log.contains("in the middle") && log.contains("STOPPED: interrupted"), "{log}");
    // The next one is told, and goes on with the numbers.
    sandbox.agent("", &["start; complete; result"]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    assert!(sandbox.prompt(sandbox.calls()).contains("was cut off"));
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 interrupted, 4 completed");
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let sandbox = Sandbox::new();
    // Takes its time to end, and would be given it.
    let slow = "trap 'touch \"$dir/ending\"; sleep 4; touch \"$dir/ended\"; exit' TERM INT; start; \
                touch \"$dir/ready\"; while :; do sleep 0.05; done";
    sandbox.agent("", &[slow]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGINT);
    sandbox.awaited("ending");
    running.signal(libc::SIGINT);
    assert_eq!(running.end().code, 130);
    assert!(!sandbox.agent_dir().join("ended").exists());
    assert_eq!(sandbox.statuses(), "1 interrupted");
}

#[test]
fn an_interrupt_in_a_hook_or_a_gate_is_an_interrupt() {
    for config in [
        "hooks:\n  pre:\n    run: touch HERE; sleep 1000\n    timeout: 1h",
        "hooks:\n  post:\n    run: touch HERE; sleep 1000\n    timeout: 1h",
        "verification:\n  command: touch HERE; sleep 1000",
    ] {
        let sandbox = Sandbox::new();
        let here = sandbox.agent_dir().join("ready");
        sandbox
            .agent(&config.replace("HERE", &here.to_string_lossy()), &["start; complete; result"]);
        sandbox.workspace("task", &[]);
        let running = sandbox.start_agent(&[]);
        sandbox.awaited("ready");
        running.signal(libc::SIGINT);
        let called = running.end();
        assert_eq!(called.code, 130, "{config}: {}", called.snapshot());
        assert!(!called.stderr.contains("failed"), "{config}: {}", called.snapshot());
        let stopped = sandbox.stop_reason();
        assert!(["interrupted", "completed"].contains(&stopped.as_str()), "{config}: {stopped}");
        let statuses = sandbox.statuses();
        let expected = if config.contains("pre") { "1 interrupted" } else { "1 completed" };
        assert_eq!(statuses, expected, "{config}");
    }
}

#[test]
fn an_interrupt_before_or_outside_the_loop_is_an_interrupt() {
    let sandbox = Sandbox::new();
    let agent = sandbox.agent("", &["touch \"$dir/ready\"; sleep 1000"]);
    sandbox.workspace("task", &[]);
    let interrupted = |command: &str| {
        let mut child =
            sandbox.command(common::RETAKE).args(["agent", command, "task"]).spawn().unwrap();
        sandbox.awaited("ready");
        // SAFETY: to a child of ours that was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let status = child.wait().unwrap();
        std::fs::remove_file(sandbox.agent_dir().join("ready")).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGINT));
    };
    interrupted("verify");
    // Already when asked for its version.
    let ready = sandbox.agent_dir().join("ready");
    std::fs::write(&agent, format!("#!/bin/sh\ntouch {}\nsleep 1000\n", ready.display())).unwrap();
    interrupted("run");
    assert_eq!(sandbox.statuses(), "");
}

#[test]
fn a_killed_runner_loses_nothing() {
    let sandbox = Sandbox::new();
    let config = "retry:\n  first: 1ms";
    let stuck = format!("used a 55; {STUBBORN}");
    sandbox.agent(
        config,
        &[
            "start; progress 1 9; result 0.10 100",
            "start; failed 500",
            &stuck,
            "start; progress 2 9; result 0.10 100",
        ],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("pid");
    // Its output is on the record before it dies.
    eventually("the output", || on_disk(&sandbox.store(), b"\"input_tokens\":55"));
    running.signal(libc::SIGKILL);
    running.end();
    gone(&sandbox);
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted");
    assert_eq!(sandbox.stop_reason(), "interrupted");

    // 100 and 7 and 55 and 100 tokens: the third of 262 would be too much.
    let called = sandbox.run_agent(&["--max-tokens", "262", "-m", "5"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("Going on with the loop"), "{}", called.snapshot());
    assert_eq!(sandbox.statuses(), "1 completed, 2 interrupted, 3 completed");
    assert_eq!(sandbox.stop_reason(), "budget_tokens");
    assert!(sandbox.prompt(4).contains("was cut off"));
    let iteration = &sandbox.shown()["iterations"][1];
    assert_eq!(iteration["tokens"], 55);
    assert!(iteration["runId"].is_string() && iteration["endedAt"].is_string());
    let metadata = sandbox.metadata();
    assert_eq!(metadata["executionIterations"], 3);
    assert_eq!(metadata["totalIterations"], 3);
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn many_deaths_at_any_moment_leave_exact_counters() {
    let sandbox = Sandbox::new();
    let config = "hooks:\n  pre:\n    run: 'true'\n  post:\n    run: 'true'";
    sandbox.agent(config, &["start; progress 1 9; result 0.01 10"]);
    sandbox.workspace("task", &[]);
    for round in 0..12u64 {
        let running = sandbox.start_agent(&["-q"]);
        // Any moment will do: in a hook, in the agent, between them.
        std::thread::sleep(std::time::Duration::from_millis(30 + round * 23 % 140));
        running.signal(libc::SIGKILL);
        running.end();
    }
    assert_eq!(sandbox.run_agent(&["-m", "1"]).code, 0);
    let shown = sandbox.shown();
    let iterations = shown["iterations"].as_array().unwrap();
    let numbers: Vec<_> = iterations.iter().map(|i| i["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=iterations.len() as u64).collect::<Vec<_>>());
    for iteration in iterations {
        let word = iteration["status"].as_str().unwrap();
        assert!(["completed", "interrupted"].contains(&word), "{iteration}");
        assert!(word != "completed" || iteration["tokens"] == 10, "{iteration}");
    }
    assert_eq!(sandbox.metadata()["executionIterations"], iterations.len());
    assert_eq!(sandbox.retake(&["audit", "verify"]).code, 0);
}

#[test]
fn after_a_death_the_time_in_between_is_not_counted() {
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; touch \"$dir/ready\"; sleep 1000", "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGKILL);
    running.end();
    // Longer than the loop may take.
    std::thread::sleep(std::time::Duration::from_millis(2200));
    let called = sandbox.run_agent(&["--max-time", "2s"]);
    assert_eq!(
        (called.code, sandbox.stop_reason()),
        (0, "completed".into()),
        "{}",
        called.snapshot()
    );
}

#[test]
fn reset_gives_a_broken_loop_up() {
    let sandbox = Sandbox::new();
    sandbox.agent(
        "",
        &["start; used a 500; touch \"$dir/ready\"; sleep 1000", "start; complete; result"],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    running.signal(libc::SIGKILL);
    running.end();
    assert_eq!(sandbox.retake(&["agent", "reset", "task"]).code, 0);
    assert_eq!(sandbox.metadata()["executionIterations"], 0);
    let called = sandbox.run_agent(&["--max-tokens", "400"]);
    assert!(!called.stdout.contains("Going on"), "{}", called.snapshot());
    assert_eq!(sandbox.stop_reason(), "completed");
    assert_eq!(sandbox.statuses(), "1 interrupted, 2 completed");
    assert_eq!(sandbox.metadata()["executionIterations"], 1);
}

#[test]
fn one_loop_at_a_time() {
    let sandbox = Sandbox::new();
    let waits = "start; touch \"$dir/ready\"; while [ ! -e \"$dir/go\" ]; do sleep 0.02; done; \
                 complete; result";
    sandbox.agent("", &[waits, "start; complete; result"]);
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&[]);
    sandbox.awaited("ready");
    let called = sandbox.run_agent(&[]);
    assert_eq!(called.code, 1);
    assert!(
        called.stderr.contains("Workspace task is in use by `retake agent run task`"),
        "{}",
        called.snapshot()
    );
    assert!(called.stderr.contains(&format!("pid {}", running.pid())), "{}", called.snapshot());
    for command in [
        &["clean", "task", "-f"][..],
        &["reset", "task"],
        &["archive", "save", "task"],
        &["rollback", "task", "--to", "1"],
    ] {
        let words: Vec<_> = ["agent"].iter().chain(command).copied().collect();
        assert_eq!(sandbox.retake(&words).code, 1, "{command:?}");
    }
    std::fs::write(sandbox.agent_dir().join("go"), "").unwrap();
    assert_eq!(running.end().code, 0);
    assert_eq!(sandbox.calls(), 1);
    assert_eq!(sandbox.retake(&["agent", "reset", "task"]).code, 0);
}

#[test]
fn a_secret_is_nowhere() {
    let sandbox = Sandbox::new();
    let secret = "hunter2-hunter2-xyz";
    let config = "verification:\n  command: echo the token is $API_TOKEN; false\n  maxAttempts: 1";
    sandbox.agent(
        config,
        &["start; say \"my token is $API_TOKEN\"; status \"{\\\"complete\\\":true,\\\"summary\\\":\\\"used $API_TOKEN\\\"}\"; result", "start; failed 400 \"no $API_TOKEN\""],
    );
    let dir = sandbox.workspace("task", &[]);
    let (url, told) = server();
    std::fs::write(dir.join("INSTRUCTIONS.md"), format!("Log in with {secret}.\n")).unwrap();
    let called = sandbox.retake_with(
        &[("API_TOKEN", secret), ("RETAKE_AGENT__NOTIFYURL", &url)],
        &["agent", "run", "task"],
    );
    assert_eq!(called.code, 1, "{}", called.snapshot());
    // The agent got it.
    assert!(sandbox.prompt(1).contains(secret));
    assert!(!on_disk(&sandbox.store(), secret.as_bytes()), "in the record");
    let log = sandbox.logs();
    assert!(!log.contains(secret) && log.contains("my token is "), "{log}");
    assert!(!called.stderr.contains(secret), "{}", called.snapshot());
    let all: Vec<String> = told.try_iter().collect();
    assert!(all.len() > 3 && !all.iter().any(|text| text.contains(secret)), "{all:?}");
    assert!(!sandbox.retake(&["agent", "show", "task", "--json"]).stdout.contains(secret));
}

#[test]
fn root_is_refused_before_the_first_iteration() {
    // SAFETY: no arguments, no failure.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.agent("", &["start; complete; result"]);
    sandbox.workspace("task", &[]);
    let run = |value: &str| {
        let words = ["agent", "run", "task", "--dangerously-skip-permissions"];
        sandbox.retake_with(&[("IS_SANDBOX", value)], &words)
    };
    let called = run("");
    assert_eq!(called.code, 1);
    assert!(called.stderr.contains("IS_SANDBOX=1"), "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 0);
    let called = run("1");
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stderr.contains("⚠️ --dangerously-skip-permissions"), "{}", called.snapshot());
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-1")).unwrap();
    assert!(argv.contains("--dangerously-skip-permissions"));
    // Never kept.
    assert!(!sandbox.metadata().to_string().contains("dangerously"));
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let argv = std::fs::read_to_string(sandbox.agent_dir().join("argv-2")).unwrap();
    assert!(!argv.contains("dangerously"));
}

/// A server on loopback that takes everything, and what it was told.
fn server() -> (String, std::sync::mpsc::Receiver<String>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/topic", listener.local_addr().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let tell = tell.clone();
            std::thread::spawn(move || {
                let (mut request, mut buffer) = (String::new(), [0; 4096]);
                loop {
                    let Ok(length @ 1..) = stream.read(&mut buffer) else { return };
                    request.push_str(&String::from_utf8_lossy(&buffer[..length]));
                    let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
                    let wanted = head.lines().find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                    });
                    if body.len() < wanted.unwrap_or(0) {
                        continue;
                    }
                    if tell.send(std::mem::take(&mut request)).is_err()
                        || stream
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                            .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (url, told)
}

fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

#[test]
fn notifications_tell_how_it_goes() {
    let sandbox = Sandbox::new();
    let (url, told) = server();
    let config = format!("notifyUrl: {url}\nnotification:\n  statusWatch:\n    debounceMs: 500");
    sandbox.agent(
        &config,
        &[
            // Long enough for the watch to pass it on.
            "start; progress 5 60; sleep 1.2; progress 35 60; sleep 1.2; result",
            "start; complete; result",
        ],
    );
    sandbox.workspace("task", &[]);
    assert_eq!(sandbox.run_agent(&[]).code, 0);
    let seen: Vec<_> = told
        .try_iter()
        .map(|request| {
            let field = |name| header(&request, name).unwrap_or("-").to_owned();
            (
                field("title"),
                field("priority"),
                field("tags"),
                request.split("\r\n\r\n").nth(1).unwrap().to_owned(),
            )
        })
        .collect();
    let find = |title: &str| {
        let found = seen.iter().find(|(t, ..)| t == title);
        found.unwrap_or_else(|| panic!("{title} in {seen:?}"))
    };
    assert_eq!(find("Execution Started").2, "retake,execution");
    let (_, priority, tags, body) = find("Iteration 1");
    assert_eq!((priority.as_str(), tags.as_str()), ("-", "retake,iteration"));
    assert!(body.starts_with("ITERATION 1\n\n"), "{body}");
    assert!(!seen.iter().any(|(title, ..)| title == "Iteration 2"), "the completing one");
    let (_, priority, tags, _) = find("Task Complete");
    assert_eq!((priority.as_str(), tags.as_str()), ("high", "retake,completion"));
    let update = "[task] Progress Update (Iteration 1)";
    assert_eq!(find(update).2, "retake,progress,iteration-1");
    let bodies: Vec<_> = seen.iter().filter(|s| s.0 == update).map(|s| s.3.as_str()).collect();
    assert_eq!(bodies, ["STATUS UPDATE\n\n5/60 items (+5)", "STATUS UPDATE\n\n35/60 items (+30)"]);

    sandbox.agent(&config, &["start; failed 400 broken"]);
    assert_eq!(sandbox.run_agent(&[]).code, 1);
    let error = told.try_iter().find(|r| header(r, "title") == Some("Execution Error")).unwrap();
    assert_eq!(header(&error, "priority"), Some("urgent"));
    assert_eq!(header(&error, "tags"), Some("retake,error"));
}

#[test]
fn only_wanted_events_are_notified() {
    let sandbox = Sandbox::new();
    let (url, told) = server();
    sandbox.agent("", &["start; progress 1 9; result"]);
    sandbox.workspace("task", &["--notify-url", &url, "--notify-events", "iteration_milestone"]);
    assert_eq!(sandbox.run_agent(&["-m", "11"]).code, 0);
    let titles: Vec<_> =
        told.try_iter().map(|request| header(&request, "title").unwrap().to_owned()).collect();
    assert_eq!(titles, ["Milestone Reached"]);
}

#[test]
fn a_dead_server_stops_nothing() {
    let sandbox = Sandbox::new();
    // Takes connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/topic", listener.local_addr().unwrap());
    let config = format!("notifyUrl: {url}\nnotifyTimeout: 1s\nnotifyEvents: [execution_start]");
    sandbox.agent(&config, &["start; progress 1 9; result"]);
    sandbox.workspace("task", &[]);
    let called = sandbox.run_agent(&["-m", "3"]);
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 3);
    assert!(
        called.stderr.contains("1 notification could not be delivered"),
        "{}",
        called.snapshot()
    );
}
