//! `retake agent show NAME N`: one iteration in full.

use std::io::Read;
use std::time::Duration;

use retake_agent::adapters::{AgentKind, Reader, StreamEvent};
use retake_agent::display::{self, Display, time};
use retake_types::loop_record::agent::{Iteration, IterationStatus};
use retake_types::{Stream, TestResults};
use serde::Serialize;

use super::changed_lines::ChangedLines;
use super::project::AgentProject;
use crate::term::{Palette, Shade};
use crate::{Exit, Failure, denied, term};

/// Maximum size of the tool calls shown; the run's output has all of them.
const SHOWN_CALLS: usize = 256 << 10;

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    row: retake_types::loop_record::agent::IterationRow<'a>,
    #[serde(rename = "toolCalls")]
    tool_calls: &'a str,
}

pub(super) fn show(
    iteration: &Iteration,
    refusal: Option<&str>,
    project: &AgentProject,
    json: bool,
) -> Result<Exit, Failure> {
    let calls = tool_calls(iteration, project);
    if json {
        term::document(&Document { row: iteration.row(), tool_calls: &calls })?;
        return Ok(Exit::OK);
    }
    let facts = &iteration.facts;
    let lines = ChangedLines::of(iteration, project.project.read_store().ok().as_ref());
    let mut text = String::new();
    let mut row = |name: &str, value: &str| text.push_str(&format!("{name:<12}{value}\n"));
    row("iteration", &iteration.number.to_string());
    row("status", &format!("{} {}", display::mark(iteration.status), iteration.status));
    row("started", &term::moment(iteration.started_at).to_string());
    if let Some(ms) = iteration.duration_ms() {
        row("took", &time(Duration::from_millis(ms)));
    }
    if let Some(cost) = facts.cost_usd {
        row("cost", &format!("${cost:.2}"));
    }
    if let Some(tokens) = facts.tokens {
        row("tokens", &tokens.to_string());
    }
    if let Some(agent) = &facts.agent {
        row("agent", &term::visible(agent));
    }
    if let Some(model) = &facts.model {
        row("model", &term::visible(model));
    }
    if let Some(denials) = facts.denials {
        let tools = facts.denied_tools.as_ref().map(ToString::to_string);
        let tools = tools.unwrap_or_else(|| "unnamed tools".to_owned());
        row("denied", &format!("{denials}: {}", term::visible(&tools)));
    }
    if let Some(tests) = iteration.test_results() {
        row("tests", &display::tests_line(tests.passed, tests.failed));
    }
    if let Some(id) = facts.run_id {
        row("run", &format!("{id}  (retake runs show {})", id.short()));
    }
    let failed = matches!(iteration.status, IterationStatus::Failed | IterationStatus::TimedOut);
    if let Some(id) = facts.run_id.filter(|_| failed) {
        row("output", &format!("retake runs logs {}", id.short()));
    }
    let denied = denied_by_sandbox(iteration, project);
    section(&mut text, "error", facts.error.as_deref());
    section(&mut text, "refused by the gate", refusal);
    section(&mut text, "denied by the sandbox", Some(&denied));
    let result = iteration.result.as_ref();
    section(&mut text, "summary", result.and_then(|result| result.summary.as_deref()));
    section(&mut text, "failing tests", failing(iteration.test_results()).as_deref());
    section(&mut text, "files", files(iteration, &lines).as_deref());
    section(&mut text, "tool calls", Some(&calls));
    section(&mut text, "prompt", Some(&iteration.prompt));
    term::page(&text)?;
    Ok(Exit::OK)
}

fn section(text: &mut String, title: &str, content: Option<&str>) {
    let Some(content) = content.map(str::trim_end).filter(|content| !content.is_empty()) else {
        return;
    };
    let title = Palette::of_stdout().paint(Shade::Heading, title);
    text.push_str(&format!("\n{title}\n"));
    for line in content.lines() {
        text.push_str(&format!("  {}\n", term::visible(line)));
    }
}

/// What the sandbox denied the agent's run, a line each.
fn denied_by_sandbox(iteration: &Iteration, project: &AgentProject) -> String {
    let Some(id) = iteration.facts.run_id else { return String::new() };
    let run = project.project.read_store().and_then(|store| store.get(id));
    let Ok(run) = run else { return String::new() };
    let report = run.outcome.as_ref().and_then(|outcome| outcome.sandbox.as_ref());
    report.map_or_else(Vec::new, |report| denied::lines(report, &run.intent.request)).join("\n")
}

fn failing(tests: Option<&TestResults>) -> Option<String> {
    let names: Vec<&str> = tests?.failing().map(|test| test.name.as_str()).collect();
    Some(names.join("\n"))
}

fn files(iteration: &Iteration, changed: &ChangedLines) -> Option<String> {
    let result = iteration.result.as_ref()?;
    let mut lines = Vec::new();
    let count = |path| changed.in_file(path).map_or_else(String::new, |count| format!("  {count}"));
    for (letter, paths) in
        [("A", &result.files_created), ("M", &result.files_modified), ("D", &result.files_deleted)]
    {
        lines
            .extend(paths.iter().map(|path| format!("{letter} {}{}", path.display(), count(path))));
    }
    Some(lines.join("\n"))
}

/// The agent's tool calls, from the recorded output.
fn tool_calls(iteration: &Iteration, project: &AgentProject) -> String {
    let Some(id) = iteration.facts.run_id else { return String::new() };
    let Ok(store) = project.project.read_store() else { return String::new() };
    let Ok(mut output) = store.read_output(id, Stream::Stdout) else { return String::new() };
    // Earlier versions did not record the kind of agent.
    let kind = iteration.facts.agent.as_deref().and_then(|word| word.parse().ok());
    let kind = kind.unwrap_or(project.settings.agent.kind);
    let mut reader = Reader::new(kind);
    let mut shown = Display::default();
    let mut text = String::new();
    let mut each = |event: &StreamEvent<'_>| {
        if text.len() < SHOWN_CALLS
            && matches!(
                event,
                StreamEvent::ToolUse { .. }
                    | StreamEvent::ToolResult { .. }
                    | StreamEvent::Denied { .. }
            )
            && let Some(line) = shown.event(event)
        {
            text.push_str(&line);
        }
    };
    let mut buffer = vec![0; 64 << 10];
    // Stop at the first read error.
    while let Ok(length @ 1..) = output.read(&mut buffer) {
        reader.push(&buffer[..length], &mut each);
    }
    reader.finish(&mut each);
    if kind == AgentKind::Custom {
        return String::new();
    }
    text
}
