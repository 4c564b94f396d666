//! Adapters with recorded output of real agents.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use retake_agent::adapters::{AgentKind, AttemptVerdict, Reader, Reading, StreamEvent, Tokens};
use retake_agent::display::Display;
use retake_types::Outcome;

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The abbreviated events, and the aggregated reading.
fn read(kind: AgentKind, bytes: &[u8], chunk: usize) -> (Vec<String>, Reading) {
    let mut reader = Reader::new(kind);
    let mut seen = Vec::new();
    let mut each = |event: &StreamEvent<'_>| {
        seen.push(match event {
            StreamEvent::Started { session, .. } => format!("started {}", session.is_some()),
            StreamEvent::Text { text, .. } => format!("text {text}"),
            StreamEvent::ToolUse { id, name, .. } => format!("use {name} {id}"),
            StreamEvent::ToolResult { id, is_error, content, .. } => {
                format!("result {id} {is_error} {}", content.text().lines().next().unwrap_or(""))
            }
            StreamEvent::Denied { tool, .. } => format!("denied {tool}"),
            StreamEvent::Retry { attempt, status, .. } => format!("retry {attempt} {status:?}"),
            StreamEvent::ApiError { status, .. } => format!("api error {status:?}"),
            StreamEvent::Result(ending) => format!("end {}", ending.is_error),
            StreamEvent::Usage(_) => return,
            other => format!("{other:?}"),
        });
    };
    for piece in bytes.chunks(chunk) {
        reader.push(piece, &mut each);
    }
    reader.finish(&mut each);
    (seen, reader.into_reading())
}

fn claude(name: &str) -> (Vec<String>, Reading) {
    read(AgentKind::Claude, &fixture(&format!("claude/{name}.ndjson")), usize::MAX)
}

fn verdict(name: &str, outcome: &Outcome) -> AttemptVerdict {
    claude(name).1.verdict(AgentKind::Claude, outcome)
}

#[test]
fn a_written_file() {
    let (events, reading) = claude("write");
    assert_eq!(
        events,
        [
            "started true",
            "text I'll create the file.",
            "use Write toolu_mock_01_00",
            "result toolu_mock_01_00 false File created successfully at: /project/hello.txt (file state is current in your context — no need to Read it back)",
            "text Created hello.txt.",
            "end false",
        ]
    );
    assert_eq!(reading.session.as_deref(), Some("280274ec-9c3c-419d-8573-91f9c83e87c5"));
    assert_eq!(reading.model.as_deref(), Some("claude-opus-5-5"));
    assert_eq!(reading.tokens, Tokens { input: 200, output: 40, ..Tokens::default() });
    assert_eq!((reading.cost_usd, reading.turns), (Some(0.0016), Some(2)));
    assert_eq!(reading.context_percent(), Some(1));
    assert_eq!(reading.result.unwrap().text.as_deref(), Some("Created hello.txt."));
}

#[test]
fn failing_tools_are_known_by_their_flag() {
    let (events, reading) = claude("parallel-tools");
    let results: Vec<_> = events.iter().filter(|e| e.starts_with("result")).collect();
    assert_eq!(results.len(), 3);
    assert!(results[0].contains("false one") && results[1].contains("true Exit code 7"));
    assert_eq!((reading.tool_uses, reading.tool_errors), (3, 1));
    assert_eq!(reading.verdict(AgentKind::Claude, &Outcome::Exited(0)), AttemptVerdict::Completed);
}

#[test]
fn verdicts_come_from_the_stream() {
    use Outcome::{Cancelled, Exited, TimedOut};
    for name in ["bash-fail", "bash-ok", "edit-not-found", "error-429-once", "plain-text", "read"] {
        assert_eq!(verdict(name, &Exited(0)), AttemptVerdict::Completed, "{name}");
        // It gave a result but did not exit: the result counts.
        assert_eq!(verdict(name, &Cancelled(15)), AttemptVerdict::Completed, "{name}");
    }
    assert_eq!(verdict("sig-INT-in-bash", &Exited(0)), AttemptVerdict::Interrupted);
    assert_eq!(verdict("sig-INT-in-bash", &TimedOut), AttemptVerdict::TimedOut);
    let why = "Claude exited with code 143 without a result".to_owned();
    assert_eq!(verdict("sig-TERM-in-bash", &Exited(143)), AttemptVerdict::Failed { why });
    assert_eq!(verdict("sig-TERM-in-bash", &Cancelled(15)), AttemptVerdict::Interrupted);
    assert_eq!(verdict("sig-TERM-in-bash", &TimedOut), AttemptVerdict::TimedOut);
    let failed = |name| match verdict(name, &Exited(1)) {
        AttemptVerdict::Failed { why } => why,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(failed("max-turns"), "Reached maximum number of turns (3)");
    assert!(failed("error-401").contains("Invalid API key"));
    assert!(failed("error-no-key").contains("Not logged in"));
    for (name, expected) in
        [("error-529", Some(529)), ("error-429", Some(429)), ("error-refused", None)]
    {
        match verdict(name, &Exited(1)) {
            AttemptVerdict::Transient { status, .. } => assert_eq!(status, expected, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_reply_in_parts_is_counted_once() {
    let (events, reading) = claude("sig-TERM-in-bash");
    assert!(events.iter().filter(|e| e.starts_with("text") || e.starts_with("use")).count() == 2);
    assert_eq!(reading.tokens, Tokens { input: 100, output: 1, ..Tokens::default() });
}

#[test]
fn denied_permissions_are_counted_and_are_no_failure() {
    let (events, reading) = claude("denied-write");
    assert!(events.contains(&"denied Write".to_owned()));
    assert_eq!((reading.denials, &*reading.denied), (1, &["Write".to_owned()][..]));
    assert_eq!(reading.verdict(AgentKind::Claude, &Outcome::Exited(0)), AttemptVerdict::Completed);
}

#[test]
fn a_rejected_limit_names_its_end() {
    let stream = br#"{"type":"rate_limit_event","rate_limit_info":{"status":"allowed_warning","resetsAt":5}}
{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1760000000,"rateLimitType":"five_hour"}}
{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":429}
"#;
    let (_, reading) = read(AgentKind::Claude, stream, 11);
    let limited = AttemptVerdict::RateLimited { resets_at: Some(1_760_000_000) };
    assert_eq!(reading.verdict(AgentKind::Claude, &Outcome::Exited(1)), limited);
}

#[test]
fn an_exhausted_budget_of_the_agent_is_recognised() {
    let stream = br#"{"type":"result","subtype":"error_max_budget_usd","is_error":true}"#;
    let (_, reading) = read(AgentKind::Claude, stream, 9);
    assert_eq!(reading.verdict(AgentKind::Claude, &Outcome::Exited(1)), AttemptVerdict::OverCost);
}

#[test]
fn codex() {
    let (events, reading) = read(AgentKind::Codex, &fixture("codex/bash-fail.ndjson"), 100);
    assert_eq!(
        events,
        [
            "started true",
            "text Working.",
            "use Bash item_2",
            "result item_2 true ",
            "text All done.",
            "end false"
        ]
    );
    assert_eq!(reading.tokens, Tokens { input: 200, output: 40, ..Tokens::default() });
    assert_eq!(reading.cost_usd, None);
    assert_eq!(reading.verdict(AgentKind::Codex, &Outcome::Exited(0)), AttemptVerdict::Completed);
    let (_, reading) = read(AgentKind::Codex, &fixture("codex/error-429.ndjson"), 100);
    for outcome in [Outcome::Exited(0), Outcome::Exited(1)] {
        let verdict = reading.verdict(AgentKind::Codex, &outcome);
        assert!(
            matches!(verdict, AttemptVerdict::Transient { status: Some(429), .. }),
            "{verdict:?}"
        );
    }
}

#[test]
fn gemini() {
    let (events, reading) = read(AgentKind::Gemini, &fixture("gemini/tools.ndjson"), 100);
    assert_eq!(events.first().unwrap(), "started true");
    assert_eq!(events.last().unwrap(), "end false");
    assert_eq!((reading.tool_uses, reading.tool_errors), (2, 0));
    assert_eq!(reading.last_text, "All done.");
    assert_eq!(reading.tokens.total(), 360);
    assert_eq!(reading.verdict(AgentKind::Gemini, &Outcome::Exited(0)), AttemptVerdict::Completed);
    let (_, reading) = read(AgentKind::Gemini, &fixture("gemini/error-401.ndjson"), 100);
    let verdict = reading.verdict(AgentKind::Gemini, &Outcome::Exited(145));
    assert!(
        matches!(&verdict, AttemptVerdict::Failed { why } if why.contains("bad key")),
        "{verdict:?}"
    );
}

#[test]
fn opencode() {
    let (events, reading) = read(AgentKind::Opencode, &fixture("opencode/bash-fail.ndjson"), 100);
    assert!(events.contains(&"use bash call_0_0".to_owned()));
    assert!(events.contains(&"result call_0_0 true (no output)".to_owned()));
    assert_eq!((reading.tokens.total(), reading.cost_usd), (240, Some(0.0)));
    assert!(reading.session.is_some());
    // It may hang instead of exiting, and its exit code is meaningless.
    assert_eq!(
        reading.verdict(AgentKind::Opencode, &Outcome::Cancelled(9)),
        AttemptVerdict::Completed
    );
}

#[test]
fn a_custom_agent_is_judged_by_its_exit() {
    let (events, reading) = read(AgentKind::Custom, b"one\n{\"is_error\":true}\n\xff", 3);
    assert_eq!(events, ["text one", "text {\"is_error\":true}", "text \u{fffd}"]);
    assert_eq!(reading.verdict(AgentKind::Custom, &Outcome::Exited(0)), AttemptVerdict::Completed);
    let failed = reading.verdict(AgentKind::Custom, &Outcome::Exited(3));
    assert_eq!(failed, AttemptVerdict::Failed { why: "exited with code 3".to_owned() });
}

#[test]
fn shown_in_full() {
    let mut reader = Reader::new(AgentKind::Claude);
    let mut display = Display::default();
    let mut shown = String::new();
    reader.push(&fixture("claude/edit-not-found.ndjson"), &mut |event| {
        shown.push_str(&display.event(event).unwrap_or_default());
    });
    assert_eq!(
        shown,
        "📝 Reading first.\n\n\
         🔧 Read tool\n   File: /project/existing.txt\n\n\
         ✓ File read successfully (3 lines)\n     1 | alpha\n     2 | beta\n     3 | \n\n\
         📝 Editing.\n\n\
         🔧 Edit tool\n   File: /project/existing.txt\n   Old: no such text\n   New: x\n\n\
         ❌ Edit failed: String not found in file\n\n   \
         The search string was not found in the file. This could be because:\n   \
         - The string has already been changed\n   \
         - The string contains special characters that don't match exactly\n   \
         - The line breaks or spacing differ from what's in the file\n\n   \
         Tip: Use the Read tool to verify the current file content\n\n   \
         String to replace not found in file.\n   String: no such text\n\n\
         📝 The edit failed.\n\n"
    );
}

#[test]
fn an_enormous_line_does_not_hide_the_result_behind_it() {
    let mut reader = Reader::new(AgentKind::Claude);
    let mut ids = Vec::new();
    let mut each = |event: &StreamEvent<'_>| {
        if let StreamEvent::ToolResult { id, is_error, content, .. } = event {
            ids.push((id.to_string(), *is_error, content.text().len()));
        }
    };
    let head = br#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"big","content":""#;
    reader.push(head, &mut each);
    let chunk = "x\\n".repeat(20_000);
    for _ in 0..500 {
        reader.push(chunk.as_bytes(), &mut each);
    }
    reader.push(b"\",\"is_error\":true}]}}\n", &mut each);
    reader.push(br#"{"type":"result","subtype":"success","is_error":false}"#, &mut each);
    reader.finish(&mut each);
    assert_eq!(ids.len(), 1);
    assert!(ids[0].0 == "big" && ids[0].1 && ids[0].2 < 70_000);
    assert_eq!(
        reader.reading().verdict(AgentKind::Claude, &Outcome::Exited(0)),
        AttemptVerdict::Completed
    );
}

const ALL: [(AgentKind, &str); 6] = [
    (AgentKind::Claude, "claude/parallel-tools.ndjson"),
    (AgentKind::Claude, "claude/denied-write.ndjson"),
    (AgentKind::Claude, "claude/error-401.ndjson"),
    (AgentKind::Codex, "codex/bash-fail.ndjson"),
    (AgentKind::Gemini, "gemini/tools.ndjson"),
    (AgentKind::Opencode, "opencode/bash-fail.ndjson"),
];

proptest! {
    #[test]
    fn chunks_do_not_matter(which in 0..ALL.len(), chunk in 1usize..2000) {
        let (kind, name) = ALL[which];
        let bytes = fixture(name);
        prop_assert_eq!(read(kind, &bytes, chunk).0, read(kind, &bytes, usize::MAX).0);
    }

    /// Streams with damage anywhere are parsed without a panic, and parsing continues after a
    /// broken line.
    #[test]
    fn damage_is_survived(
        which in 0..ALL.len(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let (kind, name) = ALL[which];
        let mut bytes = fixture(name);
        for (place, byte) in places {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend_from_slice(b"\n");
        let damaged = read(kind, &bytes, 512).0.len();
        bytes.extend_from_slice(&fixture(name));
        let whole = read(kind, &fixture(name), 512).0.len();
        prop_assert_eq!(read(kind, &bytes, 512).0.len(), damaged + whole);
    }
}
