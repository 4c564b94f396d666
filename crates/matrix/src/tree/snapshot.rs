//! Takes snapshots, and stores them on disk.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use retake_types::OsText;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::TreeError;
use super::walk::{self, Directory, EntryKind, EntryStat, NANOS};

/// The recorded state of a directory.
#[derive(Debug)]
pub struct TreeSnapshot {
    /// The directory itself, absolute.
    pub(super) root: PathBuf,
    /// The place of its copied files and the list of entries.
    pub(super) store: PathBuf,
    /// The directory with everything below it.
    pub(super) top: Entry,
    /// The names of each hard-linked file.
    pub(super) names: HashMap<u64, Vec<PathBuf>>,
    /// Whether the list differs from the one on disk.
    pub(super) changed: bool,
}

/// One entry of the directory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stat: EntryStat,
    /// The target of a symbolic link.
    pub(super) target: Option<PathBuf>,
    /// Entries with the same number were one hard-linked file.
    pub(super) group: u64,
    /// The entries of a directory.
    pub(super) children: BTreeMap<OsString, Entry>,
}

/// An entry in the list on disk; a directory precedes its entries.
#[derive(Serialize, Deserialize)]
struct Listed {
    path: OsText,
    stat: EntryStat,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<OsText>,
    group: u64,
}

const LIST: &str = "list.jsonl";
const FILES: &str = "files";

/// Maximum wait for the clock of the file system.
const CLOCK: i64 = 50_000_000;

impl TreeSnapshot {
    /// Copies a directory to `store`, which is recreated.
    pub fn take(root: &Path, store: &Path) -> Result<Self, TreeError> {
        remove_tree(store)?;
        fs::create_dir_all(store).map_err(TreeError::at(store))?;
        let stat = walk::stat(root)?.ok_or(io::ErrorKind::NotFound).map_err(TreeError::at(root))?;
        let mut newest = 0;
        let mut top = Entry::new(stat);
        list(root, &mut top, &mut newest)?;
        // Later writes can be distinguished from the copied state.
        wait_past(newest);
        let (root, store) = (root.to_owned(), store.to_owned());
        copy_below(&root, &store.join(FILES), &top)?;
        let names = names_of(&top);
        let mut snapshot = Self { root, store, top, names, changed: true };
        snapshot.save()?;
        Ok(snapshot)
    }

    pub(super) fn copy_of(&self, path: &Path) -> PathBuf {
        self.store.join(FILES).join(path)
    }

    /// Loads an earlier snapshot; `None` if there is no complete one.
    pub fn load(root: &Path, store: &Path) -> Option<Self> {
        let list = fs::File::open(store.join(LIST)).ok()?;
        let lines = serde_json::Deserializer::from_reader(BufReader::new(list));
        let mut top: Option<Entry> = None;
        for listed in lines.into_iter::<Listed>() {
            let Listed { path, stat, target, group } = listed.ok()?;
            let target = target.map(|target| PathBuf::from(target.into_os_string()));
            let entry = Entry { stat, target, group, children: BTreeMap::new() };
            match (&mut top, path.as_path().parent(), path.as_path().file_name()) {
                (None, None, None) => top = Some(entry),
                (Some(top), Some(parent), Some(name)) => {
                    let mut directory = top;
                    for part in parent {
                        directory = directory.children.get_mut(part)?;
                    }
                    directory.children.insert(name.to_owned(), entry);
                }
                _ => return None,
            }
        }
        let top = top?;
        let names = names_of(&top);
        let (root, store) = (root.to_owned(), store.to_owned());
        Some(Self { root, store, top, names, changed: false })
    }

    /// Saves what resets have changed, so that the next process need not find it again.
    pub fn save(&mut self) -> Result<(), TreeError> {
        if !self.changed {
            return Ok(());
        }
        let (list, new) = (self.store.join(LIST), self.store.join("list.new"));
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(fs::File::create(&new)?);
            write_list(&mut file, Path::new(""), &self.top)?;
            file.into_inner()?.sync_data()?;
            fs::rename(&new, &list)
        };
        write().map_err(TreeError::at(&list))?;
        self.changed = false;
        Ok(())
    }
}

impl Entry {
    fn new(stat: EntryStat) -> Self {
        Self { stat, target: None, group: stat.inode, children: BTreeMap::new() }
    }
}

fn list(path: &Path, directory: &mut Entry, newest: &mut i64) -> Result<(), TreeError> {
    for (name, stat) in Directory::open(path)?.entries(path)? {
        let mut entry = Entry::new(stat);
        *newest = stat.ctime.max(*newest);
        let path = path.join(&name);
        match stat.kind {
            EntryKind::Symlink => {
                entry.target = Some(fs::read_link(&path).map_err(TreeError::at(&path))?);
            }
            EntryKind::Directory => list(&path, &mut entry, newest)?,
            EntryKind::File | EntryKind::Fifo | EntryKind::Other => {}
        }
        directory.children.insert(name, entry);
    }
    Ok(())
}

fn copy_below(from: &Path, to: &Path, directory: &Entry) -> Result<(), TreeError> {
    fs::create_dir(to).map_err(TreeError::at(to))?;
    for (name, entry) in &directory.children {
        let (from, to) = (from.join(name), to.join(name));
        match entry.stat.kind {
            EntryKind::Directory => copy_below(&from, &to, entry)?,
            EntryKind::File => copy_file(&from, &to)?,
            EntryKind::Symlink | EntryKind::Fifo | EntryKind::Other => {}
        }
    }
    Ok(())
}

fn write_list(file: &mut impl Write, path: &Path, entry: &Entry) -> io::Result<()> {
    let listed = Listed {
        path: OsText::from(path),
        stat: entry.stat,
        target: entry.target.as_deref().map(OsText::from),
        group: entry.group,
    };
    serde_json::to_writer(&mut *file, &listed)?;
    file.write_all(b"\n")?;
    entry.children.iter().try_for_each(|(name, entry)| write_list(file, &path.join(name), entry))
}

/// The names of hard-linked files below this directory.
fn names_of(top: &Entry) -> HashMap<u64, Vec<PathBuf>> {
    fn collect(path: &Path, entry: &Entry, names: &mut HashMap<u64, Vec<PathBuf>>) {
        if entry.stat.kind == EntryKind::File && entry.stat.links > 1 {
            names.entry(entry.group).or_default().push(path.to_owned());
        }
        for (name, entry) in &entry.children {
            collect(&path.join(name), entry, names);
        }
    }
    let mut names = HashMap::new();
    collect(Path::new(""), top, &mut names);
    names.retain(|_, names| names.len() > 1);
    names
}

/// Waits until the clock of file timestamps has passed this one: older kernels update it once per
/// tick, and a file rewritten within a tick would look untouched.
pub(super) fn wait_past(stamp: i64) {
    let now = || {
        let time = clock_gettime(ClockId::RealtimeCoarse);
        time.tv_sec.saturating_mul(NANOS).saturating_add(time.tv_nsec)
    };
    // A timestamp in the future, as on a copied disk, is not awaited.
    let limit = now().saturating_add(CLOCK);
    while stamp <= limit && now() <= stamp {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Copies content and permissions; shares blocks if the file system supports that.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<(), TreeError> {
    fs::copy(from, to).map(drop).map_err(TreeError::at(from))
}

/// Removes a tree, even one that a command made read-only.
pub fn remove_tree(path: &Path) -> Result<(), TreeError> {
    match walk::stat(path)?.map(|stat| stat.kind) {
        None => Ok(()),
        Some(EntryKind::Directory) => {
            retake_runner::scratch_dir::remove(path).map_err(TreeError::at(path))
        }
        Some(_) => fs::remove_file(path).map_err(TreeError::at(path)),
    }
}
