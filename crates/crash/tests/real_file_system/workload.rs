//! Random operations on a real directory, and the recording of them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use retake_crash::operation::{
    Action, Content, DirEntry, Entry, Initial, Kind, Node, Operation, Recording, WriteSync,
};

use crate::disk::FileSystem;

/// A small generator: the same seed gives the same operations.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

pub(crate) struct Workload {
    root: PathBuf,
    noise: File,
    kind: FileSystem,
    random: Random,
    recording: Recording,
    count: u64,
    /// By path: node and, for files, an open descriptor.
    names: BTreeMap<String, (Node, Option<File>)>,
    /// How often the kernel was triggered, and how often at each file's last sync.
    pushes: u64,
    pushes_at_sync: BTreeMap<Node, u64>,
    /// Whether a replacement is synced first: see [`Workload::rename`].
    settle_replacements: bool,
    pub(crate) told: Vec<String>,
}

impl Workload {
    /// A directory with one file and one directory, all on disk.
    pub(crate) fn new(
        mount_point: &Path,
        kind: FileSystem,
        seed: u64,
        settle_replacements: bool,
    ) -> io::Result<Self> {
        let root = mount_point.join("root");
        if root.exists() {
            fs::remove_dir_all(&root)?;
        }
        fs::create_dir(&root)?;
        let noise = OpenOptions::new().create(true).append(true).open(mount_point.join("noise"))?;
        let mut random = Random(seed | 1);
        (0..20).for_each(|_| {
            random.below(2);
        });
        let mut workload = Self {
            recording: Recording {
                root: root.clone(),
                initial: Vec::new(),
                entries: Vec::new(),
                stacks: Default::default(),
                left_running: Default::default(),
                outside: Default::default(),
                initial_is_copy: false,
            },
            root,
            noise,
            kind,
            random,
            count: 0,
            names: BTreeMap::new(),
            pushes: 0,
            pushes_at_sync: BTreeMap::new(),
            settle_replacements,
            told: Vec::new(),
        };
        let mode = fs::metadata(&workload.root)?.mode() & 0o7777;
        workload.recording.initial.push(Initial {
            node: Node::ROOT,
            mode,
            dir_entries: Vec::new(),
            content: Content::Directory,
        });
        fs::create_dir(workload.root.join("d"))?;
        workload.initial("d", Content::Directory, None)?;
        for name in ["a", "b"] {
            let size = workload.random.below(6000);
            let data = vec![b'0'; size as usize];
            fs::write(workload.root.join(name), &data)?;
            let file = workload.open(name)?;
            let content = Content::File { size, extents: vec![(0, data.into())] };
            workload.initial(name, content, Some(file))?;
        }
        // SAFETY: no arguments.
        unsafe { libc::sync() };
        Ok(workload)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.root.join(name))
    }

    fn initial(&mut self, name: &str, content: Content, file: Option<File>) -> io::Result<()> {
        let mode = fs::metadata(self.root.join(name))?.mode() & 0o7777;
        self.count += 1;
        let node = Node(self.count);
        let dir_entries = vec![self.dir_entry(name)];
        self.recording.initial.push(Initial { node, mode, dir_entries, content });
        self.names.insert(name.to_owned(), (node, file));
        Ok(())
    }

    fn dir_entry(&self, path: &str) -> DirEntry {
        match path.rsplit_once('/') {
            Some((parent, name)) => DirEntry { directory: self.names[parent].0, name: name.into() },
            None => DirEntry { directory: Node::ROOT, name: path.into() },
        }
    }

    fn record(&mut self, told: String, action: Action) {
        self.told.push(told.clone());
        self.recording.entries.push(Entry::Operation(Operation { task: 1, call: told, action }));
    }

    pub(crate) fn recording(&self) -> Recording {
        self.recording.clone()
    }

    fn pick_file(&mut self) -> Option<(String, Node)> {
        let files: Vec<_> = self
            .names
            .iter()
            .filter(|(_, (_, file))| file.is_some())
            .map(|(name, (node, _))| (name.clone(), *node))
            .collect();
        let count = files.len() as u64;
        (count > 0).then(|| files[self.random.below(count) as usize].clone())
    }

    fn file(&self, name: &str) -> &File {
        self.names[name].1.as_ref().expect("files are open")
    }

    fn fresh_name(&mut self) -> String {
        let names = ["a", "b", "c", "t", "d/a", "d/x"];
        names[self.random.below(names.len() as u64) as usize].to_owned()
    }

    /// One operation, sometimes followed by a trigger for the kernel.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        match self.random.below(21) {
            0..2 => self.create()?,
            2..8 => self.write(WriteSync::None)?,
            8 => self.write(WriteSync::Data)?,
            9 => self.truncate()?,
            10..12 => self.rename()?,
            12 => self.remove()?,
            13 => self.link()?,
            14 => self.rewrite()?,
            15..17 => self.sync()?,
            17 => self.sync_directory()?,
            18 => self.allocate()?,
            19 => self.zero()?,
            _ => self.mode()?,
        }
        self.push()
    }

    /// What the kernel may do at any time anyway: write pages back, commit.
    fn push(&mut self) -> io::Result<()> {
        if self.random.below(4) == 0
            && let Some((name, _)) = self.pick_file()
        {
            let page = self.random.below(3) * 4096;
            let wait = self.random.below(2) == 0;
            let flags = match wait {
                true => libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER,
                false => libc::SYNC_FILE_RANGE_WRITE,
            };
            let file = self.file(&name).as_raw_fd();
            // SAFETY: the descriptor is open.
            unsafe { libc::sync_file_range(file, page as i64, 4096, flags) };
            self.pushes += 1;
            self.told.push(format!("(write back {name} {page}, wait {wait})"));
        }
        if self.random.below(6) == 0 {
            self.noise.write_all_at(b"n", 0).or_else(|_| self.noise.set_len(0))?;
            self.kind.commit(&self.noise)?;
            self.pushes += 1;
            self.told.push("(commit)".to_owned());
        }
        Ok(())
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.fresh_name();
        if self.names.contains_key(&name) {
            return Ok(());
        }
        let path = self.root.join(&name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let mode = file.metadata()?.mode() & 0o7777;
        self.count += 1;
        let node = Node(self.count);
        let dir_entry = Some(self.dir_entry(&name));
        self.names.insert(name.clone(), (node, Some(file)));
        self.record(
            format!("create {name}"),
            Action::Create { node, mode, kind: Kind::File, dir_entry },
        );
        Ok(())
    }

    /// Inside one page, and not past the end: the unit that the model distinguishes.
    fn write(&mut self, sync: WriteSync) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let size = self.file(&name).metadata()?.len();
        let offset = if self.random.below(2) == 0 { size } else { self.random.below(size + 1) };
        let room = 4096 - offset % 4096;
        let length = match self.random.below(3) {
            0 => room,
            1 => room.min(1 + self.random.below(40)),
            _ => 1 + self.random.below(room),
        };
        let letter = b'A' + (self.recording.entries.len() % 26) as u8;
        let data = vec![letter; length as usize];
        match sync {
            WriteSync::None => self.file(&name).write_all_at(&data, offset)?,
            _ => {
                let path = self.root.join(&name);
                let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path)?;
                file.write_all_at(&data, offset)?;
            }
        }
        let told = format!("write {name} {offset}+{length} {sync:?}");
        let data = data.into();
        self.record(told, Action::Write { node, offset, data, sync, mapped: false });
        if sync != WriteSync::None {
            self.record(format!("close {name}"), Action::Close { node });
        }
        Ok(())
    }

    fn truncate(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let size = if self.random.below(3) == 0 { 0 } else { self.random.below(9000) };
        self.file(&name).set_len(size)?;
        self.record(format!("truncate {name} {size}"), Action::Truncate { node, size });
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let path = self.root.join(&name);
        let file = OpenOptions::new().write(true).truncate(true).open(path)?;
        self.record(format!("truncate {name} 0"), Action::Truncate { node, size: 0 });
        let data = vec![b'r'; 1 + self.random.below(4000) as usize];
        file.write_all_at(&data, 0)?;
        let action = Action::Write {
            node,
            offset: 0,
            data: data.into(),
            sync: WriteSync::None,
            mapped: false,
        };
        self.record(format!("write {name} 0"), action);
        drop(file);
        self.record(format!("close {name}"), Action::Close { node });
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let Some((from, node)) = self.pick_file() else { return Ok(()) };
        let to = self.fresh_name();
        let replaced = self.names.get(&to).map(|(node, _)| *node);
        if from == to || replaced == Some(node) {
            return Ok(());
        }
        let settle = self.settle_replacements && replaced.is_some();
        if settle && self.pushes_at_sync.get(&node) != Some(&self.pushes) {
            // Bytes in a block that was already written back are not flushed by the rename. If a
            // commit waits for bytes the profile assumes that they are: it does not expect a
            // write-back in the middle of a replacement.
            self.sync_file(&from, node, false)?;
        }
        fs::rename(self.root.join(&from), self.root.join(&to))?;
        let action =
            Action::Rename { node, from: self.dir_entry(&from), to: self.dir_entry(&to), replaced };
        if let Some(entry) = self.names.remove(&from) {
            self.names.insert(to.clone(), entry);
        }
        self.record(format!("rename {from} {to}"), action);
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        fs::remove_file(self.root.join(&name))?;
        let dir_entry = self.dir_entry(&name);
        self.names.remove(&name);
        self.record(format!("remove {name}"), Action::Remove { node, dir_entry });
        Ok(())
    }

    fn link(&mut self) -> io::Result<()> {
        let Some((from, node)) = self.pick_file() else { return Ok(()) };
        let to = self.fresh_name();
        if self.names.contains_key(&to) {
            return Ok(());
        }
        fs::hard_link(self.root.join(&from), self.root.join(&to))?;
        let file = self.open(&to)?;
        let dir_entry = self.dir_entry(&to);
        self.names.insert(to.clone(), (node, Some(file)));
        self.record(format!("link {from} {to}"), Action::Link { node, dir_entry });
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let data_only = self.random.below(2) == 0;
        self.sync_file(&name, node, data_only)
    }

    fn sync_file(&mut self, name: &str, node: Node, data_only: bool) -> io::Result<()> {
        match data_only {
            true => self.file(name).sync_data()?,
            false => self.file(name).sync_all()?,
        }
        self.pushes_at_sync.insert(node, self.pushes);
        self.record(format!("sync {name} {data_only}"), Action::Sync { node, data_only });
        Ok(())
    }

    /// A hole, or zeros.
    fn zero(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let (offset, length) = (self.random.below(6000), 1 + self.random.below(6000));
        let file = self.file(&name).as_raw_fd();
        let (flags, keep_size, hole) = match self.random.below(4) {
            0 => (libc::FALLOC_FL_ZERO_RANGE, false, false),
            1 => (libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, true, false),
            _ => (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, true, true),
        };
        // SAFETY: the descriptor is open.
        if unsafe { libc::fallocate(file, flags, offset as i64, length as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let action = Action::Zero { node, offset, length, keep_size, hole };
        let what = if hole { "hole" } else { "zeros" };
        self.record(format!("{what} {name} {offset}+{length} keep {keep_size}"), action);
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let (name, node) = match self.random.below(2) {
            0 => ("", Node::ROOT),
            _ => ("d", self.names["d"].0),
        };
        let data_only = self.random.below(3) == 0;
        let directory = File::open(self.root.join(name))?;
        match data_only {
            true => directory.sync_data()?,
            false => directory.sync_all()?,
        }
        self.record(
            format!("sync directory {name:?} {data_only}"),
            Action::Sync { node, data_only },
        );
        Ok(())
    }

    fn allocate(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let (offset, length) = (self.random.below(6000), 1 + self.random.below(6000));
        let file = self.file(&name).as_raw_fd();
        let keep_size = self.random.below(3) == 0;
        let flags = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        // SAFETY: the descriptor is open.
        if unsafe { libc::fallocate(file, flags, offset as i64, length as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let action = Action::Allocate { node, offset, length, keep_size };
        self.record(format!("allocate {name} {offset}+{length} keep {keep_size}"), action);
        Ok(())
    }

    fn mode(&mut self) -> io::Result<()> {
        let Some((name, node)) = self.pick_file() else { return Ok(()) };
        let mode = 0o600 | self.random.below(0o100) as u32;
        fs::set_permissions(self.root.join(&name), fs::Permissions::from_mode(mode))?;
        self.record(format!("mode {name} {mode:o}"), Action::Mode { node, mode });
        Ok(())
    }
}

/// The content of the disk, as an initial state.
pub(crate) fn read(root: &Path) -> io::Result<Vec<Initial>> {
    let mut nodes: BTreeMap<u64, usize> = BTreeMap::new();
    let mut found: Vec<Initial> = Vec::new();
    let mut open = vec![(root.to_owned(), None)];
    while let Some((path, dir_entry)) = open.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        if let Some(known) = nodes.get(&metadata.ino()) {
            found[*known].dir_entries.extend(dir_entry);
            continue;
        }
        let node = Node(found.len() as u64);
        nodes.insert(metadata.ino(), found.len());
        let content = if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                open.push((
                    entry.path(),
                    Some(DirEntry { directory: node, name: entry.file_name() }),
                ));
            }
            Content::Directory
        } else {
            let data = fs::read(&path)?;
            Content::File { size: data.len() as u64, extents: vec![(0, data.into())] }
        };
        let mode = metadata.mode() & 0o7777;
        found.push(Initial { node, mode, dir_entries: dir_entry.into_iter().collect(), content });
    }
    Ok(found)
}

/// Whether it is on such a file system: a guard against testing the wrong one.
pub(crate) fn is_on(path: &Path, kind: FileSystem) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all zeros is a valid statfs, and the path ends in NUL.
    unsafe {
        let mut status: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &mut status) == 0 && status.f_type == kind.magic()
    }
}
