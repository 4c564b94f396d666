//! The workload of a test, run and recorded once, and what every crash point of it left.
//!
//! Takes the place of running the workload again for every point. Whatever cannot be recorded is
//! no failure: the test then runs the other way.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::channel::Message;
use crate::plan::Executed;
use crate::process::{self, Launch};
use crate::state::State;
use crate::trace::Trace;
use crate::verdict::{self, Ending, Execution};
use retake_crash::model::Tree;
use retake_crash::mount_namespace::MountNamespace;
use retake_crash::operation::{Entry, Recording};
use retake_crash::recorder::RecordError;
use retake_crash::scratch::ScratchDir;
use retake_crash::verify::try_mount;

#[derive(Debug)]
pub(crate) struct Once {
    pub(crate) ending: Ending,
    pub(crate) stands: Stands,
    /// What the whole workload left.
    pub(crate) end: Tree,
    points: Vec<Passed>,
}

/// Room for states, each of which is seen where the workload saw its directory.
#[derive(Debug)]
pub(crate) struct Stands {
    pub(crate) recording: Recording,
    scratch: ScratchDir,
    /// The directory above the recorded one.
    here: PathBuf,
    mounted: bool,
    /// Made because the recorded place is gone.
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
pub(crate) struct Stand {
    above: PathBuf,
    /// Where it lies.
    pub(crate) directory: PathBuf,
    /// Where the check sees it.
    pub(crate) seen: PathBuf,
    pub(crate) acks: PathBuf,
    pub(crate) namespace: Option<MountNamespace>,
}

impl Once {
    /// Runs the workload, which must not crash itself. `parent` is where directories are made; in
    /// memory unless said.
    pub(crate) fn record<'a>(
        parent: Option<&Path>,
        launch: impl FnOnce(&Path) -> Launch<'a>,
    ) -> Result<Self, RecordError> {
        let failed = |source| RecordError::system("a directory", source);
        let scratch = ScratchDir::new(parent).map_err(failed)?;
        // The directory above is what is mounted over, so that a check may remove its own.
        let above = scratch.path().join("here");
        let root = above.join("work");
        fs::create_dir_all(&root).map_err(failed)?;
        let (recorded, ending) = process::record(&launch(&root), &root)?;
        if !root.is_dir() {
            return Err(RecordError::Refused {
                call: "rmdir".into(),
                why: "the workload deleted or replaced its own directory".into(),
            });
        }
        // States stand there from now on.
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
        let stands = Stands { recording, scratch, here: above, mounted, _made: None };
        Ok(Self { ending, stands, end: tree, points })
    }

    /// What a run that crashes at this point would have said; none beyond the end, where only
    /// another run can tell.
    pub(crate) fn executed(&self, target: usize) -> Option<Executed> {
        if let Some(passed) = self.points.get(target - 1) {
            let messages = self.ending.messages.iter().scan(0, |seen, message| {
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
                trace: Trace::of(&messages),
                state: Some(State((digest >> 64) as u64, digest as u64)),
            });
        }
        (target == self.points.len() + 1).then(|| Executed {
            result: verdict::execution(&self.ending, target),
            trace: Trace::of(&self.ending.messages),
            state: None,
        })
    }

    /// Puts up what a crash at this point left.
    pub(crate) fn stand(&self, target: usize) -> io::Result<Stand> {
        let (tree, acks) = match self.points.get(target - 1) {
            Some(passed) => (&passed.tree, passed.acks),
            None => (&self.end, usize::MAX),
        };
        self.stands.put_up(&format!("run_{target}"), tree, acks)
    }
}

impl Stands {
    /// For states of a log whose directory may not exist any more.
    pub(crate) fn replayed(recording: Recording) -> io::Result<Self> {
        let scratch = ScratchDir::new(None)?;
        let here = recording.root.parent().unwrap_or(Path::new("/")).to_owned();
        let above = here.parent().filter(|above| !above.exists());
        let made = above.map(|above| ScratchDir::adopt(above.to_owned()));
        let mounted = try_mount(scratch.path(), &here).is_ok();
        Ok(Self { recording, scratch, here, mounted, _made: made })
    }

    /// Puts up a state, with so many of the promises.
    pub(crate) fn put_up(&self, name: &str, tree: &Tree, acks: usize) -> io::Result<Stand> {
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
            self.mounted.then(|| MountNamespace::new(&above, &self.here)).transpose()?;
        let seen = if self.mounted { root.clone() } else { directory.clone() };
        Ok(Stand { above, directory, seen, acks: file, namespace })
    }
}

impl Stand {
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
