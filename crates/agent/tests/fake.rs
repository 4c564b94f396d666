//! The fakes follow their scripts step by step.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use retake_agent::adapters::{AgentKind, AttemptVerdict, Reader};
use retake_agent::status::Status;
use retake_types::Outcome;

fn invoke(dir: &Path) -> (Reader, i32) {
    let out = Command::new(env!("CARGO_BIN_EXE_retake-fake-agent"))
        .current_dir(dir)
        .env("RETAKE_FAKE_AGENT", dir.join("script.json"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut reader = Reader::new(AgentKind::Claude);
    reader.push(&out.stdout, &mut |_| {});
    reader.finish(&mut |_| {});
    (reader, out.status.code().unwrap())
}

#[test]
fn the_agent_does_a_step_per_invocation() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("script.json"),
        r#"{"steps":[
            [{"do":"start"},{"do":"say","text":"hello"},
             {"do":"replace","path":"w/.status.json","text":"{\"complete\":true}"},{"do":"result"}],
            [{"do":"limit","resetsAt":77},{"do":"exit","code":1}],
            [{"do":"start"},{"do":"exit","code":0}]]}"#,
    )
    .unwrap();
    let (reader, code) = invoke(dir.path());
    assert_eq!(
        reader.reading().verdict(AgentKind::Claude, &Outcome::Exited(code)),
        AttemptVerdict::Completed
    );
    assert_eq!(reader.reading().last_text, "hello");
    assert_eq!(
        (reader.reading().cost_usd, reader.reading().context_percent()),
        (Some(0.01), Some(1))
    );
    assert!(Status::read(&dir.path().join("w/.status.json")).unwrap().complete);
    let (reader, code) = invoke(dir.path());
    let limited = AttemptVerdict::RateLimited { resets_at: Some(77) };
    assert_eq!(reader.reading().verdict(AgentKind::Claude, &Outcome::Exited(code)), limited);
    for _ in 0..2 {
        let (reader, code) = invoke(dir.path());
        let verdict = reader.reading().verdict(AgentKind::Claude, &Outcome::Exited(code));
        let why = "Claude exited with code 0 without a result".to_owned();
        assert_eq!(verdict, AttemptVerdict::Failed { why });
    }
}

struct Api(Child, String);

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn api(dir: &Path, script: &str) -> Api {
    let path = dir.join("turns.json");
    std::fs::write(&path, script).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_retake-fake-api"))
        .arg(&path)
        .arg(dir.join("log"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    Api(child, url.trim_end().to_owned())
}

#[test]
fn the_model_says_a_turn_per_request_with_tools() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(
        dir.path(),
        r#"{"turns":[{"status":429,"retryAfter":7},
            {"text":"hi","tools":[{"name":"Bash","input":{"command":"ls"}}]},{"text":"bye"}]}"#,
    );
    let ask = |body: &str| {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.post(format!("{}/v1/messages", api.1)).send(body).unwrap();
        let after =
            answer.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        (answer.status().as_u16(), after, answer.body_mut().read_to_string().unwrap())
    };
    let main = r#"{"stream":true,"tools":[{"name":"Bash"}]}"#;
    let (status, after, _) = ask(main);
    assert_eq!((status, after.as_deref()), (429, Some("7")));
    assert!(ask(r#"{"stream":true}"#).2.contains("\"ok\""), "a side question takes no turn");
    let (_, _, stream) = ask(main);
    for part in [
        "event: message_start",
        "input_json_delta",
        "\"stop_reason\":\"tool_use\"",
        "event: message_stop",
    ] {
        assert!(stream.contains(part), "{part}");
    }
    for _ in 0..2 {
        assert!(ask(main).2.contains("bye"));
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap().lines().count(), 5);
}
