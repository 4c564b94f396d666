//! Tries a finding on a real file system: the program's operations are repeated there, the file system
//! crashes at the moment that the finding names, and the remaining state is checked.
//!
//! The model says what a crash may leave; this shows what one did leave. Not reproducing a finding proves
//! nothing: which pages are written before a crash is a matter of luck.

pub mod loop_disk;
mod real_replay;

use std::io;
use std::path::Path;
use std::time::Duration;

use retake_crash::model::{FailureKind, Model, Tree};
use retake_crash::operation::{Action, Content, Entry, Recording};
use retake_engine::{Command, LiveOutput, ProcessEvent, Variable};
use retake_runner::head_tail::HeadTail;
use retake_runner::prepare::{self, ConfiguredLaunch};
use retake_runner::signals;
use retake_types::Outcome;
use retake_types::loop_record::crash::CrashFinding;

use crate::check::{Check, CheckError, CheckOutcome, FailedCheck};
use crate::check_worker::{CheckInput, CheckWorkers};
use crate::exploration::acks;
use crate::scratch::StateScratch;
use loop_disk::{DiskError, LoopDisk};
use real_replay::{Pushes, Random, RealReplay};

/// The size of an image besides the written data: the journal, and spare space.
const ROOM: u64 = 96 << 20;
/// The minimum that `mkfs.xfs` accepts.
const XFS_LEAST: u64 = 384 << 20;
/// Time limit of mkfs.
const MKFS: Duration = Duration::from_secs(60);

/// What to try.
pub struct Confirmation<'a> {
    pub recording: &'a Recording,
    pub finding: &'a CrashFinding,
    pub model: Model,
    pub check: &'a Check,
    /// Maximum number of crashes.
    pub tries: u64,
    /// Called before each crash with the number of previous ones.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// The result of the tries.
#[derive(Debug)]
pub enum Confirmed {
    /// The check failed as it does in the finding.
    Seen { tries: u64, failed: FailedCheck },
    NotSeen {
        tries: u64,
        /// How often the check failed in a different way.
        otherwise: u64,
    },
}

/// Why a finding cannot be tried here.
#[derive(Debug, thiserror::Error)]
pub enum NotConfirmable {
    #[error(
        "in the model kill nothing is lost: the state is what the recording has at this operation"
    )]
    Kill,
    #[error("{0} is a set of rules and no file system; findings of ext4 and xfs can be tried")]
    NoFileSystem(Model),
    #[error("a {0} cannot be crashed on purpose: Linux has no call that shuts one down")]
    NoShutdown(Model),
    #[error("its crash comes during recovery")]
    Recovery,
    #[error("it is about a call that failed and not about a crash")]
    Fault,
    #[error("only root may mount a file system")]
    NotRoot,
    #[error("mkfs.{kind}: {why}")]
    NoMkfs { kind: &'static str, why: String },
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("the operations cannot be repeated: {0}")]
    Replay(io::Error),
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// The file system of a model, and its mount options.
fn file_system(model: Model) -> Result<(&'static str, &'static str), NotConfirmable> {
    match model {
        Model::Kill => Err(NotConfirmable::Kill),
        Model::Ext4 => Ok(("ext4", "")),
        Model::Ext4DioreadLock => Ok(("ext4", "dioread_lock")),
        Model::Ext4NoDelayedAllocation => Ok(("ext4", "nodelalloc")),
        Model::Ext4DataJournal => Ok(("ext4", "data=journal")),
        Model::Xfs => Ok(("xfs", "")),
        Model::Btrfs => Err(NotConfirmable::NoShutdown(model)),
        Model::Posix => Err(NotConfirmable::NoFileSystem(model)),
    }
}

impl Confirmation<'_> {
    /// Crashes file systems until the finding is seen, `tries` are used up, or a signal comes.
    pub fn run(&self, workers: &mut CheckWorkers) -> Result<Confirmed, NotConfirmable> {
        let (kind, options) = file_system(self.model)?;
        if self.finding.fault.is_some() {
            return Err(NotConfirmable::Fault);
        }
        if self.finding.recovery {
            return Err(NotConfirmable::Recovery);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(NotConfirmable::NotRoot);
        }
        let scratch = StateScratch::new(&self.recording.root, 2 * self.recording.largest_state())
            .map_err(NotConfirmable::Replay)?;
        let image = scratch.path().join("image");
        let least = if kind == "xfs" { XFS_LEAST } else { 0 };
        let size = ROOM + 2 * written(self.recording);
        loop_disk::create_image(&image, size.max(least))?;
        make_file_system(workers, kind, &image)?;
        let mount_point = scratch.path().join("mount");
        std::fs::create_dir(&mount_point).map_err(NotConfirmable::Replay)?;
        // A thread, for its own mount namespace.
        std::thread::scope(|scope| {
            let tried = scope.spawn(|| {
                loop_disk::enter_own_namespace()?;
                let mut disk = LoopDisk::mount(&image, &mount_point, kind, options)?;
                self.try_all(&mut disk, &mount_point, workers)
            });
            match tried.join() {
                Ok(confirmed) => confirmed,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    fn try_all(
        &self,
        disk: &mut LoopDisk,
        mount_point: &Path,
        workers: &mut CheckWorkers,
    ) -> Result<Confirmed, NotConfirmable> {
        let worker = &mut workers.workers[0];
        let all = acks(self.recording);
        let given = &all[..self.finding.acknowledgements.min(all.len())];
        let wanted = FailureKind::new(&self.finding.verdict, &self.finding.output);
        let (mut tries, mut otherwise) = (0, 0);
        while tries < self.tries && signals::received().is_none() {
            (self.progress)(tries);
            let pushes = match tries % 6 {
                0 => Pushes::None,
                1 => Pushes::CommitAtEnd,
                2 => Pushes::WriteAndCommitAtEnd,
                _ => Pushes::Random,
            };
            let mut random = Random((tries + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            tries += 1;
            let replay =
                RealReplay::new(mount_point, self.recording).map_err(NotConfirmable::Replay)?;
            let root = replay
                .run(self.recording, self.finding.operation, pushes, &mut random)
                .map_err(NotConfirmable::Replay)?;
            disk.crash()?;
            let tree: Tree =
                retake_crash::recorder::tree_of(&root).map_err(NotConfirmable::Replay)?;
            let label = self.finding.label.as_deref();
            let input =
                CheckInput { tree: &tree, operation: self.finding.operation, label, acks: given };
            match worker.check(self.check, input)? {
                CheckOutcome::Passed => {}
                CheckOutcome::Cancelled => break,
                CheckOutcome::Failed(_) if signals::received().is_some() => break,
                CheckOutcome::Failed(failed) if failed.kind() == wanted => {
                    return Ok(Confirmed::Seen { tries, failed });
                }
                CheckOutcome::Failed(_) => otherwise += 1,
            }
        }
        Ok(Confirmed::NotSeen { tries, otherwise })
    }
}

/// How many bytes a recording writes to a disk, at most.
fn written(recording: &Recording) -> u64 {
    let before = recording.initial.iter().map(|one| match &one.content {
        Content::File { extents, .. } => extents.iter().map(|(_, data)| data.len() as u64).sum(),
        _ => 0,
    });
    let since = recording.entries.iter().map(|entry| match entry {
        Entry::Operation(operation) => match &operation.action {
            Action::Write { data, .. } => data.len() as u64,
            Action::Allocate { length, .. } => *length,
            _ => 0,
        },
        _ => 0,
    });
    // Each entry also takes a block or two for its inode and its name.
    let entries = (recording.entries.len() + recording.initial.len()) as u64 * 8192;
    before.chain(since).sum::<u64>() + entries
}

fn make_file_system(
    workers: &mut CheckWorkers,
    kind: &'static str,
    image: &Path,
) -> Result<(), NotConfirmable> {
    let failed = |why: String| NotConfirmable::NoMkfs { kind, why };
    let program = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join(format!("mkfs.{kind}")))
        .find(|path| path.exists())
        .ok_or_else(|| failed("is not installed".to_owned()))?;
    let mut arguments = vec![program.into_os_string()];
    let block_size = if kind == "xfs" { "size=4096" } else { "4096" };
    arguments.extend(["-q", "-b", block_size].map(Into::into));
    arguments.push(image.into());
    let request = Check::request("", "/", MKFS);
    let mut environment = Variable::all_own();
    environment.retain(|known| known.name() == "PATH");
    let mut launch = prepare::launch(&request, environment, ConfiguredLaunch::default(), None);
    launch.arguments = arguments;
    let command = Command::new(launch).map_err(CheckError::Refused)?;
    let mut output = HeadTail::new(1024);
    let outcome = workers.workers[0].run(&command, LiveOutput::default(), &mut |event| {
        if let ProcessEvent::Output { bytes, .. } = event {
            output.push(bytes);
        }
    });
    match outcome {
        Outcome::Exited(0) => Ok(()),
        _ => Err(failed(String::from_utf8_lossy(&output.finish()).trim().to_owned())),
    }
}
