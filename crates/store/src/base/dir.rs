//! The store directory: the paths of its files, and whether its file system can hold a record.
//!
//! Nothing here opens the database.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use retake_types::{RunId, Stream};

use crate::{Error, Result};

/// Present in every store, with the content `*`.
pub(crate) const IGNORE_FILE: &str = ".gitignore";

/// The paths of one store.
#[derive(Clone, Debug)]
pub(crate) struct StoreDir {
    root: PathBuf,
    database: PathBuf,
}

impl StoreDir {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), database: root.join("retake.db") }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// The same store with its database under the name it has until complete.
    pub(crate) fn unfinished(&self) -> Self {
        Self { root: self.root.clone(), database: self.root.join("new.db") }
    }

    pub(crate) fn wal(&self) -> PathBuf {
        self.beside_database("-wal")
    }

    pub(crate) fn beside_database(&self, suffix: &str) -> PathBuf {
        let mut name = self.database.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    pub(crate) fn write_lock(&self) -> PathBuf {
        self.root.join("write.lock")
    }

    pub(crate) fn live_dir(&self) -> PathBuf {
        self.root.join("live")
    }

    /// Empty spare files for a disk on which no file can be created.
    pub(crate) fn spare_dir(&self) -> PathBuf {
        self.root.join("spare")
    }

    pub(crate) fn live(&self, id: RunId) -> PathBuf {
        self.root.join(format!("live/{id}"))
    }

    /// Has one marker file per run on another machine.
    pub(crate) fn remote_runs_dir(&self) -> PathBuf {
        self.root.join("away")
    }

    pub(crate) fn remote_run(&self, id: RunId) -> PathBuf {
        self.root.join(format!("away/{id}"))
    }

    /// Whether a run was sent to another machine and has no outcome yet.
    pub(crate) fn is_remote_run(&self, id: RunId) -> bool {
        self.remote_run(id).exists()
    }

    pub(crate) fn spool_dir(&self) -> PathBuf {
        self.root.join("spool")
    }

    pub(crate) fn spool(&self, id: RunId, stream: Stream) -> PathBuf {
        self.root.join(format!("spool/{id}.{}", stream.as_str()))
    }

    pub(crate) fn chunks(&self, id: RunId) -> PathBuf {
        self.root.join(format!("spool/{id}.chunks"))
    }

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.root.join("output")
    }

    pub(crate) fn output(&self, hash: &blake3::Hash) -> PathBuf {
        let hex = hash.to_hex();
        self.root.join(format!("output/{}/{}.zst", &hex[..2], &hex[2..]))
    }

    /// Whether a database exists. One that may not be examined belongs to another user and is an
    /// error.
    pub(crate) fn has_database(&self) -> Result<bool> {
        match fs::metadata(&self.database) {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(self.not_ours(error))
            }
            Err(error) => Err(Error::io("look at", &self.database, error)),
        }
    }

    /// Names the owner of the deepest accessible directory, which blocks the access.
    fn not_ours(&self, error: io::Error) -> Error {
        // SAFETY: geteuid only reads the process's credentials and cannot fail.
        let user = unsafe { libc::geteuid() };
        let in_the_way =
            self.root.ancestors().find_map(|path| Some((path, fs::metadata(path).ok()?)));
        match in_the_way {
            Some((path, metadata)) if metadata.uid() != user => {
                Error::ForeignOwner { path: path.to_owned(), owner: metadata.uid(), user }
            }
            _ => Error::io("look at", &self.database, error),
        }
    }

    /// Creates the directory if it is missing, and refuses an unsuitable file system.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.prepare_beside()? {
            self.ignore_all()?;
        }
        Ok(())
    }

    /// The same for a directory that holds more than a store. Returns whether it was missing.
    pub(crate) fn prepare_beside(&self) -> Result<bool> {
        let missing: Vec<&Path> = self.root.ancestors().take_while(|path| !path.exists()).collect();
        match DirBuilder::new().recursive(true).mode(0o700).create(&self.root) {
            Ok(()) => {}
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Io {
                    action: "use as a directory",
                    path: self.root.clone(),
                    source,
                });
            }
            Err(source) => return Err(not_writable(&self.root, source)),
        }
        for made in &missing {
            sync_name(made)?;
        }
        self.check_filesystem()?;
        Ok(!missing.is_empty())
    }

    /// Keeps the record out of a surrounding git repository, this file included.
    pub(crate) fn ignore_all(&self) -> Result<()> {
        let path = self.root.join(IGNORE_FILE);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(b"*\n"));
        match written {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(not_writable(&path, error))
            }
            _ => Ok(()),
        }
    }

    /// Refuses network file systems and a store of another user.
    pub(crate) fn check_filesystem(&self) -> Result<()> {
        if let Some(kind) = network_filesystem(&self.root)? {
            return Err(Error::NetworkFilesystem { path: self.root.clone(), kind });
        }
        Ok(())
    }

    /// The database must belong to the user or root: another owner could have forged its content,
    /// and root would leave files in another user's store that the user cannot access.
    pub(crate) fn check_owner(&self) -> Result<()> {
        // SAFETY: geteuid only reads the process's credentials and cannot fail.
        let user = unsafe { libc::geteuid() };
        let metadata = match fs::metadata(&self.database) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("look at", &self.database, error)),
        };
        if metadata.uid() != user && metadata.uid() != 0 {
            return Err(Error::ForeignOwner {
                path: self.database.clone(),
                owner: metadata.uid(),
                user,
            });
        }
        Ok(())
    }

    /// Creates a subdirectory; an existing directory is fine.
    pub(crate) fn make(&self, path: &Path) -> Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => sync_name(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(Error::io("make the directory", path, error)),
        }
    }

    /// Opens a file for appending; creates its directory only if opening fails without it.
    pub(crate) fn create_private(&self, path: &Path) -> Result<File> {
        let open = || {
            OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
        };
        match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.root.is_dir() => {
                if let Some(parent) = path.parent() {
                    self.make(parent)?;
                }
                open().map_err(|error| Error::io("create", path, error))
            }
            other => other.map_err(|error| Error::io("create", path, error)),
        }
    }
}

/// Opens a regular file for reading. Anything else, such as a FIFO without a writer, is an error
/// instead of a hang.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    Ok(file)
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", path, error)),
    }
}

/// Makes a creation or removal in a directory survive a power loss.
pub(crate) fn sync_dir(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io("sync the directory", path, error))
}

/// Makes a newly created directory survive a power loss: its content is lost without its name.
fn sync_name(made: &Path) -> Result<()> {
    let parent = match made.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    match sync_dir(parent) {
        // Only its owner can sync a directory that is writable but not readable.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

pub(crate) fn not_writable(path: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::NotWritable { path: path.to_owned(), source }
        }
        _ => Error::io("create", path, source),
    }
}

fn statfs(path: &Path) -> Result<libc::statfs> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| Error::io("look at", path, io::Error::other(error)))?;
    let mut stats = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `name` is NUL-terminated and `stats` is writable for the whole struct.
    if unsafe { libc::statfs(name.as_ptr(), stats.as_mut_ptr()) } != 0 {
        return Err(Error::io("look at", path, io::Error::last_os_error()));
    }
    // SAFETY: statfs returned 0, so it filled the struct.
    Ok(unsafe { stats.assume_init() })
}

/// Bytes that an unprivileged user can still write.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    let stats = statfs(path)?;
    Ok(stats.f_bavail.saturating_mul(u64::try_from(stats.f_bsize).unwrap_or(0)))
}

/// Whether not even a small file can be created. On copy-on-write file systems the reported free
/// bytes do not tell; and XFS may have room for an unnamed file but not for a named one.
pub(crate) fn is_full(path: &Path) -> bool {
    let probe = path.join(format!("room-{}", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW)
        .mode(0o600)
        .open(&probe);
    let written = file.and_then(|mut file| {
        let written = file.write_all(&[1; 4096]);
        fs::remove_file(&probe)?;
        written
    });
    written.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)))
}

/// Whether a new file takes extra space, as on XFS, which allocates inodes on demand.
pub(crate) fn makes_inodes(path: &Path) -> bool {
    const XFS: i64 = 0x5846_5342;
    statfs(path).is_ok_and(|stats| stats.f_type == XFS)
}

/// Whether this is btrfs, where copy-on-write can be turned off.
pub(crate) fn copies_on_write(path: &Path) -> bool {
    const BTRFS: i64 = 0x9123_683E;
    statfs(path).is_ok_and(|stats| stats.f_type == BTRFS)
}

/// Size of a WAL index.
const WAL_INDEX: u64 = 32 * 1024;

/// Whether there is no room to map the index of the WAL, or mapping it could end in SIGBUS: SQLite
/// allocates one block of each page; with blocks smaller than pages, the rest is allocated on first
/// access.
pub(crate) fn cannot_map_wal_index(dir: &StoreDir) -> bool {
    const PAGE: u64 = 4096;
    let Ok(stats) = statfs(dir.root()) else { return false };
    let block = u64::try_from(stats.f_bsize).unwrap_or(PAGE);
    let full = stats.f_bavail.saturating_mul(block) < 3 * WAL_INDEX;
    full && (block < PAGE || !has_allocated_wal_index(dir))
}

/// Whether all blocks of the WAL's index are allocated, so that accessing it needs no space.
pub(crate) fn has_allocated_wal_index(dir: &StoreDir) -> bool {
    let index = dir.beside_database("-shm").metadata();
    index.is_ok_and(|index| index.len() >= WAL_INDEX && index.blocks() * 512 >= index.len())
}

/// WAL needs memory shared by all readers, which these file systems do not provide across machines.
/// FUSE is refused only if known to be remote: local overlay and encrypted ones work.
fn network_filesystem(path: &Path) -> Result<Option<&'static str>> {
    const FUSE: i64 = 0x6573_5546;
    Ok(match statfs(path)?.f_type {
        0x6969 => Some("NFS"),
        0x517B => Some("SMB"),
        0xFF53_4D42 => Some("CIFS"),
        0xFE53_4D42 => Some("SMB2"),
        0x0102_1997 => Some("9p"),
        0x5346_414F => Some("AFS"),
        0x0BD0_0BD0 => Some("Lustre"),
        0x00C3_6400 => Some("Ceph"),
        0x4750_4653 => Some("GPFS"),
        0x7375_7245 => Some("Coda"),
        FUSE => remote_fuse(path),
        _ => None,
    })
}

fn remote_fuse(path: &Path) -> Option<&'static str> {
    let path = fs::canonicalize(path).ok()?; // a path that cannot be resolved fails to open anyway
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?; // no /proc: cannot tell, so allow
    let filesystem = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (mount, filesystem) = (words.nth(1)?, words.next()?);
            path.starts_with(mount).then_some((mount.len(), filesystem))
        })
        .max_by_key(|&(length, _)| length)?
        .1;
    ["fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.rclone", "fuse.gcsfuse", "fuse.davfs"]
        .into_iter()
        .find(|remote| filesystem.starts_with(remote))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_directory_is_accepted_and_has_free_space() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(network_filesystem(dir.path()).unwrap(), None);
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }

    #[test]
    fn a_file_in_place_of_the_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        fs::write(&path, b"x").unwrap();
        let message = StoreDir::new(&path).prepare().unwrap_err().to_string();
        assert!(message.contains("store") && message.contains("directory"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}
