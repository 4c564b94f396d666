//! The loop as a pure state machine: what comes next, given what came back.
//!
//! Holds no process, clock or file. Whoever drives it says what time it is and what happened;
//! the same story always leads to the same steps.

mod backoff;
mod reason;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use backoff::Backoff;
pub use reason::StopReason;

use crate::iteration::IterationStatus;

/// How the agent works: one item at a time, or as much as it can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Loop,
    Iterative,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loop => "loop",
            Self::Iterative => "iterative",
        }
    }

    pub fn default_max_iterations(self) -> u32 {
        match self {
            Self::Loop => 50,
            Self::Iterative => 20,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loop" => Ok(Self::Loop),
            "iterative" => Ok(Self::Iterative),
            _ => Err(format!("{text:?} is no mode; write loop or iterative")),
        }
    }
}

/// What to do when the account's limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLimit {
    #[default]
    Wait,
    Stop,
}

/// What may be spent; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    pub cost_usd: Option<f64>,
    pub tokens: Option<u64>,
    pub time: Option<Duration>,
    pub iteration_cost_usd: Option<f64>,
    pub iteration_tokens: Option<u64>,
}

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    pub cost_usd: f64,
    pub tokens: u64,
}

/// Everything a loop goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub mode: Mode,
    /// Iterations of this invocation.
    pub max_iterations: u32,
    pub delay: Duration,
    /// Consecutive iterations without work; 0 is never. Only in iterative mode.
    pub stagnation_threshold: u32,
    /// Consecutive failures; 0 is never.
    pub max_failures: u32,
    /// Consecutive iterations without progress; 0 is never.
    pub max_no_progress: u32,
    pub iteration_timeout: Duration,
    pub on_limit: OnLimit,
    pub budgets: Budgets,
    pub backoff: Backoff,
    /// Completion must pass a gate, which may fail this often before the loop gives up.
    pub verify: Option<Gate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub max_attempts: u32,
    pub resume_on_fail: bool,
}

impl Rules {
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            max_iterations: mode.default_max_iterations(),
            delay: Duration::from_secs(2),
            stagnation_threshold: 2,
            max_failures: 1,
            max_no_progress: 0,
            iteration_timeout: Duration::from_secs(1800),
            on_limit: OnLimit::Wait,
            budgets: Budgets::default(),
            backoff: Backoff::default(),
            verify: None,
        }
    }
}

/// What time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Now {
    /// Since this invocation began.
    pub elapsed: Duration,
    /// Seconds since 1970.
    pub unix: i64,
}

/// What others want of the loop at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub stop: bool,
    pub pause: bool,
    pub interrupt: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Run iteration `number`; `attempt` counts from 1 and is more after a limit or an API error.
    Iterate {
        number: u32,
        attempt: u32,
        timeout: Duration,
        max_cost_usd: Option<f64>,
    },
    /// The agent says that it is done: check.
    Verify {
        attempt: u32,
    },
    /// Nothing for this long, unless something is requested.
    Wait {
        why: Why,
        remaining: Duration,
    },
    /// Nothing until resumed.
    Pause,
    Stop(StopReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Between two iterations.
    Delay,
    RateLimit {
        resets_at: i64,
    },
    Backoff {
        attempt: u32,
    },
}

/// What an iteration came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub ending: Ending,
    /// The agent says, in this iteration, that the task is complete.
    pub complete: bool,
    /// What it said of its own work in this iteration.
    pub worked: Option<bool>,
    /// What was seen of it; unknown where nothing was tracked.
    pub progress: Option<bool>,
    pub spent: Spent,
}

impl Report {
    pub fn new(ending: Ending) -> Self {
        Self { ending, complete: false, worked: None, progress: None, spent: Spent::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Completed,
    Failed,
    TimedOut,
    /// A hook said to leave this iteration out.
    Skipped,
    /// A hook said to end the loop.
    HookStopped,
    Interrupted,
    /// Cut off because it used up what it may spend.
    OverBudget(StopReason),
    RateLimited {
        resets_at: Option<i64>,
    },
    Transient,
}

/// An iteration of a loop that broke off, as far as the plan must know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    pub number: u32,
    pub status: IterationStatus,
    pub worked: Option<bool>,
    pub progress: Option<bool>,
    pub spent: Spent,
    pub duration: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    Waiting { until: Duration, why: Why },
    Verifying,
    Ended(StopReason),
}

/// Where a loop stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    rules: Rules,
    state: State,
    /// The last iteration that has a number.
    number: u32,
    /// Iterations of this invocation.
    here: u32,
    failures: u32,
    idle: u32,
    still: u32,
    /// Attempts at the current iteration that failed for a passing reason.
    tries: u32,
    attempt: u32,
    verify_attempts: u32,
    spent: Spent,
    /// Time used before this invocation.
    before: Duration,
}

impl Plan {
    /// A new loop. `last_number` is the workspace's last iteration, 0 when there is none.
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
            spent: Spent::default(),
            before: Duration::ZERO,
        }
    }

    /// Goes on with a loop whose runner died: its counters, its budgets, its numbers. The
    /// iteration that was cut off is in `past` as `interrupted`.
    pub fn resume(rules: Rules, last_number: u32, past: &[Past], verify_attempts: u32) -> Self {
        let mut plan = Self { verify_attempts, ..Self::new(rules, last_number) };
        for iteration in past {
            plan.number = plan.number.max(iteration.number);
            plan.spend(iteration.spent);
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

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The last iteration that has a number.
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

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Consecutive iterations in which the agent says that it did nothing.
    pub fn idle(&self) -> u32 {
        self.idle
    }

    pub fn no_progress(&self) -> u32 {
        self.still
    }

    pub fn verify_attempts(&self) -> u32 {
        self.verify_attempts
    }

    pub fn stopped(&self) -> Option<StopReason> {
        match self.state {
            State::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// What to do now. Asking again without news gives the same answer.
    pub fn next(&mut self, now: Now, requests: Requests) -> Step {
        if let State::Ended(reason) = self.state {
            return Step::Stop(reason);
        }
        if requests.interrupt {
            return self.end(StopReason::Interrupted);
        }
        // The gate belongs to the iteration before it, so it comes before a stop.
        if self.state == State::Verifying {
            return Step::Verify { attempt: self.verify_attempts + 1 };
        }
        if requests.stop {
            return self.end(StopReason::Stopped);
        }
        if self.time_left(now) == Some(Duration::ZERO) {
            return self.end(StopReason::BudgetTime);
        }
        if requests.pause {
            return Step::Pause;
        }
        if let State::Waiting { until, why } = self.state {
            let remaining = until.saturating_sub(now.elapsed);
            if !remaining.is_zero() {
                // Waiting for what comes after the end would only hold the workspace.
                if self.time_left(now).is_some_and(|left| left <= remaining) {
                    return self.end(StopReason::BudgetTime);
                }
                return Step::Wait { why, remaining };
            }
            self.state = State::Ready;
        }
        if self.here >= self.rules.max_iterations {
            return self.end(StopReason::MaxIterations);
        }
        let timeout = self.rules.iteration_timeout;
        Step::Iterate {
            number: self.number + 1,
            attempt: self.attempt + 1,
            timeout: self.time_left(now).map_or(timeout, |left| left.min(timeout)),
            max_cost_usd: self.cost_cap(),
        }
    }

    /// Takes in what an iteration came to.
    pub fn done(&mut self, report: Report, now: Now) {
        if self.stopped().is_some() {
            return;
        }
        self.spend(report.spent);
        match report.ending {
            Ending::RateLimited { resets_at } => return self.limited(resets_at, now),
            Ending::Transient if self.tries < self.rules.backoff.tries => {
                return self.back_off(now);
            }
            _ => {}
        }
        self.number += 1;
        self.here += 1;
        (self.tries, self.attempt) = (0, 0);
        self.state = State::Ready;
        match report.ending {
            Ending::Interrupted => return self.ended(StopReason::Interrupted),
            Ending::HookStopped => return self.ended(StopReason::Failed),
            Ending::OverBudget(reason) => return self.ended(reason),
            Ending::Skipped => return self.go_on(now),
            Ending::Completed => self.failures = 0,
            _ => self.failures = self.failures.saturating_add(1),
        }
        self.count_work(report.worked, report.progress);
        if report.ending == Ending::Completed && report.complete {
            match self.rules.verify {
                Some(_) => self.state = State::Verifying,
                None => self.ended(StopReason::Completed),
            }
            return;
        }
        self.go_on(now);
    }

    /// Takes in what the gate said.
    pub fn verified(&mut self, passed: bool, now: Now) {
        let (State::Verifying, Some(gate)) = (self.state, self.rules.verify) else { return };
        self.state = State::Ready;
        if passed {
            return self.ended(StopReason::Completed);
        }
        self.verify_attempts += 1;
        if !gate.resume_on_fail || self.verify_attempts > gate.max_attempts {
            return self.ended(StopReason::VerifyFailed);
        }
        self.go_on(now);
    }

    /// Takes in what was spent on something that is no iteration.
    pub fn charge(&mut self, spent: Spent) {
        self.spend(spent);
    }

    /// Which budget is used up when the running iteration has spent this much.
    pub fn over(&self, iteration: Spent) -> Option<StopReason> {
        let budgets = &self.rules.budgets;
        let over_cost = |most: Option<f64>, spent: f64| most.is_some_and(|most| spent >= most);
        let over_tokens = |most: Option<u64>, spent: u64| most.is_some_and(|most| spent >= most);
        let cost = self.spent.cost_usd + iteration.cost_usd;
        let tokens = self.spent.tokens.saturating_add(iteration.tokens);
        if over_cost(budgets.cost_usd, cost)
            || over_cost(budgets.iteration_cost_usd, iteration.cost_usd)
        {
            return Some(StopReason::BudgetCost);
        }
        (over_tokens(budgets.tokens, tokens)
            || over_tokens(budgets.iteration_tokens, iteration.tokens))
        .then_some(StopReason::BudgetTokens)
    }

    /// Time left of the loop's budget.
    pub fn time_left(&self, now: Now) -> Option<Duration> {
        let used = self.before.saturating_add(now.elapsed);
        Some(self.rules.budgets.time?.saturating_sub(used))
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
                Some(StopReason::Stagnation)
            } else if self.time_left(now) == Some(Duration::ZERO) {
                // A timeout that the budget caused is not the agent's failure.
                Some(StopReason::BudgetTime)
            } else if reached(rules.max_failures, self.failures) {
                Some(StopReason::Failed)
            } else if let Some(reason) = self.over(Spent::default()) {
                Some(reason)
            } else if reached(rules.max_no_progress, self.still) {
                Some(StopReason::NoProgress)
            } else if self.here >= rules.max_iterations {
                Some(StopReason::MaxIterations)
            } else {
                None
            };
        match reason {
            Some(reason) => self.ended(reason),
            None if rules.delay.is_zero() => self.state = State::Ready,
            None => self.wait(now, rules.delay, Why::Delay),
        }
    }

    fn limited(&mut self, resets_at: Option<i64>, now: Now) {
        if self.rules.on_limit == OnLimit::Stop {
            return self.ended(StopReason::RateLimit);
        }
        if let Some(reason) = self.over(Spent::default()) {
            return self.ended(reason);
        }
        // A second more, since the reset time has no fractions.
        let seconds = resets_at.map_or(0, |at| at.saturating_sub(now.unix));
        match (resets_at, u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)) {
            (Some(resets_at), Some(seconds)) => {
                self.attempt += 1;
                let wait = Duration::from_secs(seconds.saturating_add(1));
                self.wait(now, wait, Why::RateLimit { resets_at });
            }
            // A limit that should be over already would be asked about without pause.
            _ if self.tries < self.rules.backoff.tries => self.back_off(now),
            _ => self.ended(StopReason::RateLimit),
        }
    }

    fn back_off(&mut self, now: Now) {
        if let Some(reason) = self.over(Spent::default()) {
            return self.ended(reason);
        }
        self.tries += 1;
        self.attempt += 1;
        let wait = self.rules.backoff.delay(self.tries);
        self.wait(now, wait, Why::Backoff { attempt: self.tries });
    }

    fn wait(&mut self, now: Now, wait: Duration, why: Why) {
        self.state = State::Waiting { until: now.elapsed.saturating_add(wait), why };
    }

    fn count_work(&mut self, worked: Option<bool>, progress: Option<bool>) {
        self.idle = if worked == Some(false) { self.idle.saturating_add(1) } else { 0 };
        match progress {
            Some(true) => self.still = 0,
            Some(false) => self.still = self.still.saturating_add(1),
            None => {}
        }
    }

    fn spend(&mut self, spent: Spent) {
        // A negative or unreadable cost must not win money back.
        if spent.cost_usd.is_finite() && spent.cost_usd > 0.0 {
            self.spent.cost_usd += spent.cost_usd;
        }
        self.spent.tokens = self.spent.tokens.saturating_add(spent.tokens);
    }

    fn end(&mut self, reason: StopReason) -> Step {
        self.ended(reason);
        Step::Stop(reason)
    }

    fn ended(&mut self, reason: StopReason) {
        self.state = State::Ended(reason);
    }
}
