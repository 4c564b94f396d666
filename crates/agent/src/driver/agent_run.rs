//! One attempt at an iteration: the agent is run, its stream is followed, and what it came to is
//! told.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::adapters::{Event, Kind, Reader, Reading};
use crate::display::{Display, Live, visible};
use crate::log::Log;
use crate::plan::{Plan, Spent, StopReason};
use retake_effects::files::Changes;
use retake_effects::test_results::TestOutputParser;
use retake_engine::{Cancel, ProcessResult};
use retake_runner::effects_watch::{FileWatch, Tail};
use retake_runner::run::{Observer, Past};
use retake_types::{Effects, Stream, TestResults};

use super::screen::Screen;

const TICK: Duration = Duration::from_millis(200);

/// Puts together what an iteration did: changed files, tests, what the agent said.
type Judge<'a> = dyn Fn(Option<&Changes>, Option<&TestResults>, &[u8]) -> Effects + 'a;

/// Why we ended an agent ourselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    /// It gave its result and did not go away.
    Lingering,
    Budget(StopReason),
}

/// What the thread beside the agent shares with the one that reads it.
#[derive(Default)]
struct Shared {
    /// When the agent gave its final result.
    result_at: Option<Instant>,
    cut: Option<Cut>,
    cost_usd: Option<f64>,
}

/// Sees what the agent writes.
pub struct Witness<'a> {
    kind: Kind,
    reader: Reader,
    display: Display,
    screen: &'a Screen,
    log: &'a mut Log,
    plan: &'a Plan,
    cancel: Cancel,
    shared: Arc<Mutex<Shared>>,
    /// What the agent said, the end of it.
    said: Tail,
    parse_tests: bool,
    /// For an agent without an event stream: all that it prints.
    parser: Option<TestOutputParser>,
    tests: Option<TestResults>,
    files: Option<FileWatch>,
    /// The workspace, relative to the project.
    own: Option<PathBuf>,
    /// Puts files and tests together for the record.
    judge: &'a Judge<'a>,
}

/// What an attempt came to.
pub struct Seen {
    pub reading: Reading,
    pub cut: Option<Cut>,
    pub tests: Option<TestResults>,
}

pub struct Watching<'a> {
    pub kind: Kind,
    pub screen: &'a Screen,
    pub log: &'a mut Log,
    pub plan: &'a Plan,
    pub cancel: Cancel,
    pub parse_tests: bool,
    pub files: Option<FileWatch>,
    pub own: Option<PathBuf>,
    pub judge: &'a Judge<'a>,
}

impl<'a> Witness<'a> {
    pub fn new(watching: Watching<'a>) -> Self {
        let Watching { kind, screen, log, plan, cancel, parse_tests, files, own, judge } = watching;
        let events = kind.capabilities().events;
        Self {
            kind,
            reader: Reader::new(kind),
            display: Display::default(),
            screen,
            log,
            plan,
            cancel,
            shared: Arc::default(),
            said: Tail::default(),
            parse_tests,
            parser: (parse_tests && !events).then(TestOutputParser::new),
            tests: None,
            files,
            own,
            judge,
        }
    }

    /// Draws the live line and ends an agent that lingers after its result, until dropped.
    pub fn tick(&self, live: Live, grace: Duration, screen: Arc<Screen>) -> Ticker {
        let (shared, cancel) = (self.shared.clone(), self.cancel.clone());
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(TICK);
                let Ok(mut shared) = shared.lock() else { return };
                if shared.cut.is_none() && shared.result_at.is_some_and(|at| at.elapsed() >= grace)
                {
                    shared.cut = Some(Cut::Lingering);
                    cancel.cancel(libc::SIGTERM);
                }
                if screen.draws() && !stop.load(Ordering::Relaxed) {
                    let elapsed = Duration::from_secs(begun.elapsed().as_secs());
                    let cost_usd = shared.cost_usd.map(|cost| cost + live.cost_usd.unwrap_or(0.0));
                    let line = Live { elapsed, cost_usd: cost_usd.or(live.cost_usd), ..live };
                    screen.live(&line.line());
                }
            }
        });
        Ticker { done, thread: Some(thread) }
    }

    pub fn finish(self) -> Seen {
        let cut = self.shared.lock().ok().and_then(|shared| shared.cut);
        Seen { reading: self.reader.into_reading(), cut, tests: self.tests }
    }

    fn follow(&mut self, bytes: Option<&[u8]>) {
        let Self { reader, display, screen, log, said, parse_tests, tests, .. } = self;
        let mut each = |event: &Event<'_>| {
            let result = match event {
                Event::ToolResult { content, .. } => content.text(),
                _ => Cow::Borrowed(""),
            };
            if let Some(text) = display.decoded(event, &result) {
                log.output(&text);
                screen.detail(&text);
            }
            match event {
                Event::Text { text, delta } => {
                    said.push(text.as_bytes());
                    if !delta {
                        said.push(b"\n");
                    }
                }
                Event::ToolResult { exit_code, is_error, .. } if *parse_tests => {
                    // One tool call is one test run; the last of an iteration is how it stands.
                    if !may_hold_tests(&result) {
                        return;
                    }
                    let mut parser = TestOutputParser::new();
                    parser.push(Stream::Stdout, result.as_bytes());
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
        let spent =
            Spent { cost_usd: reading.cost_usd.unwrap_or(0.0), tokens: reading.tokens.total() };
        let Ok(mut shared) = self.shared.lock() else { return };
        shared.cost_usd = reading.cost_usd;
        if reading.finished() {
            shared.result_at.get_or_insert_with(Instant::now);
        } else if shared.cut.is_none()
            && let Some(reason) = self.plan.over(spent)
        {
            shared.cut = Some(Cut::Budget(reason));
            self.cancel.cancel(libc::SIGTERM);
        }
    }
}

impl Observer for Witness<'_> {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stdout && self.kind.capabilities().events {
            self.follow(Some(bytes));
            return;
        }
        let text = visible(&String::from_utf8_lossy(bytes));
        self.log.output(&text);
        self.screen.detail(&text);
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
        let mut changes = self.files.as_mut().and_then(FileWatch::changes);
        if let Some(changes) = &mut changes {
            leave_out(changes, self.own.as_deref());
        }
        Some((self.judge)(changes.as_ref(), self.tests.as_ref(), self.said.bytes()))
    }
}

/// What the loop and the agent write down about the task is not work on it, whether or not git
/// ignores it: status, lists, logs. What lies in `working` and `reports` is.
fn leave_out(changes: &mut Changes, own: Option<&Path>) {
    let work = |path: &Path| {
        let inside = match own.and_then(|own| path.strip_prefix(own).ok()) {
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

/// Every test runner gives a number and one of these words; most tool results have neither.
fn may_hold_tests(text: &str) -> bool {
    const WORDS: [&str; 9] = ["pass", "PASS", "Pass", "fail", "FAIL", "ok", "OK", "test", "Test"];
    // Whole blocks without a branch inside, which the compiler turns into wide comparisons.
    let digit = |block: &[u8]| block.iter().fold(false, |any, byte| any | byte.is_ascii_digit());
    text.as_bytes().chunks(256).any(digit) && WORDS.iter().any(|word| text.contains(word))
}

/// Ends its thread when dropped.
pub struct Ticker {
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic in there was reported when it happened.
            drop(thread.join());
        }
    }
}
