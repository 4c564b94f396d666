//! What `agent run`, `verify` and `validate` show, at each level. Messages are the result and go to
//! stdout; errors and the live line go to stderr, the live line only on a terminal.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use retake_agent::display::{self, Level};
use retake_agent::driver::{
    AgentDisplay, AgentEvent, FinishedQueue, LiveLine, QueueEvent, StoppedLoop,
};
use retake_agent::fleet::{FinishedFleet, FleetEvent};
use retake_agent::plan::AgentStopReason;
use retake_agent::status::{Completion, Source};
use retake_engine::BackgroundProcess;
use retake_runner::signals;

use retake_types::Run;

use super::run_command::Invocation;
use super::{fleet_messages, messages, queue_messages, run_command};
use crate::{denied, term, words};

pub(super) struct AgentScreen {
    level: Level,
    background: Arc<Mutex<Background>>,
    /// Whether a live line may be drawn.
    live: bool,
    /// Whether a live line is on the screen now.
    drawn: Arc<Mutex<bool>>,
    /// Whether the promises that the sandbox does not keep were printed.
    promises_told: Arc<AtomicBool>,
    /// The name that begins every line, if there are several agents.
    agent: Option<String>,
    invocation: Invocation,
}

/// Whether this process runs in the background.
enum Background {
    No,
    /// It still has the terminal, until the loop has started.
    Starting(BackgroundProcess),
    /// Errors go to the log of the loop, which has everything else already.
    Yes,
}

impl AgentScreen {
    /// `background` is given if this process runs in the background.
    pub(super) fn new(level: Level, background: Option<BackgroundProcess>) -> Self {
        let live =
            level == Level::Progress && background.is_none() && std::io::stderr().is_terminal();
        let background = background.map_or(Background::No, Background::Starting);
        Self {
            level,
            background: Arc::new(Mutex::new(background)),
            live,
            drawn: Arc::default(),
            promises_told: Arc::default(),
            agent: None,
            invocation: Invocation::Other,
        }
    }

    /// The screen of `run`, whose suggestions repeat its command line.
    pub(super) fn of_run(level: Level, background: Option<BackgroundProcess>) -> Self {
        let invocation = Invocation::Run(run_command::typed());
        Self { invocation, ..Self::new(level, background) }
    }

    pub(super) fn of_queue(level: Level, background: Option<BackgroundProcess>) -> Self {
        Self { invocation: Invocation::Queue, ..Self::new(level, background) }
    }

    /// Shows one of several agents on the same screen: its name begins every line, and there is no live line.
    pub(super) fn of_agent(&self, name: &str) -> Self {
        Self {
            level: self.level,
            background: self.background.clone(),
            live: false,
            drawn: self.drawn.clone(),
            promises_told: self.promises_told.clone(),
            agent: Some(name.to_owned()),
            invocation: self.invocation.clone(),
        }
    }

    fn named(&self, text: &str) -> String {
        match &self.agent {
            Some(name) => {
                let lines = text.lines().map(|line| format!("{name}: {line}"));
                lines.collect::<Vec<_>>().join("\n")
            }
            None => text.to_owned(),
        }
    }

    /// The loop begins: a process in the background leaves its terminal.
    fn started(&self, log: &Path) {
        let Ok(mut background) = self.background.lock() else { return };
        let process = match std::mem::replace(&mut *background, Background::Yes) {
            Background::No => {
                *background = Background::No;
                return;
            }
            Background::Starting(process) => Some(process),
            Background::Yes => None,
        };
        let log = OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(log);
        // Without a log there is nowhere to print to.
        let Ok(output) = log.or_else(|_| OpenOptions::new().write(true).open("/dev/null")) else {
            return;
        };
        let left = match process {
            Some(process) => process.started(output.as_fd()),
            None => retake_engine::redirect_output(output.as_fd()),
        };
        if left.is_err() {
            // The caller is gone and does not know of this loop: end it as if it had been interrupted.
            signals::interrupt(libc::SIGTERM);
        }
    }

    fn is_in_background(&self) -> bool {
        self.background.lock().is_ok_and(|background| matches!(*background, Background::Yes))
    }

    fn message(&self, text: &str) {
        if self.level >= Level::Progress && !self.is_in_background() {
            self.clear();
            // A closed stdout does not stop the loop: the log has everything.
            _ = term::data(format!("{}\n", self.named(text)).as_bytes());
        }
    }

    /// Events of a fleet, besides those of its agents.
    pub(super) fn fleet(&self, event: &FleetEvent<'_>) {
        if let FleetEvent::Tick { plan, spent } = event {
            return self.draw(&fleet_messages::live(plan, *spent));
        }
        match fleet_messages::event(event) {
            Some((text, true)) => self.error(&text),
            Some((text, false)) => self.message(&text),
            None => {}
        }
    }

    pub(super) fn fleet_finished(&self, finished: &FinishedFleet) {
        self.message(&fleet_messages::finished(finished));
    }

    fn draw(&self, text: &str) {
        if !self.live {
            return;
        }
        let width = term::width().unwrap_or(80).saturating_sub(1);
        let text: String = text.chars().take(width).collect();
        if let Ok(mut drawn) = self.drawn.lock() {
            _ = write!(std::io::stderr(), "\r\x1b[2K{text}");
            *drawn = true;
        }
    }

    /// Events of a queue, between the loops of its tasks.
    pub(super) fn queue(&self, event: &QueueEvent<'_>) {
        match queue_messages::event(event) {
            (text, true) => self.error(&text),
            (text, false) => self.message(&text),
        }
    }

    pub(super) fn queue_finished(&self, finished: &FinishedQueue, options: &[String]) {
        self.message(&queue_messages::finished(finished, options));
    }

    /// Errors are shown at every level.
    fn error(&self, text: &str) {
        self.clear();
        term::say(&self.named(text));
    }

    fn status(&self, completion: &Completion) {
        match completion.source {
            Source::Todo => self.message(messages::todo_fallback()),
            _ if completion.stale => self.message(messages::stale_completion()),
            _ => {}
        }
        if let Some(invalid) = &completion.invalid {
            self.message(&format!("⚠️ {invalid}"));
        }
        if let Some(remaining) = completion.remaining.filter(|_| !completion.complete) {
            self.message(&messages::items_remaining(remaining));
        }
    }

    /// What the sandbox reports about a run. The promises it does not keep are the same for the whole loop.
    fn confined(&self, run: &Run) {
        let report = run.outcome.as_ref().and_then(|outcome| outcome.sandbox.as_ref());
        let Some(report) = report else { return };
        if !self.promises_told.swap(true, Ordering::Relaxed) {
            words::not_kept(report).iter().for_each(|line| self.error(line));
        }
        for line in denied::lines(report, &run.intent.request) {
            self.message(&format!("⚠️ {line}"));
        }
    }

    fn stopped(&self, stopped: &StoppedLoop<'_>) {
        let max_iterations = stopped.max_iterations;
        match stopped.reason {
            AgentStopReason::Completed => self.message(&messages::completed(stopped.iterations)),
            AgentStopReason::MaxIterations => {
                self.message(&messages::max_iterations(max_iterations));
                if self.agent.is_none() {
                    let StoppedLoop { workspace, options, .. } = stopped;
                    for option in
                        messages::max_iterations_options(workspace, options, max_iterations)
                    {
                        self.message(&option);
                    }
                }
            }
            AgentStopReason::Stagnation => self.message(&messages::stagnation(stopped.idle)),
            other => {
                if other == AgentStopReason::VerifyFailed {
                    self.error(messages::not_accepted());
                }
                self.message(&format!("Stopped: {}", messages::why_stopped(stopped)));
                if self.agent.is_none() {
                    let StoppedLoop { workspace, options, gate_cannot_run, .. } = stopped;
                    self.message(&match gate_cannot_run {
                        true => messages::correct_gate(workspace, options),
                        false => messages::continue_with(workspace, options),
                    });
                }
            }
        }
    }
}

impl AgentDisplay for AgentScreen {
    fn event(&self, event: AgentEvent<'_>) {
        match event {
            AgentEvent::Continued { last_iteration } => {
                self.message(&messages::continued(last_iteration));
            }
            AgentEvent::Started { log } => self.started(log),
            AgentEvent::PermissionsSkipped(kind) => {
                self.error(&messages::permissions_skipped(kind))
            }
            AgentEvent::IterationStarted { number } => {
                self.message(&messages::running_iteration(number));
            }
            AgentEvent::IterationEnded(iteration) => {
                self.message(&display::iteration_line(iteration));
            }
            AgentEvent::ProtectionsDropped { sandbox, verification, workspace, options } => {
                let dropped = (sandbox, verification);
                let now = &self.invocation;
                self.error(&messages::protections_dropped(dropped, workspace, options, now));
            }
            AgentEvent::IterationFailed { number, why, run } => {
                self.error(&format!("{}: {why}", messages::iteration_failed(number)));
                if let Some(run) = run {
                    self.message(&messages::see_output(run));
                }
            }
            AgentEvent::NothingDone { number } => self.message(&messages::nothing_done(number)),
            AgentEvent::PermissionsDenied { count, tools } => {
                let tools = tools.map_or_else(String::new, |tools| format!(": {tools}"));
                self.message(&format!("⚠️ {} denied{tools}", term::count(count, "permission")));
            }
            AgentEvent::Blocked { blockers, pauses } => {
                let then = if pauses { "; the loop pauses" } else { "" };
                self.message(&format!("⚠️ The agent is blocked: {}{then}", blockers.join("; ")));
            }
            AgentEvent::ServerNotListed { .. } => {
                self.message(&format!("⚠️ {}", display::SERVER_NOT_LISTED));
            }
            AgentEvent::LingeringEnded { waited, .. } => {
                self.message(&format!("⚠️ {}", display::lingering_ended(waited)));
            }
            AgentEvent::Status(completion) => self.status(completion),
            AgentEvent::Waiting { cause, remaining } => {
                self.message(&display::countdown(cause, remaining));
            }
            AgentEvent::AgentChanged { kind, role } => {
                self.message(&messages::agent_changed(kind, role));
            }
            AgentEvent::Paused { workspace } => {
                self.message(&format!("Paused. Continue with: retake agent resume {workspace}"));
            }
            AgentEvent::VerificationStarted => self.message("Verifying completion..."),
            AgentEvent::VerificationPassed => self.message("✓ Verification passed"),
            AgentEvent::VerificationFailed { refusal } => {
                let cannot_run = refusal.is_some_and(|refusal| refusal.cannot_run);
                self.message(messages::verification_failed(cannot_run));
                if let Some(refusal) = refusal {
                    self.message(&format!("  {}", refusal.why));
                    self.message(&messages::see_output(refusal.run));
                }
            }
            AgentEvent::VerificationPostponed { why } => {
                self.message(&format!("⚠️ Verification could not run: {why}"));
            }
            AgentEvent::HookFailed { when, command } => {
                self.error(&display::hook_failed(when, command));
            }
            AgentEvent::HookNotRun(error) => self.error(&error.to_string()),
            AgentEvent::Stopped(stopped) => self.stopped(stopped),
            AgentEvent::NotRecorded(error) => {
                self.error(&format!(
                    "the history of this loop is not recorded: {}",
                    words::store_error(error)
                ));
            }
            AgentEvent::NotLogged(error) => self.error(&format!("logging is off: {error}")),
            AgentEvent::NotPaused(error) => {
                self.error(&format!("the loop does not pause: {error}"));
            }
            AgentEvent::NotNotified(error) => {
                self.error(&format!("notifications disabled: {error}"))
            }
            AgentEvent::NotificationsLost { count, last_error } => {
                let what = term::count(count, "notification");
                let why = last_error.map_or_else(String::new, |error| format!(": {error}"));
                self.error(&format!("{what} could not be delivered{why}"));
            }
            AgentEvent::StatusNotWatched(error) => {
                self.error(&format!("the status is not watched: {error}"));
            }
            AgentEvent::StopNotWatched(error) => {
                self.error(&format!("`retake agent stop --now` will not work: {error}"));
            }
            AgentEvent::TimeNotKept(error) => self
                .error(&format!("a restart will not know how much of --max-time is used: {error}")),
            AgentEvent::NoCheckpoint { number, error } => {
                self.error(&format!("no checkpoint of iteration {number}: {error}"));
            }
            AgentEvent::NotCovered { paths } => {
                self.message(&format!(
                    "⚠️ Checkpoints do not cover {}: repositories of their own",
                    paths.join(", ")
                ));
            }
            AgentEvent::MetadataNotWritten(error) => self.error(&error.to_string()),
            AgentEvent::Confined(run) => self.confined(run),
        }
    }

    fn detail(&self, text: &str) {
        if self.shows_detail() {
            _ = term::data(text.as_bytes());
        }
    }

    fn shows_detail(&self) -> bool {
        // The output of several agents is not mixed on one screen; `attach` follows one.
        self.level == Level::Verbose && self.agent.is_none() && !self.is_in_background()
    }

    fn has_live_line(&self) -> bool {
        self.live
    }

    fn live(&self, line: LiveLine) {
        if !self.live {
            return;
        }
        self.draw(&match line {
            LiveLine::Iteration(live) => live.line(),
            LiveLine::Waiting { cause, remaining } => display::countdown(cause, remaining),
        });
    }

    fn clear(&self) {
        if let Ok(mut drawn) = self.drawn.lock()
            && std::mem::take(&mut *drawn)
        {
            _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
