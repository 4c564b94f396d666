//! One iteration: hooks, the agent, its effects, and the consequences.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use retake_effects::files::Changes;
use retake_effects::progress_detection::{self, PastResults};
use retake_effects::{agent_summary, observations};
use retake_engine::{Input, PARENT_VARIABLE};
use retake_runner::effects_watch::FileWatch;
use retake_runner::run::{FinishedRun, OutputUse};
use retake_runner::run_environment::STORE_VARIABLE;
use retake_types::loop_record::agent::{
    AgentEntry, CheckpointTime, Iteration, IterationResult, IterationStatus, Spent,
};
use retake_types::request::CommandRequest;
use retake_types::{Effects, RunId, RunRequest, SandboxReport, TestResults};

use crate::adapters::{AgentKind, AttemptVerdict};
use crate::display::{self, Live};
use crate::hooks::Effect;
use crate::notify::Notification;
use crate::plan::{AgentRole, AgentStopReason, IterationOutcome, IterationReport};
use crate::prompt::{Facts, Purpose};
use crate::status::{Completion, Marks, Status, StatusFiles};

use super::AgentLoop;
use super::agent_run::{
    AgentObserver, EffectsOfAgent, EndedByUs, ObservedAgent, Reporting, Summarize,
};
use super::event::{AgentEvent, AgentRunError, Unrecorded};
use super::steered_plan::SteeredPlan;
use super::task::{AgentPrompt, ServerOffer, input};
use super::{dry_run, recorded_loop};

/// Maximum output of an iteration in its history; the record has all of it.
pub(super) const CARRIED: u64 = 16 * 1024;

/// Why an attempt counts as failed although the agent reports success.
const STATE_READ_ONLY: &str =
    "the agent cannot write its own state, so that each of its commands fails; let it write there";

/// An attempt at an iteration, as planned.
#[derive(Clone, Copy)]
pub(super) struct PlannedAttempt {
    pub(super) number: u32,
    /// Counts from 1.
    pub(super) attempt: u32,
    pub(super) agent: AgentRole,
    pub(super) timeout: Duration,
    pub(super) max_cost_usd: Option<f64>,
}

/// The prompts of an iteration, and the items that remained before it.
struct IterationPrompts {
    user: String,
    system: String,
    remaining: Option<u64>,
}

/// A finished run of the agent.
struct FinishedAttempt {
    finished: FinishedRun,
    observed: ObservedAgent,
    verdict: AttemptVerdict,
    /// The status files before it began.
    before: Marks,
}

/// The file in which retake's server notes that the agent asked for its tools.
const LISTED_FILE: &str = ".mcp-listed";
const LISTED_VARIABLE: &str = "RETAKE_MCP_LISTED";

impl AgentLoop {
    pub(super) fn iterate(
        &mut self,
        plan: &mut SteeredPlan,
        planned: PlannedAttempt,
    ) -> IterationReport {
        let PlannedAttempt { number, attempt, agent, .. } = planned;
        self.change_agent(agent);
        let kind = self.session.task.program(agent).kind;
        self.notifier.iteration.store(number, Ordering::Relaxed);
        if attempt == 1 {
            self.session.display.event(AgentEvent::IterationStarted { number });
        }
        let prompts = match self.prompts(plan, number) {
            Ok(prompts) => prompts,
            Err(error) => return self.fail_unstarted(number, String::new(), &error),
        };
        let recorded = self.session.clean(&prompts.user);
        let mut iteration = Iteration::new(number, recorded, Timestamp::now());
        iteration.facts.agent = Some(kind.to_string());
        self.log.iteration(number, kind, iteration.started_at);
        // A further attempt belongs to the same iteration, which its hook has prepared.
        self.state.postponed = None;
        let prepared = match attempt {
            1 => self.run_pre_hook(plan, &mut iteration),
            _ => Effect::GoOn,
        };
        let left_out = match prepared {
            _ if self.session.is_interrupted() => Some(IterationOutcome::Interrupted),
            Effect::GoOn => None,
            // The loop's time limit ended the hook.
            _ if plan.is_time_spent() => {
                Some(IterationOutcome::OverBudget(AgentStopReason::BudgetTime))
            }
            Effect::SkipIteration => Some(IterationOutcome::Skipped),
            Effect::StopLoop => Some(IterationOutcome::HookStopped),
        };
        if let Some(outcome) = left_out {
            return self.leave_out(iteration, outcome);
        }
        iteration.status = IterationStatus::Executing;
        // Recorded before it starts, so that a runner's death does not lose the cost of the run.
        let id = RunId::new();
        iteration.facts.run_id = Some(id);
        self.record(&AgentEntry::Iteration { iteration: Box::new(iteration.clone()) });
        match self.run_agent(plan, planned, id, &prompts) {
            Ok(attempt) => self.conclude(plan, iteration, attempt),
            Err(error) => self.fail_unstarted(number, iteration.prompt, &error),
        }
    }

    /// Reads the status files, which the agent or a hook may have written.
    fn status_files(&self) -> StatusFiles {
        let task = &self.session.task;
        StatusFiles::read(&task.workspace.status_paths(), task.settings.todo_fallback)
    }

    fn prompts(
        &mut self,
        plan: &SteeredPlan,
        number: u32,
    ) -> Result<IterationPrompts, AgentRunError> {
        let messages = self.session.mailbox.take(number)?;
        let completion = self.status_files().completion(self.state.since);
        let task = &self.session.task;
        let last = self.state.history.last();
        let facts = Facts {
            iteration: Some(number),
            iterations_left: Some(plan.iterations_left()),
            remaining: completion.remaining,
            last_tests: recorded_loop::last_tests(&self.state.history),
            verify_output: self.state.gate_output.as_deref(),
            status_problem: completion.invalid.as_deref(),
            interrupted: last.is_some_and(|last| last.status == IterationStatus::Interrupted),
            messages: &messages,
            ..task.facts()
        };
        let mode = task.metadata.mode;
        let user = task.prompt(Purpose::User(mode), &facts)?;
        let system = task.prompt(Purpose::System(mode), &facts)?;
        Ok(IterationPrompts { user, system, remaining: completion.remaining })
    }

    /// retake's own server for the agent's commands, if it is offered.
    fn offer_server(
        &self,
        id: RunId,
        number: u32,
        kind: AgentKind,
    ) -> Result<ServerOffer, AgentRunError> {
        let task = &self.session.task;
        let Some(offer) = task.offer.as_deref().filter(|_| !task.options.dry_run) else {
            return Ok(ServerOffer::default());
        };
        let Ok(store) = self.session.worker.context().project.store() else {
            return Ok(ServerOffer::default()); // a server without a record would have nothing to say
        };
        let listed = task.workspace.dir().join(LISTED_FILE);
        // Remove a note of an earlier attempt.
        _ = std::fs::remove_file(&listed);
        let mut ids = vec![
            (PARENT_VARIABLE, id.to_string()),
            ("RETAKE_TASK_ID", task.workspace.name().to_string()),
            ("RETAKE_STEP_ID", number.to_string()),
            (LISTED_VARIABLE, listed.to_string_lossy().into_owned()),
        ];
        // A sandbox has another record, which the server finds itself.
        if !task.sandbox.is_on() {
            ids.push((STORE_VARIABLE, store.to_string_lossy().into_owned()));
        }
        let mut offer = offer(kind, &ids).map_err(AgentRunError::Server)?;
        offer.listed = (!offer.is_nothing()).then_some(listed);
        Ok(offer)
    }

    fn agent_request(
        &self,
        planned: PlannedAttempt,
        id: RunId,
        prompts: &IterationPrompts,
    ) -> Result<(RunRequest, Input, ServerOffer), AgentRunError> {
        let number = planned.number;
        let task = &self.session.task;
        let kind = task.program(planned.agent).kind;
        let offer = self.offer_server(id, number, kind)?;
        let prompt = AgentPrompt {
            user: &prompts.user,
            system: &prompts.system,
            extra_arguments: &offer.arguments,
            max_cost_usd: planned.max_cost_usd.filter(|_| kind.capabilities().cost_cap),
        };
        let invocation = task.invocation(planned.agent, &prompt)?;
        let text = format!("{kind} (iteration {number} of {})", task.workspace.name());
        let command = if task.options.dry_run {
            let arguments = dry_run::arguments(&invocation.argv);
            CommandRequest::arguments(text, arguments.map_err(AgentRunError::OwnProgram)?)
        } else {
            CommandRequest::arguments(text, invocation.argv)
        };
        let mut request = self.session.request(command);
        request.id = id;
        request.set_timeout(Some(planned.timeout.max(Duration::from_millis(1))));
        request.position.iteration = number.into();
        request.environment.set("RETAKE_ITERATION", number.to_string());
        request.environment.set("RETAKE_TASK_ID", task.workspace.name().as_str());
        for (name, value) in &offer.variables {
            request.environment.set(name.clone(), value.clone());
        }
        task.sandbox.equip_agent(kind, &mut request);
        let input = input(&invocation.stdin).map_err(AgentRunError::Input)?;
        Ok((request, input, offer))
    }

    fn run_agent(
        &mut self,
        plan: &SteeredPlan,
        planned: PlannedAttempt,
        id: RunId,
        prompts: &IterationPrompts,
    ) -> Result<FinishedAttempt, AgentRunError> {
        let task = &self.session.task;
        let before = Marks::take(&task.workspace.status_paths());
        let (request, input, offer) = self.agent_request(planned, id, prompts)?;
        let settings = &task.settings;
        let kind = task.program(planned.agent).kind;
        let track = settings.iteration.track_file_changes;
        let context = self.session.worker.context();
        let files = track
            .then(|| FileWatch::begin(&task.root, false, &self.session.redactor, context))
            .flatten();
        let past = past_results(&self.state.history);
        let summarize: &Summarize<'_> =
            &|changes, tests, said| summary(changes, tests, said, &past);
        let prepared = self.session.prepare(request, Some(input))?;
        let number = planned.number;
        let live = Live {
            iteration: number,
            // Numbers count across invocations, but the limit applies to this one.
            max_iterations: number.saturating_add(plan.iterations_left()).saturating_sub(1),
            elapsed: Duration::ZERO,
            remaining: prompts.remaining,
            cost_usd: Some(plan.spent().cost_usd).filter(|cost| *cost > 0.0),
        };
        let cancel = self.session.worker.cancel().clone();
        let reporting = Reporting {
            display: &*self.session.display,
            log: &mut self.log,
            plan,
            group: task.group.as_ref(),
            cancel: cancel.clone(),
        };
        let effects = EffectsOfAgent {
            parse_tests: settings.iteration.parse_tests,
            files,
            workspace: task.workspace.dir().strip_prefix(&task.root).ok().map(Into::into),
            summarize,
        };
        let mut observer = AgentObserver::new(kind, reporting, effects);
        let ticker = observer
            .tick(live, settings.result_grace, Arc::clone(&self.session.display))
            .map_err(AgentRunError::NoThread)?;
        let run = self.session.worker.run(prepared, OutputUse::excerpt(CARRIED), &mut observer);
        drop(ticker);
        self.session.display.clear();
        let observed = observer.finish();
        if observed.ended_by_us.is_some() && !self.session.is_interrupted() {
            // The next run must not be cancelled by this request.
            cancel.reset();
        }
        let finished = run.map_err(Unrecorded)?;
        self.session.tell_of_sandbox(&finished);
        let verdict = match observed.ended_by_us {
            Some(EndedByUs::Budget(_)) => AttemptVerdict::OverCost,
            // It reports success, but none of its commands ran.
            _ if observed.state_read_only && finished.outcome.success() => {
                AttemptVerdict::Failed { why: STATE_READ_ONLY.to_owned() }
            }
            _ => observed.reading.verdict(kind, &finished.outcome),
        };
        let verdict = match verdict {
            // It reports an abort, but retake did not request one.
            AttemptVerdict::Interrupted if !self.session.is_interrupted() => {
                AttemptVerdict::Failed {
                    why: "the agent was aborted by something other than retake".to_owned(),
                }
            }
            verdict => verdict,
        };
        let listed = offer.listed.as_ref().map(|file| std::fs::remove_file(file).is_ok());
        // If it could not even work, other errors matter more.
        if finished.outcome.success() && listed == Some(false) {
            self.session.display.event(AgentEvent::ServerNotListed { number });
            self.log.note(display::SERVER_NOT_LISTED);
        }
        if observed.ended_by_us == Some(EndedByUs::Lingering) {
            let waited = task.settings.result_grace;
            self.session.display.event(AgentEvent::LingeringEnded { number, waited });
            self.log.note(&display::lingering_ended(waited));
        }
        Ok(FinishedAttempt { finished, observed, verdict, before })
    }

    /// Derives the result of an iteration from an attempt.
    fn conclude(
        &mut self,
        plan: &SteeredPlan,
        mut iteration: Iteration,
        attempt: FinishedAttempt,
    ) -> IterationReport {
        let FinishedAttempt { finished, observed, verdict, before } = attempt;
        let spent = observed.reading.spent();
        let status_files = self.status_files();
        self.describe(&mut iteration, &finished, &observed, status_files.summary(before));
        let wrote_status = Marks::take(&self.session.task.workspace.status_paths()) != before;
        let outcome = match observed.ended_by_us {
            Some(EndedByUs::Budget(reason)) => IterationOutcome::OverBudget(reason),
            _ => verdict.outcome(),
        };
        // A report from an earlier iteration does not count for this one.
        let completion = status_files.after_iteration(self.state.since, before);
        let worked = completion.worked;
        let mut report = IterationReport {
            complete: completion.complete,
            worked,
            progress: iteration.progress(),
            spent,
            ..IterationReport::new(outcome)
        };
        let why = verdict.why().map(|why| match &verdict {
            AttemptVerdict::Failed { .. } => with_last_line(why, &finished.output[1]),
            _ => why.to_owned(),
        });
        let why = why.map(|why| self.session.clean(&why));
        if plan.postpones(outcome) {
            self.postpone(iteration, spent, why.unwrap_or_default());
            return report;
        }
        iteration.facts.worked = worked;
        iteration.facts.error = why.clone();
        let status = match verdict {
            AttemptVerdict::Completed => IterationStatus::Completed,
            AttemptVerdict::Failed { .. } | AttemptVerdict::Transient { .. } => {
                IterationStatus::Failed
            }
            AttemptVerdict::TimedOut => IterationStatus::TimedOut,
            AttemptVerdict::Interrupted
            | AttemptVerdict::RateLimited { .. }
            | AttemptVerdict::OverCost => IterationStatus::Interrupted,
        };
        let effect = self.run_post_hook(&mut iteration, status);
        if effect == Effect::StopLoop && !self.session.is_interrupted() {
            report.outcome = IterationOutcome::HookStopped;
        }
        // Spares a restarted runner from asking the agent again.
        iteration.facts.complete =
            (report.outcome == IterationOutcome::Completed).then_some(report.complete);
        let result = iteration.result.take();
        iteration.end(status, Timestamp::now(), result);
        let nothing_done = status == IterationStatus::Completed
            && !wrote_status
            && iteration.changed_files() == Some(0)
            && iteration.progress() == Some(false);
        let number = iteration.number;
        self.finish(iteration, &completion, why.as_deref());
        if nothing_done
            && plan.rules().max_no_progress == 0
            && !std::mem::replace(&mut self.state.no_progress_told, true)
        {
            self.session.display.event(AgentEvent::NothingDone { number });
        }
        report
    }

    /// A limit or a temporary error: the attempt does not count, and the iteration is retried.
    fn postpone(&mut self, iteration: Iteration, spent: Spent, why: String) {
        self.log.note(&format!("Attempt ended: {why}"));
        let (number, run_id) = (iteration.number, iteration.facts.run_id);
        self.record(&AgentEntry::Attempt { number, run_id, why, spent });
        self.state.postponed = Some(iteration);
    }

    /// Fills in the observations of the agent.
    fn describe(
        &self,
        iteration: &mut Iteration,
        finished: &FinishedRun,
        observed: &ObservedAgent,
        status_summary: Option<&str>,
    ) {
        let outcome = finished.run.outcome.as_ref();
        let effects = outcome.and_then(|outcome| outcome.effects.as_ref());
        let seen = effects.and_then(Effects::observations);
        let paths = |paths: &[String]| paths.iter().map(std::path::PathBuf::from).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let reading = &observed.reading;
        let summary = seen.and_then(|seen| seen.summary.as_deref()).or(status_summary);
        iteration.result = Some(IterationResult {
            exit_code: outcome.and_then(|outcome| outcome.exit_code).unwrap_or(125),
            stdout: text(&finished.output[0]),
            stderr: text(&finished.output[1]),
            files_modified: seen.map(|seen| paths(&seen.files_modified)).unwrap_or_default(),
            files_created: seen.map(|seen| paths(&seen.files_created)).unwrap_or_default(),
            files_deleted: seen.map(|seen| paths(&seen.files_deleted)).unwrap_or_default(),
            tests_run: observed.tests.is_some(),
            test_results: seen.and_then(|seen| seen.test_results.clone()),
            context_usage_percent: reading.context_percent(),
            progress_detected: seen
                .filter(|seen| seen.files_tracked || seen.test_results.is_some())
                .map(|seen| seen.progress.detected),
            summary: summary.map(|summary| self.session.clean(summary)),
            duration_ms: outcome.map_or(1, |outcome| outcome.duration_ms),
        });
        let facts = &mut iteration.facts;
        facts.run_id = Some(finished.run.intent.id());
        facts.session_id = reading.session.clone();
        facts.model = reading.model.clone();
        facts.cost_usd = reading.cost_usd;
        facts.tokens = Some(reading.tokens.total()).filter(|tokens| *tokens > 0);
        facts.turns = reading.turns;
        facts.denials = Some(reading.denials).filter(|denials| *denials > 0);
        facts.denied_tools = reading.denied_tools();
        let report = outcome.and_then(|outcome| outcome.sandbox.as_ref());
        facts.sandbox_denials = report.map(denied).filter(|denials| *denials > 0);
    }

    /// Records an iteration that counts, shows it and sends notifications.
    fn finish(&mut self, iteration: Iteration, completion: &Completion, why: Option<&str>) {
        let number = iteration.number;
        let good = iteration.status == IterationStatus::Completed;
        self.record(&AgentEntry::Iteration { iteration: Box::new(iteration.clone()) });
        // Deletes the messages it took; a remaining file is given to the next one.
        drop(self.session.mailbox.discard_taken(number));
        self.session.update_metadata(|metadata| metadata.count_execution(Timestamp::now()));
        if self.session.keeps_checkpoints() {
            self.checkpoint(number);
        }
        // An interrupted iteration may not have used it.
        if iteration.status != IterationStatus::Interrupted {
            self.state.gate_output = None;
        }
        let name = self.session.task.workspace.name().clone();
        let status = if good { "success" } else { iteration.status.as_str() };
        if !good {
            let message = why.unwrap_or(iteration.status.as_str());
            self.log.error(Timestamp::now(), message, &[]);
        }
        self.log.iteration_end(status, Timestamp::now(), completion.remaining);
        if matches!(iteration.status, IterationStatus::Failed | IterationStatus::TimedOut) {
            let why = why.unwrap_or_default();
            self.notifier.notify(Notification::error(name.as_str(), number, why));
        }
        self.session.display.iteration_ended(&iteration);
        self.session.display.event(AgentEvent::Status(completion));
        let remaining = completion.remaining;
        let notification = Notification::iteration(name.as_str(), number, status, remaining);
        self.notifier.notify(notification);
        let blockers = completion.status.as_ref().map(Status::real_blockers).unwrap_or_default();
        if !blockers.is_empty() && !completion.complete {
            self.blocked(number, &blockers);
        }
        if let Some(milestone) = Notification::milestone(name.as_str(), number, remaining) {
            self.notifier.notify(milestone);
        }
        self.state.history.push(iteration);
    }

    /// The agent needs a person: pauses the loop, unless it is configured to continue.
    fn blocked(&mut self, number: u32, blockers: &[String]) {
        let name = self.session.task.workspace.name().clone();
        self.notifier.notify(Notification::blocked(name.as_str(), number, blockers));
        let pauses = self.session.task.settings.pause_if_blocked;
        self.session.display.event(AgentEvent::Blocked { blockers, pauses });
        self.log.note(&format!("Blocked: {}", blockers.join("; ")));
        if pauses && let Err(error) = self.session.mailbox.pause() {
            self.session.display.event(AgentEvent::NotPaused(&error));
        }
    }

    fn checkpoint(&mut self, number: u32) {
        match self.session.keep_checkpoint(number, CheckpointTime::Iteration) {
            Ok(checkpoint) => self.record(&AgentEntry::Checkpoint { checkpoint }),
            Err(error) => {
                let error = error.to_string();
                self.session.display.event(AgentEvent::NoCheckpoint { number, error: &error });
            }
        }
    }

    /// An iteration whose agent could not be started.
    fn fail_unstarted(
        &mut self,
        number: u32,
        prompt: String,
        error: &AgentRunError,
    ) -> IterationReport {
        let mut iteration = Iteration::new(number, prompt, Timestamp::now());
        let why = self.session.clean(&error.to_string());
        iteration.facts.error = Some(why.clone());
        iteration.end(IterationStatus::Failed, Timestamp::now(), None);
        let completion = self.status_files().completion(self.state.since);
        self.finish(iteration, &completion, Some(&why));
        IterationReport::new(IterationOutcome::Failed)
    }

    /// An iteration that its pre hook, a signal or the loop's time prevents.
    fn leave_out(
        &mut self,
        mut iteration: Iteration,
        outcome: IterationOutcome,
    ) -> IterationReport {
        let status = match outcome {
            IterationOutcome::Skipped => IterationStatus::Skipped,
            IterationOutcome::Interrupted | IterationOutcome::OverBudget(_) => {
                IterationStatus::Interrupted
            }
            _ => IterationStatus::Failed,
        };
        let why = match outcome {
            IterationOutcome::Interrupted => None,
            IterationOutcome::OverBudget(_) => Some("the time budget of the loop is exhausted"),
            _ => Some("its pre hook failed"),
        };
        iteration.facts.error = why.map(str::to_owned);
        iteration.end(status, Timestamp::now(), None);
        let completion = self.status_files().completion(self.state.since);
        self.finish(iteration, &completion, why);
        IterationReport::new(outcome)
    }
}

/// Why an attempt failed, with the last thing that the agent printed to stderr.
fn with_last_line(why: &str, stderr: &[u8]) -> String {
    match display::last_line(stderr).filter(|last| !why.contains(last.as_str())) {
        Some(last) => format!("{why}: {last}"),
        None => why.to_owned(),
    }
}

/// How often a sandbox denied something.
fn denied(report: &SandboxReport) -> u64 {
    let hosts = report.network.iter().filter(|used| !used.allowed).count();
    (report.denied.len() + hosts) as u64 + report.denied_unlisted + report.network_unlisted
}

/// The test results of earlier iterations, oldest first.
fn past_results(history: &[Iteration]) -> PastResults {
    let mut past = PastResults::new();
    for iteration in history {
        let result = iteration.result.as_ref();
        if let Some(tests) = result.and_then(|result| result.test_results.as_ref()) {
            past.push(tests);
        }
    }
    past
}

/// Combines the effects of an iteration: changed files, tests, and the agent's summary.
fn summary(
    changes: Option<&Changes>,
    tests: Option<&TestResults>,
    said: &[u8],
    past: &PastResults,
) -> Effects {
    let progress = progress_detection::detect(changes, tests, past);
    let summary = agent_summary::extract(said);
    Effects::from(observations(changes, tests.cloned(), progress, summary))
}
