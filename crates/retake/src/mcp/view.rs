//! One run as a model sees it: how it ended first, then its tests and changes, then as much of its
//! output as was asked for, and how to get the rest.
//!
//! Clients differ in what they hand to their model: Claude Code and Codex give it the structured
//! content alone, others the text. So each of the two says everything.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::time::Duration;

use retake_effects::Effects;
use retake_effects::tests::TestStatus;
use retake_event::{ErrorCode, LeftFate, Run, State, Stream, Word};
use retake_store::Store;
use schemars::JsonSchema;
use serde::Serialize;

use super::excerpt::{self, Excerpt};
use crate::term;

/// How many failed tests and changed files are listed.
const LISTED: usize = 20;
/// How much of a test's message is shown.
const MESSAGE: usize = 500;

/// One run.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunView {
    /// How it ended, its tests and its changes, in words
    // The first key in the alphabet, which is the order in which they are written.
    pub(super) about: String,
    /// Names the run in other calls; its last eight digits do as well
    pub(super) run_id: String,
    pub(super) command: String,
    pub(super) working_directory: String,
    /// running, finished or interrupted
    pub(super) state: String,
    /// exited, signaled, timed_out, cancelled, limit_exceeded, not_started or interrupted; null while it runs
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<String>,
    pub(super) success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    pub(super) start_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) duration_ms: Option<u64>,
    /// The time limit that was in force
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_ms: Option<u64>,
    /// Whether the run is in the record, so that other calls can look at it
    pub(super) recorded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ErrorView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tests: Option<TestsView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) changes: Option<ChangesView>,
    /// Processes that were still there when the command had ended
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left_processes: Vec<String>,
    pub(super) stdout: StreamView,
    pub(super) stderr: StreamView,
    /// What else there is to know, such as how to get output that is not shown
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ErrorView {
    pub(super) code: String,
    pub(super) message: String,
}

/// Results of tests that the run printed or wrote reports of.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TestsView {
    pub(super) framework: String,
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// More tests would have run
    pub(super) partial: bool,
    pub(super) failures: Vec<FailureView>,
    /// What went wrong outside of any test
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FailureView {
    pub(super) name: String,
    pub(super) message: Option<String>,
}

/// Files that the run changed, relative to the tracked directory.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangesView {
    pub(super) created: Vec<String>,
    pub(super) modified: Vec<String>,
    pub(super) deleted: Vec<String>,
    /// As "from -> to"
    pub(super) renamed: Vec<String>,
    /// How many more there are than are listed
    pub(super) omitted: usize,
}

/// What is shown of one output stream.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StreamView {
    /// Bytes of the whole stream
    pub(super) bytes: u64,
    /// Lines of the whole stream
    pub(super) lines: u64,
    /// Whether the text below is all of it
    pub(super) complete: bool,
    pub(super) text: String,
}

/// Where the output of a run is read from.
pub(super) enum Output<'a> {
    /// What the result carries, and the record for what does not fit in there.
    Carried {
        streams: &'a [Vec<u8>; 2],
        complete: [bool; 2],
        store: Option<&'a Store>,
    },
    Recorded(&'a Store),
    /// Only what came after these bytes of a run that may still go on.
    Since(&'a Store, [u64; 2]),
}

impl Output<'_> {
    fn excerpt(&self, run: &Run, stream: Stream, budget: usize) -> io::Result<(u64, Excerpt)> {
        let id = run.intent.id;
        let failed = run.state != State::Running && !run.success();
        let of = |input: &mut dyn Read, length| {
            Ok((length, excerpt::excerpt(input, length, budget, failed)?))
        };
        let opened = |store: &Store| store.read_output(id, stream).map_err(io::Error::other);
        match self {
            Self::Carried { streams, complete, store } => {
                let bytes = &streams[stream.index()];
                match store {
                    Some(store) if !complete[stream.index()] => {
                        let mut output = opened(store)?;
                        let length = output.length();
                        of(&mut output, length)
                    }
                    _ => of(&mut &bytes[..], bytes.len() as u64),
                }
            }
            Self::Recorded(store) => {
                let mut output = opened(store)?;
                let length = output.length();
                of(&mut output, length)
            }
            Self::Since(store, offsets) => {
                let mut output = opened(store)?;
                let length = output.length();
                let start = offsets[stream.index()].min(length);
                io::Seek::seek(&mut output, io::SeekFrom::Start(start))?;
                of(&mut output, length - start)
            }
        }
    }
}

impl RunView {
    /// Looks at a run; the output takes at most about `budget` characters.
    pub(super) fn new(run: &Run, output: &Output<'_>, budget: usize) -> Self {
        let (intent, ending) = (&run.intent, run.ending.as_ref());
        let effects = ending
            .and_then(|ending| ending.effects.clone())
            .and_then(|value| serde_json::from_value::<Effects>(value).ok());
        let mut view = Self {
            about: String::new(),
            run_id: intent.id.to_string(),
            command: intent.command.clone(),
            working_directory: intent.working_directory.clone(),
            state: match run.state {
                State::Running => "running",
                State::Finished => "finished",
                State::Interrupted => "interrupted",
            }
            .to_owned(),
            outcome: ending.map(|ending| ending.outcome.as_str().to_owned()),
            success: run.success(),
            exit_code: ending
                .filter(|ending| ending.outcome == Word::Exited)
                .and_then(|ending| ending.exit_code),
            signal: ending.and_then(|ending| ending.signal.clone()),
            start_time: intent.start_time.to_string(),
            duration_ms: ending.map(|ending| ending.duration_ms),
            timeout_ms: intent.timeout_ms,
            recorded: run.recorded,
            error: ending.and_then(|ending| ending.error.as_ref()).map(|error| ErrorView {
                code: error.code.as_str().to_owned(),
                message: error.message.clone(),
            }),
            tests: effects.as_ref().and_then(tests),
            changes: effects.as_ref().filter(|effects| effects.files_tracked).map(changes),
            left_processes: ending.map_or_else(Vec::new, |ending| {
                let fate = |fate| match fate {
                    LeftFate::Ended => "ended",
                    LeftFate::Kept => "kept, as allowed",
                    LeftFate::Survived => "could not be ended",
                };
                let left = ending.left_processes.iter();
                left.map(|left| format!("{} ({}), {}", left.command, left.pid, fate(left.fate)))
                    .collect()
            }),
            stdout: StreamView::default(),
            stderr: StreamView::default(),
            notes: Vec::new(),
        };
        if let Some(advice) = ending.and_then(|ending| ending.error.as_ref()).and_then(advice) {
            view.notes.push(advice);
        }
        view.about = view.facts();
        view.streams(run, output, budget);
        if !run.recorded && run.state != State::Running {
            view.notes
                .push("This run is not in the record, so other tools cannot look at it.".into());
        }
        view
    }

    fn streams(&mut self, run: &Run, output: &Output<'_>, budget: usize) {
        let short = run.intent.id.short();
        let mut left = budget;
        // What one stream does not need is the other's; stderr comes first, as errors do.
        let mut looked = [Stream::Stderr, Stream::Stdout].map(|stream| {
            let half = if stream == Stream::Stderr { budget / 2 } else { left };
            let found = output.excerpt(run, stream, half);
            left = left.saturating_sub(found.as_ref().map_or(0, |(_, found)| found.text.len()));
            (stream, found)
        });
        if let (_, Ok((_, found))) = &looked[0]
            && found.missing.is_some()
            && left > budget / 8
        {
            let found = output.excerpt(run, Stream::Stderr, budget / 2 + left);
            looked[0].1 = found;
        }
        for (stream, found) in looked {
            let name = stream.as_str();
            let (bytes, excerpt) = match found {
                Ok(found) => found,
                Err(error) => {
                    self.notes.push(format!("The {name} could not be read: {error}."));
                    continue;
                }
            };
            let Excerpt { text, lines, missing, unsearched } = excerpt;
            if let Some((from, to)) = missing {
                self.notes.push(format!(
                    "Not all of {name} is shown. The rest: runs_logs {{\"run\":\"{short}\",\"stream\":\"{name}\",\"lines\":\"{from}-{to}\"}}, or \"pattern\" instead of \"lines\" to search it."
                ));
            }
            if let Some((from, to)) = unsearched {
                self.notes.push(format!(
                    "{name} is so large that lines {from}-{to} were not searched for errors; runs_logs with \"pattern\" does."
                ));
            }
            let view = StreamView { bytes, lines, complete: missing.is_none(), text };
            match stream {
                Stream::Stdout => self.stdout = view,
                Stream::Stderr => self.stderr = view,
            }
        }
    }

    /// The whole view as text, what matters most first.
    pub(super) fn text(&self) -> String {
        let mut text = self.about.clone();
        for (name, stream) in [("stderr", &self.stderr), ("stdout", &self.stdout)] {
            if stream.bytes == 0 {
                continue;
            }
            let lines = term::count(stream.lines, "line");
            _ = writeln!(text, "--- {name}: {lines}, {} ---", term::size(stream.bytes));
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

    /// All but the output.
    fn facts(&self) -> String {
        let mut text = self.heading();
        if let Some(error) =
            self.error.as_ref().filter(|error| error.code != ErrorCode::Failed.as_str())
            && !text.contains(&error.message)
        {
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
        text
    }

    /// How it ended, after how long, and what it was.
    fn heading(&self) -> String {
        let took = term::duration(Duration::from_millis(self.duration_ms.unwrap_or(0)));
        let ended = match self.outcome.as_deref() {
            _ if self.success => format!("ok: exit code 0 after {took}"),
            None if self.state == "running" => "running".to_owned(),
            None => "interrupted: its runner died".to_owned(),
            Some("exited") => {
                format!("failed: exit code {} after {took}", self.exit_code.unwrap_or(-1))
            }
            Some("signaled") => format!(
                "failed: ended by {} after {took}",
                self.signal.as_deref().unwrap_or("a signal")
            ),
            Some("timed_out") => format!(
                "timed out after {}: it was ended, with everything it had started",
                term::duration(Duration::from_millis(self.timeout_ms.unwrap_or(0)))
            ),
            Some("cancelled") => format!("cancelled after {took}"),
            Some("limit_exceeded") => format!("ended after {took}: it exceeded a limit"),
            Some("not_started") => "not started".to_owned(),
            Some(other) => other.replace('_', " "),
        };
        let short = &self.run_id[self.run_id.len().saturating_sub(8)..];
        let of = if self.recorded || self.outcome.is_none() {
            format!(" [run {short}]")
        } else {
            " [not recorded]".to_owned()
        };
        format!("{ended}{of}\n$ {}\n", term::visible(&self.command))
    }
}

impl TestsView {
    fn write(&self, text: &mut String) {
        let partial = if self.partial { ", cut short" } else { "" };
        _ = writeln!(
            text,
            "tests ({}): {} passed, {} failed, {} skipped{partial}",
            self.framework, self.passed, self.failed, self.skipped
        );
        for problem in &self.problems {
            _ = writeln!(text, "  {problem}");
        }
        for failure in &self.failures {
            _ = writeln!(text, "  FAILED {}", failure.name);
            for line in failure.message.iter().flat_map(|message| message.lines()) {
                _ = writeln!(text, "    {line}");
            }
        }
        let rest = self.failed.saturating_sub(self.failures.len() as u64);
        if rest > 0 && !self.failures.is_empty() {
            _ = writeln!(text, "  and {rest} more");
        }
    }
}

impl ChangesView {
    fn write(&self, text: &mut String) {
        let lists = [
            ("created", &self.created),
            ("modified", &self.modified),
            ("deleted", &self.deleted),
            ("renamed", &self.renamed),
        ];
        if lists.iter().all(|(_, files)| files.is_empty()) {
            text.push_str("no files changed\n");
        }
        for (did, files) in lists.iter().filter(|(_, files)| !files.is_empty()) {
            _ = writeln!(text, "{did}: {}", files.join(", "));
        }
        if self.omitted > 0 {
            _ = writeln!(text, "and {} more files", self.omitted);
        }
    }
}

fn tests(effects: &Effects) -> Option<TestsView> {
    let results = effects.test_results.as_ref()?;
    let failed = results
        .details
        .iter()
        .filter(|d| matches!(d.status, TestStatus::Failed | TestStatus::Error));
    Some(TestsView {
        framework: results.framework.as_str().to_owned(),
        passed: results.passed,
        failed: results.failed,
        skipped: results.skipped,
        partial: results.partial,
        failures: failed
            .take(LISTED)
            .map(|test| FailureView {
                name: test.name.clone(),
                message: test.error.as_deref().map(|text| cut(text, MESSAGE)),
            })
            .collect(),
        problems: results.problems.iter().take(LISTED).map(|text| cut(text, MESSAGE)).collect(),
    })
}

fn changes(effects: &Effects) -> ChangesView {
    let mut omitted = 0;
    let mut some = |files: Vec<String>| {
        omitted += files.len().saturating_sub(LISTED);
        files.into_iter().take(LISTED).collect()
    };
    let renamed = effects.files_renamed.iter().map(|pair| format!("{} -> {}", pair.from, pair.to));
    ChangesView {
        created: some(effects.files_created.clone()),
        modified: some(effects.files_modified.clone()),
        deleted: some(effects.files_deleted.clone()),
        renamed: some(renamed.collect()),
        omitted,
    }
}

/// What a caller of a tool can do about an error; the hints in the record speak of options.
fn advice(error: &retake_event::RunError) -> Option<String> {
    let advice = match error.code {
        ErrorCode::NotFound => {
            "Check the spelling and the PATH, or give the program's full path. Shell builtins need \"shell\": true."
        }
        ErrorCode::Timeout => {
            "Look at the last output for what it waited for. Give it longer with timeout_seconds, or start it with exec_start if it is meant to keep running."
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

/// At most so many bytes of a text.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}
