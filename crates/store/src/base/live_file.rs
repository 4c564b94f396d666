//! Live files: the proof that the runner of a run or of a loop is alive.
//!
//! A runner holds an exclusive lock on `live/<run>` or `live/<loop>.loop` while it works. An
//! unlocked file belongs to a dead runner. The file of a loop holds the name of the host, because
//! this host cannot see locks taken on another machine; an intent names its host itself, so the
//! files of runs are empty. A process that sees the runner of a run die sets the file's length to
//! 1: the time of that change is the time of death.
//!
//! A program that records many runs reuses one file for all of them: renaming it twice takes half
//! the time of creating and removing one. Between two runs it is named `live/<run>.idle` after the
//! last run, which no reader takes for a run.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::{LoopId, RunId};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::dir::{StoreDir, remove};
use super::file_lock::{try_lock, try_lock_shared};
use super::reserve;
use crate::{Error, Result};

/// Milliseconds that a new run or loop waits for its live file.
const PATIENCE: u32 = 500;
/// The suffix of a loop's live file: ids of runs and loops look the same.
const LOOP_SUFFIX: &str = ".loop";
/// The suffix of a file that waits for the next run.
const IDLE_SUFFIX: &str = ".idle";

/// What has a live file.
pub(crate) trait LiveId: Copy + Display {
    fn file_name(self) -> String;
    fn parse_file_name(name: &str) -> Option<Self>;
    /// What the file says about its holder.
    fn content(self) -> String;
    /// The error for an id that a live runner already uses.
    fn in_use(self) -> Error;
}

impl LiveId for RunId {
    fn file_name(self) -> String {
        self.to_string()
    }

    fn parse_file_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    fn content(self) -> String {
        String::new()
    }

    fn in_use(self) -> Error {
        Error::Duplicate { id: self }
    }
}

impl LiveId for LoopId {
    fn file_name(self) -> String {
        format!("{self}{LOOP_SUFFIX}")
    }

    fn parse_file_name(name: &str) -> Option<Self> {
        name.strip_suffix(LOOP_SUFFIX)?.parse().ok()
    }

    fn content(self) -> String {
        host_name()
    }

    fn in_use(self) -> Error {
        Error::LoopRunning { id: self }
    }
}

/// Held for the life of a run or a loop.
#[derive(Debug)]
pub(crate) struct LiveFile {
    path: PathBuf,
    file: File,
    /// Its name as a spare file, which it gets back.
    spare: Option<PathBuf>,
}

/// The locked file of a live runner between two runs.
#[derive(Debug)]
pub(crate) struct IdleFile {
    path: PathBuf,
    file: File,
}

impl IdleFile {
    /// Turns it into the live file of a new run. `None` if that fails: another runner may use the
    /// id, or the record may be gone.
    pub(crate) fn take(self, dir: &StoreDir, id: RunId) -> Option<LiveFile> {
        let path = dir.live_dir().join(id.file_name());
        match renameat_with(CWD, &self.path, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => Some(LiveFile { path, file: self.file, spare: None }),
            Err(_) => {
                self.remove();
                None
            }
        }
    }

    /// Removes the file while the lock is still held.
    pub(crate) fn remove(self) {
        // A remaining file is removed by the next recovery.
        drop(remove(&self.path));
    }
}

/// What a live file says about its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// A runner holds the live file, or may hold it on another host.
    Alive,
    /// The runner died.
    Dead,
    /// There is no live file: the loop has ended, or an earlier release recorded it.
    Unknown,
}

impl LiveFile {
    /// Creates and locks the live file of a new run or loop, or of a resumed loop.
    pub(crate) fn take(dir: &StoreDir, id: impl LiveId) -> Result<Self> {
        let path = dir.live_dir().join(id.file_name());
        let (mut patience, mut spare) = (PATIENCE, None);
        loop {
            let mut file = match dir.create_private(&path) {
                Err(full @ Error::DiskFull { .. }) => {
                    spare = Some(reserve::take_spare_file(dir, &path).ok_or(full)?);
                    dir.create_private(&path)?
                }
                file => file?,
            };
            if !try_lock(&file).map_err(|error| Error::io("lock", &path, error))? {
                // A reader's probe lasts microseconds; a longer lock is a runner with this id.
                if patience == 0 {
                    return Err(id.in_use());
                }
                patience -= 1;
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let metadata = file.metadata().map_err(|error| Error::io("look at", &path, error))?;
            // Between creating and locking, a recovery took the file for that of a dead runner.
            if metadata.nlink() == 0 {
                continue;
            }
            let content = id.content();
            if !content.is_empty() {
                file.set_len(0)
                    .and_then(|()| file.write_all(content.as_bytes()))
                    .map_err(|error| Error::io("write", &path, error))?;
            }
            return Ok(Self { path, file, spare });
        }
    }

    /// Takes over the file of a dead runner; `None` if the runner is alive or on another host, or
    /// the file is gone.
    pub(crate) fn adopt(dir: &StoreDir, id: impl LiveId) -> Result<Option<Self>> {
        Self::adopt_at(dir.live_dir().join(id.file_name()), id)
    }

    fn adopt_at(path: PathBuf, id: impl LiveId) -> Result<Option<Self>> {
        let failed = |error| Error::io("lock", &path, error);
        let mut file =
            match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
        if !try_lock(&file).map_err(failed)? {
            return Ok(None);
        }
        let linked = file.metadata().map_err(failed)?.nlink() > 0;
        let here = linked && of_this_host(&mut file, id).map_err(failed)?;
        Ok(here.then_some(Self { path, file, spare: None }))
    }

    /// The same file without the lock, for a witness of the runner's death.
    pub(crate) fn death_mark(&self) -> io::Result<File> {
        // A witness of an earlier run with this file may have marked it.
        if self.file.metadata()?.len() > 0 {
            self.file.set_len(0)?;
        }
        OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)
    }

    /// Keeps the file and the lock for the next run of this program. Returns the live file if that
    /// fails.
    pub(crate) fn idle(self) -> Result<IdleFile, Self> {
        let mut path = self.path.clone().into_os_string();
        path.push(IDLE_SUFFIX);
        if self.spare.is_none() && std::fs::rename(&self.path, &path).is_ok() {
            return Ok(IdleFile { path: path.into(), file: self.file });
        }
        Err(self)
    }

    /// Removes the file while locked, so that it never looks like a death.
    pub(crate) fn release(self) -> Result<()> {
        if let Some(spare) = &self.spare
            && self.file.set_len(0).and_then(|()| std::fs::rename(&self.path, spare)).is_ok()
        {
            return Ok(());
        }
        remove(&self.path)
    }
}

/// Crash loops with a dead runner, recorded by releases that kept their live files in a separate
/// directory; with these files.
pub(crate) fn dead_crash_loops(dir: &StoreDir) -> Result<Vec<(LoopId, LiveFile)>> {
    let directory = dir.root().join("crash");
    let mut dead = Vec::new();
    for name in file_names(&directory)? {
        let Some(id) = name.strip_suffix(".live").and_then(|id| id.parse::<LoopId>().ok()) else {
            continue; // the log of a crash test
        };
        dead.extend(LiveFile::adopt_at(directory.join(name), id)?.map(|file| (id, file)));
    }
    Ok(dead)
}

/// Whether the holder named in a live file ran on this host.
fn of_this_host(file: &mut File, id: impl LiveId) -> io::Result<bool> {
    let expected = id.content();
    if expected.is_empty() {
        return Ok(true);
    }
    let mut host = Vec::new();
    file.take(4096).read_to_end(&mut host)?;
    // A runner that died before writing its host's name recorded nothing either.
    Ok(host.is_empty() || host == expected.as_bytes())
}

fn host_name() -> String {
    // Without /proc all hosts have the same name, and the locks alone decide.
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// The runs with a live file: running ones, and those whose runner died.
pub(crate) fn live_runs(dir: &StoreDir) -> Result<Vec<RunId>> {
    LiveNames::read(dir).map(|names| names.ids())
}

/// The loops with a live file: running ones, and those whose runner died.
pub(crate) fn live_loops(dir: &StoreDir) -> Result<Vec<LoopId>> {
    LiveNames::read(dir).map(|names| names.ids())
}

/// A snapshot of the names of all live files.
pub(crate) struct LiveNames(Vec<String>);

impl LiveNames {
    pub(crate) fn read(dir: &StoreDir) -> Result<Self> {
        file_names(&dir.live_dir()).map(Self)
    }

    /// The runs or loops among them. Other names are ignored.
    pub(crate) fn ids<Id: LiveId>(&self) -> Vec<Id> {
        self.0.iter().filter_map(|name| Id::parse_file_name(name)).collect()
    }

    /// Removes the idle files of dead runners.
    pub(crate) fn remove_idle(&self, dir: &StoreDir) -> Result<()> {
        for name in self.0.iter().filter(|name| name.ends_with(IDLE_SUFFIX)) {
            let path = dir.live_dir().join(name);
            // A missing file was taken by a run. A file that cannot be opened must not prevent a
            // new run.
            let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path)
            else {
                continue;
            };
            if try_lock(&file).map_err(|error| Error::io("lock", &path, error))? {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

/// Empty for a directory that does not exist.
fn file_names(directory: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io("read", directory, error);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Examines a live file without writing.
pub(crate) fn liveness(dir: &StoreDir, id: impl LiveId) -> Liveness {
    let Ok(mut file) = File::open(dir.live_dir().join(id.file_name())) else {
        // The file is missing or unreadable.
        return Liveness::Unknown;
    };
    // A shared probe cannot be mistaken for a runner, whose lock is exclusive.
    let free = try_lock_shared(&file).unwrap_or(false);
    if free && of_this_host(&mut file, id).unwrap_or(false) {
        Liveness::Dead
    } else {
        Liveness::Alive
    }
}

/// Whether the runner of a run is alive, or may be alive on another machine.
pub(crate) fn run_is_alive(dir: &StoreDir, id: RunId) -> bool {
    match liveness(dir, id) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        // A run sent to another machine has a marker instead of a live file.
        Liveness::Unknown => dir.is_remote_run(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, StoreDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = StoreDir::new(temp.path());
        (temp, dir)
    }

    #[test]
    fn a_live_file_is_seen_by_a_probe_and_cannot_be_adopted() {
        let (_temp, dir) = store();
        let id = RunId::new();
        assert!(!run_is_alive(&dir, id));
        let live = LiveFile::take(&dir, id).unwrap();
        assert!(run_is_alive(&dir, id));
        assert!(LiveFile::adopt(&dir, id).unwrap().is_none());
        drop(live);
        assert!(!run_is_alive(&dir, id));
        let adopted = LiveFile::adopt(&dir, id).unwrap().unwrap();
        adopted.release().unwrap();
        assert!(LiveFile::adopt(&dir, id).unwrap().is_none());
    }

    #[test]
    fn an_idle_live_file_belongs_to_no_run() {
        let (_temp, dir) = store();
        let (first, second) = (RunId::new(), RunId::new());
        let idle = LiveFile::take(&dir, first).unwrap().idle().unwrap();
        assert!(!run_is_alive(&dir, first));
        assert_eq!(live_runs(&dir).unwrap(), []);
        // Its runner lives: it stays.
        LiveNames::read(&dir).unwrap().remove_idle(&dir).unwrap();
        let live = idle.take(&dir, second).unwrap();
        assert!(run_is_alive(&dir, second) && !run_is_alive(&dir, first));
        assert!(LiveFile::adopt(&dir, second).unwrap().is_none());
        // The witness of an earlier run marked it.
        live.file.set_len(1).unwrap();
        live.death_mark().unwrap();
        assert_eq!(live.file.metadata().unwrap().len(), 0);
        drop(live.idle().unwrap());
        LiveNames::read(&dir).unwrap().remove_idle(&dir).unwrap();
        assert_eq!(file_names(&dir.live_dir()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn an_idle_file_does_not_take_the_place_of_another_runners() {
        let (_temp, dir) = store();
        let id = RunId::new();
        let live = LiveFile::take(&dir, id).unwrap();
        let idle = LiveFile::take(&dir, RunId::new()).unwrap().idle().unwrap();
        assert!(idle.take(&dir, id).is_none());
        assert_eq!(file_names(&dir.live_dir()).unwrap(), [id.to_string()]);
        assert!(run_is_alive(&dir, id));
        drop(live);
        assert!(!run_is_alive(&dir, id), "the lock was that of the file that stays");
    }

    #[test]
    fn runs_and_loops_have_files_of_their_own() {
        let (_temp, dir) = store();
        let (run, series) = (RunId::new(), LoopId::new());
        let _run = LiveFile::take(&dir, run).unwrap();
        let _series = LiveFile::take(&dir, series).unwrap();
        assert_eq!(live_runs(&dir).unwrap(), [run]);
        assert_eq!(live_loops(&dir).unwrap(), [series]);
        let error = LiveFile::take(&dir, series).unwrap_err();
        assert!(matches!(error, Error::LoopRunning { id } if id == series), "{error}");
    }

    #[test]
    fn the_loop_of_another_host_is_not_judged() {
        let (_temp, dir) = store();
        let id = LoopId::new();
        drop(LiveFile::take(&dir, id).unwrap());
        assert_eq!(liveness(&dir, id), Liveness::Dead);
        std::fs::write(dir.live_dir().join(id.file_name()), "other.example").unwrap();
        assert_eq!(liveness(&dir, id), Liveness::Alive);
        assert!(LiveFile::adopt(&dir, id).unwrap().is_none());
    }
}
