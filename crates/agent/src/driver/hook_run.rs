//! What runs before and after an iteration: once each, however often the agent is tried between.

use crate::hooks::{self, Effect, Hook, When};
use crate::iteration::{Iteration, IterationStatus};
use retake_types::Outcome;
use retake_types::request::CommandRequest;

use super::Runner;
use super::chronicle::Entry;
use super::iterate::CARRIED;

impl Runner {
    /// Runs a hook of an iteration that is on the record.
    pub(super) fn hook(
        &mut self,
        when: When,
        iteration: &mut Iteration,
        ended: Option<IterationStatus>,
    ) -> Effect {
        let (hook, status) = match when {
            When::Pre => (self.settings.pre_hook.clone(), IterationStatus::PreHooks),
            When::Post => (self.settings.post_hook.clone(), IterationStatus::PostHooks),
        };
        let Some(hook) = hook else { return Effect::GoOn };
        iteration.status = status;
        self.add(&Entry::Iteration { iteration: Box::new(iteration.clone()) });
        self.run_hook(when, &hook, iteration, ended)
    }

    /// The loop ends while an iteration waits to be tried again: what its first hook began, its
    /// last one ends.
    pub(super) fn settle_hooks(&mut self) {
        let (Some(iteration), Some(hook)) = (self.owed.take(), self.settings.post_hook.clone())
        else {
            return;
        };
        if !self.interrupted() {
            let ended = Some(IterationStatus::Interrupted);
            self.run_hook(When::Post, &hook, &iteration, ended);
        }
    }

    fn run_hook(
        &mut self,
        when: When,
        hook: &Hook,
        iteration: &Iteration,
        ended: Option<IterationStatus>,
    ) -> Effect {
        let word = if when == When::Pre { "pre" } else { "post" };
        let mut request = self.request(CommandRequest::shell(&hook.run));
        request.set_timeout(Some(hook.timeout));
        // What tidies up may do so after the loop's time is spent; what prepares may not.
        if let (When::Pre, Some(left)) = (when, self.plan.time_left(self.now())) {
            let most = hook.timeout.min(left).max(std::time::Duration::from_millis(1));
            request.set_timeout(Some(most));
        }
        request.position.iteration = iteration.number.into();
        request.label("hook", word);
        let (name, dir) = (self.workspace.name().clone(), self.workspace.dir().to_owned());
        for (name, value) in hooks::variables(iteration, ended, name.as_str(), &dir) {
            request.environment.set(name, value);
        }
        let outcome = match self.execute(request, None, CARRIED, &mut ()) {
            Ok(done) => {
                for bytes in &done.output {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    self.log.output(&text);
                    self.screen.detail(&text);
                }
                done.outcome
            }
            Err(error) => {
                self.screen.trouble(&error);
                Outcome::NotStarted(retake_types::StartFailure::Refused(vec![error]))
            }
        };
        if !outcome.success() && !self.interrupted() {
            let words = format!("The {word} hook failed: {}", hook.run);
            self.screen.trouble(&words);
            self.note(&words);
        }
        hook.effect(when, &outcome)
    }
}
