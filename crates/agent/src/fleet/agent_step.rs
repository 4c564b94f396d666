//! One agent's step of a fleet: its tree, its loop in the tree, and collecting its work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use retake_runner::worker::Worker;
use retake_types::LoopId;
use retake_types::loop_record::agent::{Iteration, Spent};
use retake_types::loop_record::fleet::{FleetAgentEnd, FleetEntry};

use super::event::FleetEvent;
use super::git::{FleetGit, FleetGitError};
use super::plan::AgentReport;
use super::record::RecordedAgent;
use super::run::{AgentPlace, Fleet, LOOK, lock};
use super::setup::FleetError;
use super::stale_lock::remove_agents_locks;
use super::tree::TreeMark;
use super::trees::Trees;
use crate::driver::{self, AgentDisplay, AgentEvent, AgentSession, LiveLine, recorded_loop};
use crate::plan::AgentStopReason;
use crate::queue::{TaskAllowance, TaskEnd, TaskReport};

impl Fleet<'_> {
    /// Creates the tree of an agent, or finds its existing one.
    fn ensure_tree(&self, worker: &mut Worker, agent: usize) -> Result<PathBuf, FleetError> {
        let tree = self.tree(agent);
        let known = lock(&self.agents)[agent].mark;
        if known.is_some() && TreeMark::of(&self.trees().home(&tree)) == known {
            let _making = lock(&self.making);
            self.trees().show(&tree, self.main)?;
            remove_agents_locks(&tree);
            return Ok(tree);
        }
        let number = agent as u32;
        let path = tree.as_os_str().into();
        self.record(&FleetEntry::MakingTree { agent: number, path })?;
        let making = lock(&self.making);
        // A dead runner created only a part of it.
        self.trees().remove(&tree, None)?;
        let branch = format!("retake/{}", self.name(agent));
        let mut git = FleetGit::new(worker, self.main);
        let plan = &self.prepared.plan;
        let mark = self.trees().make(&mut git, plan, (&tree, &plan.base, &branch))?;
        drop(making);
        let TreeMark { device, inode } = mark;
        self.record(&FleetEntry::TreeMade { agent: number, device, inode })?;
        lock(&self.agents)[agent].mark = Some(mark);
        Ok(tree)
    }

    /// The agent's working directory in a tree: at the same depth as the project in the repository.
    fn root_in(&self, tree: &Path) -> PathBuf {
        match self.prepared.root.strip_prefix(&self.main.top) {
            // Joining an empty path would append a slash.
            Ok(inside) if !inside.as_os_str().is_empty() => tree.join(inside),
            _ => tree.to_owned(),
        }
    }

    pub(super) fn place<'b>(
        &'b self,
        agent: usize,
        tree: &'b Path,
        again: bool,
        allowance: TaskAllowance,
    ) -> AgentPlace<'b> {
        AgentPlace {
            agent: &self.prepared.plan.agents[agent],
            workspace: self.workspaces[agent].clone(),
            root: self.root_in(tree),
            borrows: self.trees().borrowed(self.main),
            shown: matches!(self.trees(), Trees::Layers(_))
                .then(|| (tree.to_owned(), self.main.top.clone())),
            again,
            allowance,
        }
    }

    /// Runs an agent to the end of its loop and collects its work. Without an allowance it does not
    /// run, and only its earlier work is collected.
    pub(super) fn run_agent(
        &self,
        worker: &mut Worker,
        agent: usize,
        attempt: u32,
        allowance: Option<TaskAllowance>,
    ) -> Result<AgentReport, FleetError> {
        let number = agent as u32;
        let recorded = lock(&self.agents)[agent].recorded.take();
        let recorded = recorded.filter(|recorded| recorded.attempt == attempt);
        let tree = self.ensure_tree(worker, agent)?;
        lock(&self.agents)[agent].uncollected = true;
        let ended = recorded.as_ref().and_then(|recorded| self.ended_before(agent, recorded));
        let task = match (ended, allowance) {
            (Some(task), _) => task,
            (None, None) => self.give_up_loop(agent)?,
            (None, Some(allowance)) => {
                self.record(&FleetEntry::Running { agent: number, attempt })?;
                (self.front.event)(FleetEvent::AgentStarted { name: self.name(agent), attempt });
                let begun = recorded.as_ref().is_some_and(|recorded| recorded.running)
                    && self.has_loop(agent);
                let again = attempt > 1 || begun;
                let task = self.run_loop(self.place(agent, &tree, again, allowance), agent);
                if matches!(task.end, TaskEnd::AlreadyComplete) {
                    self.take_up_earlier(worker, agent, &tree)?;
                }
                task
            }
        };
        self.group.ended(agent, task.spent);
        let interrupted = AgentStopReason::Interrupted;
        if matches!(&task.end, TaskEnd::Stopped { reason, .. } if *reason == interrupted) {
            // Its tree stays, and the next runner continues in it.
            return Ok(AgentReport { task, changed: Some(true) });
        }
        if recorded.is_none_or(|recorded| recorded.end.is_none()) {
            let (end, loop_id) = end_entry(&task.end);
            let spent = task.spent;
            self.record(&FleetEntry::Ran { agent: number, attempt, end, loop_id, spent })?;
        }
        (self.front.event)(FleetEvent::AgentEnded { name: self.name(agent), report: &task });
        let changed = self.collect(worker, agent, attempt, &tree)?;
        if let TaskEnd::NotStarted { why } = &task.end {
            let mut agents = lock(&self.agents);
            (agents[agent].why, agents[agent].why_told) = (Some(why.clone()), true);
        }
        Ok(AgentReport { task, changed })
    }

    /// How the loop of an agent ended before its runner died, if it had.
    fn ended_before(&self, agent: usize, recorded: &RecordedAgent) -> Option<TaskReport> {
        if let Some(end) = &recorded.end {
            let end = match end {
                FleetAgentEnd::AlreadyComplete => TaskEnd::AlreadyComplete,
                FleetAgentEnd::NotStarted { why } => TaskEnd::NotStarted { why: why.clone() },
                FleetAgentEnd::Stopped { reason } => {
                    let loop_id = recorded.loops.last().copied();
                    TaskEnd::Stopped { reason: reason.parse().ok()?, loop_id }
                }
            };
            return Some(TaskReport { end, spent: Spent::default() });
        }
        let fleet = self.id.to_string();
        let name = self.workspaces[agent].name().as_str();
        let ended = self.recorder.read(|store| {
            let ended = recorded_loop::ended_in_queue(store, &fleet, name).ok()??;
            let spent = recorded_loop::read_loop(store, ended.0).ok()?.spent();
            Some((ended, spent))
        });
        let ((id, reason), _) = ended?;
        // The end of an earlier attempt, or of an interrupted loop, is not the end of this attempt.
        if recorded.loops.contains(&id) || reason == AgentStopReason::Interrupted {
            return None;
        }
        // Its cost is in the record already.
        let end = TaskEnd::Stopped { reason, loop_id: Some(id) };
        Some(TaskReport { end, spent: Spent::default() })
    }

    /// Whether a dead runner had started a loop of this agent: a task that was complete before has none.
    fn has_loop(&self, agent: usize) -> bool {
        let (fleet, name) = (self.id.to_string(), self.workspaces[agent].name().as_str());
        let loops = self.recorder.read(|store| recorded_loop::loops_in_queue(store, &fleet));
        // Without a readable record it may have.
        loops.map_or(true, |loops| loops.iter().any(|(workspace, _)| workspace == name))
    }

    /// Ends an agent's loop that a dead runner left and that will not continue.
    fn give_up_loop(&self, agent: usize) -> Result<TaskReport, FleetError> {
        let (fleet, name) = (self.id.to_string(), self.workspaces[agent].name().as_str());
        let ended =
            self.recorder.write(|store| recorded_loop::end_open_in_queue(store, &fleet, name))?;
        let loop_id = ended.as_ref().map(|ended| ended.record.id);
        let spent = ended.map(|ended| ended.spent()).unwrap_or_default();
        let end = TaskEnd::Stopped { reason: AgentStopReason::Stopped, loop_id };
        Ok(TaskReport { end, spent })
    }

    /// Runs the loop of an agent. A failure to start it affects only this agent.
    fn run_loop(&self, place: AgentPlace<'_>, agent: usize) -> TaskReport {
        let not_started = |why: String| TaskReport::without_loop(TaskEnd::NotStarted { why });
        let opened = match (self.front.open)(&place) {
            Ok(opened) => opened,
            Err(why) => return not_started(why),
        };
        let Some((mut task, rules)) = opened else {
            return TaskReport::without_loop(TaskEnd::AlreadyComplete);
        };
        let slot = self.slots.take();
        task.variables = slot.variables(self.name(agent));
        task.queue = Some(self.id.to_string());
        task.group = Some(self.group.member(agent));
        let worker = match Worker::independent(self.context) {
            Ok(worker) => worker,
            Err(error) => return not_started(error.to_string()),
        };
        lock(&self.cancels).push((worker.cancel().clone(), false));
        // The watcher ends before the fleet, and reads only this.
        let display = Arc::new(MemberDisplay::new((self.front.display)(place.agent)));
        let session = AgentSession::start_on(worker, task, "run", display.clone());
        let started = session.and_then(|session| {
            self.repeat_stop(agent);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| self.follow_changes(agent, &display, &done));
                let finished = driver::run(session, rules);
                done.store(true, Ordering::Relaxed);
                finished
            })
        });
        match started {
            Ok(finished) => {
                let (reason, loop_id) = (finished.reason, finished.loop_id);
                drop(finished.worker.retain());
                TaskReport { end: TaskEnd::Stopped { reason, loop_id }, spent: finished.spent }
            }
            Err(error) => not_started((self.front.start_error)(&error)),
        }
    }

    /// Reports during an agent's work which of its files other agents have changed, too.
    fn follow_changes(&self, agent: usize, display: &MemberDisplay, done: &AtomicBool) {
        loop {
            let ended = done.load(Ordering::Relaxed);
            let paths = std::mem::take(&mut *lock(&display.changed));
            if !paths.is_empty() {
                self.note_changes(agent, paths);
            }
            if ended {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn note_changes(&self, agent: usize, paths: Vec<PathBuf>) {
        let news = lock(&self.overlaps).changed(agent as u32, paths);
        for (agents, paths) in news {
            let names = agents.map(|agent| self.name(agent as usize));
            (self.front.event)(FleetEvent::Overlap { names, paths: &paths });
            let paths = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
            // The warning was shown; a failing record ends the fleet at the next step.
            drop(self.recorder.add(&FleetEntry::Overlap { agents, paths }));
        }
    }

    /// Collects an agent's work into the main repository. Returns whether it changed anything;
    /// `None` if collecting failed, in which case its tree stays.
    fn collect(
        &self,
        worker: &mut Worker,
        agent: usize,
        attempt: u32,
        tree: &Path,
    ) -> Result<Option<bool>, FleetError> {
        let prefix = self.prefix(agent);
        let mut git = FleetGit::new(worker, self.main);
        let base = &self.prepared.plan.base;
        let work = match git.collect(tree, &self.prepared.plan, (&prefix, self.name(agent))) {
            Ok(work) => work,
            Err(error @ FleetGitError::Cancelled(_)) => return Err(error.into()),
            Err(error) => {
                lock(&self.agents)[agent].why = Some(error.to_string());
                return Ok(None);
            }
        };
        self.record(&FleetEntry::Collected { agent: agent as u32, attempt, work: work.clone() })?;
        // Also changes that no iteration reported.
        let paths = git.start_of(base, &work.commit);
        let paths = paths.and_then(|start| git.changed_paths(&start, &work.commit));
        if let Ok(paths) = paths {
            self.note_changes(agent, paths);
        }
        let changed = work.changed;
        let mut agents = lock(&self.agents);
        agents[agent].uncollected = false;
        agents[agent].work = Some(work);
        Ok(Some(changed))
    }

    /// Removes the tree of an agent whose work is collected; otherwise reports why it stays.
    pub(super) fn remove(&self, agent: usize) -> Result<(), FleetError> {
        let number = agent as u32;
        let tree = self.tree(agent);
        let state = lock(&self.agents)[agent].clone();
        if state.mark.is_none() && state.work.is_none() {
            return Ok(());
        }
        let not_covered = state.work.as_ref().map(|work| work.not_covered.join(", "));
        let why = match not_covered {
            _ if state.uncollected => Some(state.why.unwrap_or_default()),
            Some(nested) if !nested.is_empty() => Some(format!(
                "{nested}: git cannot take over what is in it, and it is kept nowhere else"
            )),
            _ => None,
        };
        let why = match why {
            Some(why) => Some(why),
            None => {
                self.record(&FleetEntry::RemovingTree { agent: number })?;
                match self.trees().remove(&tree, state.mark) {
                    Ok(None) => None,
                    Ok(Some(stays)) => Some(stays.to_string()),
                    Err(error) => Some(error.to_string()),
                }
            }
        };
        let Some(why) = why else {
            return self.record(&FleetEntry::TreeRemoved { agent: number });
        };
        let home = self.trees().home(&tree);
        (self.front.event)(FleetEvent::TreeKept { name: self.name(agent), tree: &home, why: &why });
        lock(&self.agents)[agent].tree_kept = Some(why.clone());
        self.record(&FleetEntry::TreeKept { agent: number, why })
    }
}

fn end_entry(end: &TaskEnd) -> (FleetAgentEnd, Option<LoopId>) {
    match end {
        TaskEnd::Stopped { reason, loop_id } => {
            (FleetAgentEnd::Stopped { reason: reason.as_str().to_owned() }, *loop_id)
        }
        TaskEnd::AlreadyComplete => (FleetAgentEnd::AlreadyComplete, None),
        TaskEnd::NotStarted { why } => (FleetAgentEnd::NotStarted { why: why.clone() }, None),
    }
}

/// Displays an agent, and records which files its iterations have changed.
struct MemberDisplay {
    inner: Arc<dyn AgentDisplay>,
    changed: Mutex<Vec<PathBuf>>,
}

impl MemberDisplay {
    fn new(inner: Arc<dyn AgentDisplay>) -> Self {
        Self { inner, changed: Mutex::default() }
    }

    fn note(&self, iteration: &Iteration) {
        let Some(result) = &iteration.result else { return };
        let files = [&result.files_modified, &result.files_created, &result.files_deleted];
        lock(&self.changed).extend(files.into_iter().flatten().cloned());
    }
}

impl AgentDisplay for MemberDisplay {
    fn event(&self, event: AgentEvent<'_>) {
        if let AgentEvent::IterationEnded(iteration) = &event {
            self.note(iteration);
        }
        self.inner.event(event);
    }

    fn detail(&self, text: &str) {
        self.inner.detail(text);
    }

    fn shows_detail(&self) -> bool {
        self.inner.shows_detail()
    }

    fn has_live_line(&self) -> bool {
        self.inner.has_live_line()
    }

    fn live(&self, line: LiveLine) {
        self.inner.live(line);
    }

    fn clear(&self) {
        self.inner.clear();
    }
}
