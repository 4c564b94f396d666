//! Notifications of a loop: recipients, events, and no secrets.
use crate::common::{Sandbox, on_disk};

/// A server on loopback that accepts everything, and its requests.
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
fn notifications_report_the_progress_of_a_loop() {
    let sandbox = Sandbox::new();
    let (url, told) = server();
    let config = format!("notifyUrl: {url}\nnotification:\n  statusWatch:\n    debounceMs: 500");
    sandbox.agent(
        &config,
        &[
            // Long enough for the watcher to notice it.
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
    // The completing one, too.
    assert!(find("Iteration 2").3.starts_with("ITERATION 2\n\n"));
    let (_, priority, tags, _) = find("Task Complete");
    assert_eq!((priority.as_str(), tags.as_str()), ("high", "retake,completion"));
    let update = "[task] Progress Update (Iteration 1)";
    assert_eq!(find(update).2, "retake,progress,iteration-1");
    let bodies: Vec<_> = seen.iter().filter(|s| s.0 == update).map(|s| s.3.as_str()).collect();
    assert_eq!(bodies, ["STATUS UPDATE\n\n5/60 items (+5)", "STATUS UPDATE\n\n35/60 items (+30)"]);

    sandbox.agent(&config, &["start; failed 400 broken"]);
    assert_eq!(sandbox.run_agent(&["--again"]).code, 1);
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
    // The agent received it.
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
fn notifications_can_be_json_and_report_a_blocked_agent() {
    let sandbox = Sandbox::new();
    let (url, told) = server();
    sandbox.agent(
        &format!("notifyUrl: {url}\nnotifyFormat: json"),
        &[
            "start; status '{\"complete\":false,\"blockers\":[\"none\"]}'; result",
            "start; status '{\"complete\":false,\"blockers\":[\"which database?\"]}'; result",
            "start; complete; result",
        ],
    );
    sandbox.workspace("task", &[]);
    let running = sandbox.start_agent(&["--no-delay"]);
    let blocked = told
        .iter()
        .map(|request| {
            let body = request.split("\r\n\r\n").nth(1).unwrap().to_owned();
            assert_eq!(header(&request, "content-type"), Some("application/json"));
            serde_json::from_str::<serde_json::Value>(&body).unwrap()
        })
        .find(|value| value["message"].to_string().contains("which database?"))
        .unwrap();
    assert_eq!((&blocked["event"], &blocked["priority"]), (&"error".into(), &"urgent".into()));
    crate::common::eventually("the pause", || sandbox.logs().contains("Paused"));
    assert_eq!(sandbox.calls(), 2);
    assert_eq!(sandbox.retake(&["agent", "resume", "task"]).code, 0);
    let called = running.end();
    assert_eq!(called.code, 0, "{}", called.snapshot());
    assert!(called.stdout.contains("blocked: which database?"), "{}", called.snapshot());
    assert_eq!(sandbox.calls(), 3);
}
