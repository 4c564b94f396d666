//! Repeats the operations of a recording in a real directory, and triggers what the
//! kernel may do at any moment, such as writing pages back or committing its journal.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use retake_crash::model::Tree;
use retake_crash::operation::{Action, DirEntry, Entry, Kind, Node, Recording, WriteSync};

/// What the kernel is made to do in one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushes {
    /// Nothing: everything unsynced is lost.
    None,
    /// A commit of the journal right before the crash, without the bytes.
    CommitAtEnd,
    /// Writing bytes starts, and the journal is committed before they are written.
    WriteAndCommitAtEnd,
    /// Any of these at any moment.
    Random,
}

/// A small generator: the same seed gives the same sequence.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// A directory in which a recording is repeated.
pub(crate) struct RealReplay {
    root: PathBuf,
    /// Beside the root, on the same file system.
    noise: PathBuf,
    tree: Tree,
    /// Files that are open for writing.
    open: HashMap<Node, File>,
    commits: u64,
}

impl RealReplay {
    /// Creates the initial content of the recording in a new directory, and syncs it.
    pub(crate) fn new(mount_point: &Path, recording: &Recording) -> io::Result<Self> {
        let (root, noise) = (mount_point.join("root"), mount_point.join("noise"));
        for old in [&root, &noise] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
            fs::create_dir(old)?;
        }
        let tree = Tree::new(&recording.initial);
        retake_crash::materialise(&tree, &root)?;
        // SAFETY: an open descriptor.
        done(unsafe { libc::syncfs(File::open(mount_point)?.as_raw_fd()) })?;
        Ok(Self { root, noise, tree, open: HashMap::new(), commits: 0 })
    }

    /// Repeats the operations up to this one, triggers the kernel, and closes every file.
    pub(crate) fn run(
        mut self,
        recording: &Recording,
        operations: u32,
        pushes: Pushes,
        random: &mut Random,
    ) -> io::Result<PathBuf> {
        let all = recording.entries.iter().filter_map(|entry| match entry {
            Entry::Operation(operation) => Some(operation),
            _ => None,
        });
        for operation in all.take(operations as usize) {
            self.apply(&operation.action)?;
            self.tree.apply(&operation.action);
            if pushes == Pushes::Random && random.below(3) == 0 {
                self.push(random)?;
            }
        }
        match pushes {
            Pushes::None => {}
            Pushes::Random => self.push(random)?,
            Pushes::CommitAtEnd => self.commit()?,
            Pushes::WriteAndCommitAtEnd => {
                self.write_back(false);
                self.commit()?;
            }
        }
        Ok(self.root)
    }

    fn push(&mut self, random: &mut Random) -> io::Result<()> {
        for _ in 0..random.below(3) {
            match random.below(3) {
                0 => self.write_back(true),
                1 => self.write_back(false),
                _ => self.commit()?,
            }
        }
        Ok(())
    }

    /// Starts to write the bytes of all open files; sometimes waits for them.
    fn write_back(&self, wait: bool) {
        let flags = match wait {
            true => libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
            false => libc::SYNC_FILE_RANGE_WRITE,
        };
        let closed = self.tree.walk().filter_map(|found| {
            let file = self.tree.file(found.node)?;
            let is_closed = file.size() > 0 && !self.open.contains_key(&found.node);
            is_closed.then(|| File::open(self.root.join(&found.path)).ok())?
        });
        let closed: Vec<File> = closed.collect();
        for file in self.open.values().chain(&closed) {
            // Only an attempt: the kernel may refuse.
            // SAFETY: the descriptor is open.
            unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
        }
    }

    /// Committing a new file also commits everything in the journal.
    fn commit(&mut self) -> io::Result<()> {
        self.commits += 1;
        File::create(self.noise.join(self.commits.to_string()))?.sync_all()
    }

    fn path(&self, dir_entry: &DirEntry) -> io::Result<PathBuf> {
        let parent = self.tree.path(dir_entry.directory).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.root.join(parent).join(&dir_entry.name))
    }

    fn path_of(&self, node: Node) -> io::Result<PathBuf> {
        let path = self.tree.path(node).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.root.join(path))
    }

    /// A file, opened for writing if necessary; `None` if it has no name any more.
    fn file(&mut self, node: Node) -> io::Result<Option<&File>> {
        if !self.open.contains_key(&node) {
            let Ok(path) = self.path_of(node) else { return Ok(None) };
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            self.open.insert(node, file);
        }
        Ok(self.open.get(&node))
    }

    fn on_file(&mut self, node: Node, call: impl FnOnce(i32) -> i32) -> io::Result<()> {
        match self.file(node)? {
            Some(file) => done(call(file.as_raw_fd())),
            None => Ok(()),
        }
    }

    fn apply(&mut self, action: &Action) -> io::Result<()> {
        match action {
            Action::Create { node, mode, kind, dir_entry } => {
                self.create(*node, *mode, kind, dir_entry.as_ref())
            }
            Action::Write { node, offset, data, sync, .. } => {
                let sync = match sync {
                    WriteSync::None => 0,
                    WriteSync::Data => libc::RWF_DSYNC,
                    WriteSync::Full => libc::RWF_SYNC,
                };
                match self.file(*node)? {
                    Some(file) => write(file, *offset, data, sync),
                    None => Ok(()),
                }
            }
            Action::Truncate { node, size } => {
                // SAFETY: an open descriptor and plain numbers.
                self.on_file(*node, |fd| unsafe { libc::ftruncate(fd, *size as i64) })
            }
            Action::Allocate { node, offset, length, keep_size } => {
                let mode = if *keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                self.allocate(*node, mode, *offset, *length)
            }
            Action::Zero { node, offset, length, keep_size, hole } => {
                let what =
                    if *hole { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
                let keep = *keep_size || *hole;
                let keep = if keep { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                self.allocate(*node, what | keep, *offset, *length)
            }
            Action::Link { node, dir_entry } => self.link(*node, dir_entry),
            Action::Remove { dir_entry, .. } => {
                let path = self.path(dir_entry)?;
                match path.symlink_metadata()?.is_dir() {
                    true => fs::remove_dir(path),
                    false => fs::remove_file(path),
                }
            }
            Action::Rename { from, to, .. } => fs::rename(self.path(from)?, self.path(to)?),
            Action::Exchange { first_entry, second_entry, .. } => {
                let text = |path: PathBuf| CString::new(path.as_os_str().as_bytes());
                let (one, two) = (text(self.path(first_entry)?)?, text(self.path(second_entry)?)?);
                let (here, exchange) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
                // SAFETY: finished strings.
                done(unsafe {
                    libc::syscall(
                        libc::SYS_renameat2,
                        here,
                        one.as_ptr(),
                        here,
                        two.as_ptr(),
                        exchange,
                    )
                } as i32)
            }
            Action::Mode { node, mode } => match self.path_of(*node) {
                Ok(path) => fs::set_permissions(path, fs::Permissions::from_mode(*mode)),
                Err(_) => Ok(()),
            },
            Action::Attribute { node, name, value } => match self.path_of(*node) {
                Ok(path) => attribute(&path, name, value.as_deref()),
                Err(_) => Ok(()),
            },
            Action::Sync { node, data_only } => self.sync(*node, *data_only),
            Action::SyncPart { node, offset, length } => match self.file(*node)? {
                Some(file) => sync_part(file, *offset, *length),
                None => Ok(()),
            },
            Action::SyncRange { node, offset, length } => {
                let flags = libc::SYNC_FILE_RANGE_WRITE;
                self.on_file(*node, |fd| {
                    // SAFETY: an open descriptor and plain numbers.
                    unsafe { libc::sync_file_range(fd, *offset as i64, *length as i64, flags) }
                })
            }
            Action::SyncAll => {
                let directory = File::open(&self.root)?;
                // SAFETY: an open descriptor.
                done(unsafe { libc::syncfs(directory.as_raw_fd()) })
            }
            Action::Close { node } => {
                // An unnamed file would be deleted by closing it.
                if self.tree.path(*node).is_some() {
                    self.open.remove(node);
                }
                Ok(())
            }
        }
    }

    fn create(
        &mut self,
        node: Node,
        mode: u32,
        kind: &Kind,
        dir_entry: Option<&DirEntry>,
    ) -> io::Result<()> {
        let path = dir_entry.map(|dir_entry| self.path(dir_entry)).transpose()?;
        let set_mode = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        match (kind, path) {
            (Kind::Directory, Some(path)) => {
                fs::create_dir(&path)?;
                set_mode(&path)
            }
            (Kind::Symlink { target }, Some(path)) => symlink(target, path),
            (Kind::File, Some(path)) => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(mode)
                    .open(&path)?;
                self.open.insert(node, file);
                set_mode(&path)
            }
            (Kind::File, None) => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_TMPFILE)
                    .mode(mode)
                    .open(&self.root)?;
                self.open.insert(node, file);
                Ok(())
            }
            // Nodes from outside get their name later.
            (Kind::Directory | Kind::Symlink { .. }, None) => {
                Err(io::Error::other("a directory that was moved in cannot be made again"))
            }
        }
    }

    fn allocate(&mut self, node: Node, mode: i32, offset: u64, length: u64) -> io::Result<()> {
        // SAFETY: an open descriptor and plain numbers.
        self.on_file(node, |fd| unsafe { libc::fallocate(fd, mode, offset as i64, length as i64) })
    }

    fn link(&mut self, node: Node, dir_entry: &DirEntry) -> io::Result<()> {
        let to = self.path(dir_entry)?;
        if let Ok(from) = self.path_of(node) {
            return fs::hard_link(from, to);
        }
        let Some(file) = self.open.get(&node) else { return Ok(()) };
        let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let to = CString::new(to.as_os_str().as_bytes())?;
        let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: finished strings.
        done(unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) })
    }

    fn sync(&mut self, node: Node, data_only: bool) -> io::Result<()> {
        let directory = self.tree.file(node).is_none();
        if directory {
            let Ok(path) = self.path_of(node) else { return Ok(()) };
            let opened = File::open(path)?;
            return if data_only { opened.sync_data() } else { opened.sync_all() };
        }
        match self.file(node)? {
            Some(file) if data_only => file.sync_data(),
            Some(file) => file.sync_all(),
            None => Ok(()),
        }
    }
}

/// All of it in as few calls as possible, durable on return if requested.
fn write(file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<()> {
    let (mut at, mut rest) = (offset, data);
    while !rest.is_empty() {
        let vector = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        // SAFETY: the buffer lives as long as the call, and is only read.
        let written =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, at as i64, flags) };
        if written < 0 {
            return Err(io::Error::last_os_error());
        }
        rest = &rest[written as usize..];
        at += written as u64;
    }
    Ok(())
}

/// `msync` of a range, through a separate mapping.
fn sync_part(file: &File, offset: u64, length: u64) -> io::Result<()> {
    const PAGE: u64 = 4096;
    let start = offset / PAGE * PAGE;
    let length = (offset + length).div_ceil(PAGE) * PAGE - start;
    // SAFETY: a new mapping of an open file, removed again here; nothing reads it.
    unsafe {
        let fd = file.as_raw_fd();
        let (length, start) = (length as usize, start as i64);
        let mapped =
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, fd, start);
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let synced = done(libc::msync(mapped, length, libc::MS_SYNC));
        libc::munmap(mapped, length);
        synced
    }
}

fn attribute(path: &Path, name: &OsStr, value: Option<&[u8]>) -> io::Result<()> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name.as_bytes())?);
    // SAFETY: finished strings, and a value as long as we say.
    done(unsafe {
        match value {
            Some(value) => {
                let data = value.as_ptr().cast();
                libc::lsetxattr(path.as_ptr(), name.as_ptr(), data, value.len(), 0)
            }
            None => libc::lremovexattr(path.as_ptr(), name.as_ptr()),
        }
    })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use retake_crash::operation::Operation;

    use super::*;

    fn at(name: &str) -> DirEntry {
        DirEntry { directory: Node::ROOT, name: name.into() }
    }

    fn create(node: u64, kind: Kind, name: Option<&str>) -> Action {
        Action::Create { node: Node(node), mode: 0o755, kind, dir_entry: name.map(at) }
    }

    fn write(node: u64, offset: u64, text: &str, sync: WriteSync) -> Action {
        Action::Write {
            node: Node(node),
            offset,
            data: text.as_bytes().into(),
            sync,
            mapped: false,
        }
    }

    /// One of each, on open, closed and unnamed files.
    fn actions() -> Vec<Action> {
        let (one, two, three) = (Node(1), Node(2), Node(3));
        let symlink = Kind::Symlink { target: "a".into() };
        vec![
            create(1, Kind::File, Some("a.tmp")),
            write(1, 0, "hello world", WriteSync::None),
            Action::Sync { node: one, data_only: false },
            Action::Close { node: one },
            Action::Rename { node: one, from: at("a.tmp"), to: at("a"), replaced: None },
            Action::Sync { node: Node::ROOT, data_only: false },
            write(1, 6, "again", WriteSync::Data),
            create(2, Kind::Directory, Some("d")),
            Action::Link { node: one, dir_entry: DirEntry { directory: two, name: "link".into() } },
            create(3, Kind::File, None),
            write(3, 4090, "across pages", WriteSync::Full),
            Action::SyncPart { node: three, offset: 4000, length: 100 },
            Action::Link { node: three, dir_entry: at("named") },
            Action::Truncate { node: three, size: 4095 },
            Action::Allocate { node: three, offset: 0, length: 5000, keep_size: false },
            Action::SyncRange { node: three, offset: 0, length: 100 },
            create(4, symlink, Some("s")),
            Action::Exchange {
                first: one,
                first_entry: at("a"),
                second: three,
                second_entry: at("named"),
            },
            Action::Mode { node: one, mode: 0o600 },
            Action::Remove { node: Node(4), dir_entry: at("s") },
            create(5, Kind::File, Some("gone")),
            Action::Remove { node: Node(5), dir_entry: at("gone") },
            write(5, 0, "nobody sees it", WriteSync::None),
            Action::SyncAll,
        ]
    }

    #[test]
    fn a_replay_produces_the_recorded_tree() {
        for pushes in
            [Pushes::None, Pushes::CommitAtEnd, Pushes::WriteAndCommitAtEnd, Pushes::Random]
        {
            let directory = tempfile::tempdir().unwrap();
            let operation =
                |action| Entry::Operation(Operation { task: 1, call: String::new(), action });
            let entries: Vec<Entry> = actions().into_iter().map(operation).collect();
            let before = tempfile::tempdir().unwrap();
            let initial = retake_crash::recorder::tree_of(before.path()).unwrap();
            let mode = initial.walk().next().map_or(0o755, |root| root.mode);
            let initial = vec![retake_crash::operation::Initial {
                node: Node::ROOT,
                mode,
                dir_entries: Vec::new(),
                content: retake_crash::operation::Content::Directory,
            }];
            let recording = Recording {
                root: "/r".into(),
                initial,
                entries,
                stacks: Default::default(),
                left_running: Default::default(),
                outside: Default::default(),
                initial_is_copy: false,
            };
            let all = recording.entries.len() as u32;
            for operations in [all, 8, 0] {
                let replay = RealReplay::new(directory.path(), &recording).unwrap();
                let root = replay.run(&recording, operations, pushes, &mut Random(7)).unwrap();
                let mut expected = Tree::new(&recording.initial);
                for action in actions().iter().take(operations as usize) {
                    expected.apply(action);
                }
                let found = retake_crash::recorder::tree_of(&root).unwrap();
                assert_eq!(found.digest(), expected.digest(), "{operations} {pushes:?}");
            }
        }
    }
}
