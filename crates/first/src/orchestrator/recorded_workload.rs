//! The workload of a test, run and recorded once, and the state after each of its crash points.
//!
//! Used instead of running the workload again for every point. A workload that cannot be recorded
//! does not fail the test: it is then run again for every point.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::check_server::CheckServer;
use super::child_process::{self, ChildCommand, RunningChildren, Unwanted};
use super::directory_digest::DirectoryDigest;
use super::plan::Executed;
use super::point_trace::PointTrace;
use super::verdict::{self, ChildOutcome, Execution};
use crate::check_request::CheckRequest;
use crate::variables;
use retake_crash::model::Tree;
use retake_crash::mount_namespace::MountNamespace;
use retake_crash::operation::{Entry, Recording};
use retake_crash::recorder::RecordError;
use retake_crash::scratch::ScratchDir;
use retake_crash::verify::try_mount;

#[derive(Debug)]
pub(crate) struct RecordedWorkload {
    pub(crate) outcome: ChildOutcome,
    pub(crate) states: StateDirectories,
    /// The state after the whole workload.
    pub(crate) end: Tree,
    points: Vec<Passed>,
    trace: PointTrace,
}

/// The directories in which states are checked, each visible at the workload's own path.
#[derive(Debug)]
pub(crate) struct StateDirectories {
    pub(crate) recording: Recording,
    /// The directory above the recorded one.
    mount_point: PathBuf,
    mounted: bool,
    /// Idle places; their servers exit before the directories are removed.
    free: Mutex<Vec<CheckPlace>>,
    made: AtomicUsize,
    /// Whether each check must be started as a program.
    not_served: AtomicBool,
    scratch: ScratchDir,
    /// Created because the recorded directory is gone.
    _above: Option<ScratchDir>,
}

/// The directory at the time a crash point was passed.
#[derive(Debug)]
struct Passed {
    tree: Tree,
    /// How many promises had been made.
    acks: usize,
}

/// A place where states are checked, one after the other.
#[derive(Debug)]
pub(crate) struct CheckPlace {
    /// The directory that is mounted over the one above the recorded one.
    above: PathBuf,
    /// The directory with the state.
    pub(crate) directory: PathBuf,
    /// The path at which the check sees it.
    pub(crate) seen: PathBuf,
    pub(crate) acks: PathBuf,
    /// The output of a served check. In memory: creating and removing a file on disk for each of them takes
    /// longer than many checks.
    said: PathBuf,
    namespace: Option<MountNamespace>,
    server: Option<CheckServer>,
    /// The crash point whose state was written here in advance.
    prepared_for: Option<usize>,
}

/// A state, and the input of its check.
#[derive(Debug)]
pub(crate) struct StateToCheck<'a> {
    pub(crate) tree: &'a Tree,
    /// How many promises had been made.
    pub(crate) acks: usize,
    pub(crate) point_id: usize,
    pub(crate) label: &'a str,
}

impl RecordedWorkload {
    /// Runs the workload, which must not crash itself. `parent` is the directory for temporary ones; by default
    /// in memory. Processes that it leaves running may take up to `linger` to end by themselves.
    pub(crate) fn record<'a>(
        parent: Option<&Path>,
        linger: Duration,
        command: impl FnOnce(&Path) -> ChildCommand<'a>,
    ) -> Result<Self, RecordError> {
        let failed = |source| RecordError::system("a directory", source);
        let scratch = ScratchDir::new(parent).map_err(failed)?;
        // The directory above is the one mounted over, so that a check may remove its own.
        let above = scratch.path().join("here");
        let root = above.join("work");
        fs::create_dir_all(&root).map_err(failed)?;
        let (recorded, outcome) = child_process::record(&command(&root), &root, linger)?;
        if !root.is_dir() {
            return Err(RecordError::Refused {
                call: "rmdir".into(),
                why: "the workload deleted or replaced its own directory".into(),
            });
        }
        // States are mounted there from now on.
        retake_crash::scratch::empty_dir(&root).map_err(failed)?;
        let mut tree = Tree::new(&recorded.recording.initial);
        let (mut points, mut acks) = (Vec::new(), 0);
        for entry in &recorded.recording.entries {
            match entry {
                Entry::Operation(operation) => tree.apply(&operation.action),
                Entry::Acknowledgement(_) => acks += 1,
                Entry::Label(_) => points.push(Passed { tree: tree.clone(), acks }),
            }
        }
        let states = StateDirectories::new(recorded.recording, scratch, above);
        let trace = PointTrace::of(&outcome.messages);
        Ok(Self { outcome, states, end: tree, points, trace })
    }

    /// A note about processes that the workload left running and that were terminated.
    pub(crate) fn left_running(&self) -> Option<String> {
        let ended = self.states.recording.left_running.ended;
        (ended > 0).then(|| {
            let (processes, them) =
                if ended == 1 { ("1 process".to_owned(), "it") } else { (format!("{ended} processes"), "them") };
            format!(
                "the workload left {processes} running, which had to be terminated: what a process writes \
                 after the workload is not tested; wait for {them} in the workload, or stop {them}"
            )
        })
    }

    /// The result of a run that crashes at this point; `None` beyond the end, where only
    /// another run can tell.
    pub(crate) fn executed(&self, target: usize) -> Option<Executed> {
        if let Some(passed) = self.points.get(target - 1) {
            let trace = self.trace.until(target)?;
            let label = trace.last_label()?.clone();
            let digest = passed.tree.digest();
            return Some(Executed {
                result: Execution::Crashed { label },
                trace,
                state: Some(DirectoryDigest((digest >> 64) as u64, digest as u64)),
            });
        }
        (target == self.points.len() + 1).then(|| Executed {
            result: verdict::execution(&self.outcome, target),
            trace: self.trace.clone(),
            state: None,
        })
    }

    /// The state after a crash at this point; `None` beyond the last.
    pub(crate) fn point(&self, target: usize) -> Option<&Tree> {
        self.points.get(target - 1).map(|passed| &passed.tree)
    }

    /// The state after a crash at this point, and how many promises had been made.
    pub(crate) fn state(&self, target: usize) -> (&Tree, usize) {
        match self.points.get(target - 1) {
            Some(passed) => (&passed.tree, passed.acks),
            None => (&self.end, usize::MAX),
        }
    }
}

impl StateDirectories {
    fn new(recording: Recording, scratch: ScratchDir, mount_point: PathBuf) -> Self {
        let mounted = try_mount(scratch.path(), &mount_point).is_ok();
        Self {
            recording,
            mount_point,
            mounted,
            free: Mutex::default(),
            made: AtomicUsize::new(0),
            not_served: AtomicBool::new(false),
            scratch,
            _above: None,
        }
    }

    /// For states of a log whose directory may not exist any more.
    pub(crate) fn replayed(recording: Recording) -> io::Result<Self> {
        let scratch = ScratchDir::new(None)?;
        let mount_point = recording.root.parent().unwrap_or(Path::new("/")).to_owned();
        let above = mount_point.parent().filter(|above| !above.exists());
        let above = above.map(|above| ScratchDir::adopt(above.to_owned()));
        Ok(Self { _above: above, ..Self::new(recording, scratch, mount_point) })
    }

    /// An idle place, to be returned with [`StateDirectories::put_back`]: the one that
    /// was prepared for this crash point, or any other.
    pub(crate) fn place(&self, point: usize) -> io::Result<CheckPlace> {
        let mut free = self.free();
        let prepared = |place: &CheckPlace| place.prepared_for == Some(point);
        let at = free.iter().position(prepared);
        let at = at.or_else(|| free.iter().position(|place| place.prepared_for.is_none()));
        if let Some(place) = at.map(|at| free.swap_remove(at)).or_else(|| free.pop()) {
            return Ok(place);
        }
        drop(free);
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let root = &self.recording.root;
        let above = self.scratch.path().join(format!("state_{number}"));
        fs::create_dir(&above)?;
        let directory = above.join(root.file_name().unwrap_or("work".as_ref()));
        let acks = self.scratch.path().join(format!("state_{number}.acks"));
        let said = acks.with_extension("said");
        let namespace =
            self.mounted.then(|| MountNamespace::new(&above, &self.mount_point)).transpose()?;
        let seen = if self.mounted { root.clone() } else { directory.clone() };
        Ok(CheckPlace {
            above,
            directory,
            seen,
            acks,
            said,
            namespace,
            server: None,
            prepared_for: None,
        })
    }

    /// Writes a state to a separate place, so that its check can begin immediately.
    pub(crate) fn prepare<'a>(
        &self,
        state: &StateToCheck<'_>,
        command: &dyn Fn(&CheckPlace) -> ChildCommand<'a>,
    ) -> io::Result<()> {
        let mut place = self.place(state.point_id)?;
        if place.prepared_for != Some(state.point_id) {
            place.prepared_for = None;
            place.fill(&self.recording, state)?;
            self.start_server(&mut place, state, command);
            place.prepared_for = Some(state.point_id);
        }
        self.put_back(place);
        Ok(())
    }

    pub(crate) fn put_back(&self, place: CheckPlace) {
        self.free().push(place);
    }

    fn free(&self) -> MutexGuard<'_, Vec<CheckPlace>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a state in this place: by its server, or by a program that is started for it.
    /// `command` is that program. If a server checks, this thread runs `meanwhile` until
    /// the answer.
    pub(crate) fn check<'a>(
        &self,
        place: &mut CheckPlace,
        state: &StateToCheck<'_>,
        running: &RunningChildren,
        command: &dyn Fn(&CheckPlace) -> ChildCommand<'a>,
        meanwhile: &dyn Fn(),
    ) -> io::Result<Result<ChildOutcome, Unwanted>> {
        if place.prepared_for.take() != Some(state.point_id) {
            place.fill(&self.recording, state)?;
        }
        self.start_server(place, state, command);
        let program = place.program(state, command);
        if let Some(server) = &mut place.server {
            let request = CheckRequest {
                point_id: state.point_id,
                label: state.label.to_owned(),
                target: program.target,
                acks: place.acks.clone(),
                log: place.said.clone(),
                timeout: program.timeout,
            };
            match running.run_served(server, program.target, &request, meanwhile) {
                Ok(outcome) => return Ok(outcome),
                // It died, because of this check or otherwise. The check is repeated.
                Err(_) => {
                    place.server = None;
                    self.not_served.store(true, Ordering::Relaxed);
                    place.fill(&self.recording, state)?;
                }
            }
        }
        running.run(&program)
    }

    /// Gives a place its server, if it can have one.
    fn start_server<'a>(
        &self,
        place: &mut CheckPlace,
        state: &StateToCheck<'_>,
        command: &dyn Fn(&CheckPlace) -> ChildCommand<'a>,
    ) {
        if place.server.is_none() && !self.not_served.load(Ordering::Relaxed) {
            let log = place.acks.with_extension("log");
            let server = ChildCommand { log, ..place.program(state, command) };
            // The program reports what keeps a server from starting, if it matters.
            place.server = CheckServer::start(server).ok().flatten();
            self.not_served.store(place.server.is_none(), Ordering::Relaxed);
        }
    }
}

impl CheckPlace {
    /// The program that checks a state here.
    fn program<'a>(
        &self,
        state: &StateToCheck<'_>,
        command: &dyn Fn(&Self) -> ChildCommand<'a>,
    ) -> ChildCommand<'a> {
        let mut command = command(self);
        command.set.extend([
            (variables::CRASH_POINT_ID, state.point_id.to_string().into()),
            (variables::CRASH_LABEL, state.label.into()),
            (variables::ACKS, self.acks.clone().into()),
        ]);
        command.namespace = self.namespace.clone();
        command
    }

    /// Replaces the content by a state, and the promises by those that were made before it.
    fn fill(&self, recording: &Recording, state: &StateToCheck<'_>) -> io::Result<()> {
        retake_crash::scratch::clear_dir(&self.above)?;
        retake_crash::scratch::ignore_missing(fs::remove_file(&self.said))?;
        fs::create_dir(&self.directory)?;
        retake_crash::materialise(state.tree, &self.directory)?;
        let promised: Vec<Vec<u8>> = recording
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Acknowledgement(said) => Some(said.clone()),
                _ => None,
            })
            .take(state.acks)
            .collect();
        fs::write(&self.acks, retake_crash::verify::ack_lines(&promised))
    }

    /// Writes the check's output to a file, for people. A check that was started as a program has written
    /// there itself.
    pub(crate) fn keep_log(&self, to: &Path) -> io::Result<()> {
        match fs::copy(&self.said, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            copied => copied.map(drop),
        }
    }
}

/// Leaves a copy of a directory in memory for people.
pub(crate) fn keep_directory(directory: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    let tree = retake_crash::recorder::tree_of(directory)?;
    retake_crash::materialise(&tree, to)
}
