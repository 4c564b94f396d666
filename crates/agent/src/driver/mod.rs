//! Drives an agent in a loop: asks the plan what comes next, does it on the record, and feeds back
//! what came of it.
//!
//! What an agent says is never trusted further than its own flags; what it starts does not outlive
//! it; what it costs is counted while it works.

pub mod attempt;
pub mod checkpoint;
pub mod chronicle;
pub mod gate;
mod hook;
mod iterate;
pub mod mock;
pub mod screen;

use retake_types::text;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::control::Mailbox;
use crate::display;
use crate::iteration::{Iteration, TestResults};
use crate::log::{Head, Log};
use crate::messages;
use crate::notify::{Notification, Sender};
use crate::plan::{Now, Plan, Requests, Step, StopReason, Why};
use crate::prompt::{Facts, Purpose, Templates};
use crate::settings::Settings;
use crate::status::Marks;
use crate::watch::StatusWatch;
use crate::workspace::{Metadata, Workspace, WorkspaceStatus};
use jiff::Timestamp;
use retake_engine::Input;
use retake_store::redact::Redactor;
use retake_types::request::{CommandRequest, LoopPosition, StdinSource};
use retake_types::{Kind as LoopKind, RunRequest};

use retake_runner::prepare::{PreparedRun, Provided};
use retake_runner::run::OutputUse;
use retake_runner::signals;
use retake_runner::worker::Worker;

use chronicle::{Chronicle, Entry};
use screen::Screen;

/// How long the end of a loop waits for its notifications.
const LAST_WORDS: Duration = Duration::from_secs(15);
/// How often a wait looks for requests.
const LOOK: Duration = Duration::from_millis(200);
/// Between asking an agent to end and killing it.
const GRACE: Duration = Duration::from_secs(5);

/// What one invocation of `run` was asked for, beyond settings.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub skip_permissions: bool,
    pub dry_run: bool,
}

/// Everything a loop works with.
pub struct Runner {
    pub worker: Worker,
    pub project: PathBuf,
    /// Makes retake's MCP server known to the agent, where it is to be offered.
    pub offer: Option<Box<OfferServer>>,
    pub workspace: Workspace,
    pub metadata: Metadata,
    pub settings: Settings,
    pub options: Options,
    pub templates: Templates,
    pub instructions: String,
    pub status_instructions: Option<String>,
    pub plan: Plan,
    pub chronicle: Chronicle,
    /// Iterations before this invocation and in it.
    pub history: Vec<Iteration>,
    pub screen: Arc<Screen>,
    pub redactor: Arc<Redactor>,
    pub log: Log,
    pub sender: Option<Arc<Mutex<Sender>>>,
    pub mailbox: Mailbox,
    pub marks: Marks,
    /// What the gate said last.
    pub refusal: Option<String>,
    /// The iteration after which the gate's command passed.
    pub command_passed: Option<u32>,
    /// An iteration that is to be tried again, and whose last hook is still to come.
    pub owed: Option<Iteration>,
    pub begun: Instant,
    pub numbers: Arc<std::sync::atomic::AtomicU32>,
    /// Held as long as we work on it.
    pub lock: crate::lock::Lock,
}

/// What an agent is given so that it can use a server: arguments and variables.
#[derive(Clone, Debug, Default)]
pub struct ServerOffer {
    pub arguments: Vec<String>,
    pub variables: Vec<(OsString, OsString)>,
}

/// Offers a server to an agent of a kind; the variables tell the server whose commands it runs.
pub type OfferServer =
    dyn Fn(crate::adapters::Kind, &[(&str, String)]) -> std::io::Result<ServerOffer>;

impl Runner {
    /// Runs the loop to its end.
    pub fn run(mut self) -> StopReason {
        let started = Timestamp::now();
        let mode = self.metadata.mode;
        let name = self.workspace.name().clone();
        let max = self.plan.rules().max_iterations;
        let system = self.prompt(Purpose::System(mode), None).unwrap_or_default();
        self.log.head(
            &Head {
                workspace: name.as_str(),
                mode: mode.as_str(),
                max_iterations: max,
                instructions: &self.instructions,
                system_prompt: &system,
                status_instructions: self.status_instructions.as_deref(),
            },
            started,
        );
        self.notify(Notification::execution_start(name.as_str(), mode.as_str(), max));
        let watch = self.watch_status();
        let clock = self.start_clock();
        let reason = self.steps();
        drop(clock);
        self.settle_hooks();
        if let Some(watch) = watch {
            watch.stop();
        }
        self.close(reason);
        reason
    }

    fn steps(&mut self) -> StopReason {
        loop {
            let now = self.now();
            match self.plan.next(now, self.requests()) {
                Step::Iterate { number, attempt, timeout, max_cost_usd } => {
                    self.iterate(number, attempt, timeout, max_cost_usd);
                }
                Step::Verify { attempt, left } => self.verify(attempt, left),
                Step::Wait { why, remaining } => self.wait(why, remaining),
                Step::Pause => self.pause(),
                Step::Stop(reason) => return reason,
            }
            if let Some(trouble) = self.log.trouble() {
                self.screen.trouble(&format!("nothing more is logged: {trouble}"));
            }
        }
    }

    pub fn now(&self) -> Now {
        Now { elapsed: self.begun.elapsed(), unix: Timestamp::now().as_second() }
    }

    pub fn interrupted(&self) -> bool {
        signals::asked().load(Ordering::Relaxed)
    }

    /// Keeps the time where a restart finds it, if there is a limit to it.
    fn start_clock(&self) -> Option<Clock> {
        self.plan.rules().budgets.time?;
        let (id, used) = (self.chronicle.id().to_string(), self.plan.time_used(self.now()));
        match Clock::start(&self.mailbox, &id, used) {
            Ok(clock) => Some(clock),
            Err(error) => {
                let words = "a restart will not know how much of --max-time is used";
                self.screen.trouble(&format!("{words}: {error}"));
                None
            }
        }
    }

    pub fn requests(&self) -> Requests {
        Requests { interrupt: self.interrupted(), ..self.mailbox.requests() }
    }

    /// A prompt with what is known now filled in.
    pub fn prompt(
        &self,
        purpose: Purpose,
        facts: Option<Facts<'_>>,
    ) -> Result<String, crate::prompt::PromptError> {
        let facts = facts.unwrap_or_else(|| self.facts());
        self.templates.render(purpose, &facts)
    }

    pub fn facts(&self) -> Facts<'_> {
        Facts {
            instructions: &self.instructions,
            status_instructions: self.status_instructions.as_deref(),
            ..Facts::new(&self.project, self.workspace.dir(), self.metadata.mode)
        }
    }

    /// The last test results that any iteration had.
    pub fn last_tests(&self) -> Option<&TestResults> {
        self.history.iter().rev().find_map(|i| i.result.as_ref()?.test_results.as_ref())
    }

    pub fn add(&mut self, entry: &Entry) {
        let Self { worker, chronicle, .. } = self;
        chronicle.add(worker.store(), entry);
    }

    /// The text without secrets.
    pub fn clean(&self, text: &str) -> String {
        self.redactor.redact_str(text).0.into_owned()
    }

    pub fn note(&mut self, text: &str) {
        self.log.note(text);
        let text = self.clean(text);
        self.add(&Entry::Note { text });
    }

    pub fn notify(&self, notification: Notification) {
        let Some(sender) = &self.sender else { return };
        let clean = notification.map(|text| self.clean(text));
        if let Ok(mut sender) = sender.lock() {
            sender.notify(clean);
        }
    }

    /// Passes changes of the status on while the loop runs.
    fn watch_status(&self) -> Option<StatusWatch> {
        let (options, sender) = (self.settings.status_watch?, self.sender.clone()?);
        let (redactor, numbers) = (self.redactor.clone(), self.numbers.clone());
        let name = self.workspace.name().to_string();
        let started = StatusWatch::start(&self.workspace.status_path(), options, move |update| {
            let number = numbers.load(Ordering::Relaxed);
            let notification = Notification::status_update(&name, number, &update)
                .map(|text| redactor.redact_str(text).0.into_owned());
            if let Ok(mut sender) = sender.lock() {
                sender.notify(notification);
            }
        });
        match started {
            Ok(watch) => Some(watch),
            Err(error) => {
                self.screen.trouble(&format!("the status is not watched: {error}"));
                None
            }
        }
    }

    /// Waits, with a countdown for what takes long.
    pub fn wait(&mut self, why: Why, remaining: Duration) {
        let words = match why {
            Why::Delay => None,
            Why::RateLimit { .. } => Some("The account's limit is reached"),
            Why::Backoff { .. } => Some("The request failed for now"),
        };
        if let Some(words) = words {
            let text = display::countdown(words, remaining);
            self.screen.message(&text);
            self.note(&text);
            // It may take hours, and someone may look.
            self.log.flush();
        }
        let until = Instant::now() + remaining;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let asked = self.requests();
            if left.is_zero() || asked.interrupt || asked.stop || asked.pause {
                break;
            }
            if let Some(words) = words {
                self.screen.live(&display::countdown(words, left));
            }
            std::thread::sleep(left.min(LOOK));
        }
        self.screen.clear();
    }

    pub fn pause(&mut self) {
        let name = self.workspace.name().clone();
        self.screen.message(&format!("Paused. Go on with: retake agent resume {name}"));
        self.note("Paused");
        self.log.flush();
        loop {
            let asked = self.requests();
            let spent = self.plan.time_left(self.now()) == Some(Duration::ZERO);
            if asked.interrupt || asked.stop || !asked.pause || spent {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.note("Resumed");
    }

    /// Says how it ended, and sees that it is written down.
    fn close(mut self, reason: StopReason) {
        let name = self.workspace.name().clone();
        let (here, rules) = (self.plan.iterations(), self.plan.rules().clone());
        match reason {
            StopReason::Completed => {
                self.screen.message(&messages::completed(here));
                self.finish_metadata(WorkspaceStatus::Completed);
            }
            StopReason::MaxIterations => {
                self.screen.message(&messages::max_iterations(rules.max_iterations));
                for option in messages::max_iterations_options(&name, rules.max_iterations) {
                    self.screen.message(&option);
                }
            }
            StopReason::Stagnation => self.screen.message(&messages::stagnation(self.plan.idle())),
            StopReason::Failed => self.finish_metadata(WorkspaceStatus::Error),
            StopReason::VerifyFailed => {
                let words = "Verification does not pass: the task is not accepted as complete";
                self.screen.trouble(words);
                self.notify(Notification::error(name.as_str(), self.plan.number(), words));
                self.finish_metadata(WorkspaceStatus::Error);
            }
            other => self.screen.message(&format!("Stopped: {}", words(other))),
        }
        if matches!(reason, StopReason::Completed | StopReason::Stagnation) {
            let how = if reason == StopReason::Completed { "completed" } else { "stagnation" };
            let status = crate::status::Status::read(&self.workspace.status_path()).ok();
            self.notify(Notification::completion(name.as_str(), here, how, status.as_ref()));
        }
        self.log.note(&format!("STOPPED: {reason}"));
        self.log.flush();
        let Self { worker, chronicle, .. } = &mut self;
        chronicle.end(worker.store(), reason.as_str());
        // What cannot be removed is removed when the next loop begins.
        drop(self.mailbox.end());
        let most = if self.interrupted() { Duration::from_secs(2) } else { LAST_WORDS };
        // All is written down: from here on a signal simply ends us.
        let ended = self.worker.end();
        if let Some(sender) = self.sender.take().and_then(|s| Arc::try_unwrap(s).ok())
            && let Ok(sender) = sender.into_inner()
        {
            let summary = sender.finish(most);
            let lost = summary.failed + summary.dropped;
            if lost > 0 {
                let what = text::count(lost, "notification");
                let why = summary.last_error.map_or_else(String::new, |error| format!(": {error}"));
                self.screen.trouble(&format!("{what} could not be delivered{why}"));
            }
        }
        ended.retain();
    }

    fn finish_metadata(&self, status: WorkspaceStatus) {
        self.update_metadata(|metadata| metadata.status = status);
    }

    /// Trouble with the workspace's file is told; the record has it all.
    pub fn update_metadata(&self, change: impl FnOnce(&mut Metadata)) {
        if let Err(error) = self.workspace.update(change) {
            self.screen.trouble(&error.to_string());
        }
    }

    /// A run of this loop, to be filled in.
    pub fn request(&self, command: CommandRequest) -> RunRequest {
        let position =
            LoopPosition { kind: LoopKind::Agent, id: self.chronicle.id(), iteration: 0 };
        let mut request = RunRequest::new(position, command, self.project.clone());
        request.label("workspace", self.workspace.name().to_string());
        request.set_grace(Some(GRACE));
        for (name, value) in &self.settings.iteration.env_vars {
            request.environment.set(name.as_str(), value.as_str());
        }
        request.environment.set("RETAKE_WORKSPACE", self.workspace.name().as_str());
        request.environment.set("RETAKE_WORKSPACE_PATH", self.workspace.dir().to_owned());
        request
    }

    /// Checks a request of this loop; `input` is what the command reads.
    pub fn prepare(
        &self,
        mut request: RunRequest,
        input: Option<Input>,
    ) -> Result<PreparedRun, String> {
        if input.is_some() {
            request.stdin = StdinSource::Provided;
        }
        let provided = Provided { input, reasons: Vec::new() };
        PreparedRun::with(request, self.worker.context(), provided)
            .map_err(|refused| refused.listed())
    }

    /// Runs something of this loop on the record; `carried` bytes of each stream come back.
    pub fn execute(
        &mut self,
        request: RunRequest,
        input: Option<Input>,
        carried: u64,
        observer: &mut dyn retake_runner::run::Observer,
    ) -> Result<retake_runner::run::FinishedRun, String> {
        let prepared = self.prepare(request, input)?;
        self.worker
            .run(prepared, OutputUse::excerpt(carried), observer)
            .map_err(|unrecorded| unrecorded.to_string())
    }
}

/// Gives a text to a child's standard input without a file that anyone else could read.
pub fn input(text: &str) -> std::io::Result<Input> {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let fd = rustix::fs::memfd_create("prompt", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(text.as_bytes())?;
    // Opened anew, it is read from its beginning and cannot be written.
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(Input::new(read_only.into()))
}

/// Why a loop ended, for people.
pub fn words(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Completed => "the task is complete",
        StopReason::MaxIterations => "the maximum of iterations is reached",
        StopReason::Stagnation => "no work is being done",
        StopReason::NoProgress => "there is no progress",
        StopReason::Failed => "an iteration failed",
        StopReason::BudgetCost => "the budget of money is spent",
        StopReason::BudgetTokens => "the budget of tokens is spent",
        StopReason::BudgetTime => "the budget of time is spent",
        StopReason::RateLimit => "the account's limit is reached",
        StopReason::VerifyFailed => "verification does not pass",
        StopReason::Stopped => "asked to stop",
        StopReason::Interrupted => "interrupted",
    }
}
