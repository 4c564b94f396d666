//! The agent of a dry run: only reports progress, in the format of Claude's event stream, so that a
//! workspace and its settings can be tested without a model.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use retake_types::text;
use serde_json::json;

const LOG: &str = "/tmp/mock-claude.log";
/// The dry run completes after this many iterations.
const STEPS: u64 = 3;

/// The log of dry runs could not be written.
#[derive(Debug, thiserror::Error)]
#[error("nothing is logged in {path}: {error}")]
pub struct LogError {
    path: &'static str,
    error: std::io::Error,
}

/// The command that replaces the agent; it gets the agent's arguments.
pub(super) fn arguments(argv: &[String]) -> std::io::Result<Vec<OsString>> {
    let program = std::env::current_exe()?;
    let words = argv.iter().map(OsString::from);
    Ok([program.into_os_string(), "__mock-agent".into(), "--".into()]
        .into_iter()
        .chain(words)
        .collect())
}

/// Acts as the agent: reads the prompt, writes the status, and its events to `output`. Returns the
/// error if logging failed.
pub fn play(argv: &[String], output: &mut impl Write) -> std::io::Result<Option<LogError>> {
    let mut prompt = String::new();
    std::io::stdin().lock().read_to_string(&mut prompt)?;
    // The file may be another user's, and a link is not followed; the dry run works without it.
    let log_error = log(argv, &prompt).err().map(|error| LogError { path: LOG, error });
    let iteration = variable("RETAKE_ITERATION").and_then(|n| n.parse().ok()).unwrap_or(1);
    let step = step();
    let session = format!("dry-run-{iteration}");
    let mut say = |value: serde_json::Value| writeln!(output, "{value}");
    say(json!({"type": "system", "subtype": "init", "session_id": session, "model": "mock"}))?;
    let text = format!("Dry run, step {step} of {STEPS}.\n\n## Summary\nNothing was changed.");
    say(json!({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}))?;
    if let Some(workspace) = variable("RETAKE_WORKSPACE_PATH") {
        let status = json!({
            "complete": step >= STEPS,
            "progress": {"completed": step, "total": STEPS},
            "worked": true,
            "summary": format!("Dry run, step {step} of {STEPS}"),
            "lastUpdated": Timestamp::now().to_string(),
        });
        let path = Path::new(&workspace).join(".status.json");
        crate::files::replace(&path, format!("{status:#}\n").as_bytes())?;
    }
    say(json!({
        "type": "result", "subtype": "success", "is_error": false, "result": text,
        "num_turns": 1, "total_cost_usd": 0.0, "session_id": session, "permission_denials": [],
    }))?;
    output.flush()?;
    Ok(log_error)
}

/// The step of the dry run, read from the status it wrote last.
fn step() -> u64 {
    let last = variable("RETAKE_WORKSPACE_PATH")
        .and_then(|dir| crate::status::Status::read(&Path::new(&dir).join(".status.json")).ok());
    match last.and_then(|status| status.progress) {
        Some(progress) if progress.completed < STEPS && progress.total == STEPS => {
            progress.completed + 1
        }
        _ => 1,
    }
}

fn log(argv: &[String], prompt: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        // `/tmp` is shared: another user could place a link there.
        .custom_flags(libc::O_NOFOLLOW)
        .open(LOG)?;
    let words: Vec<_> = argv.iter().map(|word| word.lines().next().unwrap_or_default()).collect();
    writeln!(file, "[{}] {}", Timestamp::now(), words.join(" "))?;
    writeln!(file, "prompt: {}", text::count(prompt.len() as u64, "byte"))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
