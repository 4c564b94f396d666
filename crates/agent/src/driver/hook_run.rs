//! Runs the commands before and after an iteration: once each, however often the agent is tried
//! in between.

use std::time::Duration;

use retake_types::loop_record::agent::{AgentEntry, HookTime, Iteration, IterationStatus};
use retake_types::request::CommandRequest;
use retake_types::{Outcome, StartFailure};

use crate::hooks::{self, Effect, Hook};

use super::AgentLoop;
use super::event::AgentEvent;
use super::iteration::CARRIED;
use super::steered_plan::SteeredPlan;

impl AgentLoop {
    /// Runs a hook of an iteration that is on the record. A hook before an iteration ends with the
    /// loop's time; `ended` is what the iteration counts as after it.
    pub(super) fn run_hook_of(
        &mut self,
        plan: &SteeredPlan,
        when: HookTime,
        iteration: &mut Iteration,
        ended: Option<IterationStatus>,
    ) -> Effect {
        let settings = &self.session.task.settings;
        let (hook, status) = match when {
            HookTime::Pre => (settings.pre_hook.clone(), IterationStatus::PreHooks),
            HookTime::Post => (settings.post_hook.clone(), IterationStatus::PostHooks),
        };
        let Some(hook) = hook else { return Effect::GoOn };
        iteration.status = status;
        self.record(&AgentEntry::Iteration { iteration: Box::new(iteration.clone()) });
        let left = match when {
            HookTime::Pre => plan.time_left(plan.now()),
            // What cleans up may do so after the loop's time is spent.
            HookTime::Post => None,
        };
        self.run_hook(when, &hook, left, iteration, ended)
    }

    /// The loop ends while an iteration waits to be tried again: its pre hook ran, so its post hook
    /// runs as well.
    pub(super) fn run_pending_post_hook(&mut self) {
        let hook = self.session.task.settings.post_hook.clone();
        let (Some(iteration), Some(hook)) = (self.state.postponed.take(), hook) else { return };
        if !self.session.is_interrupted() {
            let ended = Some(IterationStatus::Interrupted);
            self.run_hook(HookTime::Post, &hook, None, &iteration, ended);
        }
    }

    fn run_hook(
        &mut self,
        when: HookTime,
        hook: &Hook,
        left: Option<Duration>,
        iteration: &Iteration,
        ended: Option<IterationStatus>,
    ) -> Effect {
        let session = &mut self.session;
        let mut request = session.request(CommandRequest::shell(&hook.run));
        let timeout = left.map_or(hook.timeout, |left| hook.timeout.min(left));
        request.set_timeout(Some(timeout.max(Duration::from_millis(1))));
        request.position.iteration = iteration.number.into();
        request.label("hook", when.as_str());
        let workspace = &session.task.workspace;
        let variables =
            hooks::variables(iteration, ended, workspace.name().as_str(), workspace.dir());
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
        if !outcome.success() && !self.session.is_interrupted() {
            self.session.display.event(AgentEvent::HookFailed { when, command: &hook.run });
            self.note(AgentEntry::HookFailed { when, command: hook.run.clone() });
        }
        hook.effect(when, &outcome)
    }
}
