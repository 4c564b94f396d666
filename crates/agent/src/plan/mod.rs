//! The loop as a pure state machine: the next step for the results so far.
//!
//! Holds no process, clock or file. The driver passes the time and the events; the same input
//! always leads to the same steps.

mod backoff;
mod reason;
mod rules;
mod step;

use std::time::Duration;

use retake_types::loop_record::agent::{IterationStatus, Mode, Spent};

pub use backoff::Backoff;
pub use reason::AgentStopReason;
pub use rules::{Budgets, Gate, OnLimit, Rules};
pub use step::{
    AgentRole, IterationOutcome, IterationReport, Now, PastIteration, Requests, Step, WaitReason,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Waiting { until: Duration, why: WaitReason, then: Then },
    Verifying,
    Ended(AgentStopReason),
}

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Iterate,
    Verify,
}

/// The limit of one agent's account, as needed for the fallback.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct AccountLimit {
    /// This agent is not used before then.
    until: Duration,
    /// In seconds since 1970, if the agent reported it.
    resets_at: Option<i64>,
    /// Consecutive limits without a known end.
    tries: u32,
}

/// The state of a loop.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentPlan {
    rules: Rules,
    state: State,
    /// The number of the last iteration.
    number: u32,
    /// Iterations of this invocation.
    here: u32,
    failures: u32,
    idle: u32,
    still: u32,
    /// Attempts at the current iteration that failed temporarily.
    tries: u32,
    attempt: u32,
    verify_attempts: u32,
    /// The agent that was used last.
    agent: AgentRole,
    /// By role; used only with a fallback.
    limits: [AccountLimit; 2],
    spent: Spent,
    /// Time used before this invocation.
    before: Duration,
}

impl AgentPlan {
    /// A new loop. `last_number` is the workspace's last iteration, or 0.
    pub fn new(rules: Rules, last_number: u32) -> Self {
        Self {
            rules,
            state: State::Ready,
            number: last_number,
            here: 0,
            failures: 0,
            idle: 0,
            still: 0,
            tries: 0,
            attempt: 0,
            verify_attempts: 0,
            agent: AgentRole::First,
            limits: [AccountLimit::default(); 2],
            spent: Spent::default(),
            before: Duration::ZERO,
        }
    }

    /// Continues a loop whose runner died, with its counters, budgets and numbers. The interrupted
    /// iteration is in `past` as `interrupted`.
    pub fn resume(
        rules: Rules,
        last_number: u32,
        past: &[PastIteration],
        verify_attempts: u32,
    ) -> Self {
        let mut plan = Self { verify_attempts, ..Self::new(rules, last_number) };
        for iteration in past {
            plan.number = plan.number.max(iteration.number);
            plan.spent.add(iteration.spent);
            plan.before = plan.before.saturating_add(iteration.duration);
            match iteration.status {
                IterationStatus::Completed => {
                    plan.failures = 0;
                    plan.count_work(iteration.worked, iteration.progress);
                }
                IterationStatus::Failed | IterationStatus::TimedOut => {
                    plan.failures = plan.failures.saturating_add(1);
                    plan.count_work(iteration.worked, iteration.progress);
                }
                _ => {}
            }
        }
        plan
    }

    /// Only a verification, repeated until the agent answers or the rules stop it.
    pub fn checking(rules: Rules, last_number: u32) -> Self {
        let gate = Gate { max_attempts: 1, resume_on_fail: false };
        let rules = Rules { verify: Some(gate), max_failures: 1, ..rules };
        Self { state: State::Verifying, ..Self::new(rules, last_number) }
    }

    /// The time that an interrupted loop had used, including waits and verification.
    pub fn having_used(mut self, time: Duration) -> Self {
        self.before = self.before.max(time);
        self
    }

    /// The attempts at one iteration that an interrupted loop had made.
    pub fn having_tried(mut self, attempts: u32) -> Self {
        self.attempt = attempts;
        self
    }

    /// A loop was interrupted after its agent reported the task as complete: only verification is
    /// left.
    pub fn at_gate(mut self) -> Self {
        match self.rules.verify {
            Some(_) => self.state = State::Verifying,
            None => self.ended(AgentStopReason::Completed),
        }
        self
    }

    /// A loop was interrupted when only its end had to be recorded.
    pub fn completed(mut self) -> Self {
        self.ended(AgentStopReason::Completed);
        self
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The number of the last iteration.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Iterations of this invocation so far.
    pub fn iterations(&self) -> u32 {
        self.here
    }

    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The agent that was used last.
    pub fn agent(&self) -> AgentRole {
        self.agent
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Consecutive iterations in which the agent reported no work.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    pub fn no_progress(&self) -> u32 {
        self.still
    }

    pub fn verify_attempts(&self) -> u32 {
        self.verify_attempts
    }

    pub fn stopped(&self) -> Option<AgentStopReason> {
        match self.state {
            State::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// The next step. Asking again without events gives the same answer.
    pub fn next(&mut self, now: Now, requests: Requests) -> Step {
        if let State::Ended(reason) = self.state {
            return Step::Stop(reason);
        }
        if requests.interrupt {
            return self.end(AgentStopReason::Interrupted);
        }
        if requests.stop_now {
            return self.end(AgentStopReason::Stopped);
        }
        // Verification belongs to the previous iteration, so it comes before a stop.
        if self.state == State::Verifying {
            return self.verify(now);
        }
        if requests.stop {
            return self.end(AgentStopReason::Stopped);
        }
        if self.time_left(now) == Some(Duration::ZERO) {
            return self.end(AgentStopReason::BudgetTime);
        }
        if requests.pause {
            return Step::Pause;
        }
        if let State::Waiting { until, why, then } = self.state {
            let remaining = until.saturating_sub(now.elapsed);
            if !remaining.is_zero() {
                // Waiting beyond the time budget would only block the workspace.
                if self.time_left(now).is_some_and(|left| left <= remaining) {
                    return self.end(AgentStopReason::BudgetTime);
                }
                return Step::Wait { why, remaining };
            }
            if then == Then::Verify {
                self.state = State::Verifying;
                return self.verify(now);
            }
            self.state = State::Ready;
        }
        if self.here >= self.rules.max_iterations {
            return self.end(AgentStopReason::MaxIterations);
        }
        let timeout = self.rules.iteration_timeout;
        self.agent = self.choose_agent(now);
        Step::Iterate {
            number: self.number + 1,
            attempt: self.attempt + 1,
            agent: self.agent,
            timeout: self.time_left(now).map_or(timeout, |left| left.min(timeout)),
            max_cost_usd: self.cost_cap(),
        }
    }

    fn verify(&mut self, now: Now) -> Step {
        match self.time_left(now) {
            Some(Duration::ZERO) => self.end(AgentStopReason::BudgetTime),
            left => {
                self.agent = self.choose_agent(now);
                Step::Verify { attempt: self.verify_attempts + 1, agent: self.agent, left }
            }
        }
    }

    /// The first agent, unless it waits for a limit and the other one does not.
    fn choose_agent(&self, now: Now) -> AgentRole {
        let free = |role: AgentRole| self.limits[role.index()].until <= now.elapsed;
        match self.rules.fallback && !free(AgentRole::First) && free(AgentRole::Fallback) {
            true => AgentRole::Fallback,
            false => AgentRole::First,
        }
    }

    /// Whether an attempt with this outcome does not count as an iteration: it is repeated, or the
    /// loop stops without it.
    pub fn postpones(&self, outcome: IterationOutcome) -> bool {
        match outcome {
            IterationOutcome::RateLimited { .. } => true,
            IterationOutcome::Transient { .. } => self.tries < self.rules.backoff.tries,
            _ => false,
        }
    }

    /// Processes the result of an iteration.
    pub fn done(&mut self, report: IterationReport, now: Now) {
        if self.stopped().is_some() {
            return;
        }
        self.spent.add(report.spent);
        if self.postpones(report.outcome) {
            return self.postpone(report.outcome, now, Then::Iterate);
        }
        self.limits[self.agent.index()] = AccountLimit::default();
        self.number += 1;
        self.here += 1;
        (self.tries, self.attempt) = (0, 0);
        self.state = State::Ready;
        match report.outcome {
            IterationOutcome::Interrupted => return self.ended(AgentStopReason::Interrupted),
            IterationOutcome::HookStopped => return self.ended(AgentStopReason::Failed),
            IterationOutcome::OverBudget(reason) => return self.ended(reason),
            IterationOutcome::Skipped => return self.go_on(now),
            IterationOutcome::Completed => self.failures = 0,
            _ => self.failures = self.failures.saturating_add(1),
        }
        self.count_work(report.worked, report.progress);
        if report.outcome == IterationOutcome::Completed && report.complete {
            match self.rules.verify {
                Some(_) => self.state = State::Verifying,
                None => self.ended(AgentStopReason::Completed),
            }
            return;
        }
        self.go_on(now);
    }

    /// Processes the result of verification.
    pub fn verified(&mut self, passed: bool, now: Now) {
        let (State::Verifying, Some(gate)) = (self.state, self.rules.verify) else { return };
        self.state = State::Ready;
        self.limits[self.agent.index()] = AccountLimit::default();
        (self.tries, self.attempt) = (0, 0);
        if passed {
            return self.ended(AgentStopReason::Completed);
        }
        // A verification that the deadline interrupted has not failed.
        if self.time_left(now) == Some(Duration::ZERO) {
            return self.ended(AgentStopReason::BudgetTime);
        }
        self.verify_attempts += 1;
        if !gate.resume_on_fail || self.verify_attempts > gate.max_attempts {
            return self.ended(AgentStopReason::VerifyFailed);
        }
        self.go_on(now);
    }

    /// The command of verification cannot be run, which no further iteration changes.
    pub fn cannot_verify(&mut self) {
        if self.state == State::Verifying {
            self.ended(AgentStopReason::VerifyFailed);
        }
    }

    /// Whether the loop would continue if verification failed now.
    pub fn continues_after_refusal(&self, now: Now) -> bool {
        let mut refused = self.clone();
        refused.verified(false, now);
        refused.stopped().is_none()
    }

    /// The agent could not verify, for a reason outside of the task. Verification has not failed:
    /// the agent is asked again, and if it never answers, that counts as a failed iteration.
    pub fn unverified(&mut self, outcome: IterationOutcome, now: Now) {
        if self.state != State::Verifying {
            return;
        }
        if self.postpones(outcome) {
            return self.postpone(outcome, now, Then::Verify);
        }
        (self.tries, self.attempt) = (0, 0);
        self.state = State::Ready;
        self.failures = self.failures.saturating_add(1);
        self.go_on(now);
    }

    /// Adds the cost of something that is not an iteration.
    pub fn charge(&mut self, spent: Spent) {
        self.spent.add(spent);
    }

    /// The budget that is exhausted once the running iteration has spent this much.
    pub fn over(&self, iteration: Spent) -> Option<AgentStopReason> {
        let budgets = &self.rules.budgets;
        let over_cost = |most: Option<f64>, spent: f64| most.is_some_and(|most| spent >= most);
        let over_tokens = |most: Option<u64>, spent: u64| most.is_some_and(|most| spent >= most);
        let mut total = self.spent;
        total.add(iteration);
        if over_cost(budgets.cost_usd, total.cost_usd)
            || over_cost(budgets.iteration_cost_usd, iteration.cost_usd)
        {
            return Some(AgentStopReason::BudgetCost);
        }
        (over_tokens(budgets.tokens, total.tokens)
            || over_tokens(budgets.iteration_tokens, iteration.tokens))
        .then_some(AgentStopReason::BudgetTokens)
    }

    /// Time the loop has used, including waits, verification and earlier invocations.
    pub fn time_used(&self, now: Now) -> Duration {
        self.before.saturating_add(now.elapsed)
    }

    /// Remaining time of the loop's budget.
    pub fn time_left(&self, now: Now) -> Option<Duration> {
        let Budgets { time, invocation_time, .. } = self.rules.budgets;
        let whole = time.map(|most| most.saturating_sub(self.time_used(now)));
        let here = invocation_time.map(|most| most.saturating_sub(now.elapsed));
        match (whole, here) {
            (Some(whole), Some(here)) => Some(whole.min(here)),
            (whole, here) => whole.or(here),
        }
    }

    fn cost_cap(&self) -> Option<f64> {
        let budgets = &self.rules.budgets;
        let left = budgets.cost_usd.map(|most| (most - self.spent.cost_usd).max(0.0));
        match (left, budgets.iteration_cost_usd) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn go_on(&mut self, now: Now) {
        let rules = &self.rules;
        let reached = |limit: u32, count: u32| limit > 0 && count >= limit;
        let reason =
            if rules.mode == Mode::Iterative && reached(rules.stagnation_threshold, self.idle) {
                Some(AgentStopReason::Stagnation)
            } else if self.time_left(now) == Some(Duration::ZERO) {
                // A timeout caused by the budget is not the agent's failure.
                Some(AgentStopReason::BudgetTime)
            } else if reached(rules.max_failures, self.failures) {
                Some(AgentStopReason::Failed)
            } else if let Some(reason) = self.over(Spent::default()) {
                Some(reason)
            } else if reached(rules.max_no_progress, self.still) {
                Some(AgentStopReason::NoProgress)
            } else if self.here >= rules.max_iterations {
                Some(AgentStopReason::MaxIterations)
            } else {
                None
            };
        match reason {
            Some(reason) => self.ended(reason),
            None if rules.delay.is_zero() => self.state = State::Ready,
            None => self.wait(now, rules.delay, WaitReason::Delay, Then::Iterate),
        }
    }

    /// The current agent is limited: the other one works meanwhile. If both are limited, the loop
    /// waits for the one that is free first.
    fn hand_over(&mut self, outcome: IterationOutcome, now: Now, then: Then) {
        let given = match outcome {
            IterationOutcome::RateLimited { resets_at } => resets_at,
            _ => None,
        };
        let own = &mut self.limits[self.agent.index()];
        let wait = match seconds_until(given, now) {
            Some(wait) => {
                *own = AccountLimit { resets_at: given, ..AccountLimit::default() };
                wait
            }
            None => {
                own.resets_at = None;
                own.tries = own.tries.saturating_add(1);
                self.rules.backoff.delay(own.tries)
            }
        };
        own.until = now.elapsed.saturating_add(wait);
        let (own, other) = (*own, self.limits[self.agent.other().index()]);
        self.attempt += 1;
        if other.until <= now.elapsed {
            self.state = match then {
                Then::Iterate => State::Ready,
                Then::Verify => State::Verifying,
            };
            return;
        }
        let tries = own.tries.min(other.tries);
        if self.rules.on_limit == OnLimit::Stop || tries > self.rules.backoff.tries {
            return self.ended(AgentStopReason::RateLimit);
        }
        let sooner = if own.until <= other.until { own } else { other };
        let why = match sooner.resets_at {
            Some(resets_at) => WaitReason::RateLimit { resets_at },
            None => WaitReason::Backoff { attempt: sooner.tries },
        };
        self.wait(now, sooner.until.saturating_sub(now.elapsed), why, then);
    }

    fn postpone(&mut self, outcome: IterationOutcome, now: Now, then: Then) {
        if let Some(reason) = self.over(Spent::default()) {
            return self.ended(reason);
        }
        if self.rules.fallback && outcome.is_limit() {
            return self.hand_over(outcome, now, then);
        }
        let resets_at = match outcome {
            IterationOutcome::RateLimited { .. } if self.rules.on_limit == OnLimit::Stop => {
                return self.ended(AgentStopReason::RateLimit);
            }
            IterationOutcome::RateLimited { resets_at } => resets_at,
            _ => None,
        };
        match (resets_at, seconds_until(resets_at, now)) {
            (Some(resets_at), Some(wait)) => {
                self.attempt += 1;
                self.wait(now, wait, WaitReason::RateLimit { resets_at }, then);
            }
            // A limit that is already over would be retried without a pause.
            _ if self.tries < self.rules.backoff.tries => {
                self.tries += 1;
                self.attempt += 1;
                let wait = self.rules.backoff.delay(self.tries);
                self.wait(now, wait, WaitReason::Backoff { attempt: self.tries }, then);
            }
            _ => self.ended(AgentStopReason::RateLimit),
        }
    }

    fn wait(&mut self, now: Now, wait: Duration, why: WaitReason, then: Then) {
        self.state = State::Waiting { until: now.elapsed.saturating_add(wait), why, then };
    }

    fn count_work(&mut self, worked: Option<bool>, progress: Option<bool>) {
        self.idle = if worked == Some(false) { self.idle.saturating_add(1) } else { 0 };
        match progress {
            Some(true) => self.still = 0,
            Some(false) => self.still = self.still.saturating_add(1),
            None => {}
        }
    }

    fn end(&mut self, reason: AgentStopReason) -> Step {
        self.ended(reason);
        Step::Stop(reason)
    }

    fn ended(&mut self, reason: AgentStopReason) {
        self.state = State::Ended(reason);
    }
}

/// The remaining time of a limit, plus a second, because its end is in whole seconds; `None` if
/// unknown or over.
fn seconds_until(resets_at: Option<i64>, now: Now) -> Option<Duration> {
    let left = u64::try_from(resets_at?.saturating_sub(now.unix)).ok()?;
    (left > 0).then(|| Duration::from_secs(left.saturating_add(1)))
}
