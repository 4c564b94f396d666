//! The loop of one agent: starts or continues its record, runs the plan's steps on the loop driver,
//! and ends it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use retake_runner::loop_driver::{self, StepError};
use retake_runner::signals;
use retake_runner::worker::EndedWorker;
use retake_store::redact::Redactor;
use retake_types::loop_record::agent::{
    AgentEntry, AgentLoopPlan, CheckpointTime, Iteration, Spent,
};

use retake_types::LoopId;

use crate::clock::Clock;
use crate::control::Mailbox;
use crate::display;
use crate::history::History;
use crate::log::{Head, Log};
use crate::notify::{Notification, Sender};
use crate::plan::{AgentPlan, AgentRole, AgentStopReason, PastIteration, Rules, Step};
use crate::prompt::Purpose;
use crate::settings::Settings;
use crate::status::{Marks, Status};
use crate::watch::StatusWatch;
use crate::workspace::{Metadata, WorkspaceStatus};

use super::event::{AgentDisplay, AgentEvent, StoppedLoop};
use super::iteration::PlannedAttempt;
use super::recorded_loop::{self, AgentRecorder, RecordedLoop};
use super::session::{AgentSession, StartError};
use super::steered_plan::{SharedLimits, SteeredPlan, StepReport, WaitDisplay};

/// How long the end of a loop waits for its notifications.
const LAST_NOTIFICATIONS: Duration = Duration::from_secs(15);
/// The same after a signal.
const LAST_NOTIFICATIONS_INTERRUPTED: Duration = Duration::from_secs(2);
/// Pause between attempts at a notification.
const NOTIFY_PAUSE: Duration = Duration::from_secs(1);

/// A running loop.
pub(super) struct AgentLoop {
    pub(super) session: AgentSession,
    pub(super) log: Log,
    pub(super) notifier: Notifier,
    pub(super) state: AgentLoopState,
    recorder: AgentRecorder,
    /// Whether an error of the record was reported; it is the same for every entry.
    record_error_reported: bool,
}

/// State that changes between iterations.
pub(super) struct AgentLoopState {
    /// Iterations before and in this invocation.
    pub(super) history: Vec<Iteration>,
    /// The status files at the start of the loop: their earlier content does not count.
    pub(super) since: Marks,
    /// The output of the verification that failed last.
    pub(super) gate_output: Option<String>,
    /// The iteration after which the verification command passed.
    pub(super) command_passed: Option<u32>,
    /// The verification command names a program that does not exist.
    pub(super) gate_cannot_run: bool,
    /// An iteration to retry, whose post hook has not run.
    pub(super) postponed: Option<Iteration>,
    /// The agent that worked last.
    agent: AgentRole,
    wait: WaitDisplay,
    /// Whether the user was warned that iterations without progress do not end the loop.
    pub(super) no_progress_told: bool,
}

/// Sends notifications about the loop, without secrets.
pub(super) struct Notifier {
    sender: Option<Arc<Mutex<Sender>>>,
    redactor: Arc<Redactor>,
    /// The number of the current iteration.
    pub(super) iteration: Arc<AtomicU32>,
}

/// A finished loop. The caller pushes and prunes what was recorded.
pub struct FinishedLoop {
    pub reason: AgentStopReason,
    /// The loop in the record.
    pub loop_id: Option<LoopId>,
    /// The signal that asked for the end, if any.
    pub signal: Option<i32>,
    /// What this loop has spent, on iterations and otherwise.
    pub spent: Spent,
    pub worker: EndedWorker,
}

/// Runs a loop to its end, or continues one whose runner died.
pub fn run(mut session: AgentSession, rules: Rules) -> Result<FinishedLoop, StartError> {
    let mut loops = session.recorded_loops()?;
    let (mut recorder, broken_off) = open_record(&mut session, &mut loops, rules.max_iterations)?;
    if let Some(id) = recorder.id() {
        session.loop_id = id;
    }
    let history = recorded_loop::iterations(&loops);
    let last = History::new(&history).next_number().saturating_sub(1);
    // A continued loop has a checkpoint already.
    if session.keeps_checkpoints()
        && broken_off.is_none()
        && let Err(error) = keep_start(&mut session, &mut recorder, last)
    {
        // The new loop ends before its first iteration; report the first error.
        drop(session.worker.store().and_then(|s| recorder.end(s, AgentStopReason::Failed)));
        return Err(error);
    }
    if let Some(last) = loops.last().and_then(RecordedLoop::plan)
        && !session.task.options.dry_run
    {
        let sandbox = last.confined && !session.task.sandbox.is_on();
        let verification = last.verified && !session.task.is_verified();
        if sandbox || verification {
            let (workspace, options) = (session.task.workspace.name(), &last.options);
            session.display.event(AgentEvent::ProtectionsDropped {
                sandbox,
                verification,
                workspace,
                options,
            });
        }
    }
    let redactor = session.redactor.clone();
    let log = Log::create(
        &session.task.workspace.log_path(Timestamp::now()),
        Box::new(move |text| redactor.redact_str(text).0),
    );
    let notifier = Notifier::start(&session, last);
    let plan = match broken_off {
        Some(broken_off) => {
            session.display.event(AgentEvent::Continued { last_iteration: last });
            broken_off.plan(rules, last)
        }
        None => AgentPlan::new(rules, last),
    };
    if session.task.options.skip_permissions {
        let kind = session.task.settings.agent.kind;
        session.display.event(AgentEvent::PermissionsSkipped(kind));
    }
    let state = AgentLoopState {
        history,
        since: Marks::take(&session.task.workspace.status_paths()),
        gate_output: loops.last_mut().and_then(|last| last.gate_output.take()),
        command_passed: None,
        gate_cannot_run: false,
        postponed: None,
        agent: AgentRole::First,
        wait: WaitDisplay::default(),
        no_progress_told: false,
    };
    session.task.workspace.update(|metadata| metadata.status = WorkspaceStatus::InProgress)?;
    let kinds = [AgentRole::First, AgentRole::Fallback].map(|role| session.task.program(role).kind);
    let group = session.task.group.clone().map(|member| SharedLimits { member, kinds });
    let plan = SteeredPlan::new(plan, session.mailbox.clone(), group);
    let agent_loop =
        AgentLoop { session, log, notifier, state, recorder, record_error_reported: false };
    Ok(agent_loop.run(plan))
}

/// A loop whose runner died.
struct BrokenOffLoop {
    past: Vec<PastIteration>,
    recorded: RecordedLoop,
    time_used: Duration,
}

impl BrokenOffLoop {
    fn plan(&self, rules: Rules, last: u32) -> AgentPlan {
        let recorded = &self.recorded;
        let mut plan = AgentPlan::resume(rules, last, &self.past, recorded.refusals)
            .having_used(self.time_used)
            .having_tried(recorded.attempts);
        plan.charge(recorded.spent_otherwise);
        if recorded.passed {
            plan.completed()
        } else if recorded.complete || recorded.unanswered.is_some() {
            plan.at_gate()
        } else {
            plan
        }
    }
}

/// Makes the checkpoint before the first iteration.
fn keep_start(
    session: &mut AgentSession,
    recorder: &mut AgentRecorder,
    last: u32,
) -> Result<(), StartError> {
    if recorder.id().is_none() {
        return Err(StartError::CheckpointsUnrecorded);
    }
    let checkpoint = session.keep_checkpoint(last, CheckpointTime::Start)?;
    if !checkpoint.not_covered.is_empty() {
        session.display.event(AgentEvent::NotCovered { paths: &checkpoint.not_covered });
    }
    recorder.add(session.worker.store()?, &AgentEntry::Checkpoint { checkpoint })?;
    Ok(())
}

/// Starts a record, or continues that of a dead runner.
fn open_record(
    session: &mut AgentSession,
    loops: &mut [RecordedLoop],
    max_iterations: u32,
) -> Result<(AgentRecorder, Option<BrokenOffLoop>), StartError> {
    let AgentSession { task, worker, mailbox, redactor, .. } = session;
    // A dry run is not recorded in the workspace's history.
    if task.options.dry_run {
        return Ok((AgentRecorder::unrecorded(), None));
    }
    // Opening it failed before, and the error was reported then.
    let Ok(store) = worker.store() else { return Ok((AgentRecorder::unrecorded(), None)) };
    // An open loop while this process holds the workspace: its runner died.
    if let Some(open) = loops.last_mut().filter(|last| last.is_open()) {
        let recorder = AgentRecorder::resume(store, open, redactor)?;
        // A death between updating the record and the counter must not leave them inconsistent.
        let iterations = u32::try_from(open.iterations.len()).unwrap_or(u32::MAX);
        let counted = open.plan().map_or(0, |plan| plan.counted).saturating_add(iterations);
        task.workspace.update(|metadata| {
            metadata.execution_iterations = counted;
            metadata.total_iterations = metadata.setup_iterations.saturating_add(counted);
        })?;
        let broken_off = BrokenOffLoop {
            past: open.iterations.iter().map(PastIteration::from).collect(),
            time_used: time_used(mailbox, open),
            recorded: open.clone(),
        };
        return Ok((recorder, Some(broken_off)));
    }
    let plan = AgentLoopPlan {
        workspace: task.workspace.name().to_string(),
        created: task.metadata.created,
        mode: task.metadata.mode,
        agent: task.settings.agent.kind.to_string(),
        max_iterations,
        counted: task.metadata.execution_iterations,
        worktree: Some(recorded_loop::worktree(&task.workspace)),
        fallback: task.settings.fallback.as_ref().map(|fallback| fallback.kind.to_string()),
        queue: task.queue.clone(),
        options: task.repeated_options.clone(),
        confined: task.sandbox.is_on(),
        verified: task.is_verified(),
    };
    Ok((AgentRecorder::begin(store, &plan, redactor)?, None))
}

fn time_used(mailbox: &Mailbox, open: &RecordedLoop) -> Duration {
    Clock::used(mailbox.dir(), &open.record.id.to_string()).unwrap_or_default()
}

impl AgentLoop {
    fn run(mut self, plan: SteeredPlan) -> FinishedLoop {
        self.announce(&plan);
        let watch = self.watch_status();
        let clock = self.start_clock(&plan);
        let stop_watch = self.session.watch_stop();
        if let Err(error) = &stop_watch {
            self.session.display.event(AgentEvent::StopNotWatched(error));
        }
        self.report_log_error();
        self.session.display.event(AgentEvent::Started { log: self.log.path() });
        let driven = loop_driver::drive_here(
            plan,
            &mut self,
            |agent_loop, plan, step| Ok::<_, StepError<Infallible>>(agent_loop.execute(plan, step)),
            Self::waiting,
        );
        self.end_wait();
        drop((clock, stop_watch));
        self.run_pending_post_hook();
        if let Some(watch) = watch {
            watch.stop();
        }
        self.close(&driven.plan)
    }

    fn execute(&mut self, plan: &mut SteeredPlan, step: &Step) -> StepReport {
        self.end_wait();
        let report = match *step {
            Step::Iterate { number, attempt, agent, timeout, max_cost_usd } => {
                let planned = PlannedAttempt { number, attempt, agent, timeout, max_cost_usd };
                StepReport::Iteration(self.iterate(plan, planned))
            }
            Step::Verify { attempt, agent, left } => self.verify(plan, attempt, agent, left),
            // The plan's other answers are not steps.
            Step::Wait { .. } | Step::Pause | Step::Stop(_) => StepReport::Interrupted,
        };
        self.report_log_error();
        report
    }

    fn waiting(&mut self, plan: &SteeredPlan, left: Duration) {
        let wait = plan.wait().map(|wait| (wait, left));
        let name = self.session.task.workspace.name();
        let entries = self.state.wait.update(wait, name, &*self.session.display);
        if entries.is_empty() {
            return;
        }
        for entry in entries {
            self.note(entry);
        }
        // The wait may take hours, and the log may be read meanwhile.
        self.log.flush();
        self.report_log_error();
    }

    fn end_wait(&mut self) {
        let name = self.session.task.workspace.name();
        for entry in self.state.wait.update(None, name, &*self.session.display) {
            self.note(entry);
        }
    }

    /// Shows and records a change of the agent.
    pub(super) fn change_agent(&mut self, role: AgentRole) {
        if std::mem::replace(&mut self.state.agent, role) == role {
            return;
        }
        let kind = self.session.task.program(role).kind;
        self.session.display.event(AgentEvent::AgentChanged { kind, role });
        self.note(AgentEntry::AgentChanged { agent: kind.to_string() });
    }

    fn report_log_error(&mut self) {
        if let Some(error) = self.log.take_error() {
            self.session.display.event(AgentEvent::NotLogged(&error));
        }
    }

    /// Writes the head of the log and sends the start notification.
    fn announce(&mut self, plan: &SteeredPlan) {
        let task = &self.session.task;
        let mode = task.metadata.mode;
        let max_iterations = plan.rules().max_iterations;
        // An error is reported when the first iteration needs the prompt.
        let system = task.prompt(Purpose::System(mode), &task.facts()).unwrap_or_default();
        let head = Head {
            workspace: task.workspace.name().as_str(),
            mode: mode.as_str(),
            max_iterations,
            instructions: task.instructions(),
            system_prompt: &system,
            status_instructions: task.status_instructions(),
        };
        self.log.head(&head, Timestamp::now());
        let name = task.workspace.name().as_str();
        self.notifier.notify(Notification::execution_start(name, mode.as_str(), max_iterations));
    }

    /// Records the time for a restart, if it is limited.
    fn start_clock(&self, plan: &SteeredPlan) -> Option<Clock> {
        let budgets = plan.rules().budgets;
        budgets.time.or(budgets.invocation_time)?;
        let (id, used) = (self.session.loop_id.to_string(), plan.time_used(plan.now()));
        Clock::start(self.session.mailbox.dir(), &id, used)
            .map_err(|error| self.session.display.event(AgentEvent::TimeNotKept(&error)))
            .ok()
    }

    /// Sends notifications about status changes during the loop.
    fn watch_status(&self) -> Option<StatusWatch> {
        let task = &self.session.task;
        let (options, sender) =
            (task.settings.notifications.status_watch?, self.notifier.sender.clone()?);
        let notifier = Notifier {
            sender: Some(sender),
            redactor: self.notifier.redactor.clone(),
            iteration: self.notifier.iteration.clone(),
        };
        let name = task.workspace.name().to_string();
        StatusWatch::start(&task.workspace.status_path(), options, move |update| {
            let number = notifier.iteration.load(Ordering::Relaxed);
            notifier.notify(Notification::status_update(&name, number, &update));
        })
        .map_err(|error| self.session.display.event(AgentEvent::StatusNotWatched(&error)))
        .ok()
    }

    pub(super) fn record(&mut self, entry: &AgentEntry) {
        if self.session.task.options.dry_run {
            return;
        }
        let added = self.session.worker.store().and_then(|store| self.recorder.add(store, entry));
        self.report_record_error(added);
    }

    fn report_record_error(&mut self, result: retake_store::Result<()>) {
        if let Err(error) = result
            && self.recorder.id().is_some()
            && !std::mem::replace(&mut self.record_error_reported, true)
        {
            self.session.display.event(AgentEvent::NotRecorded(&error));
        }
    }

    /// Records an entry outside of iterations, and logs it.
    pub(super) fn note(&mut self, entry: AgentEntry) {
        if let Some(text) = display::note(&entry) {
            self.log.note(&text);
        }
        self.record(&entry);
    }

    /// Shows the end of the loop, and makes sure that it is recorded.
    fn close(mut self, plan: &SteeredPlan) -> FinishedLoop {
        // Only a signal ends the driver before the plan.
        let (reason, signal) = (plan.stopped(), signals::received());
        let reason = match reason.unwrap_or(AgentStopReason::Interrupted) {
            // Its iteration was cancelled by a stop request.
            AgentStopReason::Interrupted if self.session.stopped_now.load(Ordering::Relaxed) => {
                AgentStopReason::Stopped
            }
            reason => reason,
        };
        let name = self.session.task.workspace.name().clone();
        let iterations = plan.iterations();
        self.session.display.event(AgentEvent::Stopped(&StoppedLoop {
            workspace: &name,
            reason,
            iterations,
            max_iterations: plan.rules().max_iterations,
            idle: plan.idle(),
            failures: plan.failures(),
            gate_cannot_run: self.state.gate_cannot_run,
            options: &self.session.task.repeated_options,
        }));
        match reason {
            AgentStopReason::Completed => {
                let instructions = self.session.task.instructions();
                self.session.update_metadata(|metadata| metadata.complete(instructions));
            }
            AgentStopReason::Failed | AgentStopReason::VerifyFailed => {
                self.session.update_metadata(|metadata| metadata.status = WorkspaceStatus::Error);
            }
            _ => {}
        }
        if reason == AgentStopReason::VerifyFailed {
            self.notifier.notify(Notification::not_accepted(name.as_str(), plan.number()));
        }
        if matches!(reason, AgentStopReason::Completed | AgentStopReason::Stagnation) {
            let status = Status::read(&self.session.task.workspace.status_path()).ok();
            let how = reason.as_str();
            let notification =
                Notification::completion(name.as_str(), iterations, how, status.as_ref());
            self.notifier.notify(notification);
        }
        self.log.note(&format!("STOPPED: {reason}"));
        self.log.flush();
        if !self.session.task.options.dry_run {
            let ended = self.session.worker.store().and_then(|s| self.recorder.end(s, reason));
            self.report_record_error(ended);
        }
        self.run_end_hook(plan, reason);
        // Remaining files are removed when the next loop begins.
        drop(self.session.mailbox.end());
        let interrupted = self.session.is_interrupted();
        let AgentSession { worker, display, _lock, .. } = self.session;
        // Everything is recorded: from here on a signal ends the process.
        let worker = worker.end();
        self.notifier.finish(interrupted, &*display);
        let loop_id = self.recorder.id();
        FinishedLoop { reason, loop_id, signal, spent: plan.spent(), worker }
    }
}

impl AgentSession {
    /// An error of the workspace's file is only shown; the record is complete.
    pub(super) fn update_metadata(&self, change: impl FnOnce(&mut Metadata)) {
        let task = &self.task;
        let updated = task.workspace.update_in_loop(&task.metadata, task.instructions(), change);
        if let Err(error) = updated {
            self.display.event(AgentEvent::MetadataNotWritten(&error));
        }
    }
}

impl Notifier {
    fn start(session: &AgentSession, iteration: u32) -> Self {
        let sender = start_sender(&session.task.settings);
        let sender = sender.transpose().unwrap_or_else(|error| {
            session.display.event(AgentEvent::NotNotified(&error.to_string()));
            None
        });
        Self {
            sender: sender.map(|sender| Arc::new(Mutex::new(sender))),
            redactor: session.redactor.clone(),
            iteration: Arc::new(AtomicU32::new(iteration)),
        }
    }

    pub(super) fn notify(&self, notification: Notification) {
        let Some(sender) = &self.sender else { return };
        let clean = notification.map(|text| self.redactor.redact_str(text).0.into_owned());
        if let Ok(mut sender) = sender.lock() {
            sender.notify(clean);
        }
    }

    /// Waits for queued notifications for a while.
    fn finish(self, interrupted: bool, display: &dyn AgentDisplay) {
        let most = match interrupted {
            true => LAST_NOTIFICATIONS_INTERRUPTED,
            false => LAST_NOTIFICATIONS,
        };
        if let Some(sender) = self.sender.and_then(|sender| Arc::try_unwrap(sender).ok())
            && let Ok(sender) = sender.into_inner()
        {
            let summary = sender.finish(most);
            let count = summary.failed + summary.dropped;
            if count > 0 {
                let last_error = summary.last_error.as_deref();
                display.event(AgentEvent::NotificationsLost { count, last_error });
            }
        }
    }
}

/// `None` if notifications are disabled.
fn start_sender(settings: &Settings) -> Option<std::io::Result<Sender>> {
    let notifications = &settings.notifications;
    let (url, events) = (notifications.url.as_deref()?, notifications.events.clone());
    Some(Sender::start(url, notifications.format, events, notifications.timeout, NOTIFY_PAUSE))
}
