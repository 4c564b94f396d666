//! The workload of a test, run and recorded once, and what every crash point of it left.
//!
//! Used instead of running the workload again for every point. A workload that cannot be recorded
//! does not fail the test: it is then run again for every point.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::check_server::CheckServer;
use super::child_process::{self, ChildCommand, RunningChildren, Unwanted};
use super::directory_digest::DirectoryDigest;
use super::plan::Executed;
use super::point_trace::PointTrace;
use super::verdict::{self, ChildOutcome, Execution};
use crate::channel::Message;
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
    /// What the whole workload left.
    pub(crate) end: Tree,
    points: Vec<Passed>,
}

/// The directories that states are checked in, each seen where the workload saw its own.
#[derive(Debug)]
pub(crate) struct StateDirectories {
    pub(crate) recording: Recording,
    /// The directory above the recorded one.
    mount_point: PathBuf,
    mounted: bool,
    /// Places where nothing is checked now; their servers end before the directories go.
    free: Mutex<Vec<CheckPlace>>,
    made: AtomicUsize,
    /// Whether each check has to be started as a program.
    not_served: AtomicBool,
    scratch: ScratchDir,
    /// Created because the recorded directory is gone.
    _above: Option<ScratchDir>,
}

/// The directory as it was when a crash point was passed.
#[derive(Debug)]
struct Passed {
    tree: Tree,
    /// How many promises had been made.
    acks: usize,
}

/// A place where states are checked, one after the other.
#[derive(Debug)]
pub(crate) struct CheckPlace {
    /// What is mounted over the directory above the recorded one.
    above: PathBuf,
    /// Where the state lies.
    pub(crate) directory: PathBuf,
    /// Where the check sees it.
    pub(crate) seen: PathBuf,
    pub(crate) acks: PathBuf,
    /// What a served check says. In memory: to make and remove a file on disk for each of them takes
    /// longer than many a check.
    said: PathBuf,
    namespace: Option<MountNamespace>,
    server: Option<CheckServer>,
}

/// A state, and what its check is given.
#[derive(Debug)]
pub(crate) struct StateToCheck<'a> {
    pub(crate) tree: &'a Tree,
    /// How many promises had been made.
    pub(crate) acks: usize,
    pub(crate) point_id: usize,
    pub(crate) label: &'a str,
}

impl RecordedWorkload {
    /// Runs the workload, which must not crash itself. `parent` is where directories are made; in
    /// memory unless said.
    pub(crate) fn record<'a>(
        parent: Option<&Path>,
        command: impl FnOnce(&Path) -> ChildCommand<'a>,
    ) -> Result<Self, RecordError> {
        let failed = |source| RecordError::system("a directory", source);
        let scratch = ScratchDir::new(parent).map_err(failed)?;
        // The directory above is what is mounted over, so that a check may remove its own.
        let above = scratch.path().join("here");
        let root = above.join("work");
        fs::create_dir_all(&root).map_err(failed)?;
        let (recorded, outcome) = child_process::record(&command(&root), &root)?;
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
        Ok(Self { outcome, states, end: tree, points })
    }

    /// What a run that crashes at this point would have said; none beyond the end, where only
    /// another run can tell.
    pub(crate) fn executed(&self, target: usize) -> Option<Executed> {
        if let Some(passed) = self.points.get(target - 1) {
            let messages = self.outcome.messages.iter().scan(0, |seen, message| {
                *seen += usize::from(matches!(message, Message::Point { .. }));
                (*seen <= target).then(|| message.clone())
            });
            let messages: Vec<Message> = messages.collect();
            let label = messages.iter().rev().find_map(|message| match message {
                Message::Point { label, .. } => Some(label.clone()),
                _ => None,
            })?;
            let digest = passed.tree.digest();
            return Some(Executed {
                result: Execution::Crashed { label },
                trace: PointTrace::of(&messages),
                state: Some(DirectoryDigest((digest >> 64) as u64, digest as u64)),
            });
        }
        (target == self.points.len() + 1).then(|| Executed {
            result: verdict::execution(&self.outcome, target),
            trace: PointTrace::of(&self.outcome.messages),
            state: None,
        })
    }

    /// What a crash at this point left, and how many promises had been made.
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

    /// A place that nobody uses; it goes back with [`StateDirectories::put_back`].
    pub(crate) fn place(&self) -> io::Result<CheckPlace> {
        if let Some(place) = self.free().pop() {
            return Ok(place);
        }
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
        Ok(CheckPlace { above, directory, seen, acks, said, namespace, server: None })
    }

    pub(crate) fn put_back(&self, place: CheckPlace) {
        self.free().push(place);
    }

    fn free(&self) -> MutexGuard<'_, Vec<CheckPlace>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a state checked in this place: by its server, or by a program that is started for it.
    /// `command` is that program.
    pub(crate) fn check<'a>(
        &self,
        place: &mut CheckPlace,
        state: &StateToCheck<'_>,
        running: &RunningChildren,
        command: &dyn Fn(&CheckPlace) -> ChildCommand<'a>,
    ) -> io::Result<Result<ChildOutcome, Unwanted>> {
        place.fill(&self.recording, state)?;
        let started = || {
            let mut command = command(place);
            command.set.extend([
                (variables::CRASH_POINT_ID, state.point_id.to_string().into()),
                (variables::CRASH_LABEL, state.label.into()),
                (variables::ACKS, place.acks.clone().into()),
            ]);
            command.namespace = place.namespace.clone();
            command
        };
        let program = started();
        if place.server.is_none() && !self.not_served.load(Ordering::Relaxed) {
            let server = ChildCommand { log: place.acks.with_extension("log"), ..started() };
            // What keeps a server from starting is said by the program, if it matters.
            place.server = CheckServer::start(server).ok().flatten();
            self.not_served.store(place.server.is_none(), Ordering::Relaxed);
        }
        if let Some(server) = &mut place.server {
            let request = CheckRequest {
                point_id: state.point_id,
                label: state.label.to_owned(),
                target: program.target,
                acks: place.acks.clone(),
                log: place.said.clone(),
                timeout: program.timeout,
            };
            match running.run_served(server, program.target, &request) {
                Ok(outcome) => return Ok(outcome),
                // It died, of this check or of something else. The check begins again.
                Err(_) => {
                    place.server = None;
                    self.not_served.store(true, Ordering::Relaxed);
                    place.fill(&self.recording, state)?;
                }
            }
        }
        running.run(&program)
    }
}

impl CheckPlace {
    /// Replaces what lies here by a state, and the promises by those that were made before it.
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

    /// Leaves what the check said in a file, for people. One that was started as a program has written
    /// there itself.
    pub(crate) fn keep_log(&self, to: &Path) -> io::Result<()> {
        match fs::copy(&self.said, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            copied => copied.map(drop),
        }
    }

    /// Leaves what the check made of it in another directory, for people.
    pub(crate) fn keep(&self, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        let tree = retake_crash::recorder::tree_of(&self.directory)?;
        retake_crash::materialise(&tree, to)
    }
}
