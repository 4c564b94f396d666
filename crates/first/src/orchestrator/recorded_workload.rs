//! The workload of a test, run and recorded once, and what every crash point of it left.
//!
//! Used instead of running the workload again for every point. A workload that cannot be recorded
//! does not fail the test: it is then run again for every point.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::child_process::{self, ChildCommand};
use super::directory_digest::DirectoryDigest;
use super::plan::Executed;
use super::point_trace::PointTrace;
use super::verdict::{self, ChildOutcome, Execution};
use crate::channel::Message;
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
    scratch: ScratchDir,
    /// The directory above the recorded one.
    mount_point: PathBuf,
    mounted: bool,
    /// Created because the recorded directory is gone.
    _made: Option<ScratchDir>,
}

/// The directory as it was when a crash point was passed.
#[derive(Debug)]
struct Passed {
    tree: Tree,
    /// How many promises had been made.
    acks: usize,
}

/// Where a state is checked.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    above: PathBuf,
    /// Where it lies.
    pub(crate) directory: PathBuf,
    /// Where the check sees it.
    pub(crate) seen: PathBuf,
    pub(crate) acks: PathBuf,
    pub(crate) namespace: Option<MountNamespace>,
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
        let mounted = try_mount(scratch.path(), &above).is_ok();
        let mut tree = Tree::new(&recorded.recording.initial);
        let (mut points, mut acks) = (Vec::new(), 0);
        for entry in &recorded.recording.entries {
            match entry {
                Entry::Operation(operation) => tree.apply(&operation.action),
                Entry::Acknowledgement(_) => acks += 1,
                Entry::Label(_) => points.push(Passed { tree: tree.clone(), acks }),
            }
        }
        let recording = recorded.recording;
        let states =
            StateDirectories { recording, scratch, mount_point: above, mounted, _made: None };
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

    /// Materialises what a crash at this point left.
    pub(crate) fn state_dir(&self, target: usize) -> io::Result<StateDirectory> {
        let (tree, acks) = match self.points.get(target - 1) {
            Some(passed) => (&passed.tree, passed.acks),
            None => (&self.end, usize::MAX),
        };
        self.states.create(&format!("run_{target}"), tree, acks)
    }
}

impl StateDirectories {
    /// For states of a log whose directory may not exist any more.
    pub(crate) fn replayed(recording: Recording) -> io::Result<Self> {
        let scratch = ScratchDir::new(None)?;
        let mount_point = recording.root.parent().unwrap_or(Path::new("/")).to_owned();
        let above = mount_point.parent().filter(|above| !above.exists());
        let made = above.map(|above| ScratchDir::adopt(above.to_owned()));
        let mounted = try_mount(scratch.path(), &mount_point).is_ok();
        Ok(Self { recording, scratch, mount_point, mounted, _made: made })
    }

    /// Materialises a state, with its first `acks` acknowledgements.
    pub(crate) fn create(
        &self,
        name: &str,
        tree: &Tree,
        acks: usize,
    ) -> io::Result<StateDirectory> {
        let root = &self.recording.root;
        let above = self.scratch.path().join(name);
        let directory = above.join(root.file_name().unwrap_or("work".as_ref()));
        fs::create_dir_all(&directory)?;
        retake_crash::materialise(tree, &directory)?;
        let promised: Vec<Vec<u8>> = self
            .recording
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Acknowledgement(said) => Some(said.clone()),
                _ => None,
            })
            .take(acks)
            .collect();
        let file = self.scratch.path().join(format!("{name}.acks"));
        fs::write(&file, retake_crash::verify::ack_lines(&promised))?;
        let namespace =
            self.mounted.then(|| MountNamespace::new(&above, &self.mount_point)).transpose()?;
        let seen = if self.mounted { root.clone() } else { directory.clone() };
        Ok(StateDirectory { above, directory, seen, acks: file, namespace })
    }
}

impl StateDirectory {
    /// Leaves what the check made of it in another directory, for people.
    pub(crate) fn keep(&self, to: &Path) -> io::Result<()> {
        fs::create_dir(to)?;
        let tree = retake_crash::recorder::tree_of(&self.directory)?;
        retake_crash::materialise(&tree, to)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.acks)?;
        retake_crash::scratch::remove_tree(&self.above)
    }
}
