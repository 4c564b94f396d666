//! Which crash tests are alive: each holds a lock on a file beside the record for as long as it
//! runs. The kernel lets go when the holder dies, however it dies, and whoever comes next ends the
//! loop in its place.
//!
//! Keepers are forks and hold the lock as well, for the moment by which they outlive their runner.

use retake_runner::terminal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use retake_store::{Error, Store};
use retake_types::LoopId;

use retake_runner::project;

const LIVE: &str = "live";

/// Held until dropped, or until the process dies.
pub struct Life {
    path: PathBuf,
    _file: File,
}

/// Where the crash tests of a record keep what is theirs.
pub fn directory(record: &Path) -> PathBuf {
    record.join("crash")
}

impl Life {
    /// Before the loop is on the record: one without a lock would be taken for dead.
    pub fn begin(record: &Path, id: LoopId) -> io::Result<Self> {
        let directory = directory(record);
        let path = directory.join(format!("{id}.{LIVE}"));
        let make = || {
            fs::create_dir_all(&directory)?;
            OpenOptions::new().write(true).create_new(true).open(&path)
        };
        // Another one that ends may take the empty directory away in between.
        let mut file = make().or_else(|_| make())?;
        file.lock()?;
        // Nobody judges a file that does not say whose it is yet.
        file.write_all(project::host().as_bytes())?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next one.
        drop(remove(&self.path));
    }
}

/// With the directory, if nothing else is in it.
fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), fs::remove_dir)
}

/// A lock whose holder died; ours for as long as this is held.
struct Dead {
    id: LoopId,
    path: PathBuf,
    _file: File,
}

fn dead(record: &Path) -> Vec<Dead> {
    let Ok(entries) = fs::read_dir(directory(record)) else { return Vec::new() };
    let dead = |path: PathBuf| {
        let id = path.file_name()?.to_str()?.strip_suffix(LIVE)?.strip_suffix('.')?.parse().ok()?;
        let mut file = File::open(&path).ok()?;
        let mut host = String::new();
        Read::by_ref(&mut file).take(4096).read_to_string(&mut host).ok()?;
        // A lock of another machine says nothing here.
        let free = host == project::host() && file.try_lock().is_ok();
        free.then_some(Dead { id, path, _file: file })
    };
    entries.flatten().filter_map(|entry| dead(entry.path())).collect()
}

/// Ends the loops whose runner died. Costs one directory read when there is nothing to do.
pub fn bury(store: &mut Store) {
    for Dead { id, path, _file } in dead(store.path()) {
        let ended = match store.get_loop(id) {
            Ok(record) if record.stop_reason.is_none() => {
                terminal::say(&format!("crash test {} was interrupted, its runner died", id.short()));
                store.update_loop(id, "finished", Some(("interrupted", Timestamp::now())))
            }
            // It died before it was on the record, or after it had ended there.
            Ok(_) | Err(Error::NoLoop { .. }) => Ok(()),
            Err(error) => Err(error),
        };
        match ended {
            // What cannot be removed is looked at again, and found to have ended.
            Ok(()) => drop(remove(&path)),
            Err(error) => {
                terminal::say(&format!("crash test {} could not be marked: {error}", id.short()));
            }
        }
    }
}

/// The same for commands that only read. Where nothing may be written it is left to one that may.
pub fn tend(store: &Store) {
    if !dead(store.path()).is_empty()
        && let Ok(mut store) = Store::open(store.path())
    {
        bury(&mut store);
    }
}
