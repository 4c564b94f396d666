//! How `stop`, `pause`, `resume` and `tell` reach a loop in another process: through a directory of
//! small files next to the workspace's lock.
//!
//! A message belongs to the iteration that takes it, and is deleted when that iteration has ended.
//! If the iteration is interrupted, the next one gets the message. It is stored unredacted, because
//! the agent must receive it exactly; only the owner can read its file. The prompt that contains it
//! is recorded without secrets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::files;
use crate::plan::Requests;
use crate::workspace::Workspace;

/// The maximum length of a message, and how many may wait.
const LONGEST: usize = 64 << 10;
const MOST: usize = 1000;

const STOP_NOW: &str = "stop-now";

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the message is empty")]
    Empty,
    #[error("the message is longer than {LONGEST} bytes")]
    Long,
    #[error("{MOST} messages are waiting already")]
    Many,
}

/// The requests to one workspace.
#[derive(Clone, Debug)]
pub struct Mailbox {
    dir: PathBuf,
}

impl Mailbox {
    pub fn of(workspace: &Workspace) -> Result<Self, ControlError> {
        workspace.make_loop_state_dir().map_err(at(workspace.loop_state_dir()))?;
        let dir = workspace.loop_state_dir().join("control");
        std::fs::create_dir_all(&dir).map_err(at(&dir))?;
        Ok(Self { dir })
    }

    /// The requests to a workspace that may never have run; creates nothing.
    pub fn existing(workspace: &Workspace) -> Option<Self> {
        let dir = workspace.loop_state_dir().join("control");
        dir.is_dir().then_some(Self { dir })
    }

    /// The directory to watch for requests.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A loop begins: a stop or pause for an earlier one is discarded, and messages that an
    /// interrupted iteration took wait again.
    pub fn begin(&self) -> Result<(), ControlError> {
        self.end()?;
        for (path, name) in self.files("taken-")? {
            if let Some((_, rest)) = name.trim_start_matches("taken-").split_once('-') {
                let back = self.dir.join(format!("tell-{rest}"));
                std::fs::rename(&path, back).map_err(at(&path))?;
            }
        }
        Ok(())
    }

    pub fn stop(&self) -> Result<(), ControlError> {
        self.put("stop", b"")
    }

    /// Requests an immediate end, even during an iteration.
    pub fn stop_now(&self) -> Result<(), ControlError> {
        self.put(STOP_NOW, b"")
    }

    pub fn pause(&self) -> Result<(), ControlError> {
        self.put("pause", b"")
    }

    pub fn resume(&self) -> Result<(), ControlError> {
        self.remove("pause")
    }

    /// Leaves a message for the next prompt.
    pub fn tell(&self, message: &str, unix_nanos: i128) -> Result<(), ControlError> {
        if message.trim().is_empty() {
            return Err(ControlError::Empty);
        }
        if message.len() > LONGEST {
            return Err(ControlError::Long);
        }
        if self.files("tell-")?.len() >= MOST {
            return Err(ControlError::Many);
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        self.put(&format!("tell-{unix_nanos:020}.{pid}.{count:06}"), message.as_bytes())
    }

    /// The current requests.
    pub fn requests(&self) -> Requests {
        let there = |name: &str| self.dir.join(name).symlink_metadata().is_ok();
        let stop_now = there(STOP_NOW);
        Requests { stop: there("stop"), stop_now, pause: there("pause"), interrupt: false }
    }

    /// Waiting messages, oldest first; for display.
    pub fn waiting(&self) -> Result<Vec<String>, ControlError> {
        self.files("tell-")?.into_iter().map(|(path, _)| text(&path)).collect()
    }

    /// Takes all waiting messages for an iteration, oldest first. A second attempt at the same
    /// iteration gets them again.
    pub fn take(&self, iteration: u32) -> Result<Vec<String>, ControlError> {
        for (path, name) in self.files("tell-")? {
            let rest = name.trim_start_matches("tell-");
            let taken = self.dir.join(format!("taken-{iteration:010}-{rest}"));
            match std::fs::rename(&path, taken) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(&path)(error)),
            }
        }
        let taken = self.files(&format!("taken-{iteration:010}-"))?;
        taken.into_iter().map(|(path, _)| text(&path)).collect()
    }

    /// The iteration has ended: deletes the messages it took.
    pub fn discard_taken(&self, iteration: u32) -> Result<(), ControlError> {
        for (path, _) in self.files(&format!("taken-{iteration:010}-"))? {
            remove(&path)?;
        }
        Ok(())
    }

    /// A loop has ended: deletes its stop request.
    pub fn end(&self) -> Result<(), ControlError> {
        self.remove(STOP_NOW)?;
        self.remove("stop")?;
        self.remove("pause")
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), ControlError> {
        let path = self.dir.join(name);
        files::replace_private(&path, content).map_err(at(&path))
    }

    fn remove(&self, name: &str) -> Result<(), ControlError> {
        remove(&self.dir.join(name))
    }

    fn files(&self, prefix: &str) -> Result<Vec<(PathBuf, String)>, ControlError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(at(&self.dir))? {
            let entry = entry.map_err(at(&self.dir))?;
            if let Some(name) = entry.file_name().to_str().filter(|name| name.starts_with(prefix)) {
                found.push((entry.path(), name.to_owned()));
            }
        }
        found.sort();
        Ok(found)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ControlError {
    let path = path.to_owned();
    move |error| ControlError::Io { path, error }
}

fn text(path: &Path) -> Result<String, ControlError> {
    let bytes = files::read(path, LONGEST as u64).map_err(at(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn remove(path: &Path) -> Result<(), ControlError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}
