//! Follows a loop of another process in its record: reports to a display what that process reports
//! to its own.

use std::time::Duration;

use jiff::Timestamp;
use retake_store::{OutputFollower, Store, StoredLoop};
use retake_types::loop_record::agent::{
    AgentEntry, AgentLoopPlan, Iteration, IterationStatus, Spent, WaitCause,
};
use retake_types::{RunId, Stream};

use crate::adapters::{AgentKind, Reader};
use crate::display::{Display, Live, visible};
use crate::plan::{AgentRole, AgentStopReason};
use crate::workspace::Workspace;

use super::event::{AgentDisplay, AgentEvent, LiveLine, StoppedLoop};
use super::recorded_loop;

/// Maximum earlier iterations shown first.
const EARLIER: usize = 10;
/// Maximum earlier output shown.
const EARLIER_OUTPUT: u64 = 64 << 10;
const PAGE: usize = 1000;

/// The state of a followed loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    Running,
    Stopped(AgentStopReason),
    /// Its runner died.
    Died,
}

/// What was read of a loop so far.
pub struct LoopFollower<'a> {
    record: StoredLoop,
    plan: Option<AgentLoopPlan>,
    workspace: &'a Workspace,
    /// Whether the agent's output is followed as well.
    with_output: bool,
    /// The number of the last entry read, and of the last earlier one.
    seen: u64,
    earlier: u64,
    /// Earlier finished iterations, in order.
    past: Vec<Iteration>,
    iterations: u32,
    /// Consecutive iterations in which the agent reported no work.
    idle: u32,
    /// Consecutive failed iterations.
    failures: u32,
    spent: Spent,
    current: Option<CurrentIteration>,
    waiting: Option<(WaitCause, Timestamp)>,
    paused: bool,
}

/// The running iteration.
struct CurrentIteration {
    number: u32,
    started_at: Timestamp,
    agent: Option<FollowedAgent>,
}

/// The output of the running agent.
struct FollowedAgent {
    run: RunId,
    kind: AgentKind,
    output: OutputFollower,
    reader: Reader,
    shown: Display,
    /// Earlier output is read but not shown.
    show_from: u64,
}

impl<'a> LoopFollower<'a> {
    /// Starts with the existing entries.
    pub fn open(
        store: &Store,
        record: StoredLoop,
        workspace: &'a Workspace,
        with_output: bool,
    ) -> retake_store::Result<Self> {
        Ok(Self {
            plan: AgentLoopPlan::parse(&record.plan),
            earlier: store.last_loop_entry(record.id)?,
            record,
            workspace,
            with_output,
            seen: 0,
            past: Vec::new(),
            iterations: 0,
            idle: 0,
            failures: 0,
            spent: Spent::default(),
            current: None,
            waiting: None,
            paused: false,
        })
    }

    /// The number of earlier iterations that are not shown.
    pub fn left_out(&self) -> usize {
        (self.iterations as usize).saturating_sub(EARLIER)
    }

    /// Shows what is new. Call it until the loop has stopped.
    pub fn poll(
        &mut self,
        store: &Store,
        display: &dyn AgentDisplay,
    ) -> retake_store::Result<Followed> {
        // Checked before reading: what a live runner writes afterwards is seen by the next poll.
        let alive = recorded_loop::is_alive(store, self.record.id, self.workspace);
        loop {
            let entries = store.loop_entries(self.record.id, self.seen, PAGE)?;
            if entries.is_empty() {
                break;
            }
            for stored in entries {
                let earlier = stored.seq <= self.earlier;
                // Entries of later versions are left out.
                if let Some(entry) = AgentEntry::parse(&stored.body) {
                    self.take(store, entry, stored.at, (!earlier).then_some(display))?;
                }
                self.seen = stored.seq;
                if self.seen == self.earlier {
                    self.show_earlier(display);
                }
            }
        }
        self.follow_output(store, display)?;
        let record = store.get_loop(self.record.id)?;
        let reason = record.stop_reason.and_then(|word| word.as_str().parse().ok());
        if let Some(reason) = reason {
            display.clear();
            display.event(AgentEvent::Stopped(&StoppedLoop {
                workspace: self.workspace.name(),
                reason,
                iterations: self.iterations,
                max_iterations: self.plan.as_ref().map_or(0, |plan| plan.max_iterations),
                idle: self.idle,
                failures: self.failures,
                // The record does not say so.
                gate_cannot_run: false,
                options: self.plan.as_ref().map_or(&[], |plan| &plan.options),
            }));
            return Ok(Followed::Stopped(reason));
        }
        if !alive {
            display.clear();
            return Ok(Followed::Died);
        }
        self.draw(display);
        Ok(Followed::Running)
    }

    /// The last earlier iterations, and the current one.
    fn show_earlier(&mut self, display: &dyn AgentDisplay) {
        for iteration in std::mem::take(&mut self.past) {
            display.event(AgentEvent::IterationEnded(&iteration));
        }
        if let Some(current) = &self.current {
            display.event(AgentEvent::IterationStarted { number: current.number });
        }
        if let Some((cause, until)) = self.waiting {
            display.event(AgentEvent::Waiting { cause, remaining: until_then(until) });
        }
        if self.paused {
            display.event(AgentEvent::Paused { workspace: self.workspace.name() });
        }
    }

    /// Processes one entry, and shows it unless it is an earlier one.
    fn take(
        &mut self,
        store: &Store,
        entry: AgentEntry,
        at: Timestamp,
        display: Option<&dyn AgentDisplay>,
    ) -> retake_store::Result<()> {
        (self.waiting, self.paused) = (None, false);
        let tell = |event: AgentEvent<'_>| {
            if let Some(display) = display {
                display.event(event);
            }
        };
        match entry {
            AgentEntry::Iteration { iteration } => self.iteration(store, *iteration, display)?,
            AgentEntry::Attempt { spent, .. } => {
                self.finish_output(store, display)?;
                self.spent.add(spent);
            }
            AgentEntry::VerificationStarted { .. } => tell(AgentEvent::VerificationStarted),
            AgentEntry::Verified { passed, spent, .. } => {
                self.spent.add(spent);
                tell(match passed {
                    true => AgentEvent::VerificationPassed,
                    false => AgentEvent::VerificationFailed { refusal: None },
                });
            }
            AgentEntry::Unverified { why, spent, .. } => {
                self.spent.add(spent);
                tell(AgentEvent::VerificationPostponed { why: &why });
            }
            AgentEntry::Paused => {
                self.paused = true;
                tell(AgentEvent::Paused { workspace: self.workspace.name() });
            }
            AgentEntry::Waiting { cause, remaining_ms } => {
                let until = at.checked_add(Duration::from_millis(remaining_ms)).unwrap_or(at);
                self.waiting = Some((cause, until));
                tell(AgentEvent::Waiting { cause, remaining: until_then(until) });
            }
            AgentEntry::AgentChanged { agent } => {
                let first = self.plan.as_ref().is_some_and(|plan| plan.agent == agent);
                let role = if first { AgentRole::First } else { AgentRole::Fallback };
                if let Ok(kind) = agent.parse() {
                    tell(AgentEvent::AgentChanged { kind, role });
                }
            }
            AgentEntry::HookFailed { when, command } => {
                tell(AgentEvent::HookFailed { when, command: &command });
            }
            AgentEntry::Verifying { .. }
            | AgentEntry::Checkpoint { .. }
            | AgentEntry::Resumed
            | AgentEntry::Note { .. } => {}
        }
        Ok(())
    }

    fn iteration(
        &mut self,
        store: &Store,
        iteration: Iteration,
        display: Option<&dyn AgentDisplay>,
    ) -> retake_store::Result<()> {
        let number = iteration.number;
        if !iteration.status.is_final() {
            let known = self.current.as_ref().is_some_and(|current| current.number == number);
            if !known {
                let started_at = iteration.started_at;
                self.current = Some(CurrentIteration { number, started_at, agent: None });
                if let Some(display) = display {
                    display.event(AgentEvent::IterationStarted { number });
                }
            }
            if iteration.status == IterationStatus::Executing {
                self.begin_output(store, &iteration, display.is_none());
            }
            return Ok(());
        }
        self.finish_output(store, display)?;
        self.current = None;
        self.iterations += 1;
        self.idle = if iteration.facts.worked == Some(false) { self.idle + 1 } else { 0 };
        match iteration.status {
            IterationStatus::Completed => self.failures = 0,
            IterationStatus::Failed | IterationStatus::TimedOut => self.failures += 1,
            _ => {}
        }
        self.spent.add(iteration.spent());
        let Some(display) = display else {
            if self.past.len() == EARLIER {
                self.past.remove(0);
            }
            self.past.push(iteration);
            return Ok(());
        };
        display.iteration_ended(&iteration);
        Ok(())
    }

    /// Follows the agent's run. Of its earlier output, shows only the end.
    fn begin_output(&mut self, store: &Store, iteration: &Iteration, earlier: bool) {
        let (Some(current), Some(run)) = (&mut self.current, iteration.facts.run_id) else {
            return;
        };
        let known = current.agent.as_ref().is_some_and(|agent| agent.run == run);
        if !self.with_output || known {
            return;
        }
        let of_plan = || Some(self.plan.as_ref()?.agent.clone());
        let kind = iteration.facts.agent.clone().or_else(of_plan);
        let kind = kind.and_then(|word| word.parse().ok()).unwrap_or_default();
        let length = match earlier {
            true => store.read_output(run, Stream::Stdout).map_or(0, |output| output.length()),
            false => 0,
        };
        current.agent = Some(FollowedAgent {
            run,
            kind,
            output: store.follow(run, None),
            reader: Reader::new(kind),
            shown: Display::default(),
            show_from: length.saturating_sub(EARLIER_OUTPUT),
        });
    }

    fn follow_output(
        &mut self,
        store: &Store,
        display: &dyn AgentDisplay,
    ) -> retake_store::Result<()> {
        let agent = self.current.as_mut().and_then(|current| current.agent.as_mut());
        agent.map_or(Ok(()), |agent| agent.poll(store, Some(display)))
    }

    /// The agent's run is over: shows the rest of its output.
    fn finish_output(
        &mut self,
        store: &Store,
        display: Option<&dyn AgentDisplay>,
    ) -> retake_store::Result<()> {
        let agent = self.current.as_mut().and_then(|current| current.agent.take());
        match (agent, display) {
            (Some(mut agent), Some(display)) => {
                agent.poll(store, Some(display))?;
                agent.finish(display);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The live line.
    fn draw(&self, display: &dyn AgentDisplay) {
        if let Some((cause, until)) = self.waiting {
            return display.live(LiveLine::Waiting { cause, remaining: until_then(until) });
        }
        let Some(current) = &self.current else { return };
        let mut spent = self.spent;
        if let Some(agent) = &current.agent {
            spent.add(agent.reader.reading().spent());
        }
        let left = self.plan.as_ref().map_or(0, |plan| plan.max_iterations);
        let left = left.saturating_sub(self.iterations);
        let elapsed = Timestamp::now().duration_since(current.started_at).as_secs();
        display.live(LiveLine::Iteration(Live {
            iteration: current.number,
            max_iterations: current.number.saturating_add(left).saturating_sub(1),
            elapsed: Duration::from_secs(u64::try_from(elapsed).unwrap_or(0)),
            remaining: None,
            cost_usd: Some(spent.cost_usd).filter(|cost| *cost > 0.0),
        }));
    }
}

impl FollowedAgent {
    fn poll(
        &mut self,
        store: &Store,
        display: Option<&dyn AgentDisplay>,
    ) -> retake_store::Result<()> {
        let Self { kind, output, reader, shown, show_from, .. } = self;
        let events = kind.capabilities().events;
        let mut given = output.offsets()[Stream::Stdout.index()];
        let mut each = |stream: Stream, bytes: &[u8]| {
            let show = display.filter(|_| given >= *show_from);
            if stream == Stream::Stdout {
                given += bytes.len() as u64;
            }
            if stream == Stream::Stdout && events {
                reader.push(bytes, &mut |event| {
                    if let (Some(text), Some(display)) = (shown.event(event), show) {
                        display.detail(&text);
                    }
                });
            } else if let Some(display) = show {
                display.detail(&visible(&String::from_utf8_lossy(bytes)));
            }
        };
        match output.poll(store, &mut each) {
            // Its intent is about to be recorded.
            Err(retake_store::Error::NotFound { .. }) => Ok(()),
            polled => polled.map(drop),
        }
    }

    fn finish(&mut self, display: &dyn AgentDisplay) {
        let Self { reader, shown, .. } = self;
        reader.finish(&mut |event| {
            if let Some(text) = shown.event(event) {
                display.detail(&text);
            }
        });
    }
}

fn until_then(until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default()
}
