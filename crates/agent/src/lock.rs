//! One loop per workspace: a file lock that the kernel gives up when its holder dies.
//!
//! The file's content only names the holder. A process forked while the lock is held shares it,
//! so helpers that live on must be forked before.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::workspace::{Workspace, milliseconds};

const MOMENT: Duration = Duration::from_millis(200);

/// Who holds a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    /// What it does, such as `run`.
    pub command: String,
    pub since: Timestamp,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, host, command, since } = self;
        write!(f, "`retake agent {command}` (pid {pid} on {host}, since {since})")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("Workspace {name} is in use by {}", holder_or_unknown(.holder))]
    Held { name: String, holder: Option<Box<Holder>> },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
}

fn holder_or_unknown(holder: &Option<Box<Holder>>) -> String {
    holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string)
}

/// Held until dropped, or until the process dies.
#[derive(Debug)]
pub struct Lock {
    file: File,
    /// What was left of a holder that died.
    abandoned: Option<Holder>,
}

impl Lock {
    pub fn acquire(workspace: &Workspace, host: &str, command: &str) -> Result<Self, LockError> {
        let path = path(workspace.dir());
        let failed = |error| LockError::Io { path: path.clone(), error };
        let asked = Instant::now();
        loop {
            let mut file = open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                // Whoever only asks who holds it holds it for a moment.
                Err(TryLockError::WouldBlock) if asked.elapsed() < MOMENT => {
                    std::thread::sleep(MOMENT / 10);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    let name = workspace.name().to_string();
                    return Err(LockError::Held { name, holder: read(&mut file).map(Box::new) });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            // The workspace may have been moved away or replaced meanwhile.
            let ours = file.metadata().map_err(failed)?;
            match std::fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
                Ok(_) => continue,
                Err(error) => return Err(failed(error)),
            }
            let abandoned = read(&mut file);
            let holder = Holder {
                pid: std::process::id(),
                host: host.to_owned(),
                command: command.to_owned(),
                since: milliseconds(Timestamp::now()),
            };
            write(&mut file, &serde_json::to_vec(&holder).unwrap_or_default()).map_err(failed)?;
            return Ok(Self { file, abandoned });
        }
    }

    /// Who holds a workspace now, if anyone does.
    pub fn holder(workspace: &Workspace) -> Option<Holder> {
        let mut file = OpenOptions::new().read(true).open(path(workspace.dir())).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(read(&mut file).unwrap_or_else(|| Holder {
                pid: 0,
                host: "unknown".to_owned(),
                command: "unknown".to_owned(),
                since: Timestamp::UNIX_EPOCH,
            })),
            _ => None,
        }
    }

    /// Who held it before and died without giving it back.
    pub fn abandoned(&self) -> Option<&Holder> {
        self.abandoned.as_ref()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // An empty file says that its holder left in good order. If that cannot be written, the
        // next one reports a death that was none, which costs nothing.
        let _ = self.file.set_len(0);
        // A fork that is about to start a program has this descriptor, too, for a moment.
        let _ = self.file.unlock();
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(".lock")
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn read(file: &mut File) -> Option<Holder> {
    file.rewind().ok()?;
    let mut text = Vec::new();
    Read::take(file, 4096).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

fn write(file: &mut File, text: &[u8]) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(text)
}
