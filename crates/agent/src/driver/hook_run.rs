//! Runs the hooks before and after an iteration, once each regardless of the number of attempts,
//! and the one at the end of the loop.

use std::sync::atomic::Ordering;
use std::time::Duration;

use retake_types::loop_record::agent::{AgentEntry, HookTime, Iteration, IterationStatus};
use retake_types::request::CommandRequest;
use retake_types::{Outcome, StartFailure};

use crate::hooks::{self, Effect, EndFacts, Hook};
use crate::plan::AgentStopReason;

use super::AgentLoop;
use super::event::AgentEvent;
use super::iteration::CARRIED;
use super::steered_plan::SteeredPlan;

/// A hook with its variables.
struct PreparedHook {
    when: HookTime,
    hook: Hook,
    /// The remaining time for it.
    left: Option<Duration>,
    /// Its iteration, or the last one.
    number: u32,
    variables: Vec<(String, String)>,
}

impl AgentLoop {
    /// Runs the hook before a recorded iteration. It ends with the loop's time.
    pub(super) fn run_pre_hook(&mut self, plan: &SteeredPlan, iteration: &mut Iteration) -> Effect {
        let Some(hook) = self.session.task.settings.hooks.pre.clone() else { return Effect::GoOn };
        let left = plan.time_left(plan.now());
        self.enter(iteration, IterationStatus::PreHooks);
        let prepared = self.prepare(HookTime::Pre, hook, iteration, None);
        self.run_hook(PreparedHook { left, ..prepared })
    }

    /// Runs the hook after an iteration; `ended` is the iteration's result. It may clean up even
    /// after the loop's time is spent.
    pub(super) fn run_post_hook(
        &mut self,
        iteration: &mut Iteration,
        ended: IterationStatus,
    ) -> Effect {
        let Some(hook) = self.session.task.settings.hooks.post.clone() else { return Effect::GoOn };
        self.enter(iteration, IterationStatus::PostHooks);
        let prepared = self.prepare(HookTime::Post, hook, iteration, Some(ended));
        self.run_hook(prepared)
    }

    /// The loop ends while an iteration waits for a retry: its pre hook ran, so its post hook runs
    /// as well.
    pub(super) fn run_pending_post_hook(&mut self) {
        let hook = self.session.task.settings.hooks.post.clone();
        let (Some(iteration), Some(hook)) = (self.state.postponed.take(), hook) else { return };
        if !self.session.is_interrupted() {
            let ended = Some(IterationStatus::Interrupted);
            let prepared = self.prepare(HookTime::Post, hook, &iteration, ended);
            self.run_hook(prepared);
        }
    }

    /// Runs the hook at the end of the loop, however it ended. The loop is recorded as ended by
    /// then, so that a death in the hook does not continue it.
    pub(super) fn run_end_hook(&mut self, plan: &SteeredPlan, reason: AgentStopReason) {
        let Some(hook) = self.session.task.settings.hooks.end.clone() else { return };
        let session = &self.session;
        let workspace = &session.task.workspace;
        let facts = EndFacts {
            reason,
            loop_id: &session.loop_id.to_string(),
            iterations: plan.iterations(),
            last_number: plan.number(),
            spent: plan.spent(),
            time: plan.time_used(plan.now()),
        };
        let variables = hooks::end_variables(&facts, workspace.name().as_str(), workspace.dir());
        // The request that ended the loop does not end its hook; the next signal does.
        session.worker.cancel().reset();
        session.stopped_now.store(false, Ordering::Relaxed);
        let (when, number) = (HookTime::End, plan.number());
        self.run_hook(PreparedHook { when, hook, left: None, number, variables });
        self.log.flush();
    }

    fn enter(&mut self, iteration: &mut Iteration, status: IterationStatus) {
        iteration.status = status;
        self.record(&AgentEntry::Iteration { iteration: Box::new(iteration.clone()) });
    }

    fn prepare(
        &self,
        when: HookTime,
        hook: Hook,
        iteration: &Iteration,
        ended: Option<IterationStatus>,
    ) -> PreparedHook {
        let workspace = &self.session.task.workspace;
        let variables =
            hooks::variables(iteration, ended, workspace.name().as_str(), workspace.dir());
        PreparedHook { when, hook, left: None, number: iteration.number, variables }
    }

    fn run_hook(&mut self, prepared: PreparedHook) -> Effect {
        let PreparedHook { when, hook, left, number, variables } = prepared;
        let session = &mut self.session;
        let mut request = session.request(CommandRequest::shell(&hook.run));
        let timeout = left.map_or(hook.timeout, |left| hook.timeout.min(left));
        request.set_timeout(Some(timeout.max(Duration::from_millis(1))));
        request.position.iteration = number.into();
        request.label("hook", when.as_str());
        for (name, value) in variables {
            request.environment.set(name, value);
        }
        let outcome = match session.execute(request, None, CARRIED, &mut ()) {
            Ok(finished) => {
                for bytes in &finished.output {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    self.log.output(&text);
                    self.session.display.detail(&text);
                }
                finished.outcome
            }
            Err(error) => {
                session.display.event(AgentEvent::HookNotRun(&error));
                Outcome::NotStarted(StartFailure::Refused(vec![error.to_string()]))
            }
        };
        let cut_off = self.session.is_interrupted() && when != HookTime::End;
        if !outcome.success() && !cut_off {
            let command = self.session.clean(&hook.run);
            self.session.display.event(AgentEvent::HookFailed { when, command: &command });
            self.note(AgentEntry::HookFailed { when, command });
        }
        hook.effect(when, &outcome)
    }
}
