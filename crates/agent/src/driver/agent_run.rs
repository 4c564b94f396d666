//! Follows the running agent: its event stream, tests, files and cost.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use retake_effects::files::Changes;
use retake_effects::test_results::TestOutputParser;
use retake_engine::{Cancel, ProcessResult};
use retake_runner::effects_watch::{FileWatch, Tail};
use retake_runner::run::{Observer, Past};
use retake_types::loop_record::agent::Spent;
use retake_types::{Effects, Stream, TestResults};

use crate::adapters::{AgentKind, Reader, Reading, StreamEvent};
use crate::confinement;
use crate::display::{Display, Live, visible};
use crate::group::GroupMember;
use crate::log::Log;
use crate::plan::{AgentPlan, AgentStopReason};
use crate::ticker::Ticker;

use super::event::{AgentDisplay, LiveLine};
use super::test_lines;
use super::tool_tests::OpenCalls;

const TICK: Duration = Duration::from_millis(200);

/// Combines the effects of an iteration: changed files, tests, and the agent's summary.
pub(super) type Summarize<'a> =
    dyn Fn(Option<&Changes>, Option<&TestResults>, &[u8]) -> Effects + 'a;

/// Why retake terminated an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum EndedByUs {
    /// It gave its result but did not exit.
    Lingering,
    Budget(AgentStopReason),
}

/// State shared between the watching thread and the reader of the agent's output.
#[derive(Default)]
struct Shared {
    /// When the agent gave its final result.
    result_at: Option<Instant>,
    ended_by_us: Option<EndedByUs>,
    cost_usd: Option<f64>,
}

/// Where the agent's activity is reported during the run.
pub(super) struct Reporting<'a> {
    pub(super) display: &'a dyn AgentDisplay,
    pub(super) log: &'a mut Log,
    /// Knows the loop's budgets.
    pub(super) plan: &'a AgentPlan,
    /// Knows the shared budget.
    pub(super) group: Option<&'a GroupMember>,
    pub(super) cancel: Cancel,
}

impl Reporting<'_> {
    /// The budget that is exhausted once the running iteration has spent this much: the loop's own,
    /// or that of the group.
    fn over(&self, iteration: Spent) -> Option<AgentStopReason> {
        let mut total = self.plan.spent();
        total.add(iteration);
        let of_group = self.group.and_then(|group| group.spend(total));
        self.plan.over(iteration).or(of_group)
    }
}

/// How the effects of the run are determined.
pub(super) struct EffectsOfAgent<'a> {
    pub(super) parse_tests: bool,
    pub(super) files: Option<FileWatch>,
    /// The workspace, relative to the project.
    pub(super) workspace: Option<PathBuf>,
    /// Combines files and tests for the record.
    pub(super) summarize: &'a Summarize<'a>,
}

/// Observes one run of the agent.
pub(super) struct AgentObserver<'a> {
    kind: AgentKind,
    reader: Reader,
    shown: Display,
    reporting: Reporting<'a>,
    effects: EffectsOfAgent<'a>,
    shared: Arc<Mutex<Shared>>,
    /// The end of the agent's output.
    said: Tail,
    /// For an agent without an event stream: parses its whole output.
    parser: Option<TestOutputParser>,
    calls: OpenCalls,
    tests: Option<TestResults>,
    state_read_only: bool,
}

/// The observations of an attempt.
pub(super) struct ObservedAgent {
    pub(super) reading: Reading,
    pub(super) ended_by_us: Option<EndedByUs>,
    pub(super) tests: Option<TestResults>,
    /// Whether its commands failed because it could not write its own state.
    pub(super) state_read_only: bool,
}

impl<'a> AgentObserver<'a> {
    pub(super) fn new(
        kind: AgentKind,
        reporting: Reporting<'a>,
        effects: EffectsOfAgent<'a>,
    ) -> Self {
        let events = kind.capabilities().events;
        Self {
            kind,
            reader: Reader::new(kind),
            shown: Display::default(),
            shared: Arc::default(),
            said: Tail::default(),
            parser: (effects.parse_tests && !events).then(TestOutputParser::new),
            calls: OpenCalls::default(),
            tests: None,
            state_read_only: false,
            reporting,
            effects,
        }
    }

    /// Draws the live line and terminates an agent that lingers after its result, until dropped.
    pub(super) fn tick(
        &self,
        live: Live,
        grace: Duration,
        display: Arc<dyn AgentDisplay>,
    ) -> std::io::Result<Ticker> {
        let (shared, cancel) = (self.shared.clone(), self.reporting.cancel.clone());
        let begun = Instant::now();
        Ticker::start("agent", TICK, move |ends| {
            let Ok(mut shared) = shared.lock() else { return };
            if ends {
                return;
            }
            if shared.ended_by_us.is_none()
                && shared.result_at.is_some_and(|at| at.elapsed() >= grace)
            {
                shared.ended_by_us = Some(EndedByUs::Lingering);
                cancel.cancel(libc::SIGTERM);
            }
            if display.has_live_line() {
                let elapsed = Duration::from_secs(begun.elapsed().as_secs());
                let cost_usd = shared.cost_usd.map(|cost| cost + live.cost_usd.unwrap_or(0.0));
                let line = Live { elapsed, cost_usd: cost_usd.or(live.cost_usd), ..live };
                display.live(LiveLine::Iteration(line));
            }
        })
    }

    pub(super) fn finish(self) -> ObservedAgent {
        let ended_by_us = self.shared.lock().ok().and_then(|shared| shared.ended_by_us);
        let Self { reader, tests, state_read_only, .. } = self;
        ObservedAgent { reading: reader.into_reading(), ended_by_us, tests, state_read_only }
    }

    fn follow(&mut self, bytes: Option<&[u8]>) {
        let Self { reader, shown, reporting, effects, said, calls, tests, .. } = self;
        let (kind, state_read_only) = (self.kind, &mut self.state_read_only);
        let mut each = |event: &StreamEvent<'_>| {
            // Formats only what is shown or logged.
            let seen = reporting.log.takes_output() || reporting.display.shows_detail();
            if let Some(text) = seen.then(|| shown.event(event)).flatten() {
                reporting.log.output(&text);
                reporting.display.detail(&text);
            }
            calls.see(event);
            if let StreamEvent::ToolResult { is_error: true, content, .. } = event {
                *state_read_only |= confinement::cannot_write_state(kind, &content.text());
            }
            match event {
                StreamEvent::Text { text, delta } => {
                    said.push(text.as_bytes());
                    if !delta {
                        said.push(b"\n");
                    }
                }
                StreamEvent::ToolResult { id, exit_code, is_error, content }
                    if effects.parse_tests =>
                {
                    // Each tool call is one test run; the last one of an iteration counts.
                    let Some(cuts) = calls.returned(id) else { return };
                    // A part of a report may lack lines that a complete one has.
                    let whole = !cuts.beginning && !cuts.end;
                    if whole && !test_lines::may_hold_tests(content.as_json()) {
                        return;
                    }
                    let mut parser = TestOutputParser::of_cut_output(cuts);
                    parser.push(Stream::Stdout, content.text().as_bytes());
                    let code = exit_code.or((!is_error).then_some(0));
                    if let Some(found) = parser.finish(code, Vec::new()) {
                        *tests = Some(found);
                    }
                }
                _ => {}
            }
        };
        match bytes {
            Some(bytes) => reader.push(bytes, &mut each),
            None => reader.finish(&mut each),
        }
        let reading = self.reader.reading();
        let Ok(mut shared) = self.shared.lock() else { return };
        shared.cost_usd = reading.cost_usd;
        if reading.finished() {
            shared.result_at.get_or_insert_with(Instant::now);
        } else if shared.ended_by_us.is_none()
            && let Some(reason) = self.reporting.over(reading.spent())
        {
            shared.ended_by_us = Some(EndedByUs::Budget(reason));
            self.reporting.cancel.cancel(libc::SIGTERM);
        }
    }
}

impl Observer for AgentObserver<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout && self.kind.capabilities().events {
            self.follow(Some(bytes));
            return;
        }
        let text = visible(&String::from_utf8_lossy(bytes));
        self.reporting.log.output(&text);
        self.reporting.display.detail(&text);
        if stream == Stream::Stdout {
            self.said.push(bytes);
        }
        if let Some(parser) = &mut self.parser {
            parser.push(stream, bytes);
        }
    }

    fn effects(&mut self, result: &ProcessResult, _past: Past<'_>) -> Option<Effects> {
        if self.kind.capabilities().events {
            self.follow(None);
        }
        if let Some(parser) = self.parser.take() {
            self.tests = parser.finish(result.outcome.exit_code(), Vec::new());
        }
        let mut changes = self.effects.files.as_mut().and_then(FileWatch::changes);
        if let Some(changes) = &mut changes {
            keep_work(changes, self.effects.workspace.as_deref());
        }
        Some((self.effects.summarize)(changes.as_ref(), self.tests.as_ref(), self.said.bytes()))
    }
}

/// Keeps only changes that are work on the task. Files that the loop and the agent write about it
/// (status, lists, logs) are excluded, whether or not git ignores them; files in `working` and
/// `reports` are kept.
fn keep_work(changes: &mut Changes, workspace: Option<&Path>) {
    let work = |path: &Path| {
        let inside = match workspace.and_then(|workspace| path.strip_prefix(workspace).ok()) {
            Some(inside) => inside,
            None => return !path.starts_with(".agent"),
        };
        inside.starts_with("working") || inside.starts_with("reports")
    };
    let Changes { created, modified, deleted, renamed, unreadable, lines } = changes;
    for paths in [created, modified, deleted, unreadable] {
        paths.retain(|path| work(path));
    }
    renamed.retain(|rename| work(&rename.from) || work(&rename.to));
    lines.retain(|path, _| work(path));
}
