//! The plan for the loop driver: with the clock of this invocation, and the current requests of
//! other processes.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use retake_runner::loop_driver::{LoopPlan, Next};
use retake_runner::signals;
use retake_types::loop_record::agent::{AgentEntry, WaitCause};

use crate::adapters::AgentKind;
use crate::control::Mailbox;
use crate::group::GroupMember;
use crate::plan::{
    AgentPlan, AgentRole, IterationOutcome, IterationReport, Now, Requests, Step, WaitReason,
};
use crate::workspace::Name;

use super::event::{AgentDisplay, AgentEvent, LiveLine};

/// Minimum interval between checks of the mailbox during a pause.
const PAUSE: Duration = Duration::from_millis(200);

/// What a loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The next iteration, after the configured delay.
    Delay,
    Cause(WaitCause),
    /// A resume request.
    Pause,
}

/// A plan with the clock and the mailbox of one invocation.
pub(super) struct SteeredPlan {
    plan: AgentPlan,
    begun: Instant,
    mailbox: Mailbox,
    wait: Option<Wait>,
    group: Option<SharedLimits>,
}

/// Limits that the loop shares with others, and the kinds of its agents by role.
pub(super) struct SharedLimits {
    pub(super) member: GroupMember,
    pub(super) kinds: [AgentKind; 2],
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StepReport {
    Iteration(IterationReport),
    Verified {
        passed: bool,
    },
    /// The command of verification cannot be run.
    CannotVerify,
    /// Verification gave no result.
    Unverified(IterationOutcome),
    /// A signal interrupted the step; the plan ends when it is asked next.
    Interrupted,
}

impl SteeredPlan {
    pub(super) fn new(plan: AgentPlan, mailbox: Mailbox, group: Option<SharedLimits>) -> Self {
        Self { plan, begun: Instant::now(), mailbox, wait: None, group }
    }

    /// How long other loops of the group still wait for the limit of this agent's account.
    fn group_wait(&self, agent: AgentRole) -> Option<Duration> {
        let group = self.group.as_ref()?;
        group.member.limit_left(group.kinds[agent.index()])
    }

    pub(super) fn now(&self) -> Now {
        Now { elapsed: self.begun.elapsed(), unix: Timestamp::now().as_second() }
    }

    pub(super) fn is_time_spent(&self) -> bool {
        self.plan.time_left(self.now()) == Some(Duration::ZERO)
    }

    /// What the loop waits for at present.
    pub(super) fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// Remaining iterations of this invocation, including the next one.
    pub(super) fn iterations_left(&self) -> u32 {
        self.plan.rules().max_iterations.saturating_sub(self.plan.iterations())
    }
}

impl Deref for SteeredPlan {
    type Target = AgentPlan;

    fn deref(&self) -> &AgentPlan {
        &self.plan
    }
}

impl DerefMut for SteeredPlan {
    fn deref_mut(&mut self) -> &mut AgentPlan {
        &mut self.plan
    }
}

impl LoopPlan for SteeredPlan {
    type Step = Step;
    type Report = StepReport;

    fn next(&mut self, _now: Instant) -> Next<Step> {
        let interrupt = signals::asked().load(Ordering::Relaxed);
        let mut requests = Requests { interrupt, ..self.mailbox.requests() };
        if let Some(group) = &self.group {
            requests.stop |= group.member.spend(self.plan.spent()).is_some();
        }
        let now = self.now();
        self.wait = None;
        match self.plan.next(now, requests) {
            step @ (Step::Iterate { agent, .. } | Step::Verify { agent, .. }) => {
                let Some(left) = self.group_wait(agent) else { return Next::Run(step) };
                self.wait = Some(Wait::Cause(WaitCause::RateLimit));
                Next::Delay(left)
            }
            Step::Wait { why, remaining } => {
                let wait = Wait::from(why);
                if let (Wait::Cause(WaitCause::RateLimit), Some(group)) = (wait, &self.group) {
                    group.member.limited(group.kinds[self.plan.agent().index()], remaining);
                }
                self.wait = Some(wait);
                Next::Delay(remaining)
            }
            Step::Pause => {
                self.wait = Some(Wait::Pause);
                Next::Delay(PAUSE)
            }
            Step::Stop(_) => Next::Done,
        }
    }

    fn report(&mut self, _step: &Step, report: StepReport) {
        let now = self.now();
        match report {
            StepReport::Iteration(report) => self.plan.done(report, now),
            StepReport::Verified { passed } => self.plan.verified(passed, now),
            StepReport::CannotVerify => self.plan.cannot_verify(),
            StepReport::Unverified(outcome) => self.plan.unverified(outcome, now),
            StepReport::Interrupted => {}
        }
    }
}

impl From<WaitReason> for Wait {
    fn from(reason: WaitReason) -> Self {
        reason.cause().map_or(Self::Delay, Self::Cause)
    }
}

/// Shows the start, the remaining time and the end of a wait.
#[derive(Default)]
pub(super) struct WaitDisplay {
    current: Option<Wait>,
}

impl WaitDisplay {
    /// Called while a loop waits, and with `None` when it does not. Returns the entry to record.
    pub(super) fn update(
        &mut self,
        wait: Option<(Wait, Duration)>,
        workspace: &Name,
        display: &dyn AgentDisplay,
    ) -> Vec<AgentEntry> {
        let mut entries = Vec::new();
        let kind = wait.map(|(wait, _)| wait);
        if self.current != kind {
            match self.current {
                Some(Wait::Pause) => entries.push(AgentEntry::Resumed),
                Some(_) => display.clear(),
                None => {}
            }
            self.current = kind;
            match wait {
                Some((Wait::Cause(cause), remaining)) => {
                    display.event(AgentEvent::Waiting { cause, remaining });
                    let remaining_ms = retake_types::request::millis(remaining);
                    entries.push(AgentEntry::Waiting { cause, remaining_ms });
                }
                Some((Wait::Pause, _)) => {
                    display.event(AgentEvent::Paused { workspace });
                    entries.push(AgentEntry::Paused);
                }
                Some((Wait::Delay, _)) | None => {}
            }
        }
        if let Some((Wait::Cause(cause), remaining)) = wait {
            display.live(LiveLine::Waiting { cause, remaining });
        }
        entries
    }
}
