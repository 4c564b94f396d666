//! One run as a model sees it: first its outcome, then its tests and changes, then as much of its
//! output as was requested, and how to get the rest.
//!
//! Clients differ in what they pass to their model, the text or the structured content, so each of
//! the two is complete; clients that would drop the text get only that.

use std::fmt::Write as _;
use std::time::Duration;

use retake_policy::RunMode;
use retake_runner::run_text;
use retake_types::config::PolicyConfig;
use retake_types::request::millis;
use retake_types::{
    Effects, ErrorCode, LeftFate, OutcomeKind, Run, RunError, RunOutcome, State, Stream, text,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::effects_view::{ChangesView, TestsView, changes, tests};
use super::excerpt::{Excerpt, Missing};
use super::output_line::byte_at;
use super::output_scan::Position;
use super::output_source::{OutputSource, StreamExcerpt};
use super::sandbox_view::{denied, left_for_host, refused_hosts};
use super::terminal_text::visible;

/// How many entries of each kind are listed.
pub(super) const LISTED: usize = 20;
/// Maximum length of a command.
const COMMAND: usize = 1000;

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunView {
    /// Its outcome, tests and changes, in words
    // Keys are written in alphabetical order, and this one must come first.
    pub(super) about: String,
    /// Names the run in other calls; its last eight digits suffice
    pub(super) run_id: String,
    pub(super) command: String,
    pub(super) working_directory: String,
    /// running, finished or interrupted
    pub(super) state: String,
    /// exited, signaled, timed_out, cancelled, limit_exceeded, not_started or interrupted; null while it runs
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<String>,
    pub(super) success: bool,
    /// As a shell reports it: 124 after a timeout, 127 if the program was not found, 128 + n after signal n
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    pub(super) start_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
    /// The time limit in force
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
    /// Whether it is in the record, so that other calls can find it
    pub(super) recorded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ErrorView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tests: Option<TestsView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changes: Option<ChangesView>,
    /// Processes that were still running after the command had ended
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left_processes: Vec<String>,
    /// What the sandbox denied, such as "write ~/.bashrc by sh"
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) denied: Vec<String>,
    /// Hosts to which the sandbox refused a connection
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) refused_hosts: Vec<String>,
    /// Files left in the project that the user's machine may execute later, such as git hooks
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left_for_host: Vec<String>,
    pub(super) stdout: StreamView,
    pub(super) stderr: StreamView,
    /// Further notes, such as how to get output that is not shown
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
    #[serde(skip)]
    pub(super) is_running: bool,
    /// The positions up to which the streams were read.
    #[serde(skip)]
    pub(super) ends: [Position; 2],
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ErrorView {
    pub(super) code: String,
    pub(super) message: String,
}

/// The excerpt of one output stream.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StreamView {
    /// Bytes of the whole stream
    pub(super) bytes: u64,
    /// Lines of the whole stream
    pub(super) lines: u64,
    /// Whether the text below is the whole stream
    pub(super) complete: bool,
    /// Whether it is binary, and not shown
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) binary: bool,
    /// The text begins with this line, because earlier output was shown before
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since_line: Option<u64>,
    pub(super) text: String,
}

/// What advice depends on besides the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdviceContext {
    shell_allowed: bool,
    /// The run was started in the background.
    background: bool,
    longest_ms: u64,
}

impl AdviceContext {
    pub(super) fn new(policy: &PolicyConfig, mode: RunMode) -> Self {
        let longest = match mode {
            RunMode::Foreground => policy.max_timeout,
            RunMode::Background => policy.max_running_time,
        };
        Self {
            shell_allowed: policy.shell == Some(true),
            background: mode == RunMode::Background,
            longest_ms: millis(longest),
        }
    }
}

impl RunView {
    /// Makes the view of a run; its output takes at most `budget` characters.
    pub(super) fn new(
        run: &Run,
        output: &OutputSource<'_>,
        budget: usize,
        context: AdviceContext,
    ) -> Self {
        let (intent, outcome) = (&run.intent, run.outcome.as_ref());
        let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
        let observed = effects.and_then(Effects::observations);
        let mut view = Self {
            about: String::new(),
            run_id: intent.id().to_string(),
            command: cut(intent.command(), COMMAND),
            working_directory: intent.working_directory(),
            state: match run.state {
                State::Running => "running",
                State::Finished => "finished",
                State::Interrupted => "interrupted",
            }
            .to_owned(),
            outcome: outcome.map(|outcome| outcome.kind.as_str().to_owned()),
            success: run.success(),
            exit_code: outcome.and_then(|outcome| outcome.exit_code),
            signal: outcome.and_then(|outcome| outcome.signal.clone()),
            start_time: intent.start_time.to_string(),
            duration_ms: outcome.map(|outcome| outcome.duration_ms),
            timeout_ms: intent.request.timeout_ms,
            recorded: run.recorded,
            error: outcome.and_then(|outcome| outcome.error.as_ref()).map(|error| ErrorView {
                code: error.code.as_str().to_owned(),
                message: error.message.clone(),
            }),
            tests: observed.and_then(tests),
            changes: observed.filter(|observed| observed.files_tracked).map(changes),
            left_processes: outcome.map_or_else(Vec::new, |outcome| {
                let fate = |fate| match fate {
                    LeftFate::Ended => "ended",
                    LeftFate::Kept => "kept, as allowed",
                    LeftFate::Survived => "could not be terminated",
                };
                let left = run_text::left_processes(outcome).into_iter();
                left.map(|left| left.line(fate(left.fate))).collect()
            }),
            denied: outcome
                .and_then(|outcome| outcome.sandbox.as_ref())
                .map_or_else(Vec::new, |report| denied(report, &intent.request)),
            refused_hosts: outcome
                .and_then(|outcome| outcome.sandbox.as_ref())
                .map_or_else(Vec::new, refused_hosts),
            left_for_host: outcome
                .and_then(|outcome| outcome.sandbox.as_ref()?.left_for_host.as_ref())
                .map_or_else(Vec::new, left_for_host),
            stdout: StreamView::default(),
            stderr: StreamView::default(),
            notes: Vec::new(),
            is_running: run.state == State::Running,
            ends: [Position::default(); 2],
        };
        view.notes.extend(advice(run, context));
        view.about = view.facts(run);
        view.streams(run, output, budget);
        match output {
            OutputSource::SizeOnly(_) => view.notes.push(
                "This run is not recorded: its output is shown when it has ended, and other tools cannot access it.".into(),
            ),
            _ if run.recorded || run.state == State::Running => {}
            _ => view.notes.push(
                match view.stdout.complete && view.stderr.complete {
                    true => "This run is not in the record, so other tools cannot access it.",
                    false => "This run is not in the record, so output that is not shown here is lost, and other tools cannot access it.",
                }
                .into(),
            ),
        }
        view
    }

    fn streams(&mut self, run: &Run, output: &OutputSource<'_>, budget: usize) {
        let short = run.intent.id().short();
        let mut left = budget;
        // Space that one stream does not need goes to the other; stderr comes first, because errors do.
        let mut looked = [Stream::Stderr, Stream::Stdout].map(|stream| {
            let half = if stream == Stream::Stderr { budget / 2 } else { left };
            let found = output.excerpt(run, stream, half);
            let took = found.as_ref().map_or(0, |found| found.excerpt.text.chars().count());
            left = left.saturating_sub(took);
            (stream, found)
        });
        if let (_, Ok(found)) = &looked[0]
            && found.excerpt.missing.is_some()
            && left > budget / 8
        {
            let took = found.excerpt.text.chars().count();
            let found = output.excerpt(run, Stream::Stderr, took + left);
            looked[0].1 = found;
        }
        for (stream, found) in looked {
            let name = stream.as_str();
            let StreamExcerpt { bytes, excerpt, start, lost } = match found {
                Ok(found) => found,
                Err(error) => {
                    self.notes.push(format!("The {name} could not be read: {error}."));
                    continue;
                }
            };
            self.ends[stream.index()] = excerpt.end;
            let Excerpt { text, lines, missing, binary, .. } = excerpt;
            if let Some(missing) = missing.filter(|_| !lost) {
                let rest = match missing {
                    Missing::Lines(from, to) => format!("\"lines\":\"{from}-{to}\""),
                    Missing::Columns(line, (from, to)) => {
                        format!("\"lines\":\"{line}\",\"columns\":\"{from}-{to}\"")
                    }
                };
                self.notes.push(format!(
                    "Not all of {name} is shown. The rest: runs_logs {{\"run\":\"{short}\",\"stream\":\"{name}\",{rest}}}, or \"pattern\" to search it."
                ));
            }
            let since = (start != Position::default()).then_some(start.lines + 1);
            let complete = missing.is_none() && since.is_none() && !lost && !binary;
            let view = StreamView { bytes, lines, complete, binary, since_line: since, text };
            match stream {
                Stream::Stdout => self.stdout = view,
                Stream::Stderr => self.stderr = view,
            }
        }
    }

    /// The whole view as text, the most important facts first, for a model that gave the command itself.
    pub(super) fn text(&self) -> String {
        self.text_below(&self.about)
    }

    /// The same for any other model.
    pub(super) fn text_with_command(&self) -> String {
        let (heading, rest) = self.about.split_once('\n').unwrap_or((&self.about, ""));
        self.text_below(&format!("{heading}\n$ {}\n{rest}", visible(&self.command)))
    }

    fn text_below(&self, about: &str) -> String {
        let mut text = about.to_owned();
        let both = self.stderr.bytes > 0 && self.stdout.bytes > 0;
        let is_more_said = about.lines().count() > 1;
        for (name, stream) in [("stderr", &self.stderr), ("stdout", &self.stdout)] {
            if stream.bytes == 0 {
                continue;
            }
            // Output that is complete and alone needs no title, except on stderr.
            if !stream.complete || both || is_more_said || name == "stderr" {
                stream.write_title(name, &mut text);
            }
            text.push_str(&stream.text);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
        if self.stdout.bytes + self.stderr.bytes == 0 {
            text.push_str("(no output)\n");
        }
        if !self.notes.is_empty() {
            text.push_str("---\n");
        }
        for note in &self.notes {
            _ = writeln!(text, "{note}");
        }
        text
    }

    /// Everything except the output.
    fn facts(&self, run: &Run) -> String {
        let mut text = self.heading(run);
        // The heading says these already.
        let in_heading = [ErrorCode::Failed, ErrorCode::Timeout];
        let error = run.outcome.as_ref().and_then(|outcome| outcome.error.as_ref());
        if let Some(error) = error.filter(|error| !in_heading.contains(&error.code)) {
            _ = writeln!(text, "{}", error.message);
        }
        if let Some(tests) = &self.tests {
            tests.write(&mut text);
        }
        if let Some(changes) = &self.changes {
            changes.write(&mut text);
        }
        for left in &self.left_processes {
            _ = writeln!(text, "left behind: {left}");
        }
        for denied in &self.denied {
            _ = writeln!(text, "denied by the sandbox: {denied}");
        }
        if !self.refused_hosts.is_empty() {
            _ = writeln!(
                text,
                "refused by the sandbox: {} (the user can allow hosts: sandbox.allow_net)",
                self.refused_hosts.join(", ")
            );
        }
        for left in &self.left_for_host {
            _ = writeln!(text, "may be executed later on the user's machine: {left}");
        }
        text
    }

    /// Its outcome, its duration, and its id.
    fn heading(&self, run: &Run) -> String {
        let ended = match &run.outcome {
            Some(outcome) => self.how_it_ended(outcome),
            None if run.state == State::Running => "running".to_owned(),
            None => "interrupted: its retake process died".to_owned(),
        };
        let of = if self.recorded || self.outcome.is_none() {
            format!(" [run {}]", run.intent.id().short())
        } else {
            " [not recorded]".to_owned()
        };
        format!("{ended}{of}\n")
    }

    fn how_it_ended(&self, outcome: &RunOutcome) -> String {
        let took = text::duration(Duration::from_millis(outcome.duration_ms));
        match outcome.kind {
            OutcomeKind::Exited if self.success => format!("ok: exit code 0 after {took}"),
            OutcomeKind::Exited => {
                format!("failed: exit code {} after {took}", self.exit_code.unwrap_or(-1))
            }
            OutcomeKind::Signaled => {
                let signal = self.signal.as_deref().unwrap_or("a signal");
                format!("failed: terminated by {signal} after {took}")
            }
            OutcomeKind::TimedOut => format!(
                "timed out after {}: it was terminated, with everything it had started",
                text::duration(Duration::from_millis(self.timeout_ms.unwrap_or(0)))
            ),
            OutcomeKind::Cancelled => format!("cancelled after {took}"),
            OutcomeKind::LimitExceeded => format!("terminated after {took}: it exceeded a limit"),
            OutcomeKind::NotStarted => "not started".to_owned(),
            OutcomeKind::Interrupted => "interrupted".to_owned(),
        }
    }
}

impl StreamView {
    fn write_title(&self, name: &str, text: &mut String) {
        _ = write!(text, "--- {name}");
        let size = short_size(self.bytes);
        if self.binary {
            _ = write!(text, ": binary, {size}, not shown");
        } else if !self.complete {
            _ = write!(text, ": {}, {size}", text::count(self.lines, "line"));
        }
        match (self.since_line, self.text.is_empty() && !self.binary) {
            (Some(_), true) => text.push_str("; nothing new"),
            (None, true) => text.push_str("; not shown"),
            (Some(since), false) => _ = write!(text, "; from line {since} on"),
            (None, false) => {}
        }
        text.push_str(" ---\n");
    }
}

/// What the caller of a tool can do about an error; the hints in the record speak of options.
fn advice(run: &Run, context: AdviceContext) -> Option<String> {
    let outcome = run.outcome.as_ref()?;
    let RunError { code, .. } = outcome.error.as_ref()?;
    let advice = match code {
        ErrorCode::NotFound => not_found_advice(run, outcome, context),
        ErrorCode::Timeout => {
            let timeout = run.intent.request.timeout_ms;
            let longer = timeout.is_some_and(|timeout| timeout < context.longest_ms);
            let longer = match (longer, context.background) {
                (true, true) => " Allow more time with timeout_seconds.",
                (true, false) => {
                    " Allow more time with timeout_seconds, or start it with exec_start if it is meant to keep running."
                }
                (false, true) => " The policy allows no more time.",
                (false, false) => {
                    " The policy allows a call no more time; start it with exec_start if it is meant to keep running."
                }
            };
            return Some(format!("Check the last output for what it waited for.{longer}"));
        }
        ErrorCode::LimitExceeded => {
            "Raise the limit with limits, as far as the policy allows, or make the command use less."
        }
        ErrorCode::WorkingDirectory => "Give an existing directory as cwd.",
        ErrorCode::NoResources => "The system could not start a process; try again later.",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Advice about a program that was not found, or cannot be run.
fn not_found_advice(run: &Run, outcome: &RunOutcome, context: AdviceContext) -> &'static str {
    // The exit codes of a shell: 127 is not found, 126 found but not executable.
    if outcome.exit_code != Some(127) {
        return "Give a program that this system can run.";
    }
    let program = run.intent.request.command.argv().first();
    let is_path = program.is_some_and(|program| program.as_bytes().contains(&b'/'));
    match (is_path, context.shell_allowed) {
        (true, _) => "Check the path; a relative one counts from cwd.",
        (false, true) => {
            "Check the spelling and the PATH, or give the program's full path. Shell builtins need \"shell\": true."
        }
        (false, false) => "Check the spelling and the PATH, or give the program's full path.",
    }
}

/// A size without insignificant digits.
pub(super) fn short_size(bytes: u64) -> String {
    text::size(bytes).replace(".00 ", " ")
}

/// At most this many characters of a text.
pub(super) fn cut(text: &str, most: usize) -> String {
    let end = byte_at(text, most);
    if end == text.len() {
        return text.to_owned();
    }
    {
        let more = text[end..].chars().count() as u64;
        format!("{}… [{} more]", &text[..end], text::count(more, "character"))
    }
}
