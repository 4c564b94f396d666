//! Formats what an agent does for display. Builds strings; front ends print them.
//!
//! An agent's output is untrusted, so control characters are made visible.

mod tool;

use std::collections::HashMap;
use std::time::Duration;

use retake_types::loop_record::agent::{
    AgentEntry, HookTime, Iteration, IterationStatus, Spent, WaitCause,
};

use retake_effects::agent_summary;

use crate::adapters::{LimitState, Payload, StreamEvent};
use retake_types::text;

/// Maximum tools remembered until their result arrives.
const OPEN: usize = 256;

/// Maximum characters of an output's last line in a message.
const LAST_LINE: usize = 300;

/// How much is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Quiet,
    #[default]
    Progress,
    Verbose,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Progress => "progress",
            Self::Verbose => "verbose",
        }
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "quiet" => Ok(Self::Quiet),
            "progress" => Ok(Self::Progress),
            "verbose" => Ok(Self::Verbose),
            _ => Err(format!("{text:?} is not an output level; write quiet, progress or verbose")),
        }
    }
}

/// Follows the events of one iteration and formats each.
#[derive(Debug, Default)]
pub struct Display {
    /// For the id of a call: its tool, and the file or command.
    open: HashMap<String, (String, Option<String>)>,
    /// Whether the last thing shown was an unfinished piece of text.
    flowing: bool,
}

impl Display {
    /// An event in full, with its line feeds; `None` if it is not shown. The log gets the same
    /// text.
    pub fn event(&mut self, event: &StreamEvent<'_>) -> Option<String> {
        let flowing = std::mem::take(&mut self.flowing);
        let text = match event {
            StreamEvent::Text { text, delta: true } => {
                self.flowing = true;
                return Some(if flowing {
                    visible(text)
                } else {
                    format!("📝 {}", visible(text))
                });
            }
            StreamEvent::Text { text, .. } if text.trim().is_empty() => return None,
            StreamEvent::Text { text, .. } => format!("📝 {}\n\n", visible(text.trim_end())),
            StreamEvent::ToolUse { id, name, input } => {
                if self.open.len() >= OPEN {
                    self.open.clear();
                }
                self.open.insert(id.to_string(), (name.to_string(), tool::subject(name, input)));
                format!("{}\n", tool::used(name, input))
            }
            StreamEvent::ToolResult { id, is_error, exit_code, content } => {
                let (name, subject) = self.open.remove(&**id).unwrap_or_default();
                let result = Returned {
                    name: &name,
                    subject,
                    is_error: *is_error,
                    exit_code: *exit_code,
                    content,
                };
                let mut text = tool::result(&result);
                text.push('\n');
                text
            }
            StreamEvent::Denied { tool, id, message } => {
                let called = id.as_deref().and_then(|id| self.open.get(id));
                let tool = match called {
                    Some((name, _)) if tool.is_empty() => name,
                    _ => &**tool,
                };
                let message = visible(message.trim_end());
                format!("⚠️ Permission denied: {}: {message}\n\n", line(tool))
            }
            StreamEvent::Retry { attempt, most, delay_ms, status } => {
                let most = most.map_or_else(String::new, |most| format!("/{most}"));
                let status = status.map_or_else(String::new, |s| format!(" after status {s}"));
                let delay = delay_ms.map_or_else(String::new, |ms| {
                    format!(", in {}", time(Duration::from_millis(ms)))
                });
                format!("⚠️ Request tried again ({attempt}{most}){status}{delay}\n\n")
            }
            StreamEvent::RateLimit(limit) => match limit.state {
                LimitState::Allowed => return None,
                LimitState::Warning => "⚠️ The account's limit is near\n\n".to_owned(),
                LimitState::Rejected => "⚠️ The account's limit is reached\n\n".to_owned(),
            },
            StreamEvent::ApiError { status, message, .. } => {
                let status = status.map_or_else(String::new, |s| format!(" ({s})"));
                format!("❌ API error{status}: {}\n\n", visible(message.trim_end()))
            }
            StreamEvent::Noise(text) => format!("{}\n", visible(text)),
            StreamEvent::Dropped(bytes) => format!("⚠️ An event of {bytes} bytes was not read\n\n"),
            StreamEvent::Started { .. } | StreamEvent::Usage(_) | StreamEvent::Result(_) => {
                return None;
            }
        };
        Some(if flowing { format!("\n\n{text}") } else { text })
    }
}

pub(crate) struct Returned<'a> {
    name: &'a str,
    subject: Option<String>,
    is_error: bool,
    exit_code: Option<i32>,
    content: &'a Payload<'a>,
}

/// The data of the live line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Live {
    pub iteration: u32,
    pub max_iterations: u32,
    pub elapsed: Duration,
    pub remaining: Option<u64>,
    pub cost_usd: Option<f64>,
}

impl Live {
    /// `Iteration 3/50 · 1m05s · 4 items remaining · $0.42`.
    pub fn line(&self) -> String {
        let mut parts = vec![
            format!("Iteration {}/{}", self.iteration, self.max_iterations),
            time(self.elapsed),
        ];
        if let Some(remaining) = self.remaining {
            parts.push(format!("{} remaining", text::count(remaining, "item")));
        }
        if let Some(cost) = self.cost_usd {
            parts.push(format!("${cost:.2}"));
        }
        parts.join(" · ")
    }
}

/// A tool's display name, and the subject of its use: the file, the command or the pattern.
pub fn tool_use(name: &str, input: &Payload<'_>) -> (String, Option<String>) {
    (tool::title(name), tool::subject(name, input))
}

/// `⚠️ The account's limit is reached: continuing in 1h02m`.
pub fn countdown(cause: WaitCause, left: Duration) -> String {
    format!("⚠️ {}: continuing in {}", wait_cause(cause), time(left))
}

pub fn wait_cause(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::RateLimit => "The account's limit is reached",
        WaitCause::Retry => "Temporary failure",
    }
}

/// The text for an entry outside of iterations and verification results, for the log and lists.
pub fn note(entry: &AgentEntry) -> Option<String> {
    Some(match entry {
        AgentEntry::VerificationStarted { attempt } => format!("Verification {attempt}"),
        AgentEntry::Paused => "Paused".to_owned(),
        AgentEntry::Resumed => "Resumed".to_owned(),
        AgentEntry::Waiting { cause, remaining_ms } => {
            countdown(*cause, Duration::from_millis(*remaining_ms))
        }
        AgentEntry::AgentChanged { agent } => format!("{agent} takes over"),
        AgentEntry::HookFailed { when, command } => hook_failed(*when, command),
        AgentEntry::Note { text } => text.clone(),
        AgentEntry::Iteration { .. }
        | AgentEntry::Attempt { .. }
        | AgentEntry::Verifying { .. }
        | AgentEntry::Verified { .. }
        | AgentEntry::Unverified { .. }
        | AgentEntry::Checkpoint { .. } => return None,
    })
}

/// `✓`, `✗`, and the marks of other results of an iteration.
pub fn mark(status: IterationStatus) -> &'static str {
    match status {
        IterationStatus::Completed => "✓",
        IterationStatus::Failed | IterationStatus::TimedOut => "✗",
        IterationStatus::Skipped => "-",
        IterationStatus::Interrupted => "!",
        _ => "…",
    }
}

/// One line about a finished iteration: `✓ 3  2 files  8 passed  $0.42  3m`.
pub fn iteration_line(iteration: &Iteration) -> String {
    let mut parts = vec![format!("{} {}", mark(iteration.status), iteration.number)];
    if let Some(files) = iteration.changed_files() {
        parts.push(text::count(files as u64, "file"));
    }
    if let Some(tests) = iteration.test_results() {
        parts.push(tests_line(tests.passed, tests.failed));
    }
    if let Some(cost) = iteration.cost_usd() {
        parts.push(format!("${cost:.2}"));
    }
    if let Some(ms) = iteration.duration_ms() {
        parts.push(time(Duration::from_millis(ms)));
    }
    parts.join("  ")
}

/// `8 passed`, `7 passed, 1 failed`.
pub fn tests_line(passed: u64, failed: u64) -> String {
    match failed {
        0 => format!("{passed} passed"),
        failed => format!("{passed} passed, {failed} failed"),
    }
}

/// The message for an agent that was terminated after its result.
pub fn lingering_ended(waited: Duration) -> String {
    format!("The agent did not exit within {} of its result and was terminated", time(waited))
}

/// The agent did not use the offered MCP server.
pub const SERVER_NOT_LISTED: &str = "agent.mcp: the agent was offered retake's MCP server and did not ask for its tools; its commands are not on the record (its own settings may exclude servers, or it could not start `retake mcp`)";

/// `The pre hook failed: make clean`.
pub fn hook_failed(when: HookTime, command: &str) -> String {
    format!("The {} hook failed: {command}", when.as_str())
}

/// `$0.42`, or the tokens if an agent reports no cost, or that it reports neither.
pub fn spent(spent: Spent) -> String {
    if spent == Spent::default() {
        return "no cost reported".to_owned();
    }
    match spent.known_cost() {
        Some(cost) => format!("${cost:.2}"),
        None => text::count(spent.tokens, "token"),
    }
}

/// `45s`, `1m05s`, `2h03m`.
pub fn time(duration: Duration) -> String {
    match duration.as_secs() {
        0 if !duration.is_zero() => format!("{}ms", duration.as_millis()),
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        s => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

/// Makes control characters visible; line feeds and tabs stay.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    push_visible(&mut shown, text);
    shown
}

/// The same, appended to a text.
pub(crate) fn push_visible(shown: &mut String, text: &str) {
    // A fast path for nearly all output; it checks whole blocks without branches, which the
    // compiler vectorises.
    let plain = |block: &[u8]| {
        let one = |byte: u8| (0x20..=0x7e).contains(&byte) | (byte == b'\n') | (byte == b'\t');
        block.iter().fold(true, |all, byte| all & one(*byte))
    };
    if text.as_bytes().chunks(256).all(plain) {
        return shown.push_str(text);
    }
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            // Before a line feed it is only an unusual line ending.
            '\r' => {}
            c if c.is_control() || is_trick(c) => {
                shown.extend(c.escape_unicode());
            }
            c => shown.push(c),
        }
    }
}

/// A text on one line.
pub(crate) fn line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

/// The last line of an output that is not blank: without colours, and short enough for a message.
pub(crate) fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let plain = |line| agent_summary::strip_escapes(line).trim().to_owned();
    let last = text.lines().rev().map(plain).find(|line| !line.is_empty())?;
    let mut shown = line(&last);
    if let Some((end, _)) = shown.char_indices().nth(LAST_LINE) {
        shown.truncate(end);
        shown.push('…');
    }
    Some(shown)
}

/// Characters that change the direction of text, by which one command can look like another.
fn is_trick(c: char) -> bool {
    matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{200E}' | '\u{200F}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_plain_and_short() {
        let last = |output: &str| last_line(output.as_bytes());
        assert_eq!(last("one\n\u{1b}[31mtwo\u{1b}[0m\r\n \n").as_deref(), Some("two"));
        assert_eq!(last("\n \n"), None);
        let cut = last(&"é".repeat(1000)).unwrap_or_default();
        assert_eq!(cut.chars().count(), LAST_LINE + 1);
    }

    #[test]
    fn control_characters_are_visible() {
        assert_eq!(
            visible("a\u{1b}[31mb\u{7}\tc\r\nd\u{202e}"),
            "a\\u{1b}[31mb\\u{7}\tc\nd\\u{202e}"
        );
        assert_eq!(line("a\nb"), "a\\nb");
    }

    #[test]
    fn the_live_line() {
        let live = Live {
            iteration: 3,
            max_iterations: 50,
            elapsed: Duration::from_secs(65),
            remaining: Some(4),
            cost_usd: Some(0.421),
        };
        assert_eq!(live.line(), "Iteration 3/50 · 1m05s · 4 items remaining · $0.42");
        let bare = Live { remaining: None, cost_usd: None, ..live };
        assert_eq!(bare.line(), "Iteration 3/50 · 1m05s");
        assert_eq!(time(Duration::from_millis(40)), "40ms");
        assert_eq!(time(Duration::from_secs(7400)), "2h03m");
    }

    #[test]
    fn pieces_of_text_flow() {
        let mut display = Display::default();
        let mut shown = String::new();
        for text in ["one ", "two"] {
            let event = StreamEvent::Text { text: text.into(), delta: true };
            shown.push_str(&display.event(&event).unwrap());
        }
        let use_it = StreamEvent::ToolUse {
            id: "1".into(),
            name: "Bash".into(),
            input: Payload::json(r#"{"command":"ls"}"#),
        };
        shown.push_str(&display.event(&use_it).unwrap());
        assert_eq!(shown, "📝 one two\n\n🔧 Bash tool\n   Command: ls\n\n");
    }
}
