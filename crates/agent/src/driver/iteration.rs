//! One iteration: hooks, the agent, what it did, and what follows from it.

use retake_types::text;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::adapters::{Launch, Verdict};
use crate::display::Live;
use crate::hooks::{Effect, When};
use crate::iteration::{Iteration, IterationResult, IterationStatus, TestResults, key};
use crate::messages;
use crate::notify::Notification;
use crate::plan::{Ending, Report, Spent, StopReason};
use crate::prompt::{Facts, Purpose};
use crate::status::{Completion, Marks, Source};
use jiff::Timestamp;
use retake_effects::files::Changes;
use retake_effects::progress_detection::{self, PastResults};
use retake_effects::{agent_summary, observations};
use retake_engine::PARENT_VARIABLE;
use retake_runner::run::OutputUse;
use retake_types::request::CommandRequest;
use retake_types::{Effects, RunId};

use super::attempt::{Cut, Seen, Watching, Witness};
use super::chronicle::Entry;
use super::{Runner, ServerOffer, input};
use retake_runner::effects_watch::FileWatch;
use retake_runner::run::FinishedRun;

/// How much of an iteration's output its history carries; the whole is in the record.
pub(super) const CARRIED: u64 = 16 * 1024;

/// What an attempt came to, before it is known what that means.
struct Attempted {
    done: FinishedRun,
    seen: Seen,
    verdict: Verdict,
    /// The status files before it began.
    before: Marks,
}

impl Runner {
    pub(super) fn iterate(
        &mut self,
        number: u32,
        attempt: u32,
        timeout: Duration,
        max_cost_usd: Option<f64>,
    ) {
        self.numbers.store(number, Ordering::Relaxed);
        if attempt == 1 {
            self.screen.message(&messages::running_iteration(number));
        }
        let (prompt, system) = match self.prompts(number) {
            Ok(prompts) => prompts,
            Err(error) => return self.give_up(number, String::new(), &error),
        };
        let stored = self.clean(&prompt);
        let mut iteration = Iteration::new(number, stored, Timestamp::now());
        self.log.iteration(number, iteration.started_at);
        // An attempt that is made again is the same iteration, for which all is prepared.
        self.owed = None;
        let prepared = match attempt {
            1 => self.hook(When::Pre, &mut iteration, None),
            _ => Effect::GoOn,
        };
        match prepared {
            _ if self.interrupted() => return self.leave_out(iteration, Ending::Interrupted),
            Effect::GoOn => {}
            // It was the loop's time that cut the hook off.
            _ if self.plan.time_left(self.now()) == Some(Duration::ZERO) => {
                return self.leave_out(iteration, Ending::OverBudget(StopReason::BudgetTime));
            }
            Effect::SkipIteration => return self.leave_out(iteration, Ending::Skipped),
            Effect::StopLoop => return self.leave_out(iteration, Ending::HookStopped),
        }
        iteration.status = IterationStatus::Executing;
        // Known from now on, so that a runner's death does not lose what the run cost.
        let id = RunId::new();
        iteration.metadata.insert(key::RUN_ID.to_owned(), id.to_string());
        self.add(&Entry::Iteration { iteration: Box::new(iteration.clone()) });
        let attempted = match self.attempt(number, id, [&prompt, &system], timeout, max_cost_usd) {
            Ok(attempted) => attempted,
            Err(error) => return self.give_up(number, iteration.prompt, &error),
        };
        self.conclude(iteration, attempted);
    }

    /// The user prompt and the system prompt of an iteration.
    fn prompts(&mut self, number: u32) -> Result<(String, String), String> {
        let messages = self.mailbox.take(number).map_err(|error| error.to_string())?;
        let completion = Completion::find(&self.workspace, self.marks, self.settings.todo_fallback);
        let facts = Facts {
            iteration: Some(number),
            iterations_left: Some(self.left()),
            remaining: completion.remaining,
            last_tests: self.last_tests(),
            verify_output: self.refusal.as_deref(),
            status_problem: completion.invalid.as_deref(),
            interrupted: self
                .history
                .last()
                .is_some_and(|last| last.status == IterationStatus::Interrupted),
            messages: &messages,
            ..self.facts()
        };
        let mode = self.metadata.mode;
        let prompt = self.prompt(Purpose::User(mode), Some(facts.clone()));
        let system = self.prompt(Purpose::System(mode), Some(facts));
        match (prompt, system) {
            (Ok(prompt), Ok(system)) => Ok((prompt, system)),
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        }
    }

    /// Iterations left of this invocation, the one that begins included.
    fn left(&self) -> u32 {
        self.plan.rules().max_iterations.saturating_sub(self.plan.iterations())
    }

    /// retake's own server for the agent's commands, if it is to be offered.
    fn offer(&self, id: RunId, number: u32) -> Result<ServerOffer, String> {
        let Some(offer) = self.offer.as_deref().filter(|_| !self.options.dry_run) else {
            return Ok(ServerOffer::default());
        };
        let store = &self.worker.context().project.store;
        let ids = [
            (PARENT_VARIABLE, id.to_string()),
            ("RETAKE_STORE", store.to_string_lossy().into_owned()),
            ("RETAKE_TASK_ID", self.workspace.name().to_string()),
            ("RETAKE_STEP_ID", number.to_string()),
        ];
        offer(self.settings.kind, &ids).map_err(|error| format!("agent.mcp: {error}"))
    }

    fn attempt(
        &mut self,
        number: u32,
        id: RunId,
        [prompt, system]: [&str; 2],
        timeout: Duration,
        max_cost_usd: Option<f64>,
    ) -> Result<Attempted, String> {
        let before = Marks::take(&self.workspace);
        let settings = &self.settings;
        let offer = self.offer(id, number)?;
        let args = [&settings.args[..], &offer.arguments].concat();
        let launch = Launch {
            kind: settings.kind,
            command: settings.command.as_deref(),
            args: &args,
            system_prompt: system,
            prompt,
            skip_permissions: self.options.skip_permissions,
            max_cost_usd: max_cost_usd.filter(|_| settings.kind.capabilities().cost_cap),
        };
        let invocation = launch.invocation().ok_or("a custom agent needs agent.command")?;
        let shown = format!("{} (iteration {number} of {})", settings.kind, self.workspace.name());
        let command = if self.options.dry_run {
            CommandRequest::arguments(shown, super::mock::arguments(&invocation.argv)?)
        } else {
            CommandRequest::arguments(shown, invocation.argv)
        };
        let input = input(&invocation.stdin).map_err(|error| error.to_string())?;
        let mut request = self.request(command);
        request.id = id;
        request.set_timeout(Some(timeout.max(Duration::from_millis(1))));
        request.position.iteration = number.into();
        request.environment.set("RETAKE_ITERATION", number.to_string());
        request.environment.set("RETAKE_TASK_ID", self.workspace.name().as_str());
        for (name, value) in offer.variables {
            request.environment.set(name, value);
        }

        let track = settings.iteration.track_file_changes;
        let files = track.then(|| FileWatch::begin(&self.project, false, self.worker.context()));
        let mut history = PastResults::new();
        for iteration in &self.history {
            if let Some(tests) = iteration.result.as_ref().and_then(|r| r.test_results.as_ref()) {
                history.push(tests);
            }
        }
        let judge = move |changes: Option<&Changes>, tests: Option<&TestResults>, said: &[u8]| {
            let progress = progress_detection::detect(changes, tests, &history);
            let summary = agent_summary::extract(said);
            Effects::from(observations(changes, tests.cloned(), progress, summary))
        };
        let prepared = self.prepare(request, Some(input))?;
        let live = Live {
            iteration: number,
            // Numbers go on over invocations, and the limit is this one's.
            max_iterations: number.saturating_add(self.left()).saturating_sub(1),
            elapsed: Duration::ZERO,
            remaining: Completion::find(&self.workspace, self.marks, self.settings.todo_fallback)
                .remaining,
            cost_usd: Some(self.plan.spent().cost_usd).filter(|cost| *cost > 0.0),
        };
        let cancel = self.worker.cancel().clone();
        let mut witness = Witness::new(Watching {
            kind: settings.kind,
            screen: &self.screen,
            log: &mut self.log,
            plan: &self.plan,
            cancel: cancel.clone(),
            parse_tests: settings.iteration.parse_tests,
            files: files.flatten(),
            own: self.workspace.dir().strip_prefix(&self.project).ok().map(Into::into),
            judge: &judge,
        });
        let ticker = witness.tick(live, settings.result_grace, Arc::clone(&self.screen));
        let ran = self.worker.run(prepared, OutputUse::excerpt(CARRIED), &mut witness);
        drop(ticker);
        self.screen.clear();
        let seen = witness.finish();
        if seen.cut.is_some() && !self.interrupted() {
            // It was us who ended this one; the next must not be ended for it.
            cancel.reset();
        }
        let done = ran.map_err(|unrecorded| unrecorded.to_string())?;
        let verdict = match seen.cut {
            Some(Cut::Budget(_)) => Verdict::OverCost,
            _ => seen.reading.verdict(self.settings.kind, &done.outcome),
        };
        Ok(Attempted { done, seen, verdict, before })
    }

    /// Takes in what an attempt came to.
    fn conclude(&mut self, mut iteration: Iteration, attempted: Attempted) {
        let Attempted { done, seen, verdict, before } = attempted;
        let number = iteration.number;
        let run_id = done.run.intent.id().to_string();
        let spent = seen.reading.spent();
        self.describe(&mut iteration, &done, &seen);
        let ending = match seen.cut {
            Some(Cut::Budget(reason)) => Ending::OverBudget(reason),
            _ => verdict.ending(),
        };
        let completion = Completion::find(&self.workspace, self.marks, self.settings.todo_fallback);
        // What was said of an earlier iteration says nothing of this one.
        let worked = Completion::find(&self.workspace, before, false).worked;
        let mut report = Report {
            complete: completion.complete,
            worked,
            progress: iteration.progress(),
            spent,
            ..Report::new(ending)
        };
        if self.plan.postpones(ending) {
            let now = self.now();
            self.plan.done(report, now);
            self.not_counted(number, run_id, spent, &verdict);
            self.owed = Some(iteration);
            return;
        }
        if let Some(worked) = worked {
            iteration.metadata.insert(key::WORKED.to_owned(), worked.to_string());
        }
        let status = match verdict {
            Verdict::Completed => IterationStatus::Completed,
            Verdict::Failed { .. } | Verdict::Transient { .. } => IterationStatus::Failed,
            Verdict::TimedOut => IterationStatus::TimedOut,
            Verdict::Interrupted | Verdict::RateLimited { .. } | Verdict::OverCost => {
                IterationStatus::Interrupted
            }
        };
        let why = verdict.why().map(|why| self.clean(why));
        if let Some(why) = &why {
            iteration.metadata.insert(key::ERROR.to_owned(), why.clone());
        }
        let effect = self.hook(When::Post, &mut iteration, Some(status));
        if effect == Effect::StopLoop && !self.interrupted() {
            report.ending = Ending::HookStopped;
        }
        let now = self.now();
        self.plan.done(report, now);
        let result = iteration.result.take();
        iteration.end(status, Timestamp::now(), result);
        self.finish(iteration, &completion, why.as_deref());
    }

    /// A limit, or an error that passes: the iteration is tried again.
    fn not_counted(&mut self, number: u32, run_id: String, spent: Spent, verdict: &Verdict) {
        let why = self.clean(verdict.why().unwrap_or_default());
        self.log.note(&format!("Attempt ended: {why}"));
        self.add(&Entry::Attempt { number, run_id: Some(run_id), why, spent: spent.into() });
    }

    /// Fills in what was seen of the agent.
    fn describe(&self, iteration: &mut Iteration, done: &FinishedRun, seen: &Seen) {
        let ending = done.run.ending.as_ref();
        let effects = ending.and_then(|ending| ending.effects.as_ref());
        let observed = effects.and_then(Effects::observations);
        let paths = |paths: &[String]| paths.iter().map(std::path::PathBuf::from).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = crate::status::Status::read(&self.workspace.status_path()).ok();
        let result = IterationResult {
            exit_code: ending.and_then(|e| e.exit_code).unwrap_or(125),
            stdout: text(&done.output[0]),
            stderr: text(&done.output[1]),
            files_modified: observed.map(|o| paths(&o.files_modified)).unwrap_or_default(),
            files_created: observed.map(|o| paths(&o.files_created)).unwrap_or_default(),
            files_deleted: observed.map(|o| paths(&o.files_deleted)).unwrap_or_default(),
            tests_run: seen.tests.is_some(),
            test_results: observed.and_then(|o| o.test_results.clone()),
            context_usage_percent: seen.reading.context_percent(),
            progress_detected: observed
                .filter(|o| o.files_tracked || o.test_results.is_some())
                .map(|o| o.progress.detected),
            summary: observed
                .and_then(|o| o.summary.clone())
                .or_else(|| status.and_then(|status| status.summary))
                .map(|summary| self.clean(&summary)),
            duration_ms: ending.map_or(1, |e| e.duration_ms),
        };
        iteration.result = Some(result);
        let reading = &seen.reading;
        let facts = [
            (key::RUN_ID, Some(done.run.intent.id().to_string())),
            (key::SESSION_ID, reading.session.clone()),
            (key::MODEL, reading.model.clone()),
            (key::COST_USD, reading.cost_usd.map(|cost| cost.to_string())),
            (key::TOKENS, Some(reading.tokens.total()).filter(|t| *t > 0).map(|t| t.to_string())),
            (key::TURNS, reading.turns.map(|turns| turns.to_string())),
            (key::DENIALS, Some(reading.denials).filter(|d| *d > 0).map(|d| d.to_string())),
        ];
        for (name, value) in facts {
            if let Some(value) = value {
                iteration.metadata.insert(name.to_owned(), value);
            }
        }
    }

    /// Writes down an iteration that counts, and tells of it.
    fn finish(&mut self, iteration: Iteration, completion: &Completion, why: Option<&str>) {
        let number = iteration.number;
        let good = iteration.status == IterationStatus::Completed;
        self.add(&Entry::Iteration { iteration: Box::new(iteration.clone()) });
        // What the iteration took from the mailbox is used up; what cannot be removed comes again.
        drop(self.mailbox.settle(number));
        self.update_metadata(|metadata| metadata.count_execution(Timestamp::now()));
        if self.settings.checkpoint {
            self.checkpoint(number);
        }
        // One that was cut off may not have got to it.
        if iteration.status != IterationStatus::Interrupted {
            self.refusal = None;
        }
        let denied: Option<u64> =
            iteration.metadata.get(key::DENIALS).and_then(|count| count.parse().ok());
        if let Some(denied) = denied {
            self.screen.message(&format!("⚠️ {} denied", text::count(denied, "permission")));
        }
        let name = self.workspace.name().clone();
        let status = if good { "success" } else { iteration.status.as_str() };
        if good {
            self.log.iteration_end(status, Timestamp::now(), completion.remaining);
        } else {
            let message = why.unwrap_or(iteration.status.as_str()).to_owned();
            self.log.error(Timestamp::now(), &message, &[]);
            self.log.iteration_end(status, Timestamp::now(), completion.remaining);
        }
        if matches!(iteration.status, IterationStatus::Failed | IterationStatus::TimedOut) {
            let why = why.unwrap_or_default();
            self.screen.trouble(&format!("{}: {why}", messages::iteration_failed(number)));
            self.notify(Notification::error(name.as_str(), number, why));
        }
        match completion.source {
            Source::Todo => self.screen.message(messages::todo_fallback()),
            _ if completion.stale => self.screen.message(messages::stale_completion()),
            _ => {}
        }
        if let Some(invalid) = &completion.invalid {
            self.screen.message(&format!("⚠️ {invalid}"));
        }
        if !completion.complete {
            if let Some(remaining) = completion.remaining {
                self.screen.message(&messages::items_remaining(remaining));
            }
            self.notify(Notification::iteration(
                name.as_str(),
                number,
                status,
                completion.remaining,
            ));
        }
        if let Some(milestone) =
            Notification::milestone(name.as_str(), number, completion.remaining)
        {
            self.notify(milestone);
        }
        self.history.push(iteration);
    }

    /// An iteration that could not even be tried.
    fn give_up(&mut self, number: u32, prompt: String, why: &str) {
        let mut iteration = Iteration::new(number, prompt, Timestamp::now());
        let why = self.clean(why);
        iteration.metadata.insert(key::ERROR.to_owned(), why.clone());
        iteration.end(IterationStatus::Failed, Timestamp::now(), None);
        let now = self.now();
        self.plan.done(Report::new(Ending::Failed), now);
        let completion = Completion::find(&self.workspace, self.marks, self.settings.todo_fallback);
        self.finish(iteration, &completion, Some(&why));
    }

    /// An iteration that its hook does not let happen.
    fn leave_out(&mut self, mut iteration: Iteration, ending: Ending) {
        let status = match ending {
            Ending::Skipped => IterationStatus::Skipped,
            Ending::Interrupted | Ending::OverBudget(_) => IterationStatus::Interrupted,
            _ => IterationStatus::Failed,
        };
        iteration.end(status, Timestamp::now(), None);
        let now = self.now();
        self.plan.done(Report::new(ending), now);
        let completion = Completion::find(&self.workspace, self.marks, self.settings.todo_fallback);
        self.finish(iteration, &completion, Some("its hook failed"));
    }
}
